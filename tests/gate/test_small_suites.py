"""Goal `no-regression` on the small suites of a project: what it is about, and what it finds."""

import importlib
from pathlib import Path

import numpy as np
import pytest

from pytest_trace2evolve.gate.agents import (
    AGENTS,
    Agent,
    Change,
    Design,
    Effect,
    simulate_comparisons,
    simulate_stages,
)
from pytest_trace2evolve.gate.calibrated import CALIBRATED
from pytest_trace2evolve.gate.checks import compute_findings
from pytest_trace2evolve.gate.columns import Floats
from pytest_trace2evolve.gate.decide import decision_ranks
from pytest_trace2evolve.gate.intervals import drop_sensitivity
from pytest_trace2evolve.gate.policy import STRICT, get_policy, policy_version
from pytest_trace2evolve.gate.protocols import Question
from pytest_trace2evolve.gate.tallies import REWARD
from pytest_trace2evolve.records.verdict import CheckStatus, Decision, Estimand, Goal, Verdict
from tests.gate.verdicts import judged
from tests.gate_helpers import side

REPOSITORY = Path(__file__).resolve().parents[2]
THESE_TASKS = CALIBRATED.for_suite(Estimand.SUITE)
QUESTION = Question(Goal.NO_REGRESSION)
ALIKE = Agent(60, 40)
"""Tasks that are all alike and pass in about 60 % of trials: where a loss is hardest to find."""

KINDS = {**AGENTS, "alike": ALIKE}


@pytest.mark.parametrize("own", Estimand)
@pytest.mark.parametrize("suite", Estimand)
def test_a_policy_file_that_sets_the_estimand_wins(tmp_path: Path, own: Estimand, suite: Estimand) -> None:
    (tmp_path / "own.toml").write_text(f"estimand = '{own}'\n", encoding="utf-8")
    assert get_policy("own", tmp_path).for_suite(suite).estimand is own


def test_a_different_estimand_is_a_different_policy_for_the_ledger() -> None:
    assert policy_version(CALIBRATED) == policy_version(CALIBRATED.for_suite(Estimand.TASKS)) == "calibrated"
    assert policy_version(THESE_TASKS) not in ("calibrated", policy_version(STRICT))


@pytest.mark.parametrize("change", [Change.EVEN, Change.FEW])
@pytest.mark.parametrize("kind", KINDS)
def test_an_exact_loss_is_that_of_the_drawn_tasks(kind: str, change: Change) -> None:
    drawn = simulate_stages(
        np.random.default_rng(1), KINDS[kind], Effect(-0.3, change, True), Design(12, 4), 300, (4,)
    )
    assert (drawn.new - drawn.old).mean(axis=1) == pytest.approx(np.full(300, -0.3), abs=1e-6)
    assert (drawn.new <= drawn.old + 1e-9).all()


def ranks(kind: str, effect: Effect, *, is_live: bool, rows: int = 1_500) -> Floats:
    """Decisions about exactly these tasks, 12 of them with 4 trials."""
    compared = simulate_comparisons(
        np.random.default_rng(5), KINDS[kind], effect, Design(12, 4, is_live=is_live), rows
    )
    return decision_ranks(THESE_TASKS, compared, QUESTION)


@pytest.mark.parametrize("is_live", [True, False], ids=["live", "recorded"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_edit_that_changes_nothing_passes(kind: str, is_live: bool) -> None:
    assert (ranks(kind, Effect(), is_live=is_live) == Decision.PROMOTE.rank).mean() >= 0.95


@pytest.mark.parametrize("change", [Change.EVEN, Change.FEW])
@pytest.mark.parametrize("is_live", [True, False], ids=["live", "recorded"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_loss_of_thirty_points_is_discarded(kind: str, is_live: bool, change: Change) -> None:
    # In recorded runs of tasks that are all alike, 90.3 % of 220,000 comparisons are discarded.
    found = ranks(kind, Effect(-0.3, change, is_exact=True), is_live=is_live)
    assert (found == Decision.DISCARD.rank).mean() >= (0.89 if (kind, is_live) == ("alike", False) else 0.9)


@pytest.mark.parametrize("is_live", [True, False], ids=["live", "recorded"])
@pytest.mark.parametrize(
    ("tasks", "trials"),
    [
        (12, 4),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_the_stated_drop_of_these_tasks_is_found(kind: str, tasks: int, trials: int, is_live: bool) -> None:
    rules = THESE_TASKS.rules(QUESTION)
    random, design = np.random.default_rng(11), Design(tasks, trials, is_live=is_live)
    same = simulate_comparisons(random, KINDS[kind], Effect(), design, 60)
    level = rules.drop_level(same)
    assert level == pytest.approx(0.035 if is_live else 0.045)
    deviations = compute_findings(same, rules)[REWARD].deviation
    stated = [
        drop_sensitivity(float(one), tasks, trials, level, has_fixed_tasks=True).drop for one in deviations
    ]
    drop = float(np.median([one for one in stated if one is not None]))
    worse = simulate_comparisons(random, KINDS[kind], Effect(-drop, is_exact=True), design, 400)
    assert (compute_findings(worse, rules)[REWARD].harm_p <= level).mean() >= 0.8


def test_the_figures_of_the_page_are_those_of_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    """One row of benchmarks/gate-figures.md, made again by the code that wrote the page."""
    monkeypatch.syspath_prepend(str(REPOSITORY / "benchmarks"))
    gate, gate_tables = importlib.import_module("gate"), importlib.import_module("gate_tables")
    page = (REPOSITORY / "benchmarks" / "gate-figures.md").read_text(encoding="utf-8")
    rows = int(page.partition(gate_tables.BEGIN)[2].strip().partition(" ")[0].replace(",", ""))
    jobs = [
        job
        for job in gate.jobs(rows)
        if (job.part, job.agent, job.tasks, job.trials) == ("small", "alike 60", 12, 4)
    ]
    found = [one for job in jobs for one in gate.simulate(job)]
    (row,) = [line for line in gate_tables.tables(found).splitlines() if line.startswith("| alike 60 |")]
    assert row in page.splitlines()
    section = page.partition("### Requirements for small suites")[2].partition("###")[0]
    assert "**no**" not in section
    assert section.count("| yes |") == 9


@pytest.mark.parametrize("tasks", [1, 12, 40])
def test_the_trials_that_a_gain_on_these_tasks_needs_are_those_of_its_exact_test(tasks: int) -> None:
    """One task goes from 0 to all of its trials: two trials do not show it, and more tasks never would."""

    def at(trials: int) -> Verdict:
        passes, fails = [1.0] * trials, [0.0] * trials
        others = [passes] * (tasks - 1)
        return judged(side(fails, *others), side(passes, *others), policy=THESE_TASKS)

    claim, needed = at(2).checks[0], at(2).settling[0]
    assert (claim.status, claim.detectable, needed.tasks) == (CheckStatus.UNDECIDED, None, None)
    assert claim.p == pytest.approx(1 / 6)
    assert needed.trials is not None
    assert at(needed.trials).checks[0].status is CheckStatus.PASS
    assert at(needed.trials - 1).checks[0].status is CheckStatus.UNDECIDED
