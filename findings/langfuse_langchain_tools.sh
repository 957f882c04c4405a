#!/usr/bin/env bash
# Packages:  langfuse 5.0.4 with langchain-core 1.8.3, langchain-openai 1.7.4 and openai 3.57.0 (2026-11-30)
# Input:     a chat model of LangChain with two bound tools, called through the callback handler of Langfuse, against a
#            server on the loopback interface. The messages are a question, a call of a tool, and its result.
# Expected:  the input of the recorded generation holds these three messages, and the role "tool" names results, as in
#            OpenAI's and LangChain's messages.
# Observed:  the input holds five messages. The last two have the role "tool", no id of a call, and the definition of a
#            bound tool as their content. They stand after the newest message, and in each generation again.
# Source:    langfuse/langchain/CallbackHandler.py, where the tools of the call's parameters extend the prompts.
# Matters:   a reader takes the definitions for the newest results. The input of a generation is no beginning of the next
#            one's input, so the generations of a conversation cannot be joined by their messages, and a message count
#            grows with the tools. A judge of the trace reads schemas as what the tools returned. Drop messages with the
#            role "tool" without tool_call_id.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PIP_DISABLE_PIP_VERSION_CHECK=1
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet langfuse==5.0.4 langchain==1.5.2 langchain-openai==1.7.4 \
    langchain-core==1.8.3 openai==3.57.0
cd "$work"
unset HTTP_PROXY HTTPS_PROXY ALL_PROXY http_proxy https_proxy all_proxy OPENAI_API_KEY OPENAI_BASE_URL
export LANGSMITH_TRACING=false
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI
from langfuse import Langfuse
from langfuse.langchain import CallbackHandler
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


class Completions(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        choice = {"index": 0, "message": {"role": "assistant", "content": "It is open."}, "finish_reason": "stop"}
        answer = {"id": "c", "object": "chat.completion", "created": 1, "model": "any", "choices": [choice]}
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


def find_order(order: str) -> str:
    """Find an order."""


def cancel_order(order: str) -> str:
    """Cancel an order."""


server = HTTPServer(("127.0.0.1", 0), Completions)
threading.Thread(target=server.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{server.server_port}"
exporter = InMemorySpanExporter()
langfuse = Langfuse(public_key="pk-lf-any", secret_key="sk-lf-any", base_url=url, span_exporter=exporter)
model = ChatOpenAI(model="any", api_key="any", base_url=url).bind_tools([find_order, cancel_order])
call = {"name": "find_order", "args": {"order": "7"}, "id": "call_1"}
messages = [
    HumanMessage("What is the state of order 7?"),
    AIMessage("", tool_calls=[call]),
    ToolMessage("open", tool_call_id="call_1"),
]
answer = model.invoke(messages, config={"callbacks": [CallbackHandler()]})
langfuse.flush()
(recorded,) = (
    json.loads(span.attributes["langfuse.observation.input"])
    for span in exporter.get_finished_spans()
    if span.attributes["langfuse.observation.type"] == "generation"
)
print(*map(json.dumps, recorded), sep="\n")
seen = [
    (message["role"], message.get("tool_call_id"), message["content"]["function"]["name"])
    if isinstance(message["content"], dict)
    else (message["role"], message.get("tool_call_id"), message["content"])
    for message in recorded
]
expected = [
    ("user", None, "What is the state of order 7?"),
    ("assistant", None, ""),
    ("tool", "call_1", "open"),
    ("tool", None, "find_order"),
    ("tool", None, "cancel_order"),
]
unchanged = answer.content == "It is open." and seen == expected
sys.exit(0 if unchanged else "changed: the recorded messages differ from the description above")
PYTHON
