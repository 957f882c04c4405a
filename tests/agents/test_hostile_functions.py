"""Hostile agents in one function: each has one clear outcome, and no process outlives the run.

All agents run at the same time, once, before the first test.
"""

import asyncio
import os
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.records.trace import Simulation
from pytest_trace2evolve.utils.canonical import canonical_json
from tests.own_agents import SOURCE, Runner, calls_of, chat_server, texts_of
from tests.patience import HANG_SECONDS, gone, until

BOT = r'''
import asyncio, ctypes, os, signal, subprocess, sys, threading, time
from pathlib import Path

HERE = Path(__file__).parent

def note_pid(name, pid=None):
    (HERE / "pids").mkdir(exist_ok=True)
    (HERE / "pids" / f"{name}-{pid or os.getpid()}").touch()

def agent(act):
    """A make() whose run() is `act(tools, message)`."""
    def make(tools, candidate):
        note_pid(act.__name__)
        tools = {tool.__name__: tool for tool in tools}
        return lambda message: act(tools, message)
    return make

def make_raises(tools, candidate):
    raise ValueError("no such model")

def make_none(tools, candidate):
    return None

def make_takes_more(tools, candidate, settings):
    return lambda message: "x"

def run_takes_nothing(tools, candidate):
    class Agent:
        def run(self): return "x"
    return Agent()

def run_is_builtin(tools, candidate):
    return "milk".index

def raises_type_error(tools, candidate):
    def run(message):
        return message + 1
    return run

def make_blocks(tools, candidate):
    note_pid("make_blocks")
    while True:
        time.sleep(1)

def make_exits(tools, candidate):
    sys.exit(3)

@agent
def binary(tools, message):
    os.write(1, bytes(range(256)))
    sys.stdout.buffer.write(b"\xff\xfe{\"event\": \"reply\"}\n")
    sys.stdout.flush()
    print("plain")
    return "fine"

@agent
def exits(tools, message):
    sys.exit("bye")

@agent
def exits_at_once_0(tools, message):
    print("half done")
    os._exit(0)

@agent
def exits_at_once_1(tools, message):
    os._exit(1)

@agent
def killed(tools, message):
    os.kill(os.getpid(), signal.SIGKILL)

@agent
def segfaults(tools, message):
    os.kill(os.getpid(), signal.SIGSEGV)

@agent
def closes_streams(tools, message):
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        stream.close()
    for number in (0, 1, 2):
        try:
            os.close(number)
        except OSError:
            pass
    return "closed"

@agent
def closes_everything(tools, message):
    os.closerange(0, 256)
    return "closed"

@agent
def floods(tools, message):
    block = b"x" * 999_999 + b"\n"
    for number in range(50):
        os.write(1, block)
        os.write(2, block)
    return "flooded"

@agent
def forks(tools, message):
    for start in ("sleep 600", "setsid sleep 600", "(setsid sh -c 'sleep 600' &) ; sleep 600"):
        note_pid("fork", subprocess.Popen(["sh", "-c", start]).pid)
    if os.fork() == 0:
        note_pid("fork")
        time.sleep(600)
    return "forked"

@agent
def forks_and_exits(tools, message):
    if os.fork() == 0:
        note_pid("fork")
        time.sleep(600)
    os._exit(0)

@agent
def returns_twice(tools, message):
    os.fork()
    return "twice"

@agent
def calls_in_a_fork(tools, message):
    pid = os.fork()
    if pid == 0:
        try:
            tools["read_note"]("N1")
        except RuntimeError:
            os._exit(7)
    return str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

earlier = []

@agent
def calls_later(tools, message):
    earlier.append(tools)
    if earlier[0] is not tools:  # those of a simulation that has ended
        try:
            earlier[0]["read_note"]("N1")
        except RuntimeError as error:
            (HERE / "late").write_text(str(error))
    return "later"

@agent
def returns_bytes(tools, message):
    return b"bytes"

@agent
def returns_much(tools, message):
    return "x" * 50_000_000

@agent
def returns_surrogates(tools, message):
    return "lone \ud83d and NUL \0"

@agent
def odd_arguments(tools, message):
    class Odd:
        def __str__(self): return "odd"
    circular = []
    circular.append(circular)
    found = []
    if "N2" in message:
        return "8"
    for value in (b"x", {1, 2}, Odd(), float("nan"), "\ud83d", 10**400, [[]] * 3):
        found.append(tools["read_note"](note_id=value))
    try:
        tools["read_note"](note_id=circular)
    except ValueError:
        found.append("circular")
    return str(len(found))

@agent
def large_arguments(tools, message):
    return tools["read_note"](note_id="x" * 20_000_000)

@agent
def blocks(tools, message):
    time.sleep(600)

@agent
def spins(tools, message):
    while True:
        pass

@agent
def recurses(tools, message):
    return recurses_deep()

def recurses_deep():
    return recurses_deep()

@agent
def prints_events(tools, message):
    for number in range(3, 64):
        try:
            os.write(number, b'not an event\n')
        except OSError:
            pass
    return "x"

@agent
def stops_loop(tools, message):
    async def stop():
        raise KeyboardInterrupt
    return stop()

class Bad(Exception):
    def __str__(self):
        raise KeyError("no text")

@agent
def raises_badly(tools, message):
    raise Bad

@agent
def network(tools, message):
    raise ConnectionResetError("gone")

def close_raises(tools, candidate):
    class Agent:
        def run(self, message): return "x"
        def close(self): raise ValueError("close")
    return Agent()

def close_blocks(tools, candidate):
    class Agent:
        def run(self, message): return "x"
        def close(self): time.sleep(600)
    return Agent()

not_a_function = 5
'''

TIMEOUT = 8.0
"""Seconds for the agents that never answer; all others have until the test counts as hanging."""


@dataclass
class Outcomes:
    """The outcomes of all agents, by name."""

    folder: Path
    simulations: dict[str, list[Simulation]] = field(default_factory=dict)

    def first(self, name: str) -> Simulation:
        return self.simulations[name][0]


TWICE = ("calls_later", "close_raises", "close_blocks", "forks", "floods")
"""Agents that run two simulations, because the second may use the process of the first."""

SLOW = ("make_blocks", "blocks", "spins", "close_blocks")
"""Agents that take as long as they are let; they begin first."""

NAMES = [
    line.split("(")[0].removeprefix("def ")
    for line in BOT.splitlines()
    if line.startswith("def ")
    and line.split("(")[0] not in ("def note_pid", "def agent", "def recurses_deep")
]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "bot.py").write_text(BOT, encoding="utf-8")
    found = Outcomes(folder)
    slots = asyncio.Semaphore(8)

    async def run(name: str) -> None:
        async with slots:
            runner = Runner(f"bot:{name}", folder, timeout=TIMEOUT if name in SLOW else HANG_SECONDS)
            try:
                n_trials = 2 if name in TWICE else 1
                found.simulations[name] = [await runner.simulate(trial) for trial in range(n_trials)]
            finally:
                await runner.close()

    async def run_all() -> None:
        await asyncio.gather(*(run(name) for name in sorted(NAMES, key=lambda name: name not in SLOW)))

    asyncio.run(run_all())
    return found


FAILED = {
    "make_raises": "ValueError: no such model",
    "make_none": "bot:make_none returned NoneType; return an object with run(message)",
    "make_takes_more": "bot:make_takes_more(tools, candidate) cannot be called: missing a required argument: "
    "'settings'",
    "run_takes_nothing": "run(message) cannot be called: too many positional arguments",
    "run_is_builtin": "ValueError: substring not found",
    "raises_type_error": 'TypeError: can only concatenate str (not "int") to str',
    "make_blocks": "TimeoutError: make gave no answer within 8 seconds (t2e_call_timeout)",
    "make_exits": "SystemExit: 3",
    "exits": "SystemExit: bye",
    "exits_at_once_0": "the agent's process ended with exit status 0; its output ends with 'half done'",
    "exits_at_once_1": "the agent's process ended with exit status 1; it printed nothing",
    "segfaults": "the agent's process ended with signal 11",
    "closes_everything": "the agent's process ended with exit status 1",
    "forks_and_exits": "the agent's process ended with exit status 0",
    "returns_bytes": "run returned bytes, not a text",
    "returns_much": "run returned a text of 50,000,000 characters, but the limit is 1,000,000",
    "large_arguments": "tool 'read_note' was called with arguments of 20,0",
    "blocks": "TimeoutError: run gave no answer within 8 seconds (t2e_call_timeout)",
    "spins": "TimeoutError: run gave no answer within 8 seconds (t2e_call_timeout)",
    "recurses": "RecursionError: maximum recursion depth exceeded",
    "prints_events": "the agent's process sent a line that is not an event: b'not an event'",
    "stops_loop": "KeyboardInterrupt",
    "raises_badly": "Bad: its message cannot be shown (KeyError)",
}
"""The errors of agents that fail their simulation."""


@pytest.mark.parametrize("name", FAILED)
def test_an_agent_fails_its_simulation(outcomes: Outcomes, name: str) -> None:
    done = outcomes.first(name)
    assert done.termination_reason == "agent_error"
    assert done.error_text.startswith(FAILED[name])
    assert "\n" not in done.error_text


CAUSES = {
    "make_raises": "ValueError",
    "make_none": "bot:make_none returned NoneType; return an object with run(message), a callable, or an "
    "agent of pydantic-ai, LangGraph or the OpenAI Agents SDK",
    "make_takes_more": FAILED["make_takes_more"],
    "run_takes_nothing": FAILED["run_takes_nothing"],
    "run_is_builtin": "ValueError",
    "raises_type_error": "TypeError",
    "make_blocks": FAILED["make_blocks"],
    "exits": "SystemExit",
    "exits_at_once_0": "the agent's process ended with exit status 0",
    "returns_bytes": FAILED["returns_bytes"],
    "prints_events": "the agent's process sent a line that is not an event",
}
"""What is shown of an error for a sealed split: nothing that the agent wrote."""


@pytest.mark.parametrize("name", CAUSES)
def test_the_cause_of_an_error_quotes_nothing(outcomes: Outcomes, name: str) -> None:
    error = outcomes.first(name).agent_error
    assert error is not None
    assert error.shown_text(is_sealed=True) == CAUSES[name]
    assert error.shown_text(is_sealed=False).startswith(FAILED[name])


LOST = {
    "killed": "the agent's process was killed by signal 9: it printed nothing",
    "network": "the agent could not reach a service: ConnectionResetError: gone",
}


@pytest.mark.parametrize("name", LOST)
def test_a_simulation_is_lost_to_the_machine(outcomes: Outcomes, name: str) -> None:
    done = outcomes.first(name)
    assert done.termination_reason == "infrastructure_error"
    assert done.error_text == LOST[name]


FINE = {
    "binary": "fine",
    "closes_streams": "closed",
    "floods": "flooded",
    "forks": "forked",
    "returns_twice": "twice",
    "calls_in_a_fork": "7",
    "calls_later": "later",
    "returns_surrogates": "lone \\ud83d and NUL \0",
    "odd_arguments": "8",
    "close_raises": "x",
    "close_blocks": "x",
}


@pytest.mark.parametrize("name", FINE)
def test_odd_behaviour_changes_nothing(outcomes: Outcomes, name: str) -> None:
    for done in outcomes.simulations[name]:
        assert done.termination_reason == "user_stop", done.error_text
        assert texts_of(done) == [FINE[name]] * 2
        canonical_json(done.model_dump(mode="json"))


def test_every_agent_has_an_expected_outcome() -> None:
    assert {*NAMES} == {*FAILED, *LOST, *FINE}


def test_a_late_call_of_a_tool_is_rejected(outcomes: Outcomes) -> None:
    assert not calls_of(outcomes.first("calls_later"))
    assert "while no message was being answered" in (outcomes.folder / "late").read_text()


def test_output_is_kept_in_bounds(outcomes: Outcomes) -> None:
    logs = [path.stat().st_size for path in (outcomes.folder / "logs").iterdir()]
    assert max(logs) < 8 << 20
    assert any(size > 1 << 20 for size in logs)


def test_no_process_outlives_the_run(outcomes: Outcomes) -> None:
    pids = [int(path.name.rpartition("-")[2]) for path in (outcomes.folder / "pids").iterdir()]
    assert len(pids) > 25
    assert all(gone(pid) for pid in pids)


# ---- imports

MODULES = {
    "no module": ("absent:make", None, "cannot be imported: ModuleNotFoundError: No module named 'absent'"),
    "a syntax error": ("odd:make", "def make(:", "SyntaxError: invalid syntax (odd.py, line 1)"),
    "an import error": ("odd:make", "import nothing_like_it", "No module named 'nothing_like_it' (File "),
    "no attribute": ("odd:make", "x = 1", "cannot be imported: module 'odd' has no 'make' (known are x)"),
    "a misspelt one": ("odd:mak", "make = 5", "module 'odd' has no 'mak' (did you mean 'make'?)"),
    "no function": ("odd:make", "make = 5", "cannot be imported: it is an int, not a function"),
    "an exit": ("odd:make", "import sys; sys.exit(0)", "cannot be imported: SystemExit: 0"),
    "an end": ("odd:make", "import os; os._exit(0)", "the agent's process ended with exit status 0"),
    "a block": ("odd:make", "import time; time.sleep(600)", "importing its module gave no answer within 2 s"),
}


def check(runner: Runner) -> None:
    """Check an agent before any simulation, as a session does."""

    async def check_and_close() -> None:
        try:
            await runner.factory.check()
        finally:
            await runner.close()

    asyncio.run(check_and_close())


@pytest.mark.parametrize(("path", "text", "problem"), MODULES.values(), ids=MODULES)
def test_a_module_that_cannot_be_imported_is_an_error_of_the_configuration(
    tmp_path: Path, path: str, text: str | None, problem: str
) -> None:
    if text is not None:
        (tmp_path / "odd.py").write_text(text, encoding="utf-8")
    runner = Runner(path, tmp_path, timeout=2.0 if "sleep" in (text or "") else 60.0)
    with pytest.raises(ConfigError) as caught:
        check(runner)
    message = str(caught.value)
    assert message.startswith(f"agent '{path}'")
    assert problem in message
    assert "\n" not in message


def test_a_module_that_can_no_longer_be_imported_loses_the_simulation(tmp_path: Path) -> None:
    (done,) = Runner("absent:make", tmp_path).run()
    assert done.termination_reason == "infrastructure_error"
    assert done.error_text.startswith("absent:make cannot be imported: ModuleNotFoundError")


def test_a_process_that_cannot_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/nothing/python")
    with pytest.raises(ConfigError, match=r"the agent's process cannot be started: .*No such file"):
        check(Runner("bot:make", tmp_path))
    (done,) = Runner("bot:make", tmp_path).run()
    assert done.termination_reason == "infrastructure_error"


def test_a_module_of_an_old_commit_may_not_come_from_elsewhere(tmp_path: Path) -> None:
    commit = tmp_path / "commit"
    commit.mkdir()
    runner = Runner("json:dumps", commit)
    pool = runner.factory._backend
    pool.function = replace(pool.function, is_commit=True)  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"module 'json' was imported from .*, not from .*commit"):
        check(runner)


# ---- the end of the run

WAITING = """
import os, subprocess, time
from pathlib import Path
HERE = Path(__file__).parent

def make(tools, candidate):
    (HERE / f"pid-{os.getpid()}").touch()
    (HERE / f"pid-{subprocess.Popen(['setsid', 'sleep', '600']).pid}").touch()
    def run(message):
        while True:
            pass
    return run
"""


def pids_in(folder: Path) -> list[int]:
    return [int(path.name.removeprefix("pid-")) for path in folder.glob("pid-*")]


def test_a_cancelled_simulation_ends_its_processes(tmp_path: Path) -> None:
    (tmp_path / "waiting.py").write_text(WAITING, encoding="utf-8")
    runner = Runner("waiting:make", tmp_path)

    async def cancelled() -> None:
        task = asyncio.create_task(runner.simulate())
        while len(pids_in(tmp_path)) < 2:
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert all(map(gone, pids_in(tmp_path)))
        await runner.close()

    asyncio.run(cancelled())


def test_the_processes_end_when_the_run_is_killed(tmp_path: Path) -> None:
    (tmp_path / "waiting.py").write_text(WAITING, encoding="utf-8")
    command = "from tests.own_agents import *; Runner('waiting:make', Path.cwd()).run()"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SOURCE), str(SOURCE.parent)])}
    with subprocess.Popen([sys.executable, "-c", command], cwd=tmp_path, env=environment) as parent:
        until(lambda: len(pids_in(tmp_path)) == 2)
        parent.kill()
    assert all(map(gone, pids_in(tmp_path)))


ASKING = """
import os, urllib.request

def make(tools, candidate):
    def run(message):
        url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
        urllib.request.urlopen(urllib.request.Request(url, b'{"model": "m", "messages": []}'))
    return run
"""


def test_a_model_request_that_hangs_loses_the_simulation(tmp_path: Path) -> None:
    """The agent waits for its model, and is not to blame."""
    (tmp_path / "asking.py").write_text(ASKING, encoding="utf-8")
    with chat_server() as server:
        server.hold()
        (done,) = Runner("asking:make", tmp_path, server.base_url, timeout=10.0).run()
    assert done.termination_reason == "infrastructure_error", done.error_text
    assert "model" in done.error_text
