"""A failing item explains itself if its trace may be read, and shows nothing of a sealed split."""

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from pytest_trace2evolve.cli.main import main
from pytest_trace2evolve.evidence.ledger import Ledger
from pytest_trace2evolve.records.ledger import Access
from pytest_trace2evolve.session import trials
from tests.hotel import HotelProject
from tests.plugin.conftest import CONFTEST, SUITE, DeskProject

PLANTED = {
    "goldnote": "the text that the gold action writes",
    "goldsays": "the text that the agent has to say",
    "startnote": "a record of the task's own",
    "userword": "what the user says",
    "agentword": "what the agent says",
    "callword": "what the agent writes",
    "thoughtword": "an argument of a call that changes nothing",
    "crashword": "the message of an exception",
}
"""Words that occur only in the traces and the gold data of task `vault`."""

VAULT = """
from pytest_trace2evolve.records.message import Message, ToolCall
from pytest_trace2evolve.records.task import Task
from fake_world import TASKS

VAULT = Task.model_validate({
    "id": "vault",
    "initial_state": {"initialization_data": {"agent_data": {"tickets": {
        "T9": {"status": "open", "note": "startnote"},
    }}}},
    "evaluation_criteria": {
        "actions": [{"name": "write_note", "arguments": {"ticket_id": "T9", "text": "goldnote"}}],
        "communicate_info": ["goldsays"],
    },
})


class VaultWorld(FakeWorld):
    def tasks(self):
        return {**TASKS, "vault": VAULT}


class Talker:
    name = "talker"

    def __init__(self, trial):
        self.answers = [
            [ToolCall(id="0", name="think", arguments={"thought": "thoughtword"})],
            [ToolCall(id="1", name="write_note", arguments={"ticket_id": "T9", "text": "callword"})],
            "agentword",
        ]
        self.trial = trial

    async def respond(self, history):
        if self.trial == 1:
            raise ValueError(f"crash{'word'}")
        answer = self.answers.pop(0)
        if isinstance(answer, str):
            return Message(role="assistant", content=answer)
        return Message(role="assistant", tool_calls=answer)


class Guest:
    name = "guest"

    def __init__(self):
        self.count = 0

    async def respond(self, history):
        self.count += 1
        return Message(role="user", content="userword" if self.count == 1 else "userword ###STOP###")


def make(task, world, candidate, trial):
    return (Talker(trial), Guest()) if task.id == "vault" else listed(task, world, candidate, trial)


def pytest_t2e_worlds(config):
    return {"fake": VaultWorld}


def pytest_t2e_agents(config):
    return {"listed": make}
"""


def vault(project: DeskProject, split: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Put task `vault` into a split of the project."""
    project.pytester.makeconftest(CONFTEST + VAULT)
    project.write("suites/desk.toml", SUITE.replace(f"{split} = [", f'{split} = ["vault", '))
    assert main(["lock", "--root", str(project.root)]) == 0
    capsys.readouterr()


def explanation(result: pytest.RunResult, name: str) -> list[str]:
    """The lines of an item below FAILURES."""
    text = result.stdout.str().split("= FAILURES =")[1].split("= trace2evolve: ")[0]
    (found,) = re.findall(rf"_ {name} _+\n(.*?)\n[_=]{{5}}", text, re.DOTALL)
    lines = str(found).split("\n")
    return lines[1:] if lines[0].startswith("[gw") else lines


def test_a_failing_item_shows_what_is_wrong(project: DeskProject) -> None:
    result = project.spawn("--candidate=v1", "--t2e-trials=2", "--junitxml=junit.xml")
    lines = [
        "reward 0.000: 0 of 2 trials passed (ended by user_stop; below 1: DB, ACTION)",
        "first failed trial: 0",
        "database (expected != actual):",
        "E   tickets.T3.status: 'closed' != 'open'",
        "failed checks:",
        'E   missing call: close_ticket(ticket_id="T3")',
        "last messages:",
        "    assistant: Hi! How can I help you today?",
        "    user: Hello, I need help with something.",
        "    assistant: I cannot help you with that.",
        "    user: Thank you, that is all. ###STOP###",
        f"open the trace: trace2evolve show {project.runs[-1].name} opened",
    ]
    assert explanation(result, "discovery::opened") == lines
    (suite,) = ET.parse(project.root / "junit.xml").getroot()
    (failure,) = (case[-1] for case in suite.findall("testcase") if case.get("name") == "opened")
    assert failure.text == "\n".join(lines)
    assert failure.get("message") == lines[0]


def test_the_traceback_style_decides_how_much_is_shown(project: DeskProject) -> None:
    reason = "reward 0.000: 0 of 1 trials passed (ended by user_stop; below 1: DB, ACTION)"

    def shown(style: str) -> pytest.RunResult:
        return project.run("--candidate=v1", "suites/desk.toml::discovery::opened", f"--tb={style}")

    assert explanation(shown("short"), "discovery::opened") == [
        reason,
        "database (expected != actual):",
        "E   tickets.T3.status: 'closed' != 'open'",
        "failed checks:",
        'E   missing call: close_ticket(ticket_id="T3")',
    ]
    assert len(explanation(shown("long"), "discovery::opened")) == 11
    result = shown("line")
    result.stdout.fnmatch_lines([f"*suites/desk.toml:1: {reason}"])
    result.stdout.no_fnmatch_line("E   *")
    result = shown("no")
    result.stdout.fnmatch_lines([f"FAILED suites/desk.toml::discovery::opened - {reason}"])
    result.stdout.no_fnmatch_line("E   *")
    result.stdout.no_fnmatch_line("*FAILURES*")


def test_a_failure_that_cannot_be_explained_still_counts(
    project: DeskProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: object) -> None:
        raise KeyError("room")

    monkeypatch.setattr(trials, "explain_failure", broken)
    result = project.run("--candidate=v1", "suites/desk.toml::discovery::opened")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["FAILED *opened - reward 0.000: 0 of 1 trials passed *"])


@pytest.mark.parametrize("is_sealed", [False, True])
def test_nothing_of_a_sealed_split_leaks(
    project: DeskProject,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    is_sealed: bool,
) -> None:
    vault(project, "heldout" if is_sealed else "discovery", capsys)
    step = project.root / "step.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(step))
    summaries = ("--t2e-summary=s.md", "--t2e-summary=s.json", "--junitxml=junit.xml")
    result = project.spawn("--candidate=v1", "--t2e-trials=3", "-rA", "-vv", "-l", "--full-trace", *summaries)
    texts = {"stdout": result.stdout.str(), "stderr": result.stderr.str()}
    texts |= {
        path.relative_to(project.root).as_posix(): path.read_text(encoding="utf-8")
        for path in project.root.rglob("*")
        # Run folders hold the evidence, and Python files hold the planted words.
        if path.is_file() and ".trace2evolve" not in path.parts and path.suffix not in (".py", ".pyc")
    }
    assert "junit.xml" in texts
    found = {(name, word) for name, text in texts.items() for word in PLANTED if word in text}
    if is_sealed:
        assert found == set()
        assert explanation(result, "heldout::vault")[:2] == [
            "reward 0.000: 0 of 3 trials passed",
            "the agent raised ValueError",
        ]
    else:
        assert {word for name, word in found if name == "stdout"} == {*PLANTED} - {"startnote"}
        lines = explanation(result, "discovery::vault")
        assert "E   tickets.T9.note: 'goldnote' != 'callword'" in lines
        assert 'E     nearest call: write_note(ticket_id="T9", text="callword")' in lines
        assert "E   not said by the agent: 'goldsays'" in lines
        assert "the agent raised ValueError: crashword" in lines
        assert """    raise ValueError(f"crash{'word'}")""" in lines


def test_a_sealed_split_says_what_opens_the_trace_and_what_that_costs(project: DeskProject) -> None:
    result = project.run("--candidate=v0", "-m", "heldout")
    reason, cost = explanation(result, "heldout::note")
    assert reason == "reward 0.000: 0 of 1 trials passed"
    assert cost == (
        "heldout is sealed, so no trace is shown; open it (the ledger records this, which ends clean "
        f"evidence): trace2evolve show {project.runs[-1].name} note"
    )


UNUSABLE = """

class Wrong(NopAgent):
    async def respond(self, history):
        return {"userword": 1}


def pytest_t2e_agents(config):
    return {"listed": lambda task, world, candidate, trial: (Wrong(), GoldUser(task))}
"""


def test_an_unusable_answer_is_explained_for_every_split(project: DeskProject) -> None:
    project.pytester.makeconftest(CONFTEST + UNUSABLE)
    result = project.run("--candidate=v1", "--t2e-trials=2", "--t2e-gate=off")
    reason = "the agent failed: respond returned dict, not a Message"
    assert reason in explanation(result, "heldout::note")
    lines = explanation(result, "discovery::opened")
    assert lines[2:4] == ["E   ended early: agent_error", reason]
    text = " ".join(result.stdout.str().split())
    assert "agent errors in 14 of 14 simulations (first: respond returned dict, not a Message)" in text


@pytest.fixture
def development(project: DeskProject) -> DeskProject:
    """A project whose tasks of `discovery` are in `development`."""
    project.write("suites/desk.toml", SUITE.replace("discovery", "development"))
    project.lock()
    return project


def accesses(project: DeskProject) -> list[tuple[str, str]]:
    """Splits and tasks of the recorded accesses."""
    entries = Ledger(project.root / "ledger").read().entries_by_time
    return [(entry.split, entry.task) for entry in entries if isinstance(entry, Access)]


def test_development_may_be_read_and_its_first_access_is_recorded(development: DeskProject) -> None:
    for _ in range(2):
        result = development.run("--candidate=v1", "--t2e-gate=off")
        assert "E   tickets.T3.status: 'closed' != 'open'" in explanation(result, "development::opened")
        assert "sealed" in "".join(explanation(result, "heldout::look"))
    assert accesses(development) == [("development", "opened")]


def test_an_access_that_cannot_be_recorded_shows_nothing(development: DeskProject) -> None:
    development.write("ledger", "no folder")
    lines = explanation(
        development.run("--candidate=v1", "--t2e-gate=off", "-m", "development"), "development::opened"
    )
    assert "so nothing is shown; make the folder writable" in " ".join(lines)
    assert "tickets.T3" not in "".join(lines)
    assert "last messages:" not in lines


def test_a_task_that_another_suite_seals_is_not_explained(project: DeskProject) -> None:
    other = SUITE.replace('"close", "note", "restart", "look"', '"idle"')
    other = other.replace('"idle", "opened", "free"', '"free"') + 'transfer = ["opened"]\n'
    project.write("suites/other.toml", other)
    project.lock()
    result = project.run("--candidate=v1", "suites/desk.toml", "--t2e-run-folder=out")
    reason, cost = explanation(result, "discovery::opened")
    assert reason == "reward 0.000: 0 of 1 trials passed"
    assert cost == (
        "other::transfer is sealed, so no trace is shown; open it (the ledger records this): "
        "trace2evolve show out opened"
    )


HOSTILE = """
class Hostile(FakeWorld):
    fingerprint = "desk 1"

    def open(self, *, solo=False):
        session = super().open(solo=solo)
        session._state["tickets"]["T1"]["note"] = EVIL
        return session


class Evil:
    name = "evil"

    async def respond(self, history):
        if history[-1].role == "tool":
            return Message(role="assistant", content=EVIL + history[-1].content)
        call = ToolCall(id="1", name="write_note", arguments={"ticket_id": "T1", "text": EVIL + "."})
        return Message(role="assistant", tool_calls=[call])


def evil(task, world, candidate, trial):
    return Evil(), GoldUser(task)


def pytest_t2e_worlds(config):
    return {"fake": Hostile}


def pytest_t2e_agents(config):
    return {"listed": evil}
"""


def test_hostile_traces_control_no_terminal(project: DeskProject) -> None:
    from tests.plugin.test_hostile_output import EVIL, forbidden

    imports = "from pytest_trace2evolve.records.message import Message, ToolCall\n"
    project.write("conftest.py", f"{CONFTEST}\n{imports}EVIL = {EVIL!r}\n{HOSTILE}")
    done = project.spawn("--candidate=v1", "--junitxml=junit.xml", "-vv")
    junit = (project.root / "junit.xml").read_text(encoding="utf-8")
    assert "tickets.T1.note: …" in junit
    assert "assistant: \\x1b[2J" in done.stdout.str()
    assert forbidden(done.stdout.str() + done.stderr.str() + junit) == []


def test_show_explains_nothing_if_the_lock_has_changed(
    project: DeskProject, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project.root)
    project.run("--candidate=v1", "--t2e-gate=off")
    project.write("suites/desk.toml", SUITE.replace('"free"', '"free", "polite"'))
    project.lock()
    capsys.readouterr()
    assert main(["show", project.runs[-1].name, "opened"]) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "components: DB 0.0",
        "failed: the database is not in the required end state",
    ]


def seal_other_split(hotel: HotelProject) -> None:
    """Exchange the hotel's splits, so that most of its traces may be read."""
    suite = hotel.read("suites/hotel.toml").replace("heldout", "other").replace("discovery", "heldout")
    hotel.write("suites/hotel.toml", suite.replace("other", "discovery"))
    hotel.lock()


WRONG = """

class Wrong:
    name = "wrong"

    async def respond(self, history):
        if history[-1].role == "tool":
            return Message(role="assistant", content="Done. Your booking is cancelled.")
        call = ToolCall(id="1", name="cancel_booking", arguments={"booking_id": "B102"})
        return Message(role="assistant", tool_calls=[call])


def make_wrong(task, world, candidate, trial):
    return Wrong(), Guest(task)


def pytest_t2e_agents(config):
    return {"wrong": make_wrong}
"""


def test_the_docs_show_the_output_of_a_run(hotel: HotelProject) -> None:
    seal_other_split(hotel)
    imports = (
        "from hotel.user import Guest\nfrom pytest_trace2evolve.records.message import Message, ToolCall\n"
    )
    hotel.write("conftest.py", imports + hotel.read("conftest.py") + WRONG)
    result = hotel.run("suites", "--candidate=v0", "--t2e-agent=wrong")
    lines = explanation(result, "discovery::cancel-flexible")
    page = (Path(__file__).resolve().parents[2] / "docs/report.md").read_text(encoding="utf-8")
    shown = "\n".join(f"    {line}" for line in lines).replace(hotel.runs[-1].name, "2026-11-24T035034")
    assert shown in page
