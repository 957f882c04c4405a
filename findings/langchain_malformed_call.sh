#!/usr/bin/env bash
# Packages:  langchain 1.5.2 and langgraph 1.2.24 with langchain-openai 1.7.4, langchain-core 1.8.3 and openai 3.57.0
#            (2026-11-30)
# Input:     the agents of langchain.agents.create_agent and langgraph.prebuilt.create_react_agent with one tool. The
#            server on the loopback interface answers with a call whose arguments lack the last brace (OpenAI's API says
#            that arguments are not always valid JSON); then with two parallel calls, of which the second has such
#            arguments. After a result it answers with a text.
# Expected:  the model reads that its call cannot be parsed, as it reads that arguments do not fit the tool, and each
#            call has a result in the next request, which OpenAI's API requires.
# Observed:  the malformed call alone ends the run of both agents: one request, no exception, and the last message is an
#            empty text. If a well-formed call stands next to it, create_agent tells the model that the other one was
#            malformed. create_react_agent repeats both calls in the next request, with one result.
# Source:    langchain_core/messages/ai.py (invalid_tool_calls); langchain/agents/factory.py and
#            langgraph/prebuilt/chat_agent_executor.py, which end if tool_calls is empty;
#            langchain_openai/chat_models/base.py, _convert_message_to_dict, which sends invalid calls back.
# Matters:   a run that a second try would have saved ends as an empty answer, and is scored as the agent's failure or as
#            a refusal; the same call next to another one is tried again. An evaluation must look at invalid_tool_calls
#            of the last message.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PIP_DISABLE_PIP_VERSION_CHECK=1
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet langchain==1.5.2 langgraph==1.2.24 langgraph-prebuilt==1.1.3 \
    langchain-openai==1.7.4 langchain-core==1.8.3 openai==3.57.0
cd "$work"
unset HTTP_PROXY HTTPS_PROXY ALL_PROXY http_proxy https_proxy all_proxy OPENAI_API_KEY OPENAI_BASE_URL
export LANGSMITH_TRACING=false
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

from langchain.agents import create_agent
from langchain_openai import ChatOpenAI
from langgraph.prebuilt import create_react_agent

MALFORMED, WELL_FORMED, UNFIT = '{"order": "7"', '{"order": "8"}', '{"number": "7"}'
requests, answers = [], []


def call(n, arguments):
    function = {"name": "cancel_order", "arguments": arguments}
    return {"id": f"call_{n}", "type": "function", "function": function}


class Completions(BaseHTTPRequestHandler):
    def do_POST(self):
        requests.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        calls = [call(n, arguments) for n, arguments in enumerate(answers)] if len(requests) == 1 else []
        message = {"role": "assistant", "content": None if calls else "Done."}
        message |= {"tool_calls": calls} if calls else {}
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}
        answer = {"id": "c", "object": "chat.completion", "created": 1, "model": "any", "choices": [choice]}
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


def cancel_order(order: str) -> str:
    """Cancel an order."""
    return f"cancelled {order}"


server = HTTPServer(("127.0.0.1", 0), Completions)
threading.Thread(target=server.serve_forever, daemon=True).start()
model = ChatOpenAI(model="any", api_key="any", base_url=f"http://127.0.0.1:{server.server_port}/v1")
seen = {}
for create in (create_agent, create_react_agent):
    agent = create(model, [cancel_order])
    for name, answers in (("unfit", [UNFIT]), ("malformed", [MALFORMED]), ("parallel", [WELL_FORMED, MALFORMED])):
        requests.clear()
        last = agent.invoke({"messages": [("user", "Cancel my order.")]})["messages"][-1]
        messages = [message for request in requests[1:] for message in request["messages"]]
        called = [call["id"] for message in messages for call in message.get("tool_calls", ())]
        answered = sorted(message["tool_call_id"] for message in messages if message["role"] == "tool")
        seen[create.__name__, name] = last.content, len(last.invalid_tool_calls), called, answered
        print(f"{create.__name__}, {name}: {len(requests)} requests, last message {last.content!r},")
        print(f"   with {len(last.invalid_tool_calls)} invalid calls; in the next request {called}, results {answered}")
expected = {
    ("create_agent", "unfit"): ("Done.", 0, ["call_0"], ["call_0"]),
    ("create_agent", "malformed"): ("", 1, [], []),
    ("create_agent", "parallel"): ("Done.", 0, ["call_0", "call_1"], ["call_0", "call_1"]),
    ("create_react_agent", "unfit"): ("Done.", 0, ["call_0"], ["call_0"]),
    ("create_react_agent", "malformed"): ("", 1, [], []),
    ("create_react_agent", "parallel"): ("Done.", 0, ["call_0", "call_1"], ["call_0"]),
}
sys.exit(0 if seen == expected else "changed: the conversations differ from the description above")
PYTHON
