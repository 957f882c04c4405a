#!/usr/bin/env bash
# Packages:  opentelemetry-instrumentation-openai-agents 0.62.4 with openai-agents 0.24.0 and openai 3.57.0 (2026-11-28)
# Input:     a run of two agents against a server on the loopback interface. In the first response the model makes two
#            parallel tool calls; in the second it hands the conversation over to the other agent, which answers.
# Expected:  in the messages of a span a tool's response has the id of its call, a call has the same id as an output and
#            in the next span's input, and the handoff's span names both agents.
# Observed:  a call has its call id in the output messages of the span that makes it, but the id of the response's item
#            in the input messages of the later spans, where the tool's response has the call id. So no response in the
#            input messages refers to a call in them. The two parallel calls are two messages of the assistant. The
#            handoff's span is named "desk → unknown.handoff" and lacks the target.
# Source:    opentelemetry/instrumentation/openai_agents/_hooks.py: _convert_agents_sdk_message (takes "id"), the loop
#            over response.output (takes call_id), and _start_handoff_span, which reads the target at the start of the
#            span; the SDK sets it later.
# Matters:   a reader that joins results with calls by id finds calls without results and results without calls, and one
#            that merges spans by their messages sees each call twice. Join by the order of the messages instead.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PIP_DISABLE_PIP_VERSION_CHECK=1
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet opentelemetry-instrumentation-openai-agents==0.62.4 \
    openai-agents==0.24.0 openai==3.57.0 opentelemetry-sdk==1.45.2
cd "$work"
unset HTTP_PROXY HTTPS_PROXY ALL_PROXY http_proxy https_proxy all_proxy OPENAI_API_KEY
"$work/venv/bin/python" - <<'PYTHON'
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

from agents import Agent, OpenAIResponsesModel, Runner, function_tool  # noqa: E402
from openai import AsyncOpenAI  # noqa: E402


def call(n, name, arguments):
    return {"type": "function_call", "id": f"item_{n}", "call_id": f"call_{n}", "name": name,
            "arguments": json.dumps(arguments), "status": "completed"}  # fmt: skip


def message(text):
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [part]}


OUTPUTS = [
    [call(1, "find_order", {"order": "7"}), call(2, "find_order", {"order": "8"})],
    [call(3, "transfer_to_helper", {})],
    [message("Both orders are open.")],
]


class Responses(BaseHTTPRequestHandler):
    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        answer = {"id": "resp_1", "object": "response", "created_at": 1, "status": "completed", "model": "any",
                  "instructions": request.get("instructions"), "output": OUTPUTS.pop(0), "tools": [],
                  "tool_choice": "auto", "parallel_tool_calls": True}  # fmt: skip
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


@function_tool
def find_order(order: str) -> str:
    return f"order {order} is open"


server = HTTPServer(("127.0.0.1", 0), Responses)
threading.Thread(target=server.serve_forever, daemon=True).start()
client = AsyncOpenAI(api_key="any", base_url=f"http://127.0.0.1:{server.server_port}")
model = OpenAIResponsesModel("any", client)
helper = Agent(name="helper", instructions="Answer.", model=model)
desk = Agent(name="desk", instructions="Find the orders.", model=model, tools=[find_order], handoffs=[helper])
answer = Runner.run_sync(desk, "Are orders 7 and 8 open?").final_output


def ids(span, key, kind):
    messages = json.loads(span.attributes[f"gen_ai.{key}.messages"])
    found = [[part["id"] for part in message["parts"] if part["type"] == kind] for message in messages]
    return [message_ids for message_ids in found if message_ids]


spans = sorted(exporter.get_finished_spans(), key=lambda span: span.start_time)
first, second, _ = (span for span in spans if span.name == "openai.response")
(handoff,) = (span for span in spans if span.name.endswith(".handoff"))
seen = {
    "calls in the first output": ids(first, "output", "tool_call"),
    "calls in the second input": ids(second, "input", "tool_call"),
    "responses in the second input": ids(second, "input", "tool_call_response"),
    "handoff": handoff.name,
    "agents that it names": [value for key, value in handoff.attributes.items() if "handoff." in key],
}
print(answer)
print(*(f"{key}: {value}" for key, value in seen.items()), sep="\n")
unchanged = answer == "Both orders are open." and seen == {
    "calls in the first output": [["call_1"], ["call_2"]],
    "calls in the second input": [["item_1"], ["item_2"]],
    "responses in the second input": [["call_1"], ["call_2"]],
    "handoff": "desk → unknown.handoff",
    "agents that it names": ["desk"],
}
sys.exit(0 if unchanged else "changed: the spans differ from the description above")
PYTHON
