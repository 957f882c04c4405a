"""Connects to a Ray cluster, calls Ray, and shortens the errors of Ray to one line."""

import asyncio
import contextlib
import ipaddress
import re
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pytest_trace2evolve.engine.budget import Account
from pytest_trace2evolve.engine.factories import AnswerStores
from pytest_trace2evolve.engine.live import LiveSettings
from pytest_trace2evolve.engine.ray_actor import Message, RayActor, RemoteSuite, Side
from pytest_trace2evolve.errors import ConfigError, shorten
from pytest_trace2evolve.evidence.journal import Journal
from pytest_trace2evolve.models.settings import ModelSettings
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.utils.optional import require

MAX_OPEN_SECONDS = 300.0
"""Seconds that an actor may take to start, which includes the installation of packages on its node."""

MAX_CONNECT_SECONDS = 10.0
"""Seconds that the cluster's address may take to accept a connection."""

EXCLUDED_FOLDERS = [".git", ".venv", ".trace2evolve", "__pycache__", "node_modules"]
"""Folders of a project that are not copied to the nodes."""

_ERROR_LINE = re.compile(r"^(?:[\w.]*\.)?(\w+(?:Error|Exception)): (.*)", re.MULTILINE)


@dataclass(frozen=True)
class RunContext:
    """The data that a run passes to an executor before its first simulation.

    Attributes:
        suites: The suites that are not replayed, by name.
        sides: The models of each side; None if its agent is not `chat`.
        stores: The run's stores of answers.
        concurrency: The number of concurrent simulations.
    """

    project: Project
    account: Account
    concurrency: int
    suites: Mapping[str, RemoteSuite] = field(default_factory=dict)
    sides: Mapping[Side, LiveSettings | None] = field(default_factory=dict)
    stores: AnswerStores = field(default_factory=dict)

    @property
    def all_models(self) -> list[ModelSettings]:
        """All models that are called from the nodes."""
        settings = [live for live in self.sides.values() if live is not None]
        return [model for live in settings for model in live.models]


@dataclass
class Job:
    """A simulation or a call that an actor runs.

    Attributes:
        future: The result; raises `ActorLost` if the actor ended.
        journal: The journal of the simulation; None if there is none.
        before_use: Called before an answer is used.
    """

    future: "asyncio.Future[Any]"
    journal: Journal | None
    before_use: Callable[[], Awaitable[None]]


class ActorLost(Exception):  # noqa: N818 - not an error, because the job moves to another actor
    """The actor ended before its job was finished."""


@dataclass(eq=False)
class Actor:
    """The driver's record of an actor.

    Attributes:
        handle: Ray's handle of the actor.
        node: The address of the actor's node.
        jobs: The jobs that the actor runs, by number.
        outbox: Messages that were not sent yet.
        is_exchanging: Whether a batch is under way; new messages then have to be sent separately.
        flush_timer: The timer that sends the outbox soon; None if none is set.
    """

    handle: Any
    node: str
    jobs: dict[int, Job] = field(default_factory=dict)
    outbox: list[Message] = field(default_factory=list)
    is_exchanging: bool = False
    flush_timer: asyncio.TimerHandle | None = None


class RayCluster:
    """A Ray cluster; `connect` opens the connection.

    Args:
        address: The cluster's address, or `auto`; see `RayExecutor`.
        pip: Requirements that the nodes install, or the path of a requirements file.
    """

    def __init__(self, address: str, pip: str | list[str]) -> None:
        self.address = address
        self._pip = pip
        self._is_ours = False

    def connect(self, root: Path) -> None:
        """Connect, unless this process is connected already. Ray copies the folder `root` to the nodes.

        Raises:
            MissingExtraError: Ray is not installed.
            ConfigError: nothing listens at the address, or `pip` would have no effect.
            Exception: any error of Ray; inside `one_line_errors` it becomes a `ConfigError`.
        """
        if self._ray.is_initialized():
            if self._pip:
                raise ConfigError(
                    "pip has no effect because this process is already connected to Ray; "
                    "list the packages in ray.init"
                )
            return
        if self.address != "auto":
            _check_listening(self.address)
        environment: dict[str, Any] = {"working_dir": str(root), "excludes": EXCLUDED_FOLDERS}
        if self._pip:
            environment["pip"] = self._pip
        handler = signal.getsignal(signal.SIGTERM)
        self._ray.init(
            address=None if self.address == "auto" else self.address,
            runtime_env=environment,
            log_to_driver=False,
            logging_level="error",
        )
        self._is_ours = True
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)  # Ray replaced the handler

    def close(self) -> None:
        """Disconnect, if `connect` made the connection."""
        if self._is_ours:
            self._is_ours = False
            self._ray.shutdown()

    @property
    def errors(self) -> Any:
        """Ray's module of exceptions."""
        return self._ray.exceptions

    def count_cpus(self) -> int:
        """The number of CPUs of all nodes.

        Raises:
            ConfigError: the cluster has no CPU.
        """
        n_cpus = int(self._ray.cluster_resources().get("CPU", 0))
        if not n_cpus:
            raise ConfigError(f"the Ray cluster at {self.address} has no CPU; start a node that has CPUs")
        return n_cpus

    def own_address(self) -> str:
        """The address of this machine in the cluster."""
        return str(self._ray.util.get_node_ip_address())

    def create_actor(self) -> Any:
        """Create an actor, which takes one CPU; actors are spread over the nodes."""
        options = {"num_cpus": 1, "max_restarts": 0, "scheduling_strategy": "SPREAD"}
        return self._ray.remote(**options)(RayActor).remote()

    def get(self, reference: Any) -> Any:
        """Wait for the result of a call to a starting actor, at most `MAX_OPEN_SECONDS`."""
        return self._ray.get(reference, timeout=MAX_OPEN_SECONDS)

    def kill(self, actor: Any) -> None:
        """End an actor; do nothing if the actor or its node has ended already."""
        with contextlib.suppress(Exception):
            self._ray.kill(actor)

    @contextlib.contextmanager
    def one_line_errors(self) -> Iterator[None]:
        """Convert errors of Ray to a `ConfigError` with a one-line message.

        Raises:
            ConfigError: Ray raised an error; the message is Ray's.
        """
        errors = self.errors
        try:
            yield
        except (errors.RayError, OSError, RuntimeError, ValueError) as error:
            raise ConfigError(f"Ray at {self.address}: {one_line_message(error)}") from None

    @property
    def _ray(self) -> Any:
        return require("ray", extra="ray")


def check_opened(node: str, problem: str) -> None:
    """Raise an error if an actor reported a problem while it opened the project.

    Raises:
        ConfigError: the actor cannot run the project; the message names the node.
    """
    if problem:
        raise ConfigError(f"node {node} of the Ray cluster cannot run the project: {problem}")


def check_reachable(cluster: RayCluster, node: str, models: Iterable[ModelSettings]) -> None:
    """Check that a node can reach all models.

    Raises:
        ConfigError: a model is served on the loopback address of another machine.
    """
    for model in models:
        if node != cluster.own_address() and _is_loopback(model.endpoint()):
            raise ConfigError(
                f"node {node} of the Ray cluster cannot reach model {model.model!r} at {model.endpoint()}; "
                "serve it at an address that all nodes can reach"
            )


def _is_loopback(url: str | None) -> bool:
    """Whether a URL can be reached from this machine only."""
    host = urlsplit(url or "").hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def one_line_message(error: Exception) -> str:
    """The message of an error of Ray, in one line; for a remote traceback, its last error."""
    text = str(error)
    if matches := [*_ERROR_LINE.finditer(text)]:
        text = f"{matches[-1][1]}: {text[matches[-1].start(2) :]}"
    return shorten(" ".join(text.split()) or type(error).__name__, 300)


def _check_listening(address: str) -> None:
    """Check that something listens at an address, because Ray itself would wait for minutes.

    Raises:
        ConfigError: nothing listens at the address.
    """
    url_parts = urlsplit(address if "://" in address else f"ray://{address}")
    try:
        with socket.create_connection(
            (url_parts.hostname or "", url_parts.port or 0), timeout=MAX_CONNECT_SECONDS
        ):
            return
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"cannot reach a Ray cluster at {address} ({error}); start one with 'ray start --head', or "
            "check the address"
        ) from None


def to_portable(model: ModelSettings) -> ModelSettings:
    """The same settings with the URL and the key themselves, instead of this machine's variables."""
    return replace(model, base_url=model.endpoint(), token=model.key())
