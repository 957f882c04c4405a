#!/usr/bin/env bash
# Packages:  opentelemetry-instrumentation-anthropic 0.62.4 and openinference-instrumentation-anthropic 3.1.0, each with
#            anthropic 2.14.0 (2026-11-28)
# Input:     a call of `messages.create` with the results of two tool calls, against a server on the loopback interface.
#            The second result has `is_error`, the flag of the API for a failed tool.
# Expected:  the span tells the failed result from the successful one.
# Observed:  in the first package's span nothing does: the two parts of gen_ai.input.messages have the same keys (type,
#            id, response), and no attribute holds the flag. In the second package's span the attributes of the two tool
#            messages have the same names too; only the raw request in the attribute input.value has the flag.
# Source:    opentelemetry/instrumentation/anthropic/span_utils.py, the branch for tool_result blocks;
#            openinference/instrumentation/anthropic/_content.py, the branches for tool_result blocks.
# Matters:   a reader of such spans takes a rejected change for a performed one, unless the text says so. A task or a
#            reward that is made from these logs then expects the failed call.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PIP_DISABLE_PIP_VERSION_CHECK=1
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet opentelemetry-instrumentation-anthropic==0.62.4 \
    openinference-instrumentation-anthropic==3.1.0 anthropic==2.14.0 opentelemetry-sdk==1.45.2
cd "$work"
unset HTTP_PROXY HTTPS_PROXY ALL_PROXY http_proxy https_proxy all_proxy
cat > observe.py <<'PYTHON'
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import import_module

import anthropic
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
import_module(sys.argv[1]).AnthropicInstrumentor().instrument(tracer_provider=provider)
requests = []


class Messages(BaseHTTPRequestHandler):
    def do_POST(self):
        requests.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        answer = {"id": "msg_1", "type": "message", "role": "assistant", "model": "any", "stop_reason": "end_turn",
                  "stop_sequence": None, "content": [{"type": "text", "text": "Only one refund was possible."}],
                  "usage": {"input_tokens": 1, "output_tokens": 1}}  # fmt: skip
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


def use(n):
    return {"type": "tool_use", "id": f"call_{n}", "name": "refund", "input": {"order": str(n)}}


def result(n, **flag):
    return {"type": "tool_result", "tool_use_id": f"call_{n}", "content": f"order {n} is closed", **flag}


server = HTTPServer(("127.0.0.1", 0), Messages)
threading.Thread(target=server.serve_forever, daemon=True).start()
client = anthropic.Anthropic(api_key="any", base_url=f"http://127.0.0.1:{server.server_port}")
client.messages.create(
    model="any",
    max_tokens=10,
    messages=[
        {"role": "user", "content": "Refund orders 1 and 2."},
        {"role": "assistant", "content": [use(1), use(2)]},
        {"role": "user", "content": [result(1), result(2, is_error=True)]},
    ],
)
(span,) = exporter.get_finished_spans()
with_flag = [key for key, value in span.attributes.items() if "is_error" in f"{key}{value}"]
if "gen_ai.input.messages" in span.attributes:
    parts = json.loads(span.attributes["gen_ai.input.messages"])[2]["parts"]
    keys = [sorted(part) for part in parts]
else:
    names = [key.split(".message.") for key in span.attributes if key.startswith("llm.input_messages.")]
    keys = [sorted(name for place, name in names if place == f"llm.input_messages.{n}") for n in (2, 3)]
print(f"sent with the flag: {requests[0]['messages'][2]['content'][1]['is_error']}")
print(f"keys of the results: {keys[0]} and {keys[1]}; attributes with the flag: {with_flag}")
PYTHON

check() { # check MODULE EXPECTED: make the call with the instrumentation and compare the output
    local observed
    observed=$("$work/venv/bin/python" observe.py "$1")
    printf '%s\n%s\n' "$1" "$observed"
    if [[ "$observed" != "$2" ]]; then
        printf 'changed: expected\n%s\n' "$2" >&2
        exit 1
    fi
}

check opentelemetry.instrumentation.anthropic "sent with the flag: True
keys of the results: ['id', 'response', 'type'] and ['id', 'response', 'type']; attributes with the flag: []"
check openinference.instrumentation.anthropic "sent with the flag: True
keys of the results: ['content', 'role', 'tool_call_id'] and ['content', 'role', 'tool_call_id']; attributes with the flag: ['input.value']"
