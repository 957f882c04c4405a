"""The next step fits what keeps a run open."""

import shlex

import pytest

from pytest_trace2evolve.gate.confirm import without_second_tosses
from pytest_trace2evolve.gate.pairs import pair
from pytest_trace2evolve.records.score import NO_JUDGE_NOTE, Status
from pytest_trace2evolve.records.verdict import Decision, Goal, RunSummary, SuiteSummary, Verdict
from pytest_trace2evolve.report.conclusion import reason_and_next_steps
from tests.gate.verdicts import judged, of, renamed
from tests.gate_helpers import Side, lost, side


def steps(verdict: Verdict, used: str = "") -> tuple[str, str]:
    suite = SuiteSummary(name="desk", verdicts=(verdict,))
    reason, advice, command = reason_and_next_steps(
        RunSummary(candidate="v1", decision=verdict.decision, suites=(suite,), used=used)
    )
    assert not command, "without the command of a run, nothing can be run again"
    return reason, advice


@pytest.mark.parametrize(
    ("broken", "fixed", "decision"), [(0, 12, Decision.PROMOTE), (12, 0, Decision.DISCARD)]
)
def test_the_next_command_can_be_copied_from_a_folder_with_spaces(
    broken: int, fixed: int, decision: Decision
) -> None:
    verdict = judged(*of(20, broken, fixed=fixed))
    assert verdict.decision is decision
    suite = SuiteSummary(name="desk", verdicts=(verdict,))
    summary = RunSummary(candidate="v1", decision=verdict.decision, suites=(suite,), evidence="my runs/1")
    *_, command = reason_and_next_steps(summary)
    assert "my runs/1" in shlex.split(command)


def losing(records: Side, count: int) -> Side:
    return [lost(record) if number < count else record for number, record in enumerate(records)]


def changed(records: Side, count: int) -> Side:
    return [
        record.model_copy(update={"task_digest": "other"}) if number < count else record
        for number, record in enumerate(records)
    ]


def test_tasks_of_different_content_are_measured_on_the_same_content() -> None:
    old, new = of(20, 0, fixed=4)
    for count in (10, 20):
        verdict = judged(old, changed(new, count), expected_tasks=20)
        _, step = steps(verdict)
        assert step.startswith("measure both sides on the same content of the tasks")


def unjudged(records: Side, count: int) -> Side:
    changes = {"status": Status.NOT_MEASURED, "reward": None, "note": NO_JUDGE_NOTE}
    return [
        record.model_copy(update=changes) if number < count else record
        for number, record in enumerate(records)
    ]


@pytest.mark.parametrize("goal", Goal)
@pytest.mark.parametrize("count", [1, 8, 18])
@pytest.mark.parametrize("n_lost", [0, 2])
def test_a_missing_judge_is_named(goal: Goal, count: int, n_lost: int) -> None:
    """Whether few, many or all simulations of a side need a judge, and whether others are lost as well."""
    old, new = of(20, 2, fixed=4)
    for sides in ((unjudged(old, count), new), (old, unjudged(new, count))):
        verdict = judged(losing(sides[0][::-1], n_lost)[::-1], sides[1], goal)
        if verdict.decision is not Decision.INCONCLUSIVE:
            continue
        tasks = f"(tasks that need a judge of natural-language assertions: {count})"
        assert steps(verdict)[1] == f"name a judge with --judge {tasks}"
        suite = SuiteSummary(name="desk", verdicts=(verdict,))
        run = RunSummary(candidate="v1", decision=verdict.decision, suites=(suite,), run_id="run")
        assert reason_and_next_steps(run)[1] == f"name a judge with --t2e-judge {tasks}"


def test_second_tosses_need_more_trials() -> None:
    """Rerunning would count the same simulations at their worst again; further trials outweigh them."""

    def verdict_with(trials: int) -> Verdict:
        old = side(*[[0.0] * trials] * 7, *[[1.0] * trials] * 5)
        new = renamed(side(*[[1.0] * trials] * 12))
        new = [
            record.model_copy(update={"lost": 2 if record.task_id in "012" and record.trial == 0 else 0})
            for record in new
        ]
        bounded = pair(*without_second_tosses(old, new))
        return judged(old, new, bounded_pairs=bounded)

    verdict = verdict_with(1)
    assert verdict.decision is Decision.INCONCLUSIVE
    reason, step = steps(verdict)
    assert "3 measured only after they had been lost count at their worst" in reason
    assert step == "run more trials of each task; a rerun counts the same simulations at their worst"
    assert steps(verdict, "3 M tokens")[1] == step
    assert verdict_with(4).decision is Decision.PROMOTE
