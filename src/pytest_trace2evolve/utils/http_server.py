"""One connection of a client to an HTTP server on loopback, parsed by h11."""

import asyncio
import json
from collections.abc import Collection, Iterable

import h11

JSON_TYPE = "application/json"


class RequestLimitError(Exception):
    """A request is larger than allowed."""


class Connection:
    """The server's side of one connection.

    Attributes:
        reader: The stream of the client's bytes.
        writer: The stream to the client.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.state = h11.Connection(h11.SERVER)

    async def read(self, max_bytes: int | None = None) -> tuple[h11.Request, bytes] | None:
        """Return the next request and its body; None if the client has hung up.

        Raises:
            RequestLimitError: the body is larger than `max_bytes`.
        """
        head: h11.Request | None = None
        body = bytearray()
        while True:
            event = self.state.next_event()
            if event is h11.NEED_DATA:
                self.state.receive_data(await self.reader.read(65536))
            elif isinstance(event, h11.Request):
                head = event
            elif isinstance(event, h11.Data):
                body += event.data
                if max_bytes is not None and len(body) > max_bytes:
                    raise RequestLimitError(f"the request is larger than {max_bytes >> 20} MiB")
            elif isinstance(event, h11.EndOfMessage) and head is not None:
                return head, bytes(body)
            else:
                return None

    def prepare_for_reuse(self) -> bool:
        """Prepare for another request; return False if the connection must close."""
        if self.state.our_state is h11.MUST_CLOSE:
            return False
        self.state.start_next_cycle()
        return True

    async def send(
        self,
        status: int,
        body: object,
        headers: Iterable[tuple[str, str]] = (),
        content_type: str = JSON_TYPE,
    ) -> bool:
        """Send an answer: bytes unchanged, any other body as JSON. Returns True, to keep the connection."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_head(status, len(content), content_type, list(headers))
        self.writer.write(self.state.send(h11.Data(data=content)) or b"")
        self.writer.write(self.state.send(h11.EndOfMessage()) or b"")
        await self.writer.drain()
        return True

    def send_head(
        self, status: int, length: int, content_type: str, headers: Collection[tuple[str, str]] = ()
    ) -> None:
        """Send the status line and the headers of an answer of `length` bytes."""
        fields = [("content-type", content_type), ("content-length", str(length)), *headers]
        self.writer.write(self.state.send(h11.Response(status_code=status, headers=fields)) or b"")
