"""Writes the results of a run: evidence, headers, baselines, verdict, ledger entries and scoreboard lines."""

import json
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import asdict

from pytest_trace2evolve.errors import ResultsError
from pytest_trace2evolve.evidence.baselines import evidence_digest, write_evidence
from pytest_trace2evolve.evidence.integrity import VERDICT_NAME, evidence_place
from pytest_trace2evolve.evidence.run_folder import RunStore, header
from pytest_trace2evolve.evidence.saving import save
from pytest_trace2evolve.evidence.scoreboard import ScoreboardLine, append
from pytest_trace2evolve.gate.decide import worst
from pytest_trace2evolve.records.budget import State, Totals
from pytest_trace2evolve.records.score import Status
from pytest_trace2evolve.records.verdict import (
    BaselineUsed,
    CheckStatus,
    Decision,
    EvidenceKept,
    RunVerdict,
    SideFigures,
    SuiteVerdict,
    Verdict,
)
from pytest_trace2evolve.session.comparability import compared
from pytest_trace2evolve.session.draws import Draws
from pytest_trace2evolve.session.ledger import DECIDING, ProjectLedger
from pytest_trace2evolve.session.plan import MAX_FRESH, SIDES, Plan, PlannedSuite
from pytest_trace2evolve.session.run_verdict import write_verdict
from pytest_trace2evolve.session.verdicts import SuiteOutcome, SuiteRun, claim_of, evidence
from pytest_trace2evolve.utils.files import write_atomic
from pytest_trace2evolve.worlds.registry import Worlds


def store_run(
    plan: Plan,
    runs: Sequence[SuiteRun],
    outcomes: Sequence[SuiteOutcome],
    worlds: Worlds,
    ledger: ProjectLedger,
    draws: Draws,
    *,
    stopped: str = "",
    others_failed: bool = False,
    is_provisional: bool = False,
    totals: tuple[Totals, str] | None = None,
) -> list[str]:
    """Store the results of a run. The verdict is written after all files that it refers to.

    Args:
        runs, outcomes: The suites' tasks and verdicts, in the same order.
        stopped: Why the session ended early; empty if it did not.
        others_failed: Whether an item that is not a task of a suite failed.
        is_provisional: Whether another stage follows. The verdict is then not recorded.
        totals: The usage of a live run, and why its account was stopped; None if no model was called.

    Returns:
        Notes for the user, a line each.

    Raises:
        OSError: a file could not be written, so there is no verdict.
        ResultsError: the run's folder cannot be read again.
    """
    record = None
    if plan.policy is not None:
        record = _run_verdict(plan, plan.policy.name, runs, outcomes, stopped, others_failed)
    notes: list[str] = []
    for run in runs:
        notes += _write_headers(plan, run, worlds)
        if _drew(run, draws):
            name = run.planned.name
            ledger.record_traces(name, plan.run_id, plan.suite_folder(name), draws.account(name))
    if plan.saving is not None:
        notes += [
            _save_baseline(plan, run, outcome, ledger) for run, outcome in zip(runs, outcomes, strict=True)
        ]
    if totals is not None:
        _write_totals(plan, *totals)
    if record is not None:
        write_verdict(plan.run_folder, record)
        if not is_provisional:
            _record_verdicts(plan, runs, outcomes, ledger, draws, record)
    return notes


def _run_verdict(
    plan: Plan,
    policy: str,
    runs: Iterable[SuiteRun],
    outcomes: Iterable[SuiteOutcome],
    stopped: str,
    others_failed: bool,
) -> RunVerdict:
    """Write the evidence of a gated run, and return the run's verdict."""
    suites = {
        run.planned.name: _suite_verdict(plan, run, outcome)
        for run, outcome in zip(runs, outcomes, strict=True)
    }
    decision = worst(suite.verdict for suite in suites.values())
    return RunVerdict(
        run=plan.run_id,
        time=plan.started,
        verdict=Decision.INCONCLUSIVE if decision is None and stopped else decision,
        partial=bool(stopped) or not all(suite.whole for suite in suites.values()),
        stopped=stopped,
        others_failed=others_failed,
        policy=policy,
        goal=plan.goal,
        candidate=plan.candidate.ref(),
        suites=suites,
    )


def _suite_verdict(plan: Plan, run: SuiteRun, outcome: SuiteOutcome) -> SuiteVerdict:
    planned, root = run.planned, plan.project.root
    measured, place = evidence(plan, run), evidence_place(run.planned.name)
    write_evidence(plan.run_folder / place, measured)
    used = None
    if (baseline := planned.baseline) is not None:
        is_inside = baseline.path is not None and baseline.path.is_relative_to(root)
        path = baseline.path.relative_to(root).as_posix() if baseline.path and is_inside else None
        used = BaselineUsed(name=baseline.name, digest=baseline.digest, path=path)
    return SuiteVerdict(
        verdict=outcome.decision,
        reason=outcome.reason,
        whole=outcome.whole and not any(verdict.partial for verdict in outcome.verdicts),
        lock=planned.lock.digest,
        baseline=used,
        evidence=EvidenceKept(path=place, digest=evidence_digest(measured)),
        verdicts=tuple(verdict.to_json() for verdict in outcome.verdicts),
        compared=compared(plan, planned),
    )


def _drew(run: SuiteRun, draws: Draws) -> bool:
    """Whether the run made a simulation of a gate or guard split without losing it."""
    return any(
        record.status is not Status.INFRASTRUCTURE_ERROR
        for split in run.planned.lock.splits
        if draws.is_drawn(run.planned.name, split)
        for record in run.in_split(split)
    )


def _record_verdicts(
    plan: Plan,
    runs: Iterable[SuiteRun],
    outcomes: Iterable[SuiteOutcome],
    ledger: ProjectLedger,
    draws: Draws,
    record: RunVerdict,
) -> None:
    """Write the verdicts to the ledger and the scoreboard, after everything else is written.

    A run that cannot store its evidence is not a test. It spends nothing, and no later run is its repeat.
    """
    whole = [
        (run, verdict)
        for run, outcome in zip(runs, outcomes, strict=True)
        for verdict in outcome.verdicts
        if not verdict.partial
    ]
    # The ledger comes first, because a scoreboard line without an entry would look like a removed entry.
    try:
        for run, verdict in whole:
            split = verdict.split or ""
            if verdict.decision is not None and plan.project.splits[split].role in DECIDING:
                claim = claim_of(plan, run, split, draws, verdict.label)
                ledger.record(plan, run.planned, verdict, claim, record)
    except OSError:
        (plan.run_folder / VERDICT_NAME).unlink(missing_ok=True)
        raise
    if whole:
        append(
            plan.project.scoreboard, [_scoreboard_line(plan, run.planned, verdict) for run, verdict in whole]
        )


def _write_totals(plan: Plan, totals: Totals, stopped: str) -> None:
    """Write the usage of a live run to `run.json` in its folder."""
    record = {
        "run_id": plan.run_id,
        "usage": totals.usage.model_dump(mode="json"),
        "simulations": {state.value: totals.states.get(state, 0) for state in State},
        "fresh": totals.fresh,
        "seconds": round(totals.seconds, 3),
        "stage": None if plan.stage is None else asdict(plan.stage),
        "stopped": stopped or None,
    }
    write_atomic(plan.run_folder / "run.json", json.dumps(record, indent=1) + "\n")


def _write_headers(plan: Plan, run: SuiteRun, worlds: Worlds) -> list[str]:
    """Write the headers of a suite's trials and of each side's fresh trials; return notes for the user."""
    planned, side = run.planned, evidence(plan, run)
    world = plan.project.world(planned.suite, worlds)
    store = RunStore(plan.suite_folder(planned.name))
    dropped = store.drop_unreported(side.simulations)
    trials = max((len(task_run.records) for task_run in run.runs.values()), default=0)
    if planned.recorded is None:
        tasks = [world.tasks()[task_id] for task_id in run.runs]
    else:  # the tasks as recorded
        recorded = planned.recorded.by_task
        tasks = [recorded[task_id][0].task for task_id in run.runs if task_id in recorded]
    headers = [(store, side.provenance, tasks, store.stored(side.simulations), trials)]
    for name in SIDES:
        store = RunStore(plan.fresh_folder(planned.name, name))
        if not store.folder.exists():
            continue
        records = [record for fresh in run.fresh.values() for record in getattr(fresh, name)]
        store.drop_unreported(records)  # traces of lost trials that were made again
        origin = side.provenance
        if name == "baseline" and planned.baseline is not None:
            measured = planned.baseline.evidence.provenance
            origin = origin.model_copy(update={"candidate": measured.candidate, "agent": measured.agent})
        tasks = [world.tasks()[task_id] for task_id in run.fresh]
        headers.append((store, origin, tasks, records, MAX_FRESH // len(SIDES)))
    for store, origin, tasks, records, trials in headers:
        content = header(
            origin,
            tasks,
            records,
            policy=world.policy(solo=planned.suite.solo),
            git_commit=_git_commit(plan),
            trials=trials,
            max_errors=planned.suite.max_errors,
        )
        store.write_header(content)
    return [f"{len(dropped)} traces that no worker reported were set aside in unreported/"] if dropped else []


def _save_baseline(plan: Plan, run: SuiteRun, outcome: SuiteOutcome, ledger: ProjectLedger) -> str:
    """Save one suite's baseline and record it in the ledger; return a note for the user.

    Raises:
        OSError: the file or the ledger's entry could not be written.
    """
    assert plan.saving is not None
    saving, before = plan.saving, plan.saving.before.get(outcome.name)
    path = plan.project.baseline_path(outcome.name, saving.name)
    if not outcome.whole or not run.records:
        return f"baseline {saving.name!r} of {outcome.name} was not saved: the run is partial"
    try:
        done = save(
            path,
            evidence(plan, run),
            saving.mode,
            before=before,
            tasks=run.planned.lock.tasks,
            root=plan.project.root,
        )
    except ResultsError as error:
        return f"baseline {saving.name!r} of {outcome.name} was not saved: {error}"
    if done.written is not None:
        ledger.record_saved(outcome.name, saving.name, done.written, before)
    return f"baseline {done.text}: {path.relative_to(plan.project.root)}"


def _git_commit(plan: Plan) -> str:
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=plan.project.root, capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return done.stdout.strip() if done.returncode == 0 else "unknown"


def _scoreboard_line(plan: Plan, planned: PlannedSuite, verdict: Verdict) -> ScoreboardLine:
    assert planned.baseline is not None
    old, new = verdict.baseline, verdict.candidate
    return ScoreboardLine(
        time=plan.started,
        candidate=plan.candidate.id,
        parent=plan.candidate.parent,
        suite=planned.suite.name,
        split=verdict.split or "",
        baseline=planned.baseline.name,
        reward=new.reward,
        reward_delta=_delta(old, new, "reward"),
        action_match=new.action_match,
        action_match_delta=_delta(old, new, "action_match"),
        read_action_match_delta=_delta(old, new, "read_action_match"),
        write_action_match_delta=_delta(old, new, "write_action_match"),
        fixed=len(verdict.fixed),
        broken=len(verdict.broken),
        max_steps=new.max_steps,
        verdict=verdict.decision.value if verdict.decision else "none",
        label=verdict.label.value,
        failed_checks=tuple(check.id for check in verdict.checks if check.status is CheckStatus.FAIL),
        run=plan.run_id,
    )


def _delta(old: SideFigures, new: SideFigures, name: str) -> float | None:
    before, after = getattr(old, name), getattr(new, name)
    return None if before is None or after is None else after - before
