"""A real MCP server of a hotel, over stdio, with faults that arguments of its command choose."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from mcp.server.mcpserver import MCPServer
from mcp_types import (
    BlobResourceContents,
    EmbeddedResource,
    ResourceLink,
    TextResourceContents,
    ToolAnnotations,
)

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


@server.tool()
def rows() -> list[dict[str, Any]]:
    """The bookings as a list."""
    return [{"id": key, **row} for key, row in database["bookings"].items()]


@server.tool()
def untyped_rows():  # type: ignore[no-untyped-def]
    """The bookings as a list, without structured content."""
    return rows()


@server.tool()
def remove_booking(booking_id: str) -> str:
    """Remove a booking."""
    del database["bookings"][booking_id]
    return ""


@server.tool()
def add_booking(booking_id: str) -> None:
    """Add a booking."""
    database["bookings"][booking_id] = {"guest": "Eve", "status": "open"}


@server.tool()
def environment() -> list[str]:
    """The names of the environment variables."""
    return sorted(os.environ)


@server.tool()
def resource(kind: str) -> EmbeddedResource | ResourceLink:
    """A resource in the answer: a text, an empty text, bytes or a link."""
    if kind == "link":
        return ResourceLink(uri="hotel://policy", name="policy")
    if kind == "bytes":
        return EmbeddedResource(resource=BlobResourceContents(uri="hotel://photo", blob="AAAA"))
    text = "" if kind == "empty" else "No pets."
    return EmbeddedResource(resource=TextResourceContents(uri="hotel://policy", text=text))


if __name__ == "__main__":
    server.run("stdio")
