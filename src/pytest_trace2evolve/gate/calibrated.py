"""The policy `calibrated`: proves what matters, watches the rest for harm, and states its error."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from pytest_trace2evolve.gate.columns import BREACHES, INVARIANTS, KINDS, Counts, Flags
from pytest_trace2evolve.gate.judgement import Judgement, Question, Sensitivity
from pytest_trace2evolve.gate.multiplicity import regressed
from pytest_trace2evolve.gate.pairs import Pairs
from pytest_trace2evolve.gate.planning import (
    detectable,
    detectable_tasks,
    detects,
    sensitivity,
    settling,
    spread_of,
)
from pytest_trace2evolve.gate.stages import stage_alpha
from pytest_trace2evolve.gate.strict import Check, ask
from pytest_trace2evolve.gate.tally import MAX_STEPS, PASS_RATE, REGRESSIONS, REWARD, Comparisons, Tally
from pytest_trace2evolve.gate.vectorized import (
    FAIL,
    NOT_APPLICABLE,
    PASS,
    UNDECIDED,
    Finding,
    Outcome,
    Rules,
    evaluate,
    find,
)
from pytest_trace2evolve.records.verdict import CheckResult, CheckStatus, Goal, Settling

DROP = "reward_drop"
"""Id of the check that asks for a drop of the reward alone: of guards, and under goal `no-regression`."""

DROP_SHARE = 0.7
"""The level of a drop of the reward under goal `no-regression`, as a share of alpha. The other checks can
discard too: at all of alpha, 6 % of the comparisons of equal agents would be discarded at 114 tasks."""

_STATUS = {
    NOT_APPLICABLE: CheckStatus.NOT_APPLICABLE,
    PASS: CheckStatus.PASS,
    UNDECIDED: CheckStatus.UNDECIDED,
    FAIL: CheckStatus.FAIL,
}


@dataclass(frozen=True)
class Calibrated:
    """The default policy, and what a project sets otherwise.

    Attributes:
        name: The policy's name.
        alpha: Level of the claim, and of discarding a candidate that is no worse.
        margins: By metric, how much worse it may be and still pass as not worse; the reward has one always.
        weights: By metric, its level as a share of alpha; 0 leaves the metric out.
        block_suspected: Whether suspected tasks withhold a promotion.
        within: Whether these very tasks are meant (estimand `suite`), not those they were drawn from.
        confirm: Most fresh simulations of a live run, both sides together.
        further: Checks of others.
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

        A guard, and goal `no-regression`, ask for harm alone: nothing must be shown, so no margin counts.
        """
        improve = question.goal is Goal.IMPROVE and not question.guard
        harm_alone = question.guard or question.goal is Goal.NO_REGRESSION
        margins = {name: margin for name, margin in self.margins.items() if not (improve and name == REWARD)}
        level = question.stage_alpha or self.alpha
        return Rules(
            improve=improve,
            margins={} if harm_alone else margins,
            weights=self.weights,
            claim_alpha=self._claim_alpha(question),
            harm_alpha=level,
            watch_alpha=0.0 if harm_alone and not question.guard else self.alpha,
            drop_alpha=DROP_SHARE * level if harm_alone and not question.guard else 0.0,
            guard=question.guard,
            block_suspected=self.block_suspected and not question.guard,
            within=self.within,
        )

    def _claim_alpha(self, question: Question) -> float:
        """The level of the claim. The level of a stage does not shrink in proportion to that of them all."""
        if question.schedule and question.share < 1.0:
            return stage_alpha(self.alpha * question.share, question.schedule)
        return (question.stage_alpha or self.alpha) * question.share

    def judge(self, pairs: Pairs, question: Question) -> Judgement:
        """Answer every check."""
        rules = self.rules(question)
        compared = comparisons_of(pairs)
        others = [ask(check, pairs) for check in self.further]
        p = {one.id: np.array([one.p]) for one in others if one.p is not None}
        outcome = evaluate(compared, rules, p)
        results = [self._result(name, pairs, compared, outcome, rules) for name in outcome.findings] + [
            _of_others(one, outcome, rules) for one in others
        ]
        confirmed = regressed(compared, rules.harm_alpha)[0]
        return Judgement(
            results=tuple(results),
            regressions=tuple(pairs.named(confirmed)),
            suspected=tuple(pairs.named(compared.suspected[0] & ~confirmed)),
            settling=self._settling(results, outcome, pairs, rules, question),
            alpha=rules.claim_alpha,
            sensitivity=_sensitivity(compared, outcome.findings[REWARD], rules),
        )

    def detects(self, compared: Comparisons, question: Question, drop: float) -> Flags:
        """Whether each comparison would have detected a drop of the mean reward, shape (R,)."""
        rules = self.rules(question)
        found = find(compared, rules)[REWARD]
        return detects(drop, found.deviation, found.tasks, compared.usual_trials, _level(rules))

    def answers(self, compared: Comparisons, question: Question) -> Counts:
        """Answers of every check by comparison, shape (checks, R); checks of others are left out."""
        return np.stack(list(evaluate(compared, self.rules(question)).answers.values()))

    def _result(
        self,
        name: str,
        pairs: Pairs,
        compared: Comparisons,
        outcome: Outcome,
        rules: Rules,
    ) -> CheckResult:
        found, answer = outcome.findings[name], int(outcome.answers[name][0])
        check, status = _id(name, rules), _STATUS[answer]
        if answer == NOT_APPLICABLE:
            return CheckResult(id=check, status=status, detail=_absent(name))
        claimed = name == REWARD and rules.improve
        margin = None if claimed else rules.margins.get(name)
        detail = _detail(name, pairs, compared, rules, found)
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
            detectable=_detectable(name, found, compared, level, rules),
            detail=f"identical evidence; {detail}" if pairs.identical and name == REWARD else detail,
        )

    def _settling(
        self,
        results: Sequence[CheckResult],
        outcome: Outcome,
        pairs: Pairs,
        rules: Rules,
        question: Question,
    ) -> tuple[Settling, ...]:
        """What would settle the reward, where it is what is open."""
        reward = next(result for result in results if result.id == _id(REWARD, rules))
        if reward.status is not CheckStatus.UNDECIDED or pairs.identical:
            return ()
        if question.filled or question.guard:
            return ()
        found = outcome.findings[REWARD]
        estimate = float(found.estimate[0])
        if np.isnan(estimate):
            return ()
        distance = estimate if rules.improve else rules.margins[REWARD] + min(estimate, 0.0)
        spread = spread_of(pairs, float(found.deviation[0]))
        further = rules.claim_alpha * question.next_share / question.share
        return (settling(reward.id, distance, spread, rules.claim_alpha, pairs, further_alpha=further),)


def comparisons_of(pairs: Pairs) -> Comparisons:
    """One comparison as the kernel takes it."""
    return Comparisons(
        baseline=_row(pairs.baseline),
        candidate=_row(pairs.candidate),
        fresh=None if pairs.fresh is None else pairs.fresh[None, :],
        binary=pairs.binary,
    )


def _row(side: Tally) -> Tally:
    return replace(
        side,
        trials=side.trials[None, :],
        measured=side.measured[None, :],
        reward=side.reward[None, :],
        squares=side.squares[None, :],
        passed=side.passed[None, :],
        matched={kind: sums[None, :] for kind, sums in side.matched.items()},
        checked={kind: count[None, :] for kind, count in side.checked.items()},
        max_steps=side.max_steps[None, :],
    )


def _id(metric: str, rules: Rules) -> str:
    if metric != REWARD:
        return metric
    if rules.improve:
        return "reward_improved"
    return "reward_not_worse" if REWARD in rules.margins else DROP


def _number(values: np.ndarray) -> float | None:
    return None if np.isnan(values[0]) else float(values[0])


def _absent(metric: str) -> str:
    if metric in KINDS:
        kind = {"action_match": "", "read_action_match": "read ", "write_action_match": "write "}[metric]
        return f"no gold {kind}actions checked"
    return "nothing was measured on both sides"


def _level(rules: Rules) -> float:
    """The level at which a drop of the reward blocks or, under goal `no-regression`, discards."""
    return rules.drop_alpha or rules.watch_alpha


def _sensitivity(compared: Comparisons, found: Finding, rules: Rules) -> Sensitivity:
    trials = float(compared.usual_trials[0])
    return sensitivity(float(found.deviation[0]), float(found.tasks[0]), trials, _level(rules))


def _detail(metric: str, pairs: Pairs, compared: Comparisons, rules: Rules, found: Finding) -> str:
    old, new = pairs.sides
    if metric == MAX_STEPS:
        hit = [int((side.max_steps > 0).sum()) for side in pairs.sides]
        return f"{hit[0]} → {hit[1]} tasks"
    if metric == INVARIANTS:
        return _breaches(compared, found)
    if metric == REGRESSIONS:
        confirmed = int(regressed(compared, rules.harm_alpha).sum())
        parts = [f"{int(compared.broken.sum())} broken, {int(compared.fixed.sum())} fixed"]
        if confirmed:
            parts.append(f"{confirmed} confirmed")
        if pairs.fresh is not None:
            parts.append(f"{int((~np.isnan(pairs.fresh)).sum())} tried again")
        return "; ".join(parts)
    figures = {REWARD: (old.mean_reward, new.mean_reward), PASS_RATE: (old.pass_rate, new.pass_rate)}
    before, after = figures[metric] if metric in figures else (old.share(metric), new.share(metric))
    known = ~np.isnan(before) & ~np.isnan(after)
    return f"{before[known].mean():.3f} → {after[known].mean():.3f} (n={int(known.sum())})"


def _breaches(compared: Comparisons, found: Finding) -> str:
    """How many simulations broke the worst kind, of those that were checked for it, and any kind."""
    assert found.worst is not None
    name = list(BREACHES)[int(found.worst[0])]
    sides = (compared.baseline, compared.candidate)
    checked = [int(side.checked[INVARIANTS][compared.held].sum()) for side in sides]

    def broke(kept: Sequence[np.ndarray]) -> list[int]:
        return [total - int(one[compared.held].sum()) for one, total in zip(kept, checked, strict=True)]

    worst = broke([side.kept(name) for side in sides])
    among = broke([side.matched[INVARIANTS] for side in sides])
    kind = f"{BREACHES[name].value} " if any(worst) else ""
    every = "" if among == worst else f"; any kind {among[0]} → {among[1]}"
    if checked[0] == checked[1]:
        return f"{kind}{worst[0]} → {worst[1]} of {checked[0]} simulations{every}"
    return f"{kind}{worst[0]} of {checked[0]} → {worst[1]} of {checked[1]} simulations{every}"


def _detectable(
    metric: str, found: Finding, compared: Comparisons, alpha: float, rules: Rules
) -> float | None:
    tasks = float(found.tasks[0])
    if metric == REWARD and _id(metric, rules) == DROP:
        return _sensitivity(compared, found, rules).drop
    if metric == REGRESSIONS:
        return detectable_tasks(int(compared.fixed.sum()), tasks, alpha)
    if metric == MAX_STEPS:
        better = (compared.baseline.max_steps > 0) & ~(compared.candidate.max_steps > 0)
        return detectable_tasks(int(better.sum()), tasks, alpha)
    if metric == INVARIANTS:
        alpha /= len(BREACHES)
    return detectable(float(found.deviation[0]), tasks, alpha)


def _of_others(result: CheckResult, outcome: Outcome, rules: Rules) -> CheckResult:
    """A check of somebody else's: with a p of harm it shares the policy's error, else its answer stands."""
    if result.p is None or result.status is CheckStatus.NOT_APPLICABLE:
        return result
    if outcome.adjusted[result.id][0] <= rules.harm_alpha:
        return result.model_copy(update={"status": CheckStatus.FAIL})
    open_ = result.p <= rules.watch_alpha or result.status is CheckStatus.UNDECIDED
    return result.model_copy(update={"status": CheckStatus.UNDECIDED if open_ else CheckStatus.PASS})
