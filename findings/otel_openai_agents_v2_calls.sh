#!/usr/bin/env bash
# Packages:  opentelemetry-instrumentation-openai-agents-v2 0.1.0 with openai-agents 0.24.0 and openai 3.57.0 (2026-11-30)
# Input:     an agent with one tool, over the Responses API and over the Chat Completions API, against a server on the
#            loopback interface. The model calls the tool, and then answers. Contents are recorded.
# Expected:  gen_ai.output.messages of the first model call holds a part of the type tool_call, and
#            gen_ai.input.messages of the second one the call and a part tool_call_response, for both APIs.
# Observed:  in the output, the call is a part of the type text: the repr of a Python object of the SDK, or of a dict. Over
#            the Responses API, the SDK's default, the input of the second model call holds the question alone, so no
#            message of the trace holds the call or its result. Over Chat Completions the input holds both, and the
#            result twice, as a text and as a tool_call_response. The span of the tool has arguments and result, but no
#            gen_ai.tool.call.id.
# Source:    opentelemetry/instrumentation/openai_agents/span_processor.py, which normalizes input items with a role and
#            turns others into texts.
# Matters:   a reader of messages sees an agent that never called a tool and answers from nowhere. A judge of the output
#            messages reads Python code as what the agent said. Take the calls from the spans of the tools, in the order
#            of their start.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PIP_DISABLE_PIP_VERSION_CHECK=1
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet opentelemetry-instrumentation-openai-agents-v2==0.1.0 \
    openai-agents==0.24.0 openai==3.57.0 opentelemetry-sdk==1.45.1 opentelemetry-util-genai==1.3b0
cd "$work"
unset HTTP_PROXY HTTPS_PROXY ALL_PROXY http_proxy https_proxy all_proxy OPENAI_API_KEY OPENAI_BASE_URL
export OTEL_SEMCONV_STABILITY_OPT_IN=gen_ai_latest_experimental OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT=span_only
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

from opentelemetry.instrumentation.openai_agents import OpenAIAgentsInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
OpenAIAgentsInstrumentor().instrument(tracer_provider=provider)

from agents import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool  # noqa: E402
from openai import AsyncOpenAI  # noqa: E402

FUNCTION = {"name": "find_order", "arguments": json.dumps({"order": "7"})}


def respond(request):
    text = {"type": "output_text", "text": "Order 7 is open.", "annotations": []}
    message = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [text]}
    call = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "status": "completed", **FUNCTION}
    is_last = "function_call_output" in json.dumps(request["input"])
    return {"id": "resp_1", "object": "response", "created_at": 1, "status": "completed", "model": "any", "tools": [],
            "output": [message if is_last else call], "tool_choice": "auto", "parallel_tool_calls": True}  # fmt: skip


def complete(request):
    call = {"id": "call_1", "type": "function", "function": FUNCTION}
    is_last = request["messages"][-1]["role"] == "tool"
    message = {"role": "assistant", "content": "Order 7 is open." if is_last else None}
    message |= {} if is_last else {"tool_calls": [call]}
    choice = {"index": 0, "message": message, "finish_reason": "stop" if is_last else "tool_calls"}
    return {"id": "c", "object": "chat.completion", "created": 1, "model": "any", "choices": [choice]}


class Models(BaseHTTPRequestHandler):
    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        body = json.dumps((respond if self.path.endswith("/responses") else complete)(request)).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


@function_tool
def find_order(order: str) -> str:
    """Find an order."""
    return "open"


def kinds(span, side):
    messages = json.loads(span.attributes[f"gen_ai.{side}.messages"])
    return [f"{message['role']}: {part['type']}" for message in messages for part in message["parts"]]


server = HTTPServer(("127.0.0.1", 0), Models)
threading.Thread(target=server.serve_forever, daemon=True).start()
client = AsyncOpenAI(api_key="any", base_url=f"http://127.0.0.1:{server.server_port}")
seen = {}
for kind in (OpenAIResponsesModel, OpenAIChatCompletionsModel):
    exporter.clear()
    answer = Runner.run_sync(Agent("desk", model=kind("any", client), tools=[find_order]), "Is order 7 open?").final_output
    spans = sorted(exporter.get_finished_spans(), key=lambda span: span.start_time)
    first, second = (span for span in spans if span.attributes.get("gen_ai.operation.name") == "chat")
    (tool,) = (span for span in spans if span.attributes.get("gen_ai.operation.name") == "execute_tool")
    (part,) = json.loads(first.attributes["gen_ai.output.messages"])[0]["parts"]
    print(f"{kind.__name__}: first output {part}")
    print(f"   second input {second.attributes['gen_ai.input.messages']}")
    is_repr = part["type"] == "text" and "find_order" in part["content"]
    identity = tool.attributes.get("gen_ai.tool.call.id")
    seen[kind.__name__] = answer, is_repr, kinds(second, "input"), tool.attributes["gen_ai.tool.call.result"], identity
results = ["user: text", "assistant: tool_call", "tool: text", "tool: tool_call_response"]
expected = {
    "OpenAIResponsesModel": ("Order 7 is open.", True, ["user: text"], "open", None),
    "OpenAIChatCompletionsModel": ("Order 7 is open.", True, results, "open", None),
}
sys.exit(0 if seen == expected else "changed: the spans differ from the description above")
PYTHON
