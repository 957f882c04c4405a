"""Fixtures shared by all tests."""

import asyncio
import atexit
import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

# `pytester` drops the modules that a session in this process imports. These are imported here, once: a second
# copy of httpcore2 has exceptions that nothing catches, numpy refuses one, and the others cost a second each.
import _pytest.pytester
import aiohttp  # noqa: F401
import filelock  # noqa: F401
import httpcore2  # noqa: F401
import jinja2  # noqa: F401
import openai  # noqa: F401
import pytest
import rich._emoji_codes
import rich.console
import rich.table  # noqa: F401
import scipy.optimize
import scipy.stats  # noqa: F401
import yaml  # noqa: F401
from hypothesis import HealthCheck, settings

from pytest_trace2evolve.agents.reference import OracleAgent
from pytest_trace2evolve.engine.conversation import Limits, converse
from pytest_trace2evolve.improve import adapters
from pytest_trace2evolve.models import chat  # noqa: F401
from pytest_trace2evolve.records.protocols import Agent, User, World
from pytest_trace2evolve.records.task import Task
from pytest_trace2evolve.records.trace import Simulation
from pytest_trace2evolve.serving import process
from pytest_trace2evolve.users.reference import GoldUser
from pytest_trace2evolve.worlds.registry import Worlds
from tests.attack.sessions import Sessions
from tests.fake_world import FakeWorld
from tests.forks import Forks, forking
from tests.hotel import HotelProject, HotelServer, hotel_server, prepare_environment

pytest_plugins = ["pytester"]

# A shell without job control hands on an ignored Ctrl-C to what it starts in the background.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes, or is drawn, says more about the machine than about the law.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")

# Figures that other tests or the user keep must decide nothing here. Forked processes end without `atexit`.
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="t2e-cache-")
atexit.register(shutil.rmtree, os.environ["XDG_CACHE_HOME"], ignore_errors=True)

RECORDED = Path(__file__).resolve().parents[2] / "shared" / "data" / "tau2-results"

Simulate = Callable[..., Simulation]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Keep what is loaded by now out of the garbage collections that sessions in this process ask for."""
    gc.freeze()


@pytest.fixture(scope="session")
def worlds() -> Worlds:
    """Every world once a session: the domains of inspect_evals, and the fake help desk."""
    return Worlds({"fake": FakeWorld})


@pytest.fixture(scope="session")
def desk(worlds: Worlds) -> World:
    """The fake help desk."""
    return worlds.open("fake", "desk")


@pytest.fixture(scope="session")
def recorded() -> Path:
    """The folder of real recorded runs, which lies beside the checkout where it is present at all."""
    if not RECORDED.is_dir():
        pytest.skip(f"the recorded runs are not at {RECORDED}")
    return RECORDED


@pytest.fixture(scope="session")
def simulate() -> Simulate:
    """Runs one simulation; the oracle and the scripted user unless others are given."""

    def run(
        task: Task,
        world: World,
        agent: Agent | None = None,
        user: User | None = None,
        limits: Limits | None = None,
    ) -> Simulation:
        agent, user = agent or OracleAgent(task), user or GoldUser(task)
        return asyncio.run(converse(task, world, agent, user, limits=limits or Limits()))

    return run


@pytest.fixture(scope="session")
def sessions() -> Iterator[Sessions]:
    """The process that forks sessions and commands."""
    with Sessions() as running:
        yield running


@pytest.fixture(scope="session")
def server_forks() -> Iterator[Forks]:
    """The process that forks servers and trainings."""
    with Forks("servers") as running:
        yield running


@pytest.fixture(scope="module")
def forked_servers(server_forks: Forks) -> Iterator[None]:
    """Local servers and trainings start with a fork, for tests of anything but their start."""
    with forking(server_forks, process, adapters):
        yield


@pytest.fixture(scope="session")
def session_forks() -> Iterator[Forks]:
    """The process that forks sessions and their workers."""
    with Forks("sessions") as running:
        yield running


@pytest.fixture
def forked_sessions(session_forks: Forks) -> Iterator[None]:
    """Sessions that `pytester` runs in processes of their own, and their workers, start with a fork."""
    with forking(session_forks, _pytest.pytester):
        yield


@pytest.fixture
def hotel(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> HotelProject:
    """A fresh copy of the hotel, a small project with its own world, agent, user and rules."""
    prepare_environment(monkeypatch)
    forks = "sessions" in request.fixturenames
    return HotelProject(pytester, request.getfixturevalue("sessions") if forks else None)


@pytest.fixture
def hotel_model() -> Iterator[HotelServer]:
    """A model endpoint that plays the hotel's bot and guest."""
    with hotel_server() as server:
        yield server
