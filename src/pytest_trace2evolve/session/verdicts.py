"""Collects the evidence of a run's suites, and judges it."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from pytest_trace2evolve.evidence.ledger import outcomes_digest
from pytest_trace2evolve.gate.claims import AlphaSpending, Claim, EvidenceLabel
from pytest_trace2evolve.gate.confirm import (
    CLEARED,
    CONFIRMED,
    FreshResult,
    find_contradiction,
    fresh_result,
    without_second_tosses,
)
from pytest_trace2evolve.gate.decide import GateInput, decide, has_too_few_measured, worst_decision
from pytest_trace2evolve.gate.intervals import information_share, predictive_power
from pytest_trace2evolve.gate.pairs import Pairs, left_out_lines, pair
from pytest_trace2evolve.gate.policy import policy_version
from pytest_trace2evolve.gate.tallies import REGRESSIONS
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.project.suites import Role
from pytest_trace2evolve.records.evidence import (
    ComparedSides,
    Evidence,
    FreshTrials,
    Provenance,
    Settings,
    SimulationEvidence,
)
from pytest_trace2evolve.records.ledger import Draw, DrawOrigin, Evaluation
from pytest_trace2evolve.records.task import natural_sort_key
from pytest_trace2evolve.records.trace import TerminationReason
from pytest_trace2evolve.records.verdict import (
    CheckResult,
    CheckStatus,
    Decision,
    Goal,
    GuardAnswer,
    Label,
    Verdict,
)
from pytest_trace2evolve.scoring.metrics import Metrics, compute_metrics
from pytest_trace2evolve.session.draws import Draws
from pytest_trace2evolve.session.ledger import ProjectLedger, baseline_identity, min_trials
from pytest_trace2evolve.session.plan import Plan, PlannedSuite, first_names
from pytest_trace2evolve.session.provenance import (
    compared_sides,
    provenance_of,
    tested_agent_digest,
    unrecorded_files,
)
from pytest_trace2evolve.session.trials import TaskRun

NO_EFFECT = "the verdict is the same either way; --t2e-goal no-regression tries them again"
"""Why regressions are not confirmed if `confirmation_matters` is false."""


@dataclass
class SuiteRun:
    """A suite of a run, with the trials of the tasks that were run, by task id."""

    planned: PlannedSuite
    runs: dict[str, TaskRun] = field(default_factory=dict)

    @property
    def records(self) -> tuple[SimulationEvidence, ...]:
        """All records, sorted by task and trial."""
        records = [record for run in self.runs.values() for record in run.records]
        return tuple(sorted(records, key=lambda record: (natural_sort_key(record.task_id), record.trial)))

    @property
    def is_fully_measured(self) -> bool:
        """Whether every trial of every task that was selected has a reward."""
        return all(
            run.records and not run.lost_trials and not run.unmeasured_trials for run in self.runs.values()
        )

    @property
    def agent_error_count(self) -> int:
        """The number of simulations that ended in an agent error."""
        return sum(record.termination_reason == TerminationReason.AGENT_ERROR for record in self.records)

    @property
    def fresh_trials(self) -> dict[str, FreshTrials]:
        """Fresh trials of the tasks that have any, by task id."""
        return {
            task_id: run.fresh_trials for task_id, run in self.runs.items() if run.fresh_trials is not None
        }

    @property
    def unconfirmed_notes(self) -> list[str]:
        """Notes on regressed tasks without fresh trials, one for each reason."""
        reasons = Counter(run.unconfirmed_reason for run in self.runs.values() if run.unconfirmed_reason)
        return [
            f"{self.planned.name}: {_count_text(count, 'regressed task')} not confirmed: {reason}"
            for reason, count in sorted(reasons.items())
        ]

    def records_in(self, split: str) -> tuple[SimulationEvidence, ...]:
        """Return the records of one split."""
        tasks = self.planned.lock.splits[split]
        return tuple(record for record in self.records if record.task_id in tasks)

    def runs_in(self, split: str) -> dict[str, TaskRun | None]:
        """Return the tasks of a split; None for those that were not run."""
        return {task_id: self.runs.get(task_id) for task_id in self.planned.lock.splits[split]}

    def missing_tasks(self, split: str) -> list[str]:
        """Return the tasks of a split with missing trials, except tasks left out for their content."""
        runs = self.runs_in(split).items()
        kept_tasks = self.planned.kept_tasks
        missing = [
            task_id for task_id, run in runs if run is None or run.absent_reason or run.unfinished_reason
        ]
        return [task_id for task_id in missing if task_id not in kept_tasks]

    def left_out_reasons(self, split: str) -> dict[str, str]:
        """Return the reasons why tasks of a split were not compared, by task id."""
        runs = self.runs_in(split).items()
        return {
            task_id: run.left_out_reason for task_id, run in runs if run is not None and run.left_out_reason
        }

    def has_run(self, split: str) -> bool:
        """Return whether any task of a split was run or left out."""
        runs = self.runs_in(split).values()
        return any(run is not None and bool(run.records or run.left_out_reason) for run in runs)


@dataclass(frozen=True)
class SuiteOutcome:
    """One suite's figures and verdicts.

    Attributes:
        reason: Why there is no verdict; empty if there is one.
        is_whole: Whether every split that was run is complete.
        left_out: Lines on the tasks that were not compared; empty if verdicts name these tasks.
        compared: Both sides, for reports; None without a baseline.
    """

    name: str
    metrics: Mapping[str, Metrics]
    verdicts: tuple[Verdict, ...]
    reason: str
    is_whole: bool
    left_out: tuple[str, ...] = ()
    compared: ComparedSides | None = None

    @property
    def decision(self) -> Decision | None:
        """The worst decision of the suite's splits; None if no split decided."""
        return worst_decision(verdict.decision for verdict in self.verdicts)


def suite_evidence(plan: Plan, run: SuiteRun) -> Evidence:
    """Return a suite's evidence with its provenance."""
    return Evidence(provenance=provenance_of(plan, run.planned), simulations=run.records)


def judge_suite(
    plan: Plan,
    run: SuiteRun,
    ledger: ProjectLedger,
    draws: Draws,
    *,
    interruption: str = "",
    is_stopped: bool = False,
    assumed: Mapping[str, FreshResult] = MappingProxyType({}),
) -> SuiteOutcome:
    """Judge one suite.

    Args:
        run: The tasks of the suite that were run; none if the session ended before the suite.
        ledger: The project's ledger.
        draws: The draws of the run.
        interruption: Why the session stopped early or was narrowed; empty if it was neither.
        is_stopped: Whether the session ended early. Its measurements then decide nothing.
        assumed: Assumed results of fresh trials that were not made, by task id.
    """
    splits = run.planned.lock.splits
    figures = {split: compute_metrics(run.records_in(split)) for split in splits if run.has_run(split)}
    is_whole = not is_stopped and not any(run.missing_tasks(split) for split in figures)
    verdicts: list[Verdict] = []
    reason = _no_gate_reason(plan, run.planned, saves_baseline=is_whole and bool(run.records))
    if not reason:
        verdicts = list(_judge_splits(plan, run, ledger, draws, interruption, is_stopped, assumed))
        if not any(verdict.decision for verdict in verdicts):
            reason = "no deciding split was run, and the guards detected no harm"
    left_out = [entry for split in splits for entry in left_out_lines(run.left_out_reasons(split))]
    return SuiteOutcome(
        run.planned.suite.name,
        figures,
        tuple(verdicts),
        reason,
        is_whole,
        () if verdicts else tuple(left_out),
        compared_sides(plan, run.planned, run.records),
    )


def confirmation_matters(
    plan: Plan,
    run: SuiteRun,
    tasks: Iterable[str],
    ledger: ProjectLedger,
    draws: Draws,
    *,
    interruption: str = "",
) -> bool:
    """Return whether fresh trials of tasks that may have regressed could decide something.

    They cannot if the decision is the same with all tasks confirmed, with all cleared, and without any fresh
    trials, and if the confirmed tasks alone would not discard the candidate. A decision never improves if one
    more task is confirmed, so every other outcome lies between these.
    """
    names = list(tasks)
    outcomes = [
        judge_suite(plan, run, ledger, draws, interruption=interruption, assumed=assumed)
        for assumed in ({}, dict.fromkeys(names, CLEARED), dict.fromkeys(names, CONFIRMED))
    ]
    confirmed_checks = [check for verdict in outcomes[-1].verdicts for check in verdict.checks]
    return len({outcome.decision for outcome in outcomes}) > 1 or any(
        check.id == REGRESSIONS and check.status is CheckStatus.FAIL for check in confirmed_checks
    )


def futility_note(plan: Plan, outcomes: Iterable[SuiteOutcome]) -> str:
    """Why further stages are not worth their simulations; empty if they are, or if no gain must be shown."""
    stage, threshold = plan.stage, getattr(plan.policy, "futility", 0.0)
    assert stage is not None
    verdicts = [verdict for outcome in outcomes for verdict in outcome.verdicts if verdict.guard is None]
    for verdict in verdicts:
        check = next((check for check in verdict.checks if check.id == "reward_improved"), None)
        if check is None or check.p is None or verdict.alpha is None:
            continue
        baseline_trials = verdict.baseline.measured / max(verdict.tasks, 1)
        fraction = information_share(stage.trials, stage.max_trials, baseline_trials)
        power = float(predictive_power(check.p, verdict.alpha, fraction))
        if power < threshold:
            chance = (
                f"stopped, since {stage.max_trials} trials would show a gain with a chance of {power:.1%}"
            )
            bound = "" if check.high is None else f"; more than {100 * check.high:+.1f} points are excluded"
            return chance + bound
    return ""


def _no_gate_reason(plan: Plan, planned: PlannedSuite, *, saves_baseline: bool) -> str:
    """Return why a suite has no verdict; empty if the gate judges it. The text after "; " is the next step.

    Args:
        saves_baseline: Whether a requested baseline is saved, because the run is complete.
    """
    if plan.policy is None:
        part = "trials" if planned.kept_trials else "tasks" if planned.kept_tasks else ""
        return f"only the {part} that the baseline lacks were run" if part else "the gate is off"
    if planned.baseline is not None:
        return ""
    candidate = plan.candidate.id
    ancestors = " ← ".join(ancestor.id for ancestor in plan.lineage[1:])
    cause = f"candidate {candidate} has no ancestor to be compared with"
    nearest = candidate
    if ancestors:
        cause = f"none of its ancestors ({ancestors}) has a baseline for this suite"
        nearest = plan.lineage[1].id
    if plan.saving is not None and saves_baseline:
        name = plan.saving.name
        option = "" if name == candidate else f" --t2e-baseline {name}"
        if children := plan.project.candidates.children(candidate):
            return f"{cause}; gate its child: pytest --candidate {children[0]}{option}"
        option = f" and gate it with{option}" if option else ""
        return f"{cause}; write a candidate with parent: {candidate}{option}"
    return f"{cause}; save a first baseline: pytest --candidate {nearest} --t2e-save-baseline {nearest}"


def _judge_splits(
    plan: Plan,
    run: SuiteRun,
    ledger: ProjectLedger,
    draws: Draws,
    incomplete_reason: str,
    is_stopped: bool,
    assumed: Mapping[str, FreshResult],
) -> Iterable[Verdict]:
    planned, policy = run.planned, plan.policy_of(run.planned)
    assert planned.baseline is not None
    assert policy is not None
    splits = dict(gated_splits(plan.project, planned.lock.splits))
    has_deciding_split = any(run.has_run(split) for split, is_guard in splits.items() if not is_guard)
    for split, is_guard in splits.items():
        # A guard that was left out (`-m heldout`) must not pass for one that detected no harm.
        if not run.has_run(split) and not incomplete_reason and not (is_guard and has_deciding_split):
            continue
        tasks = planned.lock.splits[split]
        baseline_records = [
            record for record in planned.baseline.all_evidence.simulations if record.task_id in tasks
        ]
        comparable_records = [
            record for record in baseline_records if record.task_digest == tasks[record.task_id]
        ]
        candidate_records = run.records_in(split)
        changed = {
            record.task_id for record in baseline_records if record.task_digest != tasks[record.task_id]
        }
        reasons = dict.fromkeys(changed, "its content in the baseline differs from the lock")
        reasons |= run.left_out_reasons(split)
        evidence_label = _label_evidence(plan, planned, split, ledger)
        partial_reason = _partial_reason(run, split, incomplete_reason, is_stopped)
        if not partial_reason and not is_guard:
            partial_reason = _missing_baseline_reason(tasks, {record.task_id for record in baseline_records})
        is_sealed = plan.project.splits[split].role is Role.GATE
        spending = None
        if not is_guard and not partial_reason:
            spending = ledger.spending(claim_of(plan, run, split, draws, evidence_label.label))
            # Tasks that may be read are tested at one level, but their recorded verdict stands too.
            spending = spending if is_sealed else replace(spending, abandoned_draws=())
        sides = comparable_records, candidate_records
        pairs = _pair_sides(plan, sides, tasks, reasons, None)
        old, _ = pairs[0].sides
        contradiction = find_contradiction(pairs[0].names, old.successes, old.measured, run.fresh_trials)
        fresh: dict[str, FreshResult] | None = None
        if planned.name in plan.baseline_sides and not contradiction:
            fresh = {**assumed, **{task: fresh_result(fresh) for task, fresh in run.fresh_trials.items()}}
            pairs = [both.with_fresh_results(fresh) for both in pairs]
        given = GateInput(
            pairs[0],
            policy,
            goal=plan.goal,
            label=evidence_label.label,
            suite=planned.suite.name,
            split=split,
            is_guard=is_guard,
            partial_reason=partial_reason,
            expected_tasks=len(tasks),
            spending=spending,
            lost_tasks=_repeated_losses(run, split, draws),
            bounded_pairs=pairs[1],
            contradiction=contradiction,
            stage=plan.stage,
        )
        claimed = tasks.keys() & planned.claimed_tasks
        has_claim = bool(planned.claimed_tasks) and plan.goal is Goal.IMPROVE and not is_guard
        void_reason = _void_claim_reason(plan, evidence_label, ledger, claimed) if has_claim else ""
        verdict = decide(given)
        if void_reason:
            reason = "; ".join(filter(None, (void_reason, verdict.reason)))
            verdict = verdict.model_copy(update={"reason": reason})
        elif has_claim and claimed != tasks.keys():
            verdict, rest = (
                decide(replace(given, pairs=both, bounded_pairs=bounded, expected_tasks=len(names), **role))
                for names, role in ((claimed, {}), (tasks.keys() - claimed, _GUARD_ROLE))
                for both, bounded in [_pair_sides(plan, sides, names, reasons, fresh)]
            )
            verdict = _with_guarded_rest(verdict, rest, plan.candidate.claimed_tags)
        verdict = combine_with_ledger(verdict, spending, evidence_label.reason if is_sealed else "")
        verdict = verdict.model_copy(update={"unclean": evidence_label.reason})
        yield withhold_promotion(verdict) if is_sealed and ledger.problems else verdict


def _void_claim_reason(
    plan: Plan, evidence_label: EvidenceLabel, ledger: ProjectLedger, claimed: Collection[str]
) -> str:
    """Return why a targeted claim is void, so that all tasks count; empty if it is not.

    The digest of a candidate covers its claim, so an earlier draw or verdict under another digest shows that
    the claim may have been chosen by its results.
    """
    candidate = plan.candidate
    versions = [
        version
        for entry in ledger.entries
        if isinstance(entry, Draw | Evaluation)
        for version in (entry.versions if isinstance(entry, Evaluation) else (entry.candidate,))
    ]
    text = f"the claim on {', '.join(candidate.claimed_tags)} is void, so all tasks count: "
    if evidence_label.label is not Label.CLEAN:
        return f"{text}the evidence is not clean"
    if any(version.id == candidate.id and version.digest != candidate.digest for version in versions):
        return f"{text}candidate {candidate.id} ran with another text or claim before; give it a new id"
    return "" if claimed else f"{text}the split has no such task"


_GUARD_ROLE: Mapping[str, Any] = MappingProxyType({"is_guard": True, "spending": None})


def _pair_sides(
    plan: Plan,
    sides: Sequence[Sequence[SimulationEvidence]],
    names: Collection[str],
    reasons: Mapping[str, str],
    fresh: Mapping[str, FreshResult] | None,
) -> list[Pairs]:
    """Pair both sides of some tasks: as they are, and with suspicious second tosses marked as lost."""
    old, new = ([record for record in records if record.task_id in names] for records in sides)
    left_out = {task: reason for task, reason in reasons.items() if task in names}
    pairs = [
        pair(*records).with_left_out(left_out).with_ungated_checks(plan.trace_checks.ungated)
        for records in ((old, new), without_second_tosses(old, new))
    ]
    return pairs if fresh is None else [both.with_fresh_results(fresh) for both in pairs]


def _with_guarded_rest(verdict: Verdict, rest: Verdict, tags: tuple[str, ...]) -> Verdict:
    """Add the verdict on the other tasks of its split, a guard, to that on the tasks of a targeted claim.

    The figures of both sides remain those of the claim's tasks.
    """
    status = {GuardAnswer.NO_HARM_DETECTED: CheckStatus.PASS, GuardAnswer.HARM_SHOWN: CheckStatus.FAIL}.get(
        rest.guard or GuardAnswer.HARM_SUSPECTED, CheckStatus.UNDECIDED
    )
    rewards = [side.reward for side in (rest.baseline, rest.candidate)]
    change = " → ".join("?" if reward is None else f"{reward:.3f}" for reward in rewards)
    detail = "; ".join(filter(None, (f"reward {change} (n={rest.tasks})", rest.reason)))
    names = ("fixed", "broken", "regressions", "suspected", "left_out")
    return verdict.model_copy(
        update={
            "claim": tags,
            "decision": worst_decision([verdict.decision, rest.decision]),
            "checks": (*verdict.checks, CheckResult(id="elsewhere", status=status, detail=detail)),
            "tasks": verdict.tasks + rest.tasks,
            **{name: (*getattr(verdict, name), *getattr(rest, name)) for name in names},
        }
    )


def _label_evidence(plan: Plan, planned: PlannedSuite, split: str, ledger: ProjectLedger) -> EvidenceLabel:
    """Return the label of a split's evidence, with the reason for a downgrade.

    If a project draws a sealed split live, traces that its ledger does not know are not clean, because they
    may be edited traces of such a run.
    """
    evidence_label = ledger.label(plan.lineage, planned, split, plan.project.splits[split].role)
    if evidence_label.label is not Label.CLEAN:
        return evidence_label
    cassette = plan.live.cassette if plan.live is not None else None
    if cassette is not None and cassette.header.suites.get(planned.name) != planned.lock.digest:
        # The cassette's answers have no ledger entry for this split, so they may be selected by result.
        reason = f"cassette {cassette.path.name} was not recorded on {planned.name} under its lock"
        return EvidenceLabel(Label.DEVELOPMENT, reason)
    if not ledger.has_draws_of(planned.name, split):
        return evidence_label
    if not (files := unrecorded_files(planned, ledger)):
        return evidence_label
    reason = f"the ledger names draws of {planned.name}::{split}, but not the content of {', '.join(files)}"
    return EvidenceLabel(Label.DEVELOPMENT, reason)


def _repeated_losses(run: SuiteRun, split: str, draws: Draws) -> dict[str, str]:
    """Return the tasks that lost the same trial in this run and in an earlier one, with the side of each."""
    if run.planned.recorded_runs is not None:
        return {}
    lost_trials = {
        task_id: [record.trial for record in task_run.lost_trials]
        for task_id, task_run in run.runs_in(split).items()
        if task_run is not None
    }
    return {
        task_id: "candidate"
        for task_id, trials in lost_trials.items()
        if trials and draws.has_repeated_loss(run.planned.name, task_id, trials)
    }


def combine_with_ledger(verdict: Verdict, spending: AlphaSpending | None, reason: str = "") -> Verdict:
    """Combine a verdict on fresh evidence with the ledger's entries of the same claim.

    Args:
        verdict: The verdict on the fresh figures.
        spending: The claim's test number and significance level on the split; None without a clean claim.
        reason: Why the evidence has no better label; empty if there is no such reason.

    Returns:
        The verdict. If it repeats a recorded one, the worse of the two decisions counts, and the reason names
        both.
    """
    reasons, decision = [verdict.reason, reason], verdict.decision
    if spending is not None and spending.abandoned_draws:
        reasons.append(_abandoned_draws_text(spending, verdict))
    if spending is not None and spending.repeated_verdict is not None and decision is not None:
        recorded_evaluation = spending.repeated_verdict
        decisions_text = f"recorded: {_dated_decision(recorded_evaluation)}; now: {decision.value.upper()}"
        # What decides comes first.
        place = 0 if recorded_evaluation.decision.rank < decision.rank else len(reasons)
        reasons.insert(place, f"{decisions_text}; the worse of the two counts")
        decision = worst_decision([recorded_evaluation.decision, decision])
        if decision is Decision.INCONCLUSIVE and not has_too_few_measured(verdict):
            reasons.append(
                f"a run with more than {_count_text(spending.trials, 'trial')} a task continues the test"
            )
    elif spending is not None and spending.continued_verdict is not None:
        earlier_evaluation = spending.continued_verdict
        reasons.append(
            f"continues test {spending.number}: {_dated_decision(earlier_evaluation)}, "
            f"with {_count_text(earlier_evaluation.trials, 'trial')} a task"
        )
    text = "; ".join(part for part in reasons if part)
    settling = verdict.settling if decision is verdict.decision else ()
    return verdict.model_copy(update={"decision": decision, "reason": text, "settling": settling})


def withhold_promotion(verdict: Verdict) -> Verdict:
    """Return the verdict, with a promotion made inconclusive because the ledger is damaged."""
    if verdict.decision is not Decision.PROMOTE:
        return verdict
    return verdict.model_copy(update={"decision": Decision.INCONCLUSIVE})


def _abandoned_draws_text(spending: AlphaSpending, verdict: Verdict) -> str:
    """Describe the draws that could have been judged instead, their effect, and how to avoid them."""
    count = len(spending.abandoned_draws)
    names = ", ".join(map(_draw_name, spending.abandoned_draws[:3]))
    lowers_level = (
        verdict.alpha is not None
        and verdict.goal is not Goal.NO_REGRESSION
        and spending.repeated_verdict is None
    )
    return (
        f"{count} other draw{'' if count == 1 else 's'} of this split could have been chosen instead"
        f"{', so the level is lower' if lowers_level else ''}: {names}{', …' if count > 3 else ''}; keep "
        ".trace2evolve, finish started runs, omit --t2e-fresh, and keep one goal, policy and number of trials"
    )


def _draw_name(draw: Draw) -> str:
    trials = f", {_count_text(draw.trials, 'trial')}" if draw.trials else ""
    return f"{draw.run} ({draw.at:%Y-%m-%d}{trials})"


def _dated_decision(entry: Evaluation) -> str:
    return f"{entry.decision.value.upper()} on {entry.at:%Y-%m-%d}"


def _count_text(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def claim_of(plan: Plan, run: SuiteRun, split: str, draws: Draws, label: Label) -> Claim:
    """Return the claim that is judged on a split, on evidence with the given label."""
    planned = run.planned
    assert planned.baseline is not None
    assert plan.policy is not None
    # By default, the estimand depends on the trials, but more trials continue the same test.
    policy = plan.policy.for_suite(planned.suite.estimand_of(min_trials=2))
    tasks = planned.lock.splits[split]
    is_sealed = plan.project.splits[split].role is Role.GATE
    # The whole baseline at every stage, because the stages of a run are one test.
    all_evidence = planned.baseline.all_evidence
    outcomes = outcomes_digest(record for record in all_evidence.simulations if record.task_id in tasks)
    return Claim(
        suite=planned.name,
        split=split,
        lock=planned.lock.digest,
        candidate=plan.candidate.digest,
        agent=tested_agent_digest(plan, provenance_of(plan, planned)),
        baseline=baseline_identity(all_evidence.provenance) or outcomes,
        policy=policy_version(policy),
        trials=min_trials(run.records_in(split)),
        max_trials=plan.stage.max_trials if plan.stage else 0,
        evidence=outcomes,
        goal=plan.goal,
        is_numbered=plan.goal is Goal.IMPROVE and label is Label.CLEAN,
        draw_id=draws.draw_id(planned.name) if is_sealed and planned.recorded_runs is None else "",
        is_recorded_run=planned.recorded_runs is not None or draws.origin is DrawOrigin.PLAYED,
        baseline_digests=_baseline_digests(all_evidence.provenance, plan),
        baseline_run=all_evidence.provenance.run_id or "",
    )


def _baseline_digests(origin: Provenance, plan: Plan) -> tuple[str, str]:
    """Return the digests of a baseline's candidate and agent; empty if they were not recorded."""
    if origin.candidate is None or origin.agent == Settings():
        return "", ""
    return origin.candidate.digest, tested_agent_digest(plan, origin)


def gated_splits(project: Project, splits: Iterable[str]) -> Iterable[tuple[str, bool]]:
    """Yield the splits of a suite that the gate judges, each with whether the split is a guard."""
    roles = {split: project.splits[split].role for split in splits}
    deciding_role = Role.GATE if Role.GATE in roles.values() else Role.DEVELOPMENT
    for split, role in roles.items():
        if role in (deciding_role, Role.GUARD):
            yield split, role is Role.GUARD


def _partial_reason(run: SuiteRun, split: str, incomplete_reason: str, is_stopped: bool) -> str:
    tasks = run.planned.lock.splits[split]
    if missing_tasks := run.missing_tasks(split):
        prefix = f"{incomplete_reason}; " if incomplete_reason else ""
        names = first_names(missing_tasks)
        return f"partial: {prefix}{len(missing_tasks)} of {len(tasks)} tasks did not run ({names})"
    return f"partial: {incomplete_reason}" if is_stopped else ""


def _missing_baseline_reason(tasks: Mapping[str, str], baseline_tasks: set[str]) -> str:
    missing_tasks = sorted(tasks.keys() - baseline_tasks, key=natural_sort_key)
    count = len(tasks) - len(missing_tasks)
    return (
        f"partial: the baseline holds {count} of {len(tasks)} tasks, not {first_names(missing_tasks)}"
        if missing_tasks
        else ""
    )
