#!/usr/bin/env bash
# Package:   strands-agents-evals 1.7.0 with strands-agents 1.62.0 (2026-11-28)
# Input:     an agent with a scripted model calls three tools. They return the same order: as one text, as a JSON block
#            and as two text blocks, which are forms of the SDK's result of a tool. The package's function lists the
#            tools that the agent used, from the agent's messages.
# Expected:  the list holds what each tool returned.
# Observed:  the result of the tool with the JSON block is None, without an error, and of the two texts only the first
#            is listed. The agent's messages hold both whole.
# Source:    strands_evals/extractors/tools_use_extractor.py, extract_agent_tools_used_from_messages, which takes the
#            first block with a text.
# Matters:   the list is made for the judge of a trajectory evaluator. An answer that is true to the tool's result looks
#            invented, and the tool looks as if it had returned nothing.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PIP_DISABLE_PIP_VERSION_CHECK=1
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet strands-agents-evals==1.7.0 strands-agents==1.62.0
cd "$work"
"$work/venv/bin/python" - <<'PYTHON'
import json
import sys

from strands import Agent, tool
from strands.models import Model
from strands_evals.extractors.tools_use_extractor import extract_agent_tools_used_from_messages


class Scripted(Model):
    """Calls each tool once, and then answers."""

    def __init__(self, names):
        self.names = names

    def update_config(self, **config):
        pass

    def get_config(self):
        return {}

    async def structured_output(self, *args, **kwargs):
        raise NotImplementedError
        yield

    async def stream(self, messages, *args, **kwargs):
        yield {"messageStart": {"role": "assistant"}}
        names, self.names = self.names, []
        for name in names:
            yield {"contentBlockStart": {"start": {"toolUse": {"toolUseId": f"call_{name}", "name": name}}}}
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": json.dumps({"order": "7"})}}}}
            yield {"contentBlockStop": {}}
        if not names:
            yield {"contentBlockStart": {"start": {}}}
            yield {"contentBlockDelta": {"delta": {"text": "Order 7 costs 5."}}}
            yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "tool_use" if names else "end_turn"}}


@tool
def one_text(order: str) -> dict:
    """Return the order as one text."""
    return {"status": "success", "content": [{"text": '{"order": "7", "total": 5}'}]}


@tool
def as_json(order: str) -> dict:
    """Return the order as JSON."""
    return {"status": "success", "content": [{"json": {"order": "7", "total": 5}}]}


@tool
def two_texts(order: str) -> dict:
    """Return the order as two texts."""
    return {"status": "success", "content": [{"text": "order 7"}, {"text": "total 5"}]}


tools = [one_text, as_json, two_texts]
agent = Agent(model=Scripted([t.tool_name for t in tools]), tools=tools, callback_handler=None)
agent("What does order 7 cost?")
results = [block["toolResult"]["content"] for block in agent.messages[2]["content"]]
listed = [(call["tool_result"], call["is_error"]) for call in extract_agent_tools_used_from_messages(agent.messages)]
for content, (result, is_error) in zip(results, listed, strict=True):
    print(f"in the messages {content}: listed {result!r}, error {is_error}")
unchanged = results == [
    [{"text": '{"order": "7", "total": 5}'}],
    [{"json": {"order": "7", "total": 5}}],
    [{"text": "order 7"}, {"text": "total 5"}],
] and listed == [('{"order": "7", "total": 5}', False), (None, False), ("order 7", False)]
sys.exit(0 if unchanged else "changed: the listed results differ from the description above")
PYTHON
