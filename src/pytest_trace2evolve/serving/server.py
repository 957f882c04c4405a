"""Runs the server's process: opens its socket, reports its address, limits connections and shuts down."""

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

from pytest_trace2evolve.agents.probe import Probe
from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.serving.folder import AdapterFolder, ModelFolder
from pytest_trace2evolve.utils.optional import check_installed

PASSIVE_THREAD_VARIABLES = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0", "KMP_BLOCKTIME": "0"}
"""Environment variables that are set before torch is loaded. They stop waiting threads from spinning, which
would make a step many times slower as soon as anything else runs on their cores."""

MAX_SMALL_MODEL_PARAMETERS = 50_000_000
"""Number of parameters below which a second thread costs more than it gains, above all on busy cores."""

EXIT_INTERRUPTED = 130
"""Exit status after a second signal or after `END_SECONDS`, which drop running requests."""

GRACE_SECONDS = 5
"""Seconds that running requests may still take after shutdown was requested."""

END_SECONDS = 10.0
"""Seconds from the request to shut down until the process exits, even if something hangs."""


@dataclass(frozen=True)
class ServerSettings:
    """Settings of a server: its models, address, access and resources.

    Attributes:
        port: The port; 0 selects a free one.
        token: The bearer token that requests must send; None requires no token.
        threads: Number of torch threads; None means one for a small model on the CPU, else torch's default.
        has_parent_pipe: Whether the server ends when standard input closes.
    """

    folder: ModelFolder
    name: str
    adapters: Sequence[AdapterFolder] = ()
    routers: Sequence[Probe] = ()
    host: str = "127.0.0.1"
    port: int = 0
    token: str | None = field(default=None, repr=False)
    device: str | None = None
    threads: int | None = None
    max_rows: int = 64
    max_waiting: int = 1024
    has_parent_pipe: bool = False


class _LoadingStoppedError(BaseException):
    """A signal came during loading; not an `Exception`, because the loading libraries catch exceptions."""


class _Shutdown:
    """Ends the process on SIGINT and SIGTERM: at once while the model loads, gracefully afterwards."""

    def __init__(self) -> None:
        self.is_serving = False
        self.requested = threading.Event()

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.requested.is_set():
            os._exit(EXIT_INTERRUPTED)
        self.requested.set()
        if not self.is_serving:
            raise _LoadingStoppedError

    def exit_after_deadline(self) -> None:
        """Exit `END_SECONDS` after shutdown was requested, because a hanging thread cannot be ended."""
        self.requested.wait()
        time.sleep(END_SECONDS)
        os._exit(EXIT_INTERRUPTED)

    @contextlib.contextmanager
    def handle_signals(self) -> Iterator[None]:
        threading.Thread(target=self.exit_after_deadline, name="trace2evolve-end", daemon=True).start()
        signals = (signal.SIGINT, signal.SIGTERM)
        previous_handlers = {number: signal.signal(number, self.on_signal) for number in signals}
        try:
            yield
        finally:
            for number, handler in previous_handlers.items():
                signal.signal(number, handler)


def serve(settings: ServerSettings) -> int:
    """Serve until shutdown is requested; returns the exit status.

    Raises:
        MissingExtraError: a package is not installed.
        ConfigError: the port is taken or the address is invalid.
        ModelFolderError: the model or an adapter cannot be loaded.
    """
    if settings.has_parent_pipe:
        threading.Thread(target=_exit_with_parent, name="trace2evolve-parent", daemon=True).start()
    shutdown = _Shutdown()
    with (
        contextlib.suppress(_LoadingStoppedError),
        _open_listener(settings.host, settings.port) as listener,
        shutdown.handle_signals(),
    ):
        os.environ.update(
            {name: os.environ.get(name, value) for name, value in PASSIVE_THREAD_VARIABLES.items()}
        )
        for module in ("torch", "transformers", "peft", "safetensors", "starlette", "uvicorn"):
            check_installed(module, extra="local")
        _run_server(listener, settings, shutdown)
    return 0


def _run_server(listener: socket.socket, settings: ServerSettings, shutdown: _Shutdown) -> None:
    import torch
    import uvicorn

    from pytest_trace2evolve.serving.app import ChatApp, TimeLimitedConnection
    from pytest_trace2evolve.serving.chat_format import ChatFormat
    from pytest_trace2evolve.serving.engine import Engine
    from pytest_trace2evolve.serving.loading import LoadedModel

    model = LoadedModel(settings.folder, settings.adapters, device=settings.device)
    is_on_cpu = model.device.type == "cpu"
    threads = settings.threads
    if threads is None and is_on_cpu and model.parameters < MAX_SMALL_MODEL_PARAMETERS:
        threads = 1
    if threads is not None:
        torch.set_num_threads(threads)
    if is_on_cpu:
        # Otherwise transformers copies shared keys and values for each of their heads at every step.
        os.environ.setdefault("TRANSFORMERS_SDPA_FORCE_GQA", "1")
    engine = Engine(
        model,
        max_rows=settings.max_rows,
        max_waiting=settings.max_waiting,
    )
    chat_app = ChatApp(
        engine,
        ChatFormat(model.tokenizer, model.end_tokens, model.context_length),
        name=settings.name,
        adapters=[adapter.name for adapter in settings.adapters],
        routers={probe.name: probe.router(model.read_states) for probe in settings.routers},
        context_length=model.context_length,
        default_limit=model.default_limit,
        token=settings.token,
    )

    class Server(uvicorn.Server):
        """A server that leaves signals to `_Shutdown`, whose handlers are active during loading too."""

        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

        async def on_tick(self, counter: int) -> bool:
            return shutdown.requested.is_set() or await super().on_tick(counter)

    server = Server(
        uvicorn.Config(
            chat_app.app,
            http=TimeLimitedConnection,
            ws="none",
            log_level="warning",
            access_log=False,
            lifespan="off",
            timeout_keep_alive=120,  # longer than clients keep idle connections, so clients close them
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
    )
    _print_address(listener, settings, model.device.type)
    shutdown.is_serving = True
    try:
        asyncio.run(server.serve(sockets=[listener]))
    finally:
        engine.close()


def _print_address(listener: socket.socket, settings: ServerSettings, device: str) -> None:
    host, port = listener.getsockname()[:2]
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"
    name = settings.name
    if settings.has_parent_pipe:
        print(json.dumps({"base_url": url, "model": name}), flush=True)
        return
    parts: list[AdapterFolder | Probe] = [*settings.adapters, *settings.routers]
    names = ", ".join([name, *(part.name for part in parts)])
    access_text = "no token: anyone who can reach this address can use it"
    if settings.token:
        access_text = f"token: {settings.token}"
    print(f"serving {names} on {device} at {url}\n{access_text}", flush=True)


def _open_listener(host: str, port: int) -> socket.socket:
    """Return a listening socket, in which connections wait until the model is loaded."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        is_dual_stack = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        return socket.create_server(
            (str(address[0]), port), family=family, backlog=2048, dualstack_ipv6=is_dual_stack
        )
    except (OSError, OverflowError, UnicodeError) as error:
        cause = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"--host {host} --port {port}: cannot listen on this address: {cause}; choose a different "
            "address, or port 0 for a free port"
        ) from None


def _exit_with_parent() -> None:
    """End the process when standard input closes, which means that the parent process has ended."""
    with contextlib.suppress(OSError, ValueError):
        while os.read(0, 4096):
            pass
    os._exit(0)
