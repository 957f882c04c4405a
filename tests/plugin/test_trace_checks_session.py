"""Checks of one's own in whole sessions: in report, evidence, verdict and stored trace, and in the gate."""

import json

import pytest

from pytest_trace2evolve.cli.main import main
from pytest_trace2evolve.evidence.baselines import read_evidence
from tests.plugin.conftest import CONFTEST, DeskProject

CHECKS = """
import pytest_trace2evolve as t2e


@t2e.check(kind="consent")
def asks_first(trace):
    calls = trace.calls("close_ticket")
    if not calls:
        return None
    if trace.before(calls[0].index).said("shall i"):
        return True
    return f"closed {calls[0].arguments['ticket_id']} without asking"


@t2e.check(kind="data", id="keeps_spam")
def spam_stays_closed(database):
    return database["tickets"]["T2"]["status"] == "closed"
"""

AGENTS = '''

class Asking(OracleAgent):
    """The oracle, which asks before its first action."""

    async def respond(self, history):
        if not any(message.content == "Shall I?" for message in history):
            return Message(role="assistant", content="Shall I?")
        return await super().respond(history)


class Patient(GoldUser):
    async def respond(self, history):
        if history[-1].content == "Shall I?":
            return Message(role="user", content="Yes.")
        return await super().respond(history)
'''

SUITE = """\
provider = "fake"
domain = "desk"
trials = 4

[splits]
heldout = ["close", "note", "restart", "look", "opened", "idle"]
discovery = ["free"]
"""


@pytest.fixture
def checked(project: DeskProject) -> DeskProject:
    """The project with two checks; candidate v2 solves the same tasks as v1, but does not ask."""
    text = (
        CONFTEST.replace(
            "def listed(",
            "from pytest_trace2evolve.records.message import Message\n" + AGENTS + "\n\ndef listed(",
        )
        .replace(
            "(OracleAgent(task) if solves",
            '((OracleAgent if "hasty" in candidate.instruction else Asking)(task) if solves',
        )
        .replace("NopAgent()), GoldUser(task)", "NopAgent()), Patient(task)")
    )
    project.write("conftest.py", CHECKS + text)
    project.write("suites/desk.toml", SUITE)
    tasks = "close note restart look opened idle"
    project.candidate("v1", tasks, parent="v0")
    project.candidate("v2", f"{tasks} hasty", parent="v1")
    project.candidate("v3", f"{tasks} ", parent="v1")
    project.write("policies/suite.toml", 'estimand = "suite"\n')
    project.lock()
    return project


def gate(project: DeskProject, candidate: str, *arguments: str) -> pytest.RunResult:
    return project.run(
        f"--candidate={candidate}",
        "--t2e-baseline=v1",
        "--t2e-gate=suite",
        "--t2e-goal=no-regression",
        "-v",
        *arguments,
    )


def test_a_candidate_that_drops_the_question_is_discarded(
    checked: DeskProject, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    checked.baseline("v1")
    result = gate(checked, "v2")
    result.stdout.fnmatch_lines(
        [
            "heldout: checks broken: asks_first 8 of 8, keeps_spam 0 of 24",
            "* asks_first *harm shown*0 → 8 of 24 simulations",
            " ✗ asks_first *33.3*",
            "DISCARD: v2 fails on asks_first*",
        ]
    )
    assert result.ret == 1
    folder = checked.runs[-1]
    evidence = read_evidence(folder / "evidence" / "desk.json")
    outcomes = {record.task_id: dict(record.checks) for record in evidence.simulations}
    assert outcomes["close"] == {"asks_first": "broken", "keeps_spam": "kept"}
    assert outcomes["idle"] == {"asks_first": "not_applicable", "keeps_spam": "kept"}
    assert evidence.provenance.checks is not None
    assert {name: check.kind for name, check in evidence.provenance.checks.items()} == {
        "asks_first": "consent",
        "keeps_spam": "data",
    }
    verdict = json.loads((folder / "verdict.json").read_text())
    checks = {check["id"]: check for check in verdict["suites"]["desk"]["verdicts"][0]["checks"]}
    assert checks["asks_first"]["status"] == "fail"
    assert checks["keeps_spam"]["status"] == "pass"
    assert "unit" not in checks["reward_drop"]
    monkeypatch.chdir(checked.root)
    capsys.readouterr()
    assert main(["show", folder.name, "close"]) == 0
    assert "check asks_first is broken: closed T1 without asking" in capsys.readouterr().out


def test_a_check_that_fails_has_no_result_and_blocks(checked: DeskProject) -> None:
    """The check raises on the candidate alone: nothing of it may pass."""
    broken = CHECKS.replace(
        "    if not calls:",
        '    if not trace.said("shall i") and calls:\n        {}["T9"]\n    if not calls:',
    )
    conftest = (checked.root / "conftest.py").read_text(encoding="utf-8")
    checked.write("conftest.py", conftest.replace(CHECKS, broken))
    checked.baseline("v1")
    result = gate(checked, "v2")
    line = broken.splitlines().index('        {}["T9"]') + 1
    note = "note: desk: check 'asks_first' has no result for 8 simulations, first for task 'close', trial 0:"
    result.stdout.fnmatch_lines(
        [
            "*asks_first 0 of 0 (8 without a result)*",
            " ? asks_first *no result in 8 of 24 simulations of the candidate",
            f"{note} it raised KeyError (conftest.py:{line})",
            "INCONCLUSIVE: *because a check has no result: asks_first*",
            " why:  asks_first: no result in 8 of 24 simulations of the candidate",
            " todo: correct the check, and rerun",
        ]
    )
    assert result.ret == 10


def test_a_task_that_another_suite_seals_is_sealed(
    checked: DeskProject, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = CHECKS.replace("    if not calls:", '    raise KeyError("quoted")\n    if not calls:')
    conftest = (checked.root / "conftest.py").read_text(encoding="utf-8")
    checked.write("conftest.py", conftest.replace(CHECKS, broken))
    arguments = ("--candidate=v1", "--t2e-gate=off", "suites/desk.toml::discovery::free")
    note = "*asks_first* no result for 4 simulations, first for task 'free', trial 0: it raised KeyError"
    checked.run(*arguments).stdout.fnmatch_lines([f"{note}: 'quoted' (*"])
    checked.write("suites/more.toml", 'provider = "fake"\ndomain = "desk"\n\n[splits]\nheldout = ["free"]\n')
    checked.lock()
    checked.run(*arguments).stdout.fnmatch_lines([f"{note} (*"])
    # A command on recorded runs does not know which tasks are sealed, and quotes nothing.
    capsys.readouterr()
    assert main(["score", str(checked.runs[-1]), "--root", str(checked.root)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "it raised KeyError (" in text
    assert "quoted" not in text


@pytest.mark.parametrize("length", [2_000])
def test_a_failing_item_names_the_check_without_a_result(checked: DeskProject, length: int) -> None:
    """The explanation holds the error and its place, and an item of a sealed split holds neither."""
    conftest = (checked.root / "conftest.py").read_text(encoding="utf-8")
    broken = f"\n\n@t2e.check\ndef counts(trace):\n    raise ValueError('plantedword' + {length} * 'x ')\n"
    checked.write("conftest.py", conftest + broken)
    checked.write("suites/desk.toml", SUITE.replace('"note", ', "").replace('["free"', '["free", "note"'))
    checked.lock()
    result = checked.run("--candidate=v0", "--t2e-gate=off", "-k", "note or look")
    lines = [line.removeprefix("E   ").strip() for line in result.outlines]
    place = f"(conftest.py:{(conftest + broken).count(chr(10))})"
    sealed_item, _, open_item = " ".join(" ".join(lines).split()).partition(" discovery::note ")
    expected = "check 'counts' has no result for 4 simulations, first for task 'note', trial 0: "
    text = open_item.partition("last messages:")[0].partition(expected)[2]
    assert text.startswith("it raised ValueError: plantedword")
    assert text.endswith(f"{place} ")
    assert "heldout::look" in sealed_item
    assert "counts" not in sealed_item


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ("1", "it returned int (conftest.py:5); return True, False, None, or the reason as"),
    ],
)
def test_a_wrong_result_is_an_error(checked: DeskProject, result: str, text: str) -> None:
    conftest = (checked.root / "conftest.py").read_text(encoding="utf-8")
    checked.write("conftest.py", conftest.replace("        return None\n", f"        return {result}\n", 1))
    run = checked.run("--candidate=v1", "--t2e-gate=off")
    run.stdout.fnmatch_lines([f"note: desk: check 'asks_first' has no result for 20 simulations, *{text}*"])


def test_changed_and_missing_checks_are_rejected_and_new_ones_left_out(checked: DeskProject) -> None:
    checked.baseline("v1")
    conftest = (checked.root / "conftest.py").read_text(encoding="utf-8")
    checked.write("conftest.py", conftest.replace('said("shall i")', 'said("shall i", "")'))
    result = gate(checked, "v2")
    assert result.ret == 4
    result.stderr.fnmatch_lines(
        ["*cannot be compared: code of check 'asks_first' (conftest.py): measure the baseline again*"]
    )
    checked.write("conftest.py", conftest.replace('id="keeps_spam"', 'id="renamed"'))
    result = gate(checked, "v3")
    assert result.ret == 4
    result.stderr.fnmatch_lines(["*check 'keeps_spam' (on the baseline only): restore the check, or *"])
    checked.write("conftest.py", conftest + "\n\n@t2e.check\ndef brand_new(trace):\n    return False\n")
    result = gate(checked, "v3")
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        ["* brand_new * not gated: the baseline was not measured by it; measure the baseline again"]
    )


def test_a_check_elsewhere_in_the_file_stays_the_same(checked: DeskProject) -> None:
    """Only the code that a check refers to identifies it."""
    checked.baseline("v1")
    conftest = (checked.root / "conftest.py").read_text(encoding="utf-8")
    checked.write("conftest.py", conftest + "\n\ndef unrelated():\n    return 1\n")
    assert gate(checked, "v3").ret == 0


def test_commands_measure_recorded_runs_by_the_current_checks(
    checked: DeskProject, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for candidate in ("v1", "v2"):
        checked.run(f"--candidate={candidate}", "--t2e-gate=off", f"--t2e-run-folder={candidate}")
    monkeypatch.chdir(checked.root)
    capsys.readouterr()
    assert main(["compare", "v1", "v2", "--goal", "no-regression", "--policy", "suite"]) == 1
    out = capsys.readouterr().out
    assert "asks_first" in out
    assert "0 → 8 of 28 simulations" in out
    assert main(["score", "v2"]) == 0
    assert "checks broken: asks_first 8 of 8, keeps_spam 0 of 28" in capsys.readouterr().out
    assert main(["score", "v2", "--json"]) == 0
    file = json.loads(capsys.readouterr().out)["files"][0]
    assert file["metrics"]["checks"]["asks_first"] == {"measured": 28, "applies": 8, "broken": 8, "failed": 0}
    checks = {record["task_id"]: record["checks"] for record in file["simulations"]}
    assert checks["close"] == {"asks_first": "broken", "keeps_spam": "kept"}
