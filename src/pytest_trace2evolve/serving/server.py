"""The server's process: its socket, its end, and the line that says where it listens.

Connections of the server: how long one may wait without a whole request, and how many may wait at once.

Uvicorn limits the time between requests alone: a client that sends a byte of a request's head now and then,
or that connects and says nothing, would hold its connection for ever.
"""

import asyncio
import contextlib
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol

from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.serving.folder import AdapterFolder, ModelFolder
from pytest_trace2evolve.utils.optional import require


class GuardedConnection(H11Protocol):
    """One connection, closed if it does not send a whole head in time.

    Attributes:
        head_seconds: Seconds from the connection, or from the first byte of a further request, to the end of
            the request's head.
        max_idle: Connections without a request under way; beyond them the one that waits longest is closed.
    """

    head_seconds: ClassVar[float] = 30.0
    max_idle: ClassVar[int] = 512

    _timer: asyncio.TimerHandle | None = None
    _idle_since = 0.0

    @property
    def idle(self) -> bool:
        """Whether no request is under way."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as theirs
        """Begin to wait for a request, and close another connection if too many wait."""
        super().connection_made(transport)
        self._idle_since = self.loop.time()
        self._watch()
        idle = [one for one in self.connections if isinstance(one, GuardedConnection) and one.idle]
        if len(idle) > self.max_idle:
            min(idle, key=lambda one: one._idle_since).transport.abort()

    def data_received(self, data: bytes) -> None:
        """Take in a part of a request. The time does not begin anew with each part."""
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """Wait for a further request; until its first byte comes, uvicorn's own time counts."""
        self._idle_since = self.loop.time()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the time."""
        self._stop()
        super().connection_lost(exc)

    def _watch(self) -> None:
        if not self.idle:
            self._stop()
        elif self._timer is None:
            self._timer = self.loop.call_later(self.head_seconds, self._expire)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        self._timer = None
        if self.idle:
            self.transport.abort()


QUIET_THREADS = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0", "KMP_BLOCKTIME": "0"}
"""Set before torch is loaded: threads that spin while they wait make a step many times slower as soon as
anything else runs on their cores."""

SMALL_MODEL = 50_000_000
"""Parameters below which a second thread costs more than it brings, above all where its core is busy."""

EXIT_INTERRUPTED = 130
"""Exit status after a second signal, or after `END_SECONDS`: requests under way were given up."""

GRACE_SECONDS = 5
"""How long requests under way may take once the server is told to end."""

END_SECONDS = 10.0
"""How long the process may take then, whatever hangs."""


@dataclass(frozen=True)
class ServerSettings:
    """What is served, where, and for whom.

    Attributes:
        port: 0 takes a free one.
        token: What requests must bring; None: nothing.
        threads: Of torch; None: one for a small model on the CPU, else its own default.
        parent_pipe: Whether to end when standard input closes.
    """

    folder: ModelFolder
    adapters: Sequence[AdapterFolder] = ()
    name: str = ""
    host: str = "127.0.0.1"
    port: int = 0
    token: str | None = field(default=None, repr=False)
    device: str | None = None
    dtype: str | None = None
    threads: int | None = None
    rows: int = 64
    waiting: int = 1024
    prefix_bytes: int = 1 << 28
    parent_pipe: bool = False


@dataclass
class _Ending:
    """Whether the server was told to end; while the model is still loaded it ends at once."""

    serving: bool = False
    asked: bool = False
    told: threading.Event = field(default_factory=threading.Event)

    def ask(self, number: int, frame: FrameType | None) -> None:
        """A signal came."""
        if self.asked:  # twice: now
            os._exit(EXIT_INTERRUPTED)
        self.asked = True
        self.told.set()
        if not self.serving:
            raise SystemExit(0)

    def end_in_time(self) -> None:
        """End the process some time after it was told so: a pass of the model, a template or whatever else
        hangs keeps a thread that nothing can end."""
        self.told.wait()
        time.sleep(END_SECONDS)
        os._exit(EXIT_INTERRUPTED)


def serve(settings: ServerSettings) -> int:
    """Serve until told to end; returns the exit status.

    Raises:
        MissingExtraError: a package is not installed.
        ConfigError: the port is taken or the address is none.
        ModelFolderError: the model or an adapter cannot be loaded.
    """
    if settings.parent_pipe:
        threading.Thread(target=_end_with_parent, name="trace2evolve-parent", daemon=True).start()
    listening = _listen(settings.host, settings.port)
    with listening, _ended_by_signals() as ending:
        os.environ.update({name: os.environ.get(name, value) for name, value in QUIET_THREADS.items()})
        for module in ("torch", "transformers", "peft", "safetensors", "starlette", "uvicorn"):
            require(module, extra="local")
        _serve_on(listening, settings, ending)
    return 0


def _serve_on(listening: socket.socket, settings: ServerSettings, ending: _Ending) -> None:
    import torch
    import uvicorn

    from pytest_trace2evolve.serving.app import ChatApp
    from pytest_trace2evolve.serving.chat_format import Writer
    from pytest_trace2evolve.serving.engine import Engine
    from pytest_trace2evolve.serving.loading import LoadedModel

    model = LoadedModel(settings.folder, settings.adapters, device=settings.device, dtype=settings.dtype)
    threads = settings.threads
    if threads is None and model.device.type == "cpu" and model.parameters < SMALL_MODEL:
        threads = 1
    if threads is not None:
        torch.set_num_threads(threads)
    if model.device.type == "cpu":
        # Else transformers copies keys and values for every head that shares them, at every step.
        os.environ.setdefault("TRANSFORMERS_SDPA_FORCE_GQA", "1")
    engine = Engine(model, rows=settings.rows, waiting=settings.waiting, prefix_bytes=settings.prefix_bytes)
    chat = ChatApp(
        engine,
        Writer(model.tokenizer, model.ends, model.context),
        name=settings.name or settings.folder.name,
        adapters=[one.name for one in settings.adapters],
        context=model.context,
        most=model.most,
        token=settings.token,
    )

    class Server(uvicorn.Server):
        """Ends by our signals, which hold while the model is loaded too."""

        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

        async def on_tick(self, counter: int) -> bool:
            return ending.asked or await super().on_tick(counter)

    server = Server(
        uvicorn.Config(
            chat.app,
            http=GuardedConnection,
            ws="none",
            log_level="warning",
            access_log=False,
            lifespan="off",
            timeout_keep_alive=120,  # longer than clients keep idle connections: they never find one closed
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
    )
    _announce(listening, settings, model.device.type)
    ending.serving = True
    try:
        asyncio.run(server.serve(sockets=[listening]))
    finally:
        engine.close()


def _announce(listening: socket.socket, settings: ServerSettings, device: str) -> None:
    host, port = listening.getsockname()[:2]
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"
    name = settings.name or settings.folder.name
    if settings.parent_pipe:
        print(json.dumps({"base_url": url, "model": name}), flush=True)
        return
    names = ", ".join((name, *(one.name for one in settings.adapters)))
    print(f"serving {names} on {device} at {url}", flush=True)
    print(
        f"token: {settings.token}" if settings.token else "no token: anybody who reaches it may use it",
        flush=True,
    )


def _listen(host: str, port: int) -> socket.socket:
    """A bound socket; connections wait in it until the model is loaded.

    Raises:
        ConfigError: it cannot be had.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
    except (OSError, OverflowError, UnicodeError) as error:
        raise ConfigError(f"--host {host} --port {port}: no address to listen on: {error}") from None
    try:
        if os.name == "posix":  # elsewhere it would let two servers share a port
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(2048)
    except OSError as error:
        listening.close()
        told = "is taken: choose another, or 0 for a free one" if port else "cannot be listened on"
        raise ConfigError(f"--host {host} --port {port}: {told} ({error.strerror})") from None
    return listening


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[_Ending]:
    """SIGINT and SIGTERM end the process in good order."""
    ending = _Ending()
    threading.Thread(target=ending.end_in_time, name="trace2evolve-end", daemon=True).start()
    before = {number: signal.signal(number, ending.ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield ending
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end_with_parent() -> None:
    """End the process as soon as standard input closes: whoever started it has gone, by whatever means."""
    with contextlib.suppress(OSError, ValueError):
        while os.read(0, 4096):
            pass
    os._exit(0)
