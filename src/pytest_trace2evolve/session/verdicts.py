"""The evidence and verdicts of a run's suites."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pytest_trace2evolve.evidence.integrity import outcomes_digest
from pytest_trace2evolve.gate.claims import AlphaSpending, Claim, EvidenceLabel
from pytest_trace2evolve.gate.confirm import fresh_result
from pytest_trace2evolve.gate.decide import decide, unmeasured, worst
from pytest_trace2evolve.gate.pairs import left_out_lines, pair
from pytest_trace2evolve.gate.policy import version_of
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.project.suites import Role
from pytest_trace2evolve.records.evidence import (
    Evidence,
    FreshTrials,
    Provenance,
    Settings,
    SimulationEvidence,
)
from pytest_trace2evolve.records.ledger import Evaluation, Origin
from pytest_trace2evolve.records.task import natural_order
from pytest_trace2evolve.records.verdict import Decision, Goal, Label, Verdict
from pytest_trace2evolve.scoring.metrics import Metrics, metrics
from pytest_trace2evolve.session.comparability import unrecorded_files
from pytest_trace2evolve.session.draws import Draws
from pytest_trace2evolve.session.ledger import ProjectLedger, baseline_identity, min_trials
from pytest_trace2evolve.session.plan import Plan, PlannedSuite
from pytest_trace2evolve.session.provenance import provenance_of, tested
from pytest_trace2evolve.session.trials import TaskRun


@dataclass
class SuiteRun:
    """The tasks of a suite that were run, by their ids."""

    planned: PlannedSuite
    runs: dict[str, TaskRun] = field(default_factory=dict)

    @property
    def records(self) -> tuple[SimulationEvidence, ...]:
        """All records, sorted by task and trial."""
        everything = [record for run in self.runs.values() for record in run.records]
        return tuple(sorted(everything, key=lambda record: (natural_order(record.task_id), record.trial)))

    @property
    def fresh(self) -> dict[str, FreshTrials]:
        """Fresh trials of the tasks that have any, by task id."""
        return {task_id: run.fresh for task_id, run in self.runs.items() if run.fresh is not None}

    @property
    def unconfirmed(self) -> list[str]:
        """Notes on regressed tasks without fresh trials, one for each reason."""
        reasons = Counter(run.unconfirmed for run in self.runs.values() if run.unconfirmed)
        return [
            f"{self.planned.name}: {_count(count, 'task')} that fell could not be confirmed: {reason}"
            for reason, count in sorted(reasons.items())
        ]

    def in_split(self, split: str) -> tuple[SimulationEvidence, ...]:
        """The records of one split."""
        tasks = self.planned.lock.splits[split]
        return tuple(record for record in self.records if record.task_id in tasks)

    def runs_in(self, split: str) -> dict[str, TaskRun | None]:
        """The tasks of a split; None for those that were not run."""
        return {task_id: self.runs.get(task_id) for task_id in self.planned.lock.splits[split]}

    def missing(self, split: str) -> list[str]:
        """Tasks of a split with trials that did not run, except tasks left out for their content."""
        runs = self.runs_in(split).items()
        return [task_id for task_id, run in runs if run is None or run.absent or run.unfinished]

    def left_out(self, split: str) -> dict[str, str]:
        """The reasons why tasks of a split were not compared, by task id."""
        runs = self.runs_in(split).items()
        return {task_id: run.left_out for task_id, run in runs if run is not None and run.left_out}

    def ran(self, split: str) -> bool:
        """Whether any task of a split was run or left out."""
        runs = self.runs_in(split).values()
        return any(run is not None and bool(run.records or run.left_out) for run in runs)


@dataclass(frozen=True)
class SuiteOutcome:
    """One suite's figures and verdicts.

    Attributes:
        reason: Why there is no verdict; empty if there is one.
        whole: Whether every split that was run is complete.
        unread: Lines on the tasks that were not compared.
    """

    name: str
    metrics: Mapping[str, Metrics]
    verdicts: tuple[Verdict, ...]
    reason: str
    whole: bool
    unread: tuple[str, ...] = ()

    @property
    def left_out(self) -> tuple[str, ...]:
        """Lines on the tasks that were not compared; empty if there are verdicts, which name these tasks."""
        return () if self.verdicts else self.unread

    @property
    def decision(self) -> Decision | None:
        """The worst decision of the suite's splits; None if no split decided."""
        return worst(verdict.decision for verdict in self.verdicts)


def evidence(plan: Plan, run: SuiteRun) -> Evidence:
    """A suite's evidence with its provenance."""
    return Evidence(provenance=provenance_of(plan, run.planned), simulations=run.records)


def outcome(
    plan: Plan,
    run: SuiteRun,
    ledger: ProjectLedger,
    draws: Draws,
    *,
    interrupted: str = "",
    stopped: bool = False,
) -> SuiteOutcome:
    """Judge one suite.

    Args:
        run: The tasks of the suite that were run; none if the session ended before the suite.
        ledger: The project's ledger.
        draws: The draws of the run.
        interrupted: Why the session stopped early or was narrowed; empty if it was not.
        stopped: Whether the session ended early. Its measurements then decide nothing.
    """
    splits = run.planned.lock.splits
    figures = {split: metrics(run.in_split(split)) for split in splits if run.ran(split)}
    whole = not stopped and not any(run.missing(split) for split in figures)
    verdicts: list[Verdict] = []
    reason = _no_gate_reason(plan, run.planned)
    if not reason:
        verdicts = list(_verdicts(plan, run, ledger, draws, interrupted, stopped=stopped))
        if not any(verdict.decision for verdict in verdicts):
            reason = "no deciding split was run, and the guards detected no harm"
    unread = tuple(entry for split in splits for entry in left_out_lines(run.left_out(split)))
    return SuiteOutcome(run.planned.suite.name, figures, tuple(verdicts), reason, whole, unread)


def _no_gate_reason(plan: Plan, planned: PlannedSuite) -> str:
    if plan.policy is None:
        return "the gate is off"
    if planned.baseline is not None:
        return ""
    ancestors = " ← ".join(candidate.id for candidate in plan.lineage[1:])
    if not ancestors:
        return f"candidate {plan.candidate.id} has no ancestor to be compared with; name a --t2e-baseline"
    return f"none of its ancestors ({ancestors}) has a baseline for this suite; name a --t2e-baseline"


def _verdicts(
    plan: Plan, run: SuiteRun, ledger: ProjectLedger, draws: Draws, interrupted: str, *, stopped: bool
) -> Iterable[Verdict]:
    planned, policy = run.planned, plan.policy
    assert planned.baseline is not None
    assert policy is not None
    splits = dict(gated_splits(plan.project, planned.lock.splits))
    decides = any(run.ran(split) for split, guard in splits.items() if not guard)
    for split, guard in splits.items():
        # A guard that was left out (`-m heldout`) must not pass for one that detected no harm.
        if not run.ran(split) and not interrupted and not (guard and decides):
            continue
        tasks = planned.lock.splits[split]
        baseline = [record for record in planned.baseline.evidence.simulations if record.task_id in tasks]
        comparable = [record for record in baseline if record.task_digest == tasks[record.task_id]]
        candidate = run.in_split(split)
        reasons = {**_other_content(baseline, tasks), **run.left_out(split)}
        labelled = _labelled(plan, planned, split, ledger)
        partial = _partial(run, split, interrupted, stopped)
        if not partial and not guard:
            partial = _without_baseline(tasks, {record.task_id for record in baseline})
        claims = plan.project.splits[split].role is Role.GATE and not partial
        look = ledger.spending(claim_of(plan, run, split, draws, labelled.label)) if claims else None
        pairs = pair(comparable, candidate).leaving_out(reasons)
        if planned.name in plan.baseline_sides:
            pairs = pairs.tried_again({task: fresh_result(fresh) for task, fresh in run.fresh.items()})
        verdict = decide(
            pairs,
            policy,
            goal=plan.goal,
            label=labelled.label,
            suite=planned.suite.name,
            split=split,
            guard=guard,
            partial=partial,
            expected=len(tasks),
            look=look.number if look else None,
            analysis=look.analysis if look else None,
            abandoned=len(look.abandoned) if look else 0,
            lost=_lost_again(run, split, draws),
            stage_alpha=plan.stage.alpha if plan.stage else None,
            schedule=plan.stage.schedule if plan.stage else (),
        )
        verdict = with_recorded(verdict, look, labelled.reason)
        sealed = plan.project.splits[split].role is Role.GATE
        yield withheld(verdict) if sealed and ledger.problems else verdict


def _labelled(plan: Plan, planned: PlannedSuite, split: str, ledger: ProjectLedger) -> EvidenceLabel:
    """The label of a split's evidence, with the reason for a downgrade.

    If a project draws a sealed split live, traces that its ledger does not know are not clean, because they
    may be edited traces of such a run.
    """
    labelled = ledger.label(plan.lineage, planned, split, plan.project.splits[split].role)
    if labelled.label is not Label.CLEAN:
        return labelled
    cassette = plan.live.cassette if plan.live is not None else None
    if cassette is not None and cassette.header.suites.get(planned.name) != planned.lock.digest:
        # The cassette's answers have no ledger entry for this split, and could be picked for their result.
        reason = f"cassette {cassette.path.name} was not recorded on {planned.name} under its lock"
        return EvidenceLabel(Label.DEVELOPMENT, reason)
    if not ledger.names_draws(planned.name, split):
        return labelled
    if not (files := unrecorded_files(planned, ledger)):
        return labelled
    reason = f"the ledger names draws of {planned.name}::{split}, and not what is in {', '.join(files)}"
    return EvidenceLabel(Label.DEVELOPMENT, reason)


def _lost_again(run: SuiteRun, split: str, draws: Draws) -> dict[str, str]:
    """Tasks of a split that lost the same trial in this run and in an earlier run, with the side."""
    if run.planned.recorded is not None:
        return {}
    lost = {
        task_id: [record.trial for record in task_run.lost]
        for task_id, task_run in run.runs_in(split).items()
        if task_run is not None
    }
    return {
        task_id: "candidate"
        for task_id, trials in lost.items()
        if trials and draws.lost_again(run.planned.name, task_id, trials)
    }


def with_recorded(verdict: Verdict, look: AlphaSpending | None, reason: str = "") -> Verdict:
    """Combine a verdict on fresh evidence with the ledger's entries of the same claim.

    Args:
        verdict: The verdict on the fresh figures.
        look: The claim's place among the tests of the split; None without a clean claim.
        reason: Why the evidence has no better label.

    Returns:
        The verdict. A repeat has the worse of the recorded and the fresh decision, and its reason names both.
    """
    reasons, decision = [verdict.reason, reason], verdict.decision
    if look is not None and look.abandoned:
        reasons.append(_abandoned(look, verdict))
    if look is not None and look.recorded is not None and decision is not None:
        recorded = look.recorded
        both = f"recorded: {_dated(recorded)}; now: {decision.value.upper()}"
        decision = worst([recorded.decision, decision])
        reasons.append(f"{both}; the worse of the two counts")
        if decision is Decision.INCONCLUSIVE and not unmeasured(verdict):
            reasons.append(f"a run with more than {_count(look.trials, 'trial')} a task continues the test")
    elif look is not None and look.continued is not None:
        before = look.continued
        reasons.append(
            f"continues test {look.number}: {_dated(before)}, with {_count(before.trials, 'trial')} a task"
        )
    text = "; ".join(part for part in reasons if part)
    settling = verdict.settling if decision is verdict.decision else ()
    return verdict.model_copy(update={"decision": decision, "reason": text, "settling": settling})


def withheld(verdict: Verdict) -> Verdict:
    """The verdict on a sealed split under a damaged ledger, which turns a promotion into inconclusive."""
    if verdict.decision is not Decision.PROMOTE:
        return verdict
    return verdict.model_copy(update={"decision": Decision.INCONCLUSIVE})


def _abandoned(look: AlphaSpending, verdict: Verdict) -> str:
    """A sentence on the draws that could have been judged instead, their effect, and how to avoid them."""
    count = len(look.abandoned)
    names = ", ".join(f"{draw.run} ({draw.at:%Y-%m-%d})" for draw in look.abandoned[:3])
    lowers = verdict.alpha is not None and verdict.goal is not Goal.NO_REGRESSION and look.recorded is None
    return (
        f"{count} other draw{'' if count == 1 else 's'} of this split could have been judged instead and "
        f"{'was' if count == 1 else 'were'} not{', so the level is lower' if lowers else ''}: "
        f"{names}{', …' if count > 3 else ''}; "
        "keep .trace2evolve, finish runs that were begun, and leave out --t2e-fresh"
    )


def _dated(entry: Evaluation) -> str:
    return f"{entry.decision.value.upper()} on {entry.at:%Y-%m-%d}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def claim_of(plan: Plan, run: SuiteRun, split: str, draws: Draws, label: Label) -> Claim:
    """The claim that is judged on a split, on evidence with a label."""
    planned = run.planned
    assert planned.baseline is not None
    assert plan.policy is not None
    tasks = planned.lock.splits[split]
    # The whole baseline at every stage, because the stages of a run are one test.
    whole = planned.baseline.all_evidence
    evidence = outcomes_digest(record for record in whole.simulations if record.task_id in tasks)
    return Claim(
        suite=planned.name,
        split=split,
        lock=planned.lock.digest,
        candidate=plan.candidate.digest,
        agent=tested(plan, provenance_of(plan, planned)),
        baseline=baseline_identity(whole.provenance) or evidence,
        policy=version_of(plan.policy),
        trials=min_trials(run.in_split(split)),
        most=plan.stage.most if plan.stage else 0,
        evidence=evidence,
        goal=plan.goal,
        counts=plan.goal is Goal.IMPROVE and label is Label.CLEAN,
        draw="" if planned.recorded is not None else draws.id_of(planned.name),
        recorded_run=planned.recorded is not None or draws.origin is Origin.PLAYED,
        measured=_measured(whole.provenance, plan),
        baseline_run=whole.provenance.run_id or "",
    )


def _measured(origin: Provenance, plan: Plan) -> tuple[str, str]:
    """Digests of a baseline's candidate and agent; empty if they were not recorded."""
    if origin.candidate is None or origin.agent == Settings():
        return "", ""
    return origin.candidate.digest, tested(plan, origin)


def gated_splits(project: Project, splits: Iterable[str]) -> Iterable[tuple[str, bool]]:
    """Yield the splits of a suite that the gate judges, each with whether the split can only discard."""
    roles = {split: project.splits[split].role for split in splits}
    gated = Role.GATE if Role.GATE in roles.values() else Role.DEVELOPMENT
    for split, role in roles.items():
        if role in (gated, Role.GUARD):
            yield split, role is Role.GUARD


def _partial(run: SuiteRun, split: str, interrupted: str, stopped: bool) -> str:
    tasks = run.planned.lock.splits[split]
    if missing := run.missing(split):
        why = f"{interrupted}; " if interrupted else ""
        return f"partial: {why}{len(missing)} of {len(tasks)} tasks did not run ({_some(missing)})"
    return f"partial: {interrupted}" if stopped else ""


def _without_baseline(tasks: Mapping[str, str], baseline: set[str]) -> str:
    without = sorted(tasks.keys() - baseline, key=natural_order)
    held = len(tasks) - len(without)
    return (
        f"partial: the baseline holds {held} of {len(tasks)} tasks, not {_some(without)}" if without else ""
    )


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")


def _other_content(records: Iterable[SimulationEvidence], tasks: Mapping[str, str]) -> dict[str, str]:
    other = {record.task_id for record in records if record.task_digest != tasks[record.task_id]}
    return dict.fromkeys(other, "its content in the baseline differs from the lock")
