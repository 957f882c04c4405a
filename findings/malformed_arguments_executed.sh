#!/usr/bin/env bash
# Packages:  strands-agents 1.62.0, agent-framework-core 1.23.0 with agent-framework-openai 1.17.0, and smolagents 1.26.0,
#            each with openai 3.57.0 (2026-11-30)
# Input:     an agent with one tool, cancel_orders, whose two arguments have defaults ("all" and "none"). The server on
#            the loopback interface answers with a call whose arguments lack the last brace, as models write it: OpenAI's
#            API says that arguments are not always valid JSON. After the result it answers with a text.
# Expected:  the tool does not run; the model reads that its arguments cannot be parsed, and may try again.
# Observed:  each framework runs the tool, and its result in the conversation is a plain success. Strands and the Agent
#            Framework run it with the defaults: the model wanted order 7, and all orders are cancelled. smolagents
#            passes the whole unparsed text as the first argument. In the next request of Strands, the model's own call
#            has the arguments {} instead of those that it wrote; its log has a warning.
# Source:    strands/event_loop/streaming.py, handle_content_block_stop; agent_framework/_types.py,
#            Content.parse_arguments, whose key "raw" the tool's validation drops; smolagents/models.py,
#            parse_json_if_needed, and agents.py, execute_tool_call.
# Matters:   a malformed call, which pydantic-ai or the OpenAI Agents SDK give back to the model, changes data here. The
#            trace of Strands shows a well-formed call without arguments. A comparison of models across frameworks
#            compares this, too. Give arguments of tools that change something no defaults.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PIP_DISABLE_PIP_VERSION_CHECK=1
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet strands-agents==1.62.0 agent-framework-core==1.23.0 \
    agent-framework-openai==1.17.0 smolagents==1.26.0 openai==3.57.0
cd "$work"
unset HTTP_PROXY HTTPS_PROXY ALL_PROXY http_proxy https_proxy all_proxy OPENAI_API_KEY OPENAI_BASE_URL
# smolagents reads the source of a tool, so the program is a file.
cat > run.py <<'PYTHON'
import asyncio
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

ARGUMENTS = '{"order": "7", "reason": "late"'
CALL = {"id": "call_1", "type": "function", "function": {"name": "cancel_orders", "arguments": ARGUMENTS}}
requests, executed = [], []


class Completions(BaseHTTPRequestHandler):
    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        requests.append(request)
        is_first = len(requests) == 1
        message = {"role": "assistant", "content": None if is_first else "Done."}
        if is_first:
            message["tool_calls"] = [{**CALL, "index": 0} if request.get("stream") else CALL]
        reason = "tool_calls" if is_first else "stop"
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        answer = {"id": "c", "created": 1, "model": "any", "object": "chat.completion", "usage": usage}
        if request.get("stream"):
            answer["object"] += ".chunk"
            choices = ({"index": 0, "delta": message}, {"index": 0, "delta": {}, "finish_reason": reason})
            body = "".join(f"data: {json.dumps({**answer, 'choices': [choice]})}\n\n" for choice in choices)
            body += "data: [DONE]\n\n"
        else:
            body = json.dumps({**answer, "choices": [{"index": 0, "message": message, "finish_reason": reason}]})
        self.send_response(200)
        self.send_header("content-type", "text/event-stream" if request.get("stream") else "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *args):
        pass


def cancel_orders(order: str = "all", reason: str = "none") -> str:
    """Cancel an order.

    Args:
        order: The order.
        reason: The reason.
    """
    executed.append((order, reason))
    return f"cancelled {order}"


def ask_strands(url):
    from strands import Agent, tool
    from strands.models.openai import OpenAIModel

    model = OpenAIModel(client_args={"api_key": "any", "base_url": url}, model_id="any")
    Agent(model=model, tools=[tool(cancel_orders)], callback_handler=None)("Cancel order 7.")


def ask_agent_framework(url):
    from agent_framework import Agent
    from agent_framework.openai import OpenAIChatCompletionClient

    client = OpenAIChatCompletionClient(model="any", api_key="any", base_url=url)
    asyncio.run(Agent(client=client, tools=[cancel_orders]).run("Cancel order 7."))


def ask_smolagents(url):
    from smolagents import OpenAIServerModel, ToolCallingAgent, tool

    model = OpenAIServerModel("any", api_base=url, api_key="any")
    ToolCallingAgent(tools=[tool(cancel_orders)], model=model, max_steps=1, verbosity_level=0).run("Cancel order 7.")


server = HTTPServer(("127.0.0.1", 0), Completions)
threading.Thread(target=server.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{server.server_port}/v1"
seen = {}
for ask in (ask_strands, ask_agent_framework, ask_smolagents):
    requests.clear()
    executed.clear()
    ask(url)
    calls = [call for message in requests[1]["messages"] for call in message.get("tool_calls", ())]
    seen[ask.__name__] = list(executed), [call["function"]["arguments"] for call in calls]
    print(f"{ask.__name__}: the tool ran with {executed}; next request:")
    print("  ", json.dumps(requests[1]["messages"][-2:])[:400])
expected = {
    "ask_strands": ([("all", "none")], ["{}"]),
    "ask_agent_framework": ([("all", "none")], [ARGUMENTS]),
    "ask_smolagents": ([(ARGUMENTS, "none")], []),  # smolagents writes calls into texts
}
sys.exit(0 if seen == expected else "changed: the calls differ from the description above")
PYTHON
"$work/venv/bin/python" -W ignore run.py
