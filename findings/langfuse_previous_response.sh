#!/usr/bin/env bash
# Packages:  langfuse 5.0.4 with openai 3.57.0 (2026-11-28)
# Input:     two calls of `responses.create` through the OpenAI client of `langfuse.openai`, against a server on the
#            loopback interface. The second call continues the first by `previous_response_id`.
# Expected:  the recorded generations can be joined: the second names the response that it continues.
# Observed:  neither the id of a response nor the id of the previous one occurs in any attribute of the two spans.
#            The second generation's input is its new text alone, and the spans belong to two traces. The ids that
#            are recorded name the output messages.
# Source:    langfuse/openai.py, _extract_responses_prompt and _get_langfuse_data_from_default_response.
# Matters:   an importer cannot rebuild a conversation that the server stores. Each generation looks like a
#            conversation of one turn, and an evaluation of it lacks the earlier context.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PIP_DISABLE_PIP_VERSION_CHECK=1
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet langfuse==5.0.4 openai==3.57.0
unset HTTP_PROXY HTTPS_PROXY ALL_PROXY http_proxy https_proxy all_proxy
"$work/venv/bin/python" - <<'PYTHON'
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import count

from langfuse import Langfuse
from langfuse.openai import OpenAI
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

number = count(1)


class Responses(BaseHTTPRequestHandler):
    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        n = next(number)
        text = {"type": "output_text", "text": f"answer {n}", "annotations": []}
        message = {"type": "message", "id": f"msg_{n}", "role": "assistant", "status": "completed", "content": [text]}
        answer = {"id": f"resp_{n}", "object": "response", "created_at": 1, "status": "completed", "model": "any",
                  "output": [message], "tools": [], "tool_choice": "auto", "parallel_tool_calls": False,
                  "previous_response_id": request.get("previous_response_id")}  # fmt: skip
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


server = HTTPServer(("127.0.0.1", 0), Responses)
threading.Thread(target=server.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{server.server_port}"
exporter = InMemorySpanExporter()
langfuse = Langfuse(public_key="pk-lf-any", secret_key="sk-lf-any", base_url=url, span_exporter=exporter)
client = OpenAI(api_key="any", base_url=url)
first = client.responses.create(model="any", input="question 1")
second = client.responses.create(model="any", input="question 2", previous_response_id=first.id)
langfuse.flush()
spans = exporter.get_finished_spans()
for span in spans:
    print(f"trace {span.context.trace_id:032x}")
    print(*(f"  {key}: {value}" for key, value in span.attributes.items()), sep="\n")
recorded = json.dumps([dict(span.attributes) for span in spans])
unchanged = (
    (first.id, second.id, second.previous_response_id) == ("resp_1", "resp_2", "resp_1")
    and len({span.context.trace_id for span in spans}) == 2
    and [span.attributes["langfuse.observation.input"] for span in spans] == ["question 1", "question 2"]
    and "msg_2" in recorded
    and "resp_" not in recorded
)
sys.exit(0 if unchanged else "changed: the spans differ from the description above")
PYTHON
