"""The policy `calibrated`: it tests the claim, watches other metrics for harm, and bounds its error rate."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from pytest_trace2evolve.gate.alpha_spending import stage_alpha
from pytest_trace2evolve.gate.checks import Finding, Outcome, Rules, confirmed_regressions, evaluate, find
from pytest_trace2evolve.gate.columns import BREACHES, INVARIANTS, KINDS, Counts, Flags, Floats
from pytest_trace2evolve.gate.intervals import (
    Sensitivity,
    detectable,
    detectable_tasks,
    detects,
    sensitivity,
    settling,
    spread_of,
)
from pytest_trace2evolve.gate.pairs import (
    MAX_STEPS,
    REGRESSIONS,
    REWARD,
    Comparisons,
    Pairs,
    means_line,
)
from pytest_trace2evolve.gate.protocols import (
    NOT_APPLICABLE,
    STATUSES,
    UNDECIDED,
    Check,
    Judgement,
    Policy,
    Question,
    run_check,
)
from pytest_trace2evolve.records.verdict import CheckResult, CheckStatus, Goal, Settling

DROP = "reward_drop"
"""Id of the check for a drop of the reward, used for guards and under goal `no-regression`."""

DROP_SHARE = 0.7
"""The level for a drop of the reward under goal `no-regression`, as a share of alpha. The other checks can
discard too. At the whole alpha, 6 % of the comparisons of equal agents would be discarded at 114 tasks."""


@dataclass(frozen=True)
class Calibrated(Policy):
    """The default policy, with the settings that a project can change.

    Attributes:
        name: The policy's name.
        alpha: Level of the claim, and of discarding a candidate that is no worse.
        margins: By metric, the loss within which the metric passes as not worse. The reward always has a
            margin.
        weights: By metric, its level as a share of alpha; 0 leaves the metric out.
        block_suspected: Whether suspected tasks withhold a promotion.
        within: Whether the verdict is on exactly these tasks (estimand `suite`), and not on the population
            from which they were drawn.
        confirm: The most fresh simulations of a live run, both sides together.
        further: Checks of plugins.
    """

    name: str = "calibrated"
    alpha: float = 0.05
    margins: Mapping[str, float] = field(default_factory=lambda: {REWARD: 0.10})
    weights: Mapping[str, float] = field(default_factory=dict)
    block_suspected: bool = False
    within: bool = False
    confirm: int = 640
    further: tuple[Check, ...] = ()

    confirms = True
    equal_trials = True

    def rules(self, question: Question) -> Rules:
        """The policy as numbers, at the levels of one question.

        Guards and goal `no-regression` only test for harm. Nothing must be shown, so no margin counts.
        """
        improve = question.goal is Goal.IMPROVE and not question.guard
        no_regression = question.goal is Goal.NO_REGRESSION and not question.guard
        margins = {name: margin for name, margin in self.margins.items() if not (improve and name == REWARD)}
        level = question.stage_alpha or self.alpha
        return Rules(
            improve=improve,
            margins={} if question.guard or no_regression else margins,
            weights=self.weights,
            claim_alpha=self._claim_alpha(question),
            harm_alpha=level,
            watch_alpha=0.0 if no_regression else self.alpha,
            drop_alpha=DROP_SHARE * level if no_regression else 0.0,
            guard=question.guard,
            block_suspected=self.block_suspected and not question.guard,
            within=self.within,
        )

    def _claim_alpha(self, question: Question) -> float:
        """The level of the claim. Stages need a level of their own, as levels do not scale with the share."""
        if question.schedule and question.share < 1.0:
            return stage_alpha(self.alpha * question.share, question.schedule)
        return (question.stage_alpha or self.alpha) * question.share

    def judge(self, pairs: Pairs, question: Question) -> Judgement:
        """Answer every check."""
        rules, compared = self.rules(question), pairs.compared
        further = [run_check(check, pairs) for check in self.further]
        p = {result.id: np.array([result.p]) for result in further if result.p is not None}
        outcome = evaluate(compared, rules, p)
        results = [_result(name, pairs, outcome, rules) for name in outcome.findings]
        results += [_result_of_plugin(result, outcome, rules) for result in further]
        confirmed = confirmed_regressions(compared, rules.harm_alpha)[0]
        return Judgement(
            results=tuple(results),
            regressions=tuple(pairs.named(confirmed)),
            suspected=tuple(pairs.named(compared.suspected[0] & ~confirmed)),
            settling=_settling(results, outcome.findings[REWARD], pairs, rules, question),
            alpha=rules.claim_alpha,
            sensitivity=_sensitivity(compared, outcome.findings[REWARD], rules),
        )

    def detects(self, compared: Comparisons, question: Question, drop: float) -> Flags:
        """Whether each comparison would have detected this drop of the mean reward, shape (R,)."""
        rules = self.rules(question)
        found = find(compared, rules)[REWARD]
        return detects(drop, found.deviation, found.tasks, compared.usual_trials, rules.drop_level)

    def answers(self, compared: Comparisons, question: Question) -> Counts:
        """The answers of every check by comparison, shape (checks, R), without checks of plugins."""
        return np.stack(list(evaluate(compared, self.rules(question)).answers.values()))


CALIBRATED = Calibrated()
"""The default policy."""


# The figures of one comparison.


def _check_id(metric: str, rules: Rules) -> str:
    if metric != REWARD:
        return metric
    if rules.improve:
        return "reward_improved"
    return "reward_not_worse" if REWARD in rules.margins else DROP


def _number(values: Floats) -> float | None:
    return None if np.isnan(values[0]) else float(values[0])


def _result(metric: str, pairs: Pairs, outcome: Outcome, rules: Rules) -> CheckResult:
    """A check's answer with its figures."""
    found, answer, check = outcome.findings[metric], outcome.answers[metric][0], _check_id(metric, rules)
    status = STATUSES[answer]
    if answer == NOT_APPLICABLE:
        kind = "" if metric == "action_match" else f"{metric.partition('_')[0]} "
        absent = f"no gold {kind}actions checked" if metric in KINDS else "nothing was measured on both sides"
        return CheckResult(id=check, status=status, detail=absent)
    claimed = metric == REWARD and rules.improve
    margin = None if claimed else rules.margins.get(metric)
    detail = _detail(metric, pairs, rules, found)
    if np.isnan(found.estimate[0]):
        detail = f"{detail}; needs two trials of a task on either side"
    if pairs.identical and answer == UNDECIDED and not claimed:
        status = CheckStatus.PASS
    level = rules.claim_alpha if claimed or margin is not None else rules.harm_alpha
    return CheckResult(
        id=check,
        status=status,
        estimate=_number(found.estimate),
        low=_number(found.low),
        high=_number(found.high),
        threshold=0.0 if margin is None else -margin,
        p=_number(found.gain if claimed else found.harm),
        detectable=_detectable(check, found, pairs.compared, level, rules),
        detail=f"identical evidence; {detail}" if pairs.identical and metric == REWARD else detail,
    )


def _result_of_plugin(result: CheckResult, outcome: Outcome, rules: Rules) -> CheckResult:
    """The result of a plugin's check. With a p of harm it shares the policy's error; otherwise it stands."""
    if result.p is None or result.status is CheckStatus.NOT_APPLICABLE:
        return result
    if outcome.adjusted[result.id][0] <= rules.harm_alpha:
        return result.model_copy(update={"status": CheckStatus.FAIL})
    open_ = result.p <= rules.watch_alpha or result.status is CheckStatus.UNDECIDED
    return result.model_copy(update={"status": CheckStatus.UNDECIDED if open_ else CheckStatus.PASS})


def _detail(metric: str, pairs: Pairs, rules: Rules, found: Finding) -> str:
    compared, (old, new) = pairs.compared, pairs.sides
    if metric == MAX_STEPS:
        return f"{int((old.max_steps > 0).sum())} → {int((new.max_steps > 0).sum())} tasks"
    if metric == INVARIANTS:
        return _breaches(compared, found)
    if metric == REGRESSIONS:
        detail = f"{int(compared.broken.sum())} broken, {int(compared.fixed.sum())} fixed"
        if confirmed := int(confirmed_regressions(compared, rules.harm_alpha).sum()):
            detail += f"; {confirmed} confirmed"
        if pairs.fresh is not None:
            detail += f"; {int((~np.isnan(pairs.fresh)).sum())} tried again"
        return detail
    return means_line(old.figure(metric), new.figure(metric))


def _breaches(compared: Comparisons, found: Finding) -> str:
    """A text on how many of the checked simulations broke the worst kind of invariant, and any kind."""
    assert found.worst is not None
    name = list(BREACHES)[int(found.worst[0])]
    sides = (compared.baseline, compared.candidate)
    checked = [int(side.checked[INVARIANTS][compared.watched].sum()) for side in sides]

    def broke(kept: Sequence[Floats]) -> list[int]:
        sums = [int(trials[compared.watched].sum()) for trials in kept]
        return [total - count for total, count in zip(checked, sums, strict=True)]

    worst = broke([side.kept(name) for side in sides])
    any_kind = broke([side.matched[INVARIANTS] for side in sides])
    kind = f"{BREACHES[name].value} " if any(worst) else ""
    every = "" if any_kind == worst else f"; any kind {any_kind[0]} → {any_kind[1]}"
    if checked[0] == checked[1]:
        return f"{kind}{worst[0]} → {worst[1]} of {checked[0]} simulations{every}"
    return f"{kind}{worst[0]} of {checked[0]} → {worst[1]} of {checked[1]} simulations{every}"


def _detectable(
    check: str, found: Finding, compared: Comparisons, alpha: float, rules: Rules
) -> float | None:
    tasks = float(found.tasks[0])
    if check == DROP:
        return _sensitivity(compared, found, rules).drop
    if check == REGRESSIONS:
        return detectable_tasks(int(compared.fixed.sum()), tasks, alpha)
    if check == MAX_STEPS:
        better = (compared.baseline.max_steps > 0) & ~(compared.candidate.max_steps > 0)
        return detectable_tasks(int(better.sum()), tasks, alpha)
    if check == INVARIANTS:
        alpha /= len(BREACHES)
    return detectable(float(found.deviation[0]), tasks, alpha)


def _sensitivity(compared: Comparisons, found: Finding, rules: Rules) -> Sensitivity:
    trials = float(compared.usual_trials[0])
    return sensitivity(float(found.deviation[0]), float(found.tasks[0]), trials, rules.drop_level)


def _settling(
    results: Sequence[CheckResult], found: Finding, pairs: Pairs, rules: Rules, question: Question
) -> tuple[Settling, ...]:
    """The trials or tasks that would settle the check of the reward, if it is undecided."""
    reward = next(result for result in results if result.id == _check_id(REWARD, rules))
    estimate = float(found.estimate[0])
    if reward.status is not CheckStatus.UNDECIDED or pairs.identical or np.isnan(estimate):
        return ()
    if question.filled or question.guard:
        return ()
    distance = estimate if rules.improve else rules.margins[REWARD] + min(estimate, 0.0)
    spread = spread_of(pairs, float(found.deviation[0]))
    further = rules.claim_alpha * question.next_share / question.share
    return (settling(reward.id, distance, spread, pairs, alpha=rules.claim_alpha, further_alpha=further),)
