#!/usr/bin/env bash
# Packages:  mcp 2.0.0 and mcp 2.1.0 (2026-11-28)
# Input:     an MCPServer with one tool that raises ValueError("why") and one that raises the SDK's ToolError("why").
#            An in-process Client calls both.
# Expected:  a minor release keeps the error text that a client, and so the model, reads.
# Observed:  2.0.0 sends the tool's name and the exception's text for both. 2.1.0 sends only the tool's name for the
#            ValueError; the text stays in the server's log. A ToolError keeps its text in both releases.
# Source:    mcp/server/mcpserver/tools/base.py, Tool.run.
# Matters:   the same agent with the same tools reads less after the update and can act differently. Recorded error
#            results of the two releases differ, although the tool did not change; a comparison must record the
#            SDK's version.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PIP_DISABLE_PIP_VERSION_CHECK=1
cat > "$work/observe.py" <<'PYTHON'
import asyncio
import logging

from mcp import Client
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

logging.disable(logging.CRITICAL)  # the server logs the traceback
server = MCPServer("findings")


@server.tool()
def fail() -> str:
    raise ValueError("why")


@server.tool()
def refuse() -> str:
    raise ToolError("why")


async def observe() -> None:
    async with Client(server) as client:
        for name in ("fail", "refuse"):
            result = await client.call_tool(name, {})
            print(f"{name}: is_error={result.is_error} {result.content[0].text}")


asyncio.run(observe())
PYTHON

check() { # check VERSION EXPECTED: install the release, call both tools and compare the output
    local observed
    python3 -m venv "$work/$1"
    "$work/$1/bin/python" -m pip install --quiet "mcp==$1"
    observed=$("$work/$1/bin/python" "$work/observe.py")
    printf 'mcp %s\n%s\n' "$1" "$observed"
    if [[ "$observed" != "$2" ]]; then
        printf 'changed: expected\n%s\n' "$2" >&2
        exit 1
    fi
}

refused='refuse: is_error=True Error executing tool refuse: why'
check 2.0.0 "fail: is_error=True Error executing tool fail: why
$refused"
check 2.1.0 "fail: is_error=True Error executing tool fail
$refused"
