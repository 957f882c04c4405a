#!/usr/bin/env bash
# Package:   mcp 2.3.0 (2026-11-28)
# Input:     an MCPServer whose tools return lists of dicts, without and with the return annotation `list[dict]`.
#            An in-process Client calls them.
# Expected:  the client can rebuild the returned value, or at least distinguish a list from its only row and an
#            empty list from None.
# Observed:  without the annotation, a list arrives as one text block per row and without structured content. A list
#            of one row equals the row itself, and an empty list equals None (no blocks at all). With the annotation
#            the blocks are the same, but the structured content holds the list under the key "result".
# Source:    mcp/server/mcpserver/utilities/func_metadata.py, _convert_to_content.
# Matters:   a log of tool results that keeps only the text blocks loses the type of the value. A comparison with a
#            recorded result must use the structured content, and a search that found nothing looks like a tool
#            without a result.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PIP_DISABLE_PIP_VERSION_CHECK=1
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet mcp==2.3.0 mcp-types==2.3.0
"$work/venv/bin/python" - <<'PYTHON'
import asyncio
import inspect
import json
import sys

from mcp import Client
from mcp.server.mcpserver import MCPServer

VALUES = {"two_rows": [{"id": 1}, {"id": 2}], "one_row": [{"id": 1}], "row": {"id": 1}, "empty": [], "none": None}
server = MCPServer("findings")
for name, value in VALUES.items():

    def plain(value=value):
        return value

    plain.__signature__ = inspect.Signature()  # the default above is no argument of the tool
    server.add_tool(plain, name=name)


@server.tool()
def typed_two_rows() -> list[dict]:
    return [{"id": 1}, {"id": 2}]


@server.tool()
def typed_empty() -> list[dict]:
    return []


async def observe() -> dict:
    async with Client(server) as client:
        seen = {}
        for name in [*VALUES, "typed_two_rows", "typed_empty"]:
            result = await client.call_tool(name, {})
            seen[name] = ([json.loads(block.text) for block in result.content], result.structured_content)
            print(f"{name}: {len(result.content)} blocks {seen[name][0]}, structured content {seen[name][1]}")
        return seen


seen = asyncio.run(observe())
unchanged = (
    seen["two_rows"] == ([{"id": 1}, {"id": 2}], None)
    and seen["one_row"] == seen["row"] == ([{"id": 1}], None)
    and seen["empty"] == seen["none"] == ([], None)
    and seen["typed_two_rows"] == ([{"id": 1}, {"id": 2}], {"result": [{"id": 1}, {"id": 2}]})
    and seen["typed_empty"] == ([], {"result": []})
)
sys.exit(0 if unchanged else "changed: the results differ from the description above")
PYTHON
