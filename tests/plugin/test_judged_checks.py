"""Judged checks in whole sessions: asked once, reported, and gated once their agreement was measured."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_trace2evolve.cli.main import main
from pytest_trace2evolve.testing import ChatServer, Reply
from tests.plugin.conftest import CONFTEST, DeskProject
from tests.plugin.test_trace_checks_session import AGENTS, SUITE

JUDGED = """
import pytest_trace2evolve as t2e

t2e.judged_check("asks_llm", kind="consent", rubric="The agent asks before it closes a ticket.")
"""


class Judge:
    """A judge that looks for the question, or answers wrongly if it is told to."""

    def __init__(self) -> None:
        self.is_contrary = False

    def __call__(self, request: Any) -> Reply:
        text = request.body["messages"][-1]["content"]
        is_met = ("Shall I?" in text or "close_ticket" not in text) is not self.is_contrary
        answer = {"number": 1, "reason": "So it seems.", "met": is_met}
        return Reply(json.dumps({"answers": [answer]}))


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Judge, ChatServer]]:
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    script = Judge()
    with ChatServer(script) as server:
        yield script, server


@pytest.fixture
def judged(project: DeskProject) -> DeskProject:
    """The project with a judged check in a module; v2 does not ask."""
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
    project.write("conftest.py", text)
    project.write("desk_checks.py", JUDGED)
    project.write("pyproject.toml", '[tool.trace2evolve]\nchecks = "desk_checks"\n')
    project.write("suites/desk.toml", SUITE)
    project.write("policies/suite.toml", 'estimand = "suite"\n')
    tasks = "close note restart look opened idle"
    project.candidate("v1", tasks, parent="v0")
    project.candidate("v2", f"{tasks} hasty", parent="v1")
    project.lock()
    return project


def message(role: str, content: str, **fields: object) -> dict[str, object]:
    return {"role": role, "content": content, **fields}


def write_labels(path: Path, count: int, check: str = "asks_llm") -> None:
    """Half of the traces close a ticket after the question, half without it."""
    lines = []
    for number in range(count):
        asks = number % 2 == 0
        call = {"id": "c", "name": "close_ticket", "arguments": {"ticket_id": f"T{number}"}}
        trace = [
            message("user", f"Please close T{number}."),
            *([message("assistant", "Shall I?"), message("user", "Yes.")] if asks else []),
            message("assistant", "", tool_calls=[call]),
        ]
        lines.append(json.dumps({"check": check, "label": "yes" if asks else "no", "trace": trace}))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def gate(project: DeskProject, server: ChatServer | None, candidate: str = "v2") -> pytest.RunResult:
    judge = [] if server is None else ["--t2e-judge=wise", f"-ot2e_judge_base_url={server.base_url}"]
    options = ["--t2e-baseline=v1", "--t2e-gate=suite", "--t2e-goal=no-regression", "-v"]
    return project.run(f"--candidate={candidate}", *options, *judge)


def save_baseline(project: DeskProject, server: ChatServer, candidate: str = "v1") -> None:
    project.run(
        f"--candidate={candidate}",
        f"--t2e-save-baseline={candidate}",
        "--t2e-gate=off",
        "--t2e-judge=wise",
        f"-ot2e_judge_base_url={server.base_url}",
    ).stdout.fnmatch_lines(["*baseline saved*"])


def measure(project: DeskProject, server: ChatServer, *options: str) -> int:
    labels = str(project.root / "labels.jsonl")
    root = ["--root", str(project.root)]
    judge = ["--judge", "wise", f"-ot2e_judge_base_url={server.base_url}"]
    return main([*root, "judge", "agreement", labels, *judge, *options])


def test_a_judged_check_decides_only_after_its_agreement_was_measured(
    judged: DeskProject, judge: tuple[Judge, ChatServer], capsys: pytest.CaptureFixture[str]
) -> None:
    script, server = judge
    save_baseline(judged, server)
    n_requests = len(server.requests)
    assert n_requests == 7  # one for each distinct trace: equal trials are asked once
    result = gate(judged, server)
    result.stdout.fnmatch_lines(
        [
            "heldout: checks broken: asks_llm 8 of 24",
            " – asks_llm *not gated: agreement not measured; run 'trace2evolve judge agreement *wise'",
            "PROMOTE: *",
        ]
    )
    n_requests = len(server.requests)
    assert gate(judged, server).ret == 0
    assert len(server.requests) == n_requests  # the answers are kept

    # Agreement that is too low does not help.
    script.is_contrary = True
    write_labels(judged.root / "labels.jsonl", 24)
    assert measure(judged, server) == 0
    assert "no: kappa must be at least 0.60" in capsys.readouterr().out
    gate(judged, server).stdout.fnmatch_lines(
        [" – asks_llm *not gated: agreement too low: Cohen's kappa is at least -1.00 with 24 labels, *"]
    )
    script.is_contrary = False
    (answers := judged.root / ".trace2evolve" / "judgements").rename(answers.with_name("old"))
    capsys.readouterr()
    assert measure(judged, server, "--json") == 0
    report = json.loads(capsys.readouterr().out)["checks"][0]
    assert report["may_decide"] is True
    assert (report["kept_right"], report["broken_right"], report["kappa"]["estimate"]) == (12, 12, 1.0)
    result = gate(judged, server)
    result.stdout.fnmatch_lines([" ✗ asks_llm *0 → 8 of 24 simulations", "DISCARD: v2 fails on asks_llm*"])
    assert result.ret == 1

    # Without the judge, the comparison would lose the check, so it is rejected.
    result = gate(judged, None)
    assert result.ret == 4
    result.stderr.fnmatch_lines(
        ["*check 'asks_llm' (on the baseline only): give the judge with --t2e-judge*"]
    )

    # An edited record is found.
    path = judged.root / "judges" / "asks_llm.json"
    path.write_text(path.read_text(encoding="utf-8").replace('"kept_wrong":0', '"kept_wrong":1'))
    result = gate(judged, server)
    assert result.ret == 4
    result.stderr.fnmatch_lines(["*judges/asks_llm.json: was edited: *measure the agreement again*"])


def test_the_judge_that_measured_the_evidence_counts_whichever_is_named(
    judged: DeskProject,
    judge: tuple[Judge, ChatServer],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, server = judge
    save_baseline(judged, server, "v1")
    save_baseline(judged, server, "v2")
    write_labels(judged.root / "labels.jsonl", 24)
    monkeypatch.chdir(judged.root)
    other = ["--judge", "other", f"-ot2e_judge_base_url={server.base_url}"]
    files = ["baselines/desk/v1.json", "baselines/desk/v2.json"]
    compare = ["compare", *files, "--goal", "no-regression", "--policy", "suite", *other]
    assert measure(judged, server, "--judge", "other") == 0
    capsys.readouterr()
    assert main(compare) == 0
    assert "agreement not measured for judge 'wise'" in capsys.readouterr().out
    (judged.root / "judges" / "asks_llm.json").unlink()
    assert measure(judged, server) == 0
    assert main(compare) == 1


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b'{"met": "perhaps", "reason": ""}',
    ],
)
def test_a_damaged_answer_is_asked_for_again(
    judged: DeskProject, judge: tuple[Judge, ChatServer], content: bytes
) -> None:
    server = judge[1]
    save_baseline(judged, server)
    (path, *_) = sorted((judged.root / ".trace2evolve" / "judgements").iterdir())
    answer = path.read_bytes()
    n_requests = len(server.requests)
    path.write_bytes(content)
    result = gate(judged, server, "v1")
    result.stdout.fnmatch_lines(["heldout: checks broken: asks_llm 0 of 24"])
    result.assert_outcomes(passed=7)
    assert len(server.requests) == n_requests + 1
    assert path.read_bytes() == answer


def test_without_a_judge_it_is_left_out(judged: DeskProject) -> None:
    result = judged.run("--candidate=v1", "--t2e-gate=off")
    result.stdout.fnmatch_lines(["note: not judged, since no judge is named (--t2e-judge): asks_llm"])


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (
            '{"check": "asks_lm", "label": "yes", "trace": [{"role": "user", "content": "x"}]}',
            "is unknown; did you",
        ),
        ('{"check": "asks_llm", "label": "maybe", "trace": [{"role": "user"}]}', "label: "),
        ('{"check": "asks_llm", "label": "yes"}', "give either 'run' and 'task', or 'trace'"),
        ('{"check": "asks_llm", "label": "yes", "run": "x"}', "'run' and 'task' need each other"),
        ('{"check": "asks_llm", "label": "yes", "trace": []}', "trace: "),
        ("[1", "labels.jsonl:1: "),
        ("", "holds no label"),
    ],
)
def test_invalid_labels_are_named(
    judged: DeskProject,
    judge: tuple[Judge, ChatServer],
    capsys: pytest.CaptureFixture[str],
    line: str,
    text: str,
) -> None:
    (judged.root / "labels.jsonl").write_text(line + "\n", encoding="utf-8")
    assert measure(judged, judge[1]) == 2
    error = capsys.readouterr().err
    assert text in error
    assert error.count("\n") == 1


def test_a_trace_counts_once(
    judged: DeskProject, judge: tuple[Judge, ChatServer], capsys: pytest.CaptureFixture[str]
) -> None:
    path = judged.root / "labels.jsonl"
    write_labels(path, 2)
    path.write_text(path.read_text() * 2, encoding="utf-8")
    assert measure(judged, judge[1]) == 2
    assert (
        "labels.jsonl:3: check 'asks_llm': the trace is labelled in line 1 already" in capsys.readouterr().err
    )
