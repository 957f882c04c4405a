"""The effect of each single change of a project on evidence of earlier runs: nothing stale is used again.

Each cell of `MATRIX` is one letter. `n`: simulations are made, or a test is counted, anew. `r`: the run
rejects what was kept, and names the change. `s`: the run uses what was kept: the change cannot reach it.
"""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pytest_trace2evolve.evidence.baselines import read_evidence, write_evidence
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.session.ledger import ProjectLedger
from tests.attack.sessions import Sessions
from tests.hotel import TEMPLATE, HotelServer, hotel_server, lock

SUITE = """\
provider = "hotel"
domain = "hotel"
trials = 1
max_steps = 40
default_agent = "bot"

[splits]
heldout = ["cancel-flexible", "move-free", "price-stay"]
discovery = ["book-single"]
"""

FEES = "hotel/fees.py"
"""A helper module of the world."""

Edit = Callable[[Path], None]


def replacing(name: str, old: str, new: str) -> Edit:
    """An edit that replaces a passage which occurs exactly once."""

    def edit(root: Path) -> None:
        text = (root / name).read_text(encoding="utf-8")
        assert text.count(old) == 1, f"{name}: {old!r} occurs {text.count(old)} times"
        (root / name).write_text(text.replace(old, new), encoding="utf-8")

    return edit


def writing(name: str, text: str) -> Edit:
    """An edit that writes a file."""

    def edit(root: Path) -> None:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")

    return edit


def locking(change: Edit) -> Edit:
    """An edit that is accepted by `trace2evolve lock`."""

    def edit(root: Path) -> None:
        change(root)
        lock(root)

    return edit


def rewriting(pattern: str, old: str, new: str) -> Edit:
    """An edit of all files of a pattern."""

    def edit(root: Path) -> None:
        for path in root.glob(pattern):
            text = path.read_text(encoding="utf-8")
            assert old in text, path
            path.write_text(text.replace(old, new), encoding="utf-8")

    return edit


def saved_by_an_older_scorer(root: Path) -> None:
    """Baselines as another version of the scorer saved them, with its entries of the ledger."""
    ledger = ProjectLedger(Project(root, root / "suites"))
    for path in root.glob("baselines/hotel/*.json"):
        evidence = read_evidence(path)
        origin = evidence.provenance.model_copy(update={"scorer_version": 0})
        older = evidence.model_copy(update={"provenance": origin})
        write_evidence(path, older)
        ledger.record_baseline_save("hotel", path.stem, older, None)


def nothing(root: Path) -> None:
    """No edit: options alone make the change."""


@dataclass(frozen=True)
class Row:
    """One change and its effects.

    Attributes:
        change: What is changed.
        edit: Changes files of the project.
        cells: What happens, a letter for each of `COLUMNS`.
        options: Options of all sessions after the change.
        live: Options of those that ask a model.
        environment: Variables of its environment.
        names: What a message that refuses the run must name.
    """

    change: str
    edit: Edit
    cells: str
    options: tuple[str, ...] = ()
    live: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    names: str = ""


COLUMNS = ("resume", "cache", "cassette", "baseline", "test", "own baseline", "own test")
WORLD, TASKS, V6 = "hotel/world.py", "hotel/tasks.json", "candidates/v6.md"
BROKEN_TOOL = replacing(WORLD, "            result = tool(**arguments)", "            raise ValueError(name)")

OTHER_GOLD = replacing(
    TASKS,
    '"cancel_booking", "arguments": {"booking_id": "B101"}',
    '"cancel_booking", "arguments": {"booking_id": "B102"}',
)


MATRIX = [
    Row("nothing", nothing, "sssssss"),
    Row("text of the candidate", replacing(V6, "Serve guests", "Always serve guests"), "nnrsnsn"),
    Row("hypothesis of the candidate", replacing(V6, "leave satisfied", "are happier"), "sssssss"),
    Row(
        "name of the model",
        nothing,
        "nnsrrss",
        live=("--t2e-model=other", "--t2e-user-model=hotel-model"),
        names=r"changes: \[model\]",
    ),
    Row("seed", nothing, "nnssnss", live=("--t2e-seed=7",)),
    Row(
        "extra body",
        nothing,
        "nnsrrss",
        live=('-ot2e_extra_body={"top_k": 1}',),
        names=r"changes: \[parameters\]",
    ),
    Row(
        "extra instruction",
        nothing,
        "nnrrrss",
        environment={"TAU2_AGENT_EXTRA_INSTRUCTION": "Be brief."},
        names=r"TAU2_AGENT_EXTRA_INSTRUCTION|changes: \[parameters\]",
    ),
    Row("number of trials", nothing, "nnrsnsn", ("--t2e-trials=2",)),
    Row("goal", nothing, "ssssnsn", ("--t2e-goal=hold",)),
    Row(
        "policy of the gate", writing("policies/mine.toml", "alpha = 0.04\n"), "ssssnsn", ("--t2e-gate=mine",)
    ),
    Row(
        "step budget, locked",
        locking(replacing("suites/hotel.toml", "max_steps = 40", "max_steps = 50")),
        "nssrrrr",
        names="lock '",
    ),
    Row(
        "policy text, locked",
        locking(replacing("hotel/policy.md", "Read a booking", "First read a booking")),
        "nnrrrrr",
        names="policy '",
    ),
    Row(
        "data, locked",
        locking(replacing("hotel/data.json", '"price": 260', '"price": 250')),
        "nnrrrrr",
        names="data '",
    ),
    Row(
        "user of a task, locked",
        locking(replacing(TASKS, "Say yes only to: cancel, B101", "Say yes only to: B101, cancel")),
        "nnrrrrr",
        names="content of task 'cancel-flexible'",
    ),
    Row(
        "gold action of a task, locked",
        locking(OTHER_GOLD),
        "nssrrrr",
        names="content of task 'cancel-flexible'",
    ),
    Row(
        "a task more, locked",
        locking(replacing("suites/hotel.toml", '"price-stay"]', '"price-stay", "cancel-past"]')),
        "nnrrrrr",
        names="tasks were added or removed",
    ),
    Row(
        "guidelines of the user, locked",
        locking(replacing(WORLD, "follow your instructions", "obey your instructions")),
        "nnrrrrr",
        names="user guidelines|code of the world",
    ),
    Row(
        "description of a tool, locked",
        locking(replacing(WORLD, '"Read a booking."', '"Read one booking."')),
        "nnrrrrr",
        names="tools '",
    ),
    Row(
        "implementation of a tool",
        BROKEN_TOOL,
        "rrrrrrr",
        names="implementation of its tools changed \\(hotel/world.py\\)",
    ),
    Row(
        "implementation of a tool, locked",
        locking(BROKEN_TOOL),
        "nnrrrrr",
        names="code of the world \\(hotel/world.py\\)",
    ),
    Row(
        "helper module of the world, locked",
        locking(replacing(FEES, "FACTOR = 1", "FACTOR = 2")),
        "nnrrrrr",
        names="code of the world \\(hotel/fees.py\\)",
    ),
    Row(
        "rules of the world, locked",
        locking(replacing(WORLD, 'named=("cancel",)', 'named=("cancel", "annul")')),
        "nssrrrr",
        names="code of the world \\(hotel/world.py\\)",
    ),
    Row(
        "code of the agent",
        replacing(
            "hotel/agent.py", "return Bot(candidate.instruction)", "return Bot(candidate.instruction + ' ')"
        ),
        "ssssssn",
    ),
    Row(
        "helper module of the agent",
        replacing("hotel/planning.py", "if action is None:", "if True:"),
        "ssssssn",
    ),
    Row(
        "code of the user",
        replacing("hotel/user.py", "def answer(self, history", "def answer(self,  history"),
        "sssssrr",
        names="code of the user \\(hotel/user.py\\)",
    ),
    Row("agent behind a name", replacing("conftest.py", '"bot": make_bot', '"bot": make_idle'), "ssssssn"),
    Row("README", writing("README.md", "Another text.\n"), "sssssss"),
    Row(
        "version of the scorer",
        rewriting("suites/suites.lock", '"scorer_version":1', '"scorer_version":0'),
        "rrrrrrr",
        names="its scorer version changed from 0 to 1",
    ),
    Row(
        "version of the scorer, baselines",
        saved_by_an_older_scorer,
        "sssrrrr",
        names="scorer version 0 and 1",
    ),
]


@pytest.fixture(scope="module")
def server() -> Iterator[HotelServer]:
    """One endpoint for all rows: its address is part of what identifies a simulation."""
    with hotel_server() as one:
        yield one


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory, server: HotelServer, sessions: Sessions) -> Path:
    """A project with baselines, finished simulations, cached answers, a cassette and a ledger."""
    root = tmp_path_factory.mktemp("measured")
    shutil.copytree(
        TEMPLATE, root, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__", ".*_cache")
    )
    (root / "suites/hotel.toml").write_text(SUITE, encoding="utf-8")
    (root / FEES).write_text("FACTOR = 1\n", encoding="utf-8")
    replacing(WORLD, '"total": nights * price}', '"total": nights * price * FACTOR}')(root)
    replacing(WORLD, "FOLDER = ", "from hotel.fees import FACTOR\n\nFOLDER = ")(root)
    lock(root)
    for arguments in (
        ("--t2e-save-baseline=own", "--t2e-gate=off"),
        ("--t2e-save-baseline=chat", "--t2e-gate=off", *server.arguments),
        ("--candidate=v6", "--t2e-baseline=own"),
        ("--candidate=v6", "--t2e-baseline=chat", "--t2e-cache", *server.arguments),
        ("--candidate=v6", "--t2e-gate=off", "--t2e-record=tape.jsonl", "--t2e-fresh", *server.arguments),
    ):
        done = sessions.run(root, "pytest", "-q", "suites", *arguments)
        assert done.status in (0, 1, 10), done.text
    return root


@dataclass
class Session:
    """The result of one session after a change."""

    status: int
    output: str
    requests: int


@pytest.mark.parametrize("row", MATRIX, ids=[row.change for row in MATRIX])
def test_a_single_change(
    row: Row, measured: Path, server: HotelServer, sessions: Sessions, tmp_path: Path
) -> None:
    root = tmp_path / "project"
    shutil.copytree(measured, root)
    row.edit(root)

    def session(*arguments: str) -> Session:
        before = server.requests
        command = ("pytest", "-q", "--no-header", "suites", "--candidate=v6", *arguments, *row.options)
        done = sessions.run(root, *command, environment=row.environment)
        return Session(done.status, done.text, server.requests - before)

    def kept(one: Session) -> str:
        """Whether simulations or answers that were kept were used."""
        return "r" if one.status == 4 else "s" if one.requests == 0 else "n"

    def test_of(one: Session) -> str:
        """Whether the ledger counts the session as the test that it holds already."""
        if one.status == 4:
            return "r"
        entries = [json.loads(path.read_text(encoding="utf-8")) for path in (root / "ledger").glob("*.json")]
        [added] = [entry for entry in entries if entry["kind"] == "evaluation" and entry["run"] not in runs]
        runs.add(added["run"])
        return "s" if added.get("repeats") else "n"

    def baseline_of(one: Session) -> str:
        return "r" if one.status == 4 else "s"

    entries = [json.loads(path.read_text(encoding="utf-8")) for path in (root / "ledger").glob("*.json")]
    runs = {entry["run"] for entry in entries if entry["kind"] == "evaluation"}
    live = *server.arguments, *row.live
    compared = session("--t2e-baseline=chat", *live)
    # A gated session resumes as any other; if it is refused, another one shows whether it would.
    resumed = session("--t2e-gate=off", *live) if compared.status == 4 else compared
    cached = session("--t2e-fresh", "--t2e-cache", "--t2e-gate=off", *live)
    played = session("--t2e-playback=tape.jsonl", "--t2e-fresh", "--t2e-gate=off")
    found = [
        kept(resumed),
        kept(cached),
        "r" if played.status == 4 or "lost: cassette" in played.output else "s",
        baseline_of(compared),
        test_of(compared),
    ]
    own = session("--t2e-baseline=own")
    found += [baseline_of(own), test_of(own)]
    assert "".join(found) == row.cells, dict(zip(COLUMNS, found, strict=True))
    for one in (resumed, cached, compared, played, own):
        if one.status == 4:
            assert re.search(row.names, one.output), one.output
