"""A real MCP server of a hotel, over stdio, with faults that arguments of its command choose."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from mcp.server.mcpserver import MCPServer
from mcp_types import ToolAnnotations

INITIAL: dict[str, Any] = {
    "bookings": {
        "B17": {"guest": "Ann Lee", "status": "confirmed"},
        "B18": {"guest": "Bob", "status": "open"},
    }
}
fault = sys.argv[1] if len(sys.argv) > 1 else ""
if fault == "no start":
    print("cannot open the database", file=sys.stderr)
    sys.exit(3)
if fault == "hang":
    time.sleep(60)

database = json.loads(json.dumps(INITIAL))
server = MCPServer("hotel", version="1.2")


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def get_booking(booking_id: str) -> dict[str, Any]:
    """Look up a booking."""
    return dict(database["bookings"][booking_id])


@server.tool()
def cancel_booking(booking_id: str) -> str:
    """Cancel a booking."""
    if fault == "die":
        print("out of memory", file=sys.stderr)
        sys.stderr.flush()
        os._exit(9)
    if fault == "slow":
        time.sleep(60)
    database["bookings"][booking_id]["status"] = "cancelled"
    return f"Booking {booking_id} is cancelled."


@server.tool()
def session_folder() -> str:
    """The folder of this session."""
    return os.environ["TRACE2EVOLVE_SESSION"]


@server.tool()
def dump() -> str:
    """The database as JSON."""
    return "no JSON" if fault == "bad state" else json.dumps(database)


@server.tool()
def restore() -> str:
    """Restore the initial data."""
    if fault == "bad reset":
        raise ValueError("the backup is gone")
    database.clear()
    database.update(json.loads(json.dumps(INITIAL)))
    if (marker := Path(os.environ["TRACE2EVOLVE_SESSION"], "marker")).exists():
        database["marker"] = marker.read_text()
    return "ok"


if __name__ == "__main__":
    server.run("stdio")
