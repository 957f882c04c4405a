"""Cost, tokens, turns and latency of both sides: their ratios, and the checks that limit them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_trace2evolve.errors import PolicyError
from pytest_trace2evolve.gate.decide import GateInput, decide
from pytest_trace2evolve.gate.pairs import Pairs, pair
from pytest_trace2evolve.gate.policy import get_policy, policy_version
from pytest_trace2evolve.gate.tallies import task_means
from pytest_trace2evolve.gate.usage import increase_result, usage_ratio, usage_ratios
from pytest_trace2evolve.records.completion import Usage, answer_seconds
from pytest_trace2evolve.records.evidence import SimulationEvidence
from pytest_trace2evolve.records.message import Message
from pytest_trace2evolve.records.verdict import CheckStatus, Decision, Estimand, Goal, Label, Verdict
from tests.gate_helpers import sim

COSTS = st.lists(st.lists(st.floats(0.001, 10), min_size=2, max_size=4), min_size=2, max_size=12)


def spent(costs: Sequence[Sequence[float | None]], factor: float = 1.0) -> list[SimulationEvidence]:
    """Simulations of tasks 0, 1 and so on with these costs; None for a trial without usage."""
    return [
        sim(task, 1.0, trial=trial).model_copy(
            update={}
            if cost is None
            else {
                "usage": {
                    "assistant": Usage(prompt_tokens=round(1e6 * factor * cost) + 1, cost=factor * cost)
                },
                "turns": 4,
            }
        )
        for task, trials in enumerate(costs)
        for trial, cost in enumerate(trials)
    ]


def ids(records: list[SimulationEvidence], name: str) -> list[SimulationEvidence]:
    return [record.model_copy(update={"id": f"{name}-{record.id}"}) for record in records]


def both(old: list[SimulationEvidence], new: list[SimulationEvidence]) -> Pairs:
    return pair(ids(old, "old"), ids(new, "new"))


@pytest.mark.parametrize("has_fixed_tasks", [False, True])
@given(COSTS, st.floats(0.1, 10))
def test_the_ratio_of_proportional_costs_is_their_factor(
    has_fixed_tasks: bool, costs: list[list[float]], factor: float
) -> None:
    pairs = both(spent(costs), spent(costs, factor))
    found = usage_ratio(pairs, "cost", 0.05, has_fixed_tasks=has_fixed_tasks)
    assert found.ratio == pytest.approx(factor)
    assert found.tasks == len(costs)
    if found.low is not None and found.high is not None:
        assert found.low - 1e-6 <= factor <= found.high + 1e-6


@pytest.mark.parametrize("has_fixed_tasks", [False, True])
@given(COSTS, COSTS, st.floats(0.01, 0.4))
def test_the_p_value_at_a_bound_is_its_level(
    has_fixed_tasks: bool, old: list[list[float]], new: list[list[float]], alpha: float
) -> None:
    pairs = both(spent(old), spent(new))
    found = usage_ratio(pairs, "cost", alpha, has_fixed_tasks=has_fixed_tasks)
    if found.low and found.low > 1e-6 and found.high is not None and found.high - found.low > 1e-6:
        low_p, high_p = (
            increase_result(pairs, "cost", limit, alpha, has_fixed_tasks=has_fixed_tasks, must_show=False).p
            for limit in (found.low, found.high)
        )
        assert low_p == pytest.approx(alpha, rel=1e-3)
        assert high_p == pytest.approx(1 - alpha, rel=1e-3)


@pytest.mark.parametrize("has_fixed_tasks", [False, True])
@pytest.mark.parametrize(
    "tasks",
    [
        12,
    ],
)
def test_one_bound_in_twenty_misses_the_true_ratio(tasks: int, has_fixed_tasks: bool) -> None:
    """Costs of four trials whose expected ratio is 1.3; tasks and trials vary as lognormal values do."""
    source, misses, n = np.random.default_rng(tasks), np.zeros(2), 1000
    index, spread = np.repeat(np.arange(tasks), 4), np.sqrt(np.log(1.09))
    empty = spent([[None] * 4] * tasks)
    pairs = both(empty, empty)
    for _ in range(n):
        of_task = np.exp(source.normal(0, 0.6, tasks))[index]
        old, new = (of_task * np.exp(source.normal(-(spread**2) / 2, spread, index.size)) for _ in range(2))
        usage = task_means(old, index, tasks), task_means(1.3 * new, index, tasks)
        found = usage_ratio(
            replace(pairs, usage={"cost": usage}), "cost", 0.05, has_fixed_tasks=has_fixed_tasks
        )
        misses += found.low is not None and found.low > 1.3, found.high is not None and found.high < 1.3
    assert misses.min() / n >= 0.025
    assert misses.max() / n <= 0.075


def judged(pairs: Pairs, settings: str, folder: Path, goal: Goal = Goal.NO_REGRESSION) -> Verdict:
    (folder / "own.toml").write_text(settings)
    policy = get_policy("own", folder).for_suite(Estimand.SUITE)
    return decide(GateInput(pairs, policy, goal=goal, label=Label.DEVELOPMENT))


LIMIT = "[checks.cost]\nmax_increase = 1.5\n"
EVEN = [[1.0, 1.1, 0.9, 1.0]] * 40


@pytest.mark.parametrize("base", ["", "base = 'strict'\n"])
@pytest.mark.parametrize(
    ("goal", "factor", "status", "decision"),
    [
        (Goal.NO_REGRESSION, 2.0, CheckStatus.FAIL, Decision.DISCARD),
        (Goal.NO_REGRESSION, 1.2, CheckStatus.PASS, Decision.PROMOTE),
        (Goal.HOLD, 2.0, CheckStatus.FAIL, Decision.DISCARD),
        (Goal.HOLD, 1.2, CheckStatus.PASS, Decision.PROMOTE),
    ],
)
def test_a_limit_decides(
    goal: Goal, factor: float, status: CheckStatus, decision: Decision, base: str, tmp_path: Path
) -> None:
    pairs = both(spent(EVEN), spent(EVEN, factor))
    verdict = judged(pairs, base + LIMIT, tmp_path, goal)
    (check,) = (check for check in verdict.checks if check.id == "cost")
    assert (check.status, verdict.decision) == (status, decision)
    assert (check.estimate, check.threshold, check.unit) == (pytest.approx(factor), 1.5, "ratio")
    without = decide(GateInput(pairs, get_policy("calibrated"), goal=goal, label=Label.DEVELOPMENT))
    assert without.decision is Decision.PROMOTE, "a prompt twice as dear is reported, and limited by a policy"
    assert [found.metric for found in without.usage] == ["cost", "tokens", "turns", "latency"]


@pytest.mark.parametrize("base", ["", "base = 'strict'\n"])
def test_a_side_without_usage_has_no_ratio_and_leaves_a_limit_open(base: str, tmp_path: Path) -> None:
    pairs = both(spent([[None, None]] * 40), spent(EVEN))
    ratios = {found.metric: found for found in usage_ratios(pairs, 0.05, has_fixed_tasks=False)}
    assert all(found.ratio is None for found in ratios.values())
    assert ratios["cost"].note == "the baseline has no cost (no usage, or no price)"
    assert ratios["turns"].note == "the baseline has no turns (saved by an older version)"
    assert ratios["latency"].note.startswith("both sides have no live latency (none recorded, or ")
    verdict = judged(pairs, base + LIMIT, tmp_path)
    assert verdict.decision is Decision.INCONCLUSIVE
    (check,) = (check for check in verdict.checks if check.id == "cost")
    assert (check.status, check.detail) == (CheckStatus.UNDECIDED, ratios["cost"].note)


def test_few_known_costs_and_a_baseline_for_free() -> None:
    few = both(spent(EVEN), spent([[1.0, None, 1.0, 1.0]] * 40))
    found = usage_ratio(few, "cost", 0.05, has_fixed_tasks=False)
    assert found.note == "only 120 of 160 simulations of the candidate have it"
    assert found.ratio is not None
    free = [
        record.model_copy(update={"usage": {"assistant": Usage(prompt_tokens=5, cost=0.0)}})
        for record in spent(EVEN)
    ]
    found = usage_ratio(both(free, spent(EVEN)), "cost", 0.05, has_fixed_tasks=False)
    assert (found.ratio, found.note) == (None, "it is 0 on the baseline")
    found = usage_ratio(both(spent(EVEN), free), "cost", 0.05, has_fixed_tasks=False)
    assert (found.ratio, found.note) == (None, "it is 0 on the candidate")


@given(st.integers(2, 30))
def test_no_variance_is_no_certainty(tasks: int) -> None:
    turns = [
        [sim(task, 1.0).model_copy(update={"turns": count}) for task in range(tasks)] for count in (3, 6)
    ]
    result = increase_result(both(*turns), "turns", 1.5, 0.05, has_fixed_tasks=False, must_show=False)
    assert result.p == 0.5**tasks


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ("[checks.cost]\nalpha = 0.01\n", "checks.cost: set max_increase, such as 1.5, or remove the table"),
        ("[checks.cost]\nmax_increase = 1.5\nwatch = false\n", "checks.cost: set max_increase"),
        (
            "[checks.reward]\nmax_increase = 1.5\n",
            "checks.reward: max_increase belongs to cost, tokens, turns",
        ),
        ("[checks.costs]\nmax_increase = 1.5\n", "unknown check 'costs'; did you mean 'cost'?"),
        ("[checks.cost]\nmax_increase = 0.5\n", "max_increase"),
        ("[checks.cost]\nmax_increase = 1.5\nmargin = 0.1\n", "checks.cost: this check has no margin"),
    ],
)
def test_a_wrong_limit_is_an_error(settings: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(settings)
    with pytest.raises(PolicyError) as error:
        get_policy("own", tmp_path)
    assert problem in str(error.value)


def test_a_limit_belongs_to_the_version_of_a_policy(tmp_path: Path) -> None:
    for base in ("", "base = 'strict'\n"):
        versions = []
        for limit in ("", LIMIT, LIMIT.replace("1.5", "1.6")):
            (tmp_path / "own.toml").write_text(base + limit)
            versions.append(policy_version(get_policy("own", tmp_path)))
        assert len(set(versions)) == 3


def answer(**fields: object) -> Message:
    usage = {"prompt_tokens": 3, "completion_tokens": 1}
    return Message.model_validate({"role": "assistant", "content": "Yes.", "usage": usage, **fields})


@pytest.mark.parametrize(
    ("trace", "seconds"),
    [
        ([answer(generation_time_seconds=0.5), answer(generation_time_seconds=1.25)], 1.75),
        ([answer(generation_time_seconds=0.5), answer(generation_time_seconds=1.25, cached=True)], None),
        ([answer(generation_time_seconds=0.5), answer()], None),
        ([answer(generation_time_seconds=-1)], None),
        ([answer(generation_time_seconds="1")], None),
        ([Message(role="assistant", content="Hi.")], None),
        ([], None),
    ],
)
def test_only_live_answers_have_a_latency(trace: list[Message], seconds: float | None) -> None:
    assert answer_seconds(trace) == seconds
