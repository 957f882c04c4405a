"""`trace2evolve capabilities --judge`, against a judge over real HTTP."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.deficits import Deficit
from pytest_trace2evolve.cases.case import Case
from pytest_trace2evolve.cli.main import main
from pytest_trace2evolve.records.trace import Simulation
from pytest_trace2evolve.testing import ChatServer, Reply
from pytest_trace2evolve.testing.server import ChatRequest
from tests.diagnose.deficient import cases, simulated, write_run


@pytest.fixture(scope="module")
def made() -> list[tuple[Case, Simulation]]:
    """Ten failures that change orders unread, and ten successes that do not."""
    chosen = cases("precondition_verification", 20)
    lacks = {"precondition_verification": Deficit.HARM}
    return [(case, simulated(case, lacks if place < 10 else {})) for place, case in enumerate(chosen)]


@pytest.fixture
def run(made: list[tuple[Case, Simulation]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The results file of these simulations."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test-judge")
    return write_run(tmp_path / "run.json", made)


Labels = Callable[[str], list[dict[str, Any]]]


def judge(labels: Labels, proposals: str = "") -> Callable[[ChatRequest], Reply]:
    """A judge that proposes one capability, and labels by a function of the conversation."""
    proposed = {"name": "reading_first", "definition": "It reads before it writes.", "tasks": []}

    def reply(request: ChatRequest) -> Reply:
        name = request.body["response_format"]["json_schema"]["name"]
        text = str(request.messages[-1]["content"])
        if name == "capabilities":
            return Reply(proposals or json.dumps({"capabilities": [proposed]}))
        if name == "groups":
            return Reply('{"groups": [["reading_first"]]}')
        return Reply(json.dumps({"labels": labels(text)}))

    return reply


def by_reading(text: str) -> list[dict[str, Any]]:
    """The truth: whether a read of the order stands before the first write."""
    lines = text.splitlines()
    expected = "get_order_details(" in text
    place = next(number for number, line in enumerate(lines) if "assistant: " in line and "_order" in line)
    message = int(lines[place][1 : lines[place].index("]")])
    presence = "present" if expected else "lacking"
    return [
        {"capability": "reading_first", "presence": presence, "message": message, "reason": "read or not"}
    ]


def asked(
    capsys: pytest.CaptureFixture[str], run: Path, server: ChatServer, *more: str
) -> tuple[int, Any, str]:
    status = main(
        [
            *("capabilities", str(run), "-ot2e_provider=trace2evolve", "--judge", "wise"),
            *(f"-ot2e_judge_base_url={server.base_url}", "--json", *more),
        ]
    )
    expected = capsys.readouterr()
    return status, json.loads(expected.out) if expected.out else None, expected.err


def test_a_judge_finds_what_tells_failures_from_successes(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ChatServer(judge(by_reading)) as server:
        status, found, errors = asked(capsys, run, server, "-ot2e_repeats=3")
    assert status == 0
    [one] = found["capabilities"]
    assert (one["name"], one["selected"], one["runs_passed"]) == ("reading_first", True, 3)
    assert (one["error_rate_passed"], found["runs"], found["labeller"]) == (0.0, 3, "wise")
    assert one["delta"] > 0.9
    assert one["delta_low"] > 0
    assert one["examples"][0].keys() == {"trace", "run", "task", "trial", "message", "why"}
    assert len(found["labels"]) == 3
    assert "20 traces × 3 runs: 64 requests, about" in errors
    assert "price unknown (add it to prices.toml)" in errors
    assert "asked 64 times" in errors
    seeds = {request["seed"] for request in server.requests}
    assert seeds == {0, 1, 2, 3}, "runs are independent draws"
    assert not any("outcome=" in str(request["messages"]) for request in server.requests[-60:]), (
        "who labels is not told how it ended"
    )


def test_labels_by_chance_select_nothing_and_bad_citations_cost_labels(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn = random.Random(1)

    def astray(text: str) -> list[dict[str, Any]]:
        kind = drawn.randrange(4)
        label = {"capability": "reading_first", "presence": "lacking", "message": 0, "reason": "x"}
        if kind == 0:
            return [{**label, "message": 1_000}]
        if kind == 1:
            return [label, {**label, "presence": "present"}]
        if kind == 2:
            return [{**label, "message": 1}]  # the customer's
        return []

    with ChatServer(judge(astray)) as server:
        status, found, errors = asked(capsys, run, server, "-ot2e_repeats=2")
    assert (status, found) == (2, None)
    assert "judge 'wise' gave no usable label; first: the judge" in errors

    def half(text: str) -> list[dict[str, Any]]:
        return by_reading(text) if "#W1" in text or drawn.random() < 0.5 else astray(text)

    with ChatServer(judge(half)) as server:
        status, found, errors = asked(capsys, run, server, "-ot2e_repeats=2")
    assert status == 0
    truth = {True: "present", False: "lacking"}
    labels = [label for one in found["labels"] for label in one["labels"]]
    lost = [label for label in labels if label["presence"] == "lost"]
    kept = [label for label in labels if label["presence"] != "lost"]
    assert len(lost) > 3
    assert len(kept) > 10
    record = json.loads(run.read_text())
    traces = {one["id"]: json.dumps(one["messages"]) for one in record["simulations"]}
    for label in kept:
        assert label["presence"] == truth["get_order_details" in traces[label["trace"]]]
    assert f"{len(lost)} of {len(labels)} labels are lost; first: the judge" in found["notes"][-1]


def test_answers_are_kept_in_a_project_and_not_asked_for_twice(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run.parent / "suites").mkdir()
    (run.parent / "prices.toml").write_text("[wise]\ninput = 1.0\noutput = 2.0\n")
    with ChatServer(judge(by_reading)) as server:
        _, first, expected = asked(capsys, run, server, "-ot2e_repeats=2")
        served = server.count.served
        _, second, again = asked(capsys, run, server, "-ot2e_repeats=2")
        assert (served, server.count.served) == (44, 44)
        assert first == second
    assert "tokens, about $" in expected
    assert "asked 44 times" in expected
    assert "asked 0 times" in again
