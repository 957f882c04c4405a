"""A candidate may claim a gain on the tasks with some tags: it is tested there, and the rest is a guard."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_trace2evolve.cases.case import read_cases
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.testing import ChatRequest, ChatServer, Reply, case_script
from tests.improve.searches import write_project

TAGS = (
    "cancelled_order_tracking",
    "missing_order_id",
    "policy_edge",
    "vague_refund_request",
    "multi_intent_message",
)
CLAIM = f"claim: {{tags: [{', '.join(TAGS)}]}}\n"


class TagAgent:
    """Solves a quarter of the cases, and by its instruction all or none of those in or outside of `TAGS`."""

    def __init__(self, root: Path) -> None:
        cases = [case for path in sorted((root / "cases").glob("*.jsonl")) for case in read_cases(path)]
        self._solve = case_script([case.task for case in cases])
        self._place = {
            case.script.turns[0].says: (case.script.family in TAGS, n) for n, case in enumerate(cases)
        }

    def __call__(self, request: ChatRequest) -> Reply:
        opening = next(str(message["content"]) for message in request.messages if message["role"] == "user")
        is_claimed, number = self._place[opening]
        name = "inside" if is_claimed else "outside"
        solves = number // 14 % 3 == 0 if name not in request.system else f"all {name}" in request.system
        return self._solve(request) if solves else Reply("I cannot help you with that.")


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-planted-0123456789")
    pytester.makeini("[pytest]\nt2e_suites = suites\ntestpaths = suites\naddopts = -p no:cacheprovider\n")
    return write_project(pytester.path, size=56)


def candidate(project: Project, name: str, instruction: str, claim: str = CLAIM) -> None:
    text = f"---\nid: {name}\nparent: v0\nfrozen_at: 2026-11-20\n{claim}---\n{instruction}\n"
    (project.root / "candidates" / f"{name}.md").write_text(text)


Gate = Callable[[str], tuple[int, dict[str, Any]]]


@pytest.fixture
def gate(pytester: pytest.Pytester, project: Project) -> Iterator[Gate]:
    """Run a candidate against v0; return the exit status, and the verdict on the held-out split."""
    runs = project.root / "runs"
    with ChatServer(TagAgent(project.root)) as server:

        def run(name: str, option: str) -> tuple[int, Path]:
            folder = runs / str(len(list(runs.glob("*"))))
            live = ["--t2e-model=scripted", f"--t2e-base-url={server.base_url}", f"--t2e-run-folder={folder}"]
            result = pytester.runpytest_inprocess(f"--candidate={name}", *live, option, "-mheldout")
            return int(result.ret), folder

        def gated(name: str) -> tuple[int, dict[str, Any]]:
            status, folder = run(name, "--t2e-baseline=first")
            (verdict,) = json.loads((folder / "verdict.json").read_text())["suites"]["small"]["verdicts"]
            return status, verdict

        assert run("v0", "--t2e-save-baseline=first")[0] == 0
        yield gated


def status(verdict: dict[str, Any], check: str) -> str:
    return str(next(item["status"] for item in verdict["checks"] if item["id"] == check))


def test_the_claim_is_tested_on_its_tasks_and_the_rest_is_a_guard(project: Project, gate: Gate) -> None:
    candidate(project, "good", "all inside")
    candidate(project, "harm", "all inside, no outside")
    candidate(project, "other", "all outside")
    good, harm, other = map(gate, ("good", "harm", "other"))
    assert (good[0], good[1]["verdict"], good[1]["claim"]) == (0, "promote", list(TAGS))
    assert (status(good[1], "reward_improved"), status(good[1], "elsewhere")) == ("pass", "pass")
    assert good[1]["tasks"]["compared"] == 56
    assert (harm[0], harm[1]["verdict"], status(harm[1], "elsewhere")) == (1, "discard", "fail")
    assert status(harm[1], "reward_improved") == "pass"
    # A gain elsewhere does not count.
    assert other[1]["verdict"] == "inconclusive"
    assert status(other[1], "reward_improved") == "undecided"
    assert [verdict["look"] for _, verdict in (good, harm, other)] == [1, 2, 3]


def test_a_claim_that_changes_after_a_run_is_void(project: Project, gate: Gate) -> None:
    candidate(project, "good", "all inside", f"claim: {{tags: [{TAGS[0]}]}}\n")
    first = gate("good")[1]
    assert first["claim"] == [TAGS[0]]
    candidate(project, "good", "all inside")
    second = gate("good")[1]
    assert "claim" not in second
    assert "is void, so all tasks count: candidate good ran with another text or claim" in second["reason"]
    assert not [check for check in second["checks"] if check["id"] == "elsewhere"]


@pytest.mark.parametrize(
    ("claim", "problem"),
    [
        (
            "claim: {tags: [policy_egde]}\n",
            "claims a gain on tag 'policy_egde', which no task of suite 'small'",
        ),
        ("claim: {tags: []}\n", "claim"),
        ("claim:\n  tag: [a]\n", "claim"),
    ],
)
def test_a_claim_that_names_nothing_is_rejected(
    pytester: pytest.Pytester, project: Project, claim: str, problem: str
) -> None:
    candidate(project, "good", "all inside", claim)
    result = pytester.runpytest_inprocess("--candidate=good", "--t2e-agent=oracle")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert problem in result.stderr.str()
