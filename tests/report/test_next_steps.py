"""The next step fits what keeps a run open."""

from pytest_trace2evolve.records.verdict import Decision, Goal, RunSummary, SuiteSummary, Verdict
from pytest_trace2evolve.report.conclusion import reason_and_next_step
from tests.gate.verdicts import judged, of
from tests.gate_helpers import Side, lost, side


def steps(verdict: Verdict, used: str = "") -> tuple[str, str]:
    suite = SuiteSummary(name="desk", verdicts=(verdict,))
    return reason_and_next_step(
        RunSummary(candidate="v1", decision=verdict.decision, suites=(suite,), used=used)
    )


def losing(records: Side, count: int) -> Side:
    return [lost(record) if number < count else record for number, record in enumerate(records)]


def changed(records: Side, count: int) -> Side:
    return [
        record.model_copy(update={"task_digest": "other"}) if number < count else record
        for number, record in enumerate(records)
    ]


def test_a_side_that_is_mostly_lost_is_run_again() -> None:
    old, new = of(20, 2, fixed=4)
    for goal in Goal:
        for sides in ((old, losing(new, 15)), (losing(old, 15), new), (old, losing(new, 20))):
            verdict = judged(*sides, goal)
            assert verdict.decision is Decision.INCONCLUSIVE
            reason, step = steps(verdict, "3 M tokens")
            assert step == "rerun the same command to retry lost simulations"
            assert "lost" in reason or "no task was measured" in reason
            assert steps(verdict)[1] == "record the lost simulations again"


def test_tasks_of_different_content_are_measured_on_the_same_content() -> None:
    old, new = of(20, 0, fixed=4)
    for count in (10, 20):
        verdict = judged(old, changed(new, count), expected_tasks=20)
        _, step = steps(verdict)
        assert step.startswith("measure both sides on the same content of the tasks")


def test_tasks_of_one_side_only_are_run_on_both() -> None:
    old, new = of(20, 0, fixed=4)
    verdict = judged(old[:10], new, expected_tasks=20)
    assert steps(verdict)[1] == "run the same tasks on both sides"


def test_a_few_losses_leave_the_advice_to_the_claim() -> None:
    old, new = side(*[[1.0] * 4, [0.0, 1.0] * 2] * 20), side(*[[1.0] * 4, [0.0, 1.0, 1.0, 1.0]] * 20)
    verdict = judged(old, losing(new, 1))
    if verdict.decision is Decision.INCONCLUSIVE:
        assert "retry" not in steps(verdict)[1]
