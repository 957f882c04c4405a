"""Writes the results of a run: evidence, headers, baselines, verdict and ledger entries."""

import contextlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from pytest_trace2evolve.errors import ResultsError
from pytest_trace2evolve.evidence.baselines import write_evidence
from pytest_trace2evolve.evidence.ledger import VERDICT_NAME, Ledger, evidence_file_path
from pytest_trace2evolve.evidence.run_folder import RunStore, results_header
from pytest_trace2evolve.evidence.saving import save_baseline
from pytest_trace2evolve.gate.decide import worst_decision
from pytest_trace2evolve.records.budget import RunTotals, SimulationState
from pytest_trace2evolve.records.score import Status
from pytest_trace2evolve.records.task import natural_sort_key
from pytest_trace2evolve.records.verdict import (
    BaselineReference,
    Decision,
    EvidenceReference,
    RunVerdict,
    SuiteVerdict,
)
from pytest_trace2evolve.session.draws import Draws
from pytest_trace2evolve.session.ledger import DECIDING_ROLES, ProjectLedger
from pytest_trace2evolve.session.plan import MAX_FRESH_SIMULATIONS, SIDES, Plan
from pytest_trace2evolve.session.provenance import is_sealed_task
from pytest_trace2evolve.session.runs import write_verdict
from pytest_trace2evolve.session.verdicts import SuiteOutcome, SuiteRun, claim_of, suite_evidence
from pytest_trace2evolve.utils.files import write_atomic
from pytest_trace2evolve.utils.git import git_text
from pytest_trace2evolve.utils.sanitize import sanitize_line
from pytest_trace2evolve.worlds.registry import Worlds

_MAX_ERROR_LENGTH = 200
"""Maximum number of characters of an agent's error in a note."""


def store_run(
    plan: Plan,
    runs: Sequence[SuiteRun],
    outcomes: Sequence[SuiteOutcome],
    worlds: Worlds,
    ledger: ProjectLedger,
    draws: Draws,
    *,
    stop_reason: str = "",
    others_failed: bool = False,
    is_provisional: bool = False,
    totals: tuple[RunTotals, str] | None = None,
) -> tuple[list[str], bool]:
    """Store the results of a run. The verdict is written after all files that it refers to.

    Returns:
        Notes for the user, a line each, and whether a baseline was requested, and saved for every suite that
        ran, with every trial measured and none ended by an agent error.

    Args:
        runs, outcomes: The suites' tasks and verdicts, in the same order.
        stop_reason: The reason why the session ended early; empty if it did not.
        others_failed: Whether an item that is not a task of a suite failed.
        is_provisional: Whether another stage follows. The verdict is then not recorded.
        totals: The usage of a live run, and the reason why its account was stopped; None if no model was
            called.

    Raises:
        OSError: a file could not be written, so there is no verdict.
        ResultsError: the run's folder cannot be read again.
    """
    run_verdict = None
    if plan.policy is not None:
        run_verdict = _run_verdict(plan, plan.policy.name, runs, outcomes, stop_reason, others_failed)
    notes: list[str] = []
    for run in runs:
        notes += _write_headers(plan, run, worlds)
        if _has_drawn_simulations(run, draws):
            name = run.planned.name
            ledger.record_traces(name, plan.run_id, plan.suite_folder(name))
    has_saved_baselines = plan.saving is not None and bool(runs)
    for run, outcome in zip(runs, outcomes, strict=True) if plan.saving is not None else ():
        note, is_saved = _save_baseline(plan, run, outcome, ledger)
        notes.append(note)
        is_sound = run.is_fully_measured and not run.agent_error_count
        has_saved_baselines = has_saved_baselines and is_saved and is_sound
        if is_saved and run.agent_error_count:
            count = run.agent_error_count
            notes.append(
                f"the saved baseline holds {count} simulation{'' if count == 1 else 's'} that ended in "
                "agent_error; correct the agent, and measure it again with --t2e-baseline-mode update"
            )
    if totals is not None:
        _write_totals(plan, *totals)
    if run_verdict is not None:
        write_verdict(plan.run_folder, run_verdict)
        if not is_provisional:
            _record_verdicts(plan, runs, outcomes, ledger, draws, run_verdict)
    return notes, has_saved_baselines


def _run_verdict(
    plan: Plan,
    policy: str,
    runs: Iterable[SuiteRun],
    outcomes: Iterable[SuiteOutcome],
    stop_reason: str,
    others_failed: bool,
) -> RunVerdict:
    """Write the evidence of a gated run, and return the run's verdict."""
    suites = {
        run.planned.name: _suite_verdict(plan, run, outcome)
        for run, outcome in zip(runs, outcomes, strict=True)
    }
    decision = worst_decision(suite.verdict for suite in suites.values())
    return RunVerdict(
        run=plan.run_id,
        time=plan.started_at,
        verdict=Decision.INCONCLUSIVE if decision is None and stop_reason else decision,
        partial=bool(stop_reason) or not all(suite.whole for suite in suites.values()),
        stopped=stop_reason,
        others_failed=others_failed,
        policy=policy,
        goal=plan.goal,
        candidate=plan.candidate.to_ref(),
        suites=suites,
    )


def _suite_verdict(plan: Plan, run: SuiteRun, outcome: SuiteOutcome) -> SuiteVerdict:
    planned, root = run.planned, plan.project.root
    run_evidence, evidence_path = suite_evidence(plan, run), evidence_file_path(run.planned.name)
    digest = write_evidence(plan.run_folder / evidence_path, run_evidence)
    baseline_used = None
    if (baseline := planned.baseline) is not None:
        is_inside = baseline.path is not None and baseline.path.is_relative_to(root)
        path = baseline.path.relative_to(root).as_posix() if baseline.path and is_inside else None
        baseline_used = BaselineReference(name=baseline.name, digest=baseline.digest, path=path)
    return SuiteVerdict(
        verdict=outcome.decision,
        reason=outcome.reason,
        whole=outcome.is_whole and not any(verdict.partial for verdict in outcome.verdicts),
        lock=planned.lock.digest,
        baseline=baseline_used,
        evidence=EvidenceReference(path=evidence_path, digest=digest),
        verdicts=tuple(verdict.to_json() for verdict in outcome.verdicts),
        compared=outcome.compared,
    )


def _has_drawn_simulations(run: SuiteRun, draws: Draws) -> bool:
    """Return whether the run completed a simulation of a gate or guard split."""
    return any(
        record.status is not Status.INFRASTRUCTURE_ERROR
        for split in run.planned.lock.splits
        if draws.is_drawn(run.planned.name, split)
        for record in run.records_in(split)
    )


def _record_verdicts(
    plan: Plan,
    runs: Iterable[SuiteRun],
    outcomes: Iterable[SuiteOutcome],
    ledger: ProjectLedger,
    draws: Draws,
    run_verdict: RunVerdict,
) -> None:
    """Write the verdicts to the ledger, after everything else is written.

    A run that cannot store its evidence does not count as a test, so it spends no significance level.
    """
    try:
        for run, outcome in zip(runs, outcomes, strict=True):
            for verdict in outcome.verdicts:
                split = verdict.split or ""
                has_decided = verdict.decision is not None and not verdict.partial
                if has_decided and plan.project.splits[split].role in DECIDING_ROLES:
                    claim = claim_of(plan, run, split, draws, verdict.label)
                    ledger.record(plan, run.planned, verdict, claim, run_verdict)
    except BaseException:
        with contextlib.suppress(OSError):
            Ledger(plan.project.ledger_folder).retract(plan.run_id)
        (plan.run_folder / VERDICT_NAME).unlink(missing_ok=True)
        raise


def _write_totals(plan: Plan, totals: RunTotals, stop_reason: str) -> None:
    """Write the usage of a live run to `run.json` in its folder."""
    stage: dict[str, Any] | None = None
    if plan.stage is not None:
        stage = {**asdict(plan.stage), "of": plan.stage.count, "most": plan.stage.max_trials}
        stage = {name: stage[name] for name in ("number", "of", "trials", "alpha", "most", "schedule")}
    content = {
        "run_id": plan.run_id,
        "usage": totals.usage.model_dump(mode="json"),
        "simulations": {state.value: totals.states.get(state, 0) for state in SimulationState},
        "fresh": totals.fresh,
        "seconds": round(totals.seconds, 3),
        "stage": stage,
        "stopped": stop_reason or None,
    }
    write_atomic(plan.run_folder / "run.json", json.dumps(content, indent=1) + "\n")


def _write_headers(plan: Plan, run: SuiteRun, worlds: Worlds) -> list[str]:
    """Write the headers of a suite's trials and of each side's fresh trials; return notes for the user."""
    planned, run_evidence = run.planned, suite_evidence(plan, run)
    world = plan.project.world(planned.suite, worlds)
    store = RunStore(plan.suite_folder(planned.name))
    dropped_traces = store.set_aside_unreported(run_evidence.simulations)
    trials = max((len(task_run.records) for task_run in run.runs.values()), default=0)
    if planned.recorded_runs is None:
        tasks = [world.tasks()[task_id] for task_id in run.runs]
    else:  # the tasks as recorded
        recorded_tasks = planned.recorded_runs.by_task
        tasks = [recorded_tasks[task_id][0][1] for task_id in run.runs if task_id in recorded_tasks]
    headers = [
        (store, run_evidence.provenance, tasks, store.stored_records(run_evidence.simulations), trials)
    ]
    for name in SIDES:
        store = RunStore(plan.fresh_folder(planned.name, name))
        if not store.folder.exists():
            continue
        records = [record for fresh in run.fresh_trials.values() for record in getattr(fresh, name)]
        store.set_aside_unreported(records)  # traces of lost trials that were made again
        origin = run_evidence.provenance
        if name == "baseline" and planned.baseline is not None:
            baseline_provenance = planned.baseline.evidence.provenance
            origin = origin.model_copy(
                update={"candidate": baseline_provenance.candidate, "agent": baseline_provenance.agent}
            )
        tasks = [world.tasks()[task_id] for task_id in run.fresh_trials]
        headers.append((store, origin, tasks, records, MAX_FRESH_SIMULATIONS // len(SIDES)))
    for store, origin, tasks, records, trials in headers:
        content = results_header(
            origin,
            tasks,
            records,
            policy=world.policy(solo=planned.suite.solo),
            git_commit=(git_text(plan.project.root, "rev-parse", "HEAD") or "unknown").strip(),
            trials=trials,
            max_errors=planned.suite.max_errors,
        )
        store.write_header(content)
    return (
        [f"{len(dropped_traces)} traces that no worker reported were set aside in unreported/"]
        if dropped_traces
        else []
    )


def _save_baseline(
    plan: Plan, run: SuiteRun, outcome: SuiteOutcome, ledger: ProjectLedger
) -> tuple[str, bool]:
    """Save one suite's baseline and record it in the ledger.

    Returns:
        A note for the user, and whether the baseline holds this run or, in mode `new-only`, its new tasks.

    Raises:
        OSError: the file or the ledger's entry could not be written.
    """
    assert plan.saving is not None
    saving, old_digest = plan.saving, plan.saving.digests_before.get(outcome.name)
    path = plan.project.baseline_path(outcome.name, saving.name)
    if not outcome.is_whole or not run.records:
        return f"baseline {saving.name!r} of {outcome.name} was not saved: the run is partial", False
    try:
        result = save_baseline(
            path,
            suite_evidence(plan, run),
            saving.mode,
            digest_before=old_digest,
            tasks=run.planned.lock.tasks,
            root=plan.project.root,
        )
    except ResultsError as error:
        return f"baseline {saving.name!r} of {outcome.name} was not saved: {error}", False
    if result.new_evidence is not None:
        ledger.record_baseline_save(outcome.name, saving.name, result.new_evidence, old_digest)
    return f"baseline {result.text}: {path.relative_to(plan.project.root)}", True


def agent_error_notes(plan: Plan, runs: Sequence[SuiteRun]) -> list[str]:
    """Count the simulations that an error of the agent ended, by suite, and describe the first error."""
    notes = []
    for suite_run in runs:
        if not suite_run.agent_error_count:
            continue
        planned = suite_run.planned
        texts = (
            error.shown_text(is_sealed=is_sealed_task(plan, planned, task_id))
            for task_id, run in sorted(suite_run.runs.items(), key=lambda item: natural_sort_key(item[0]))
            if (error := run.agent_error) is not None
        )
        first_text = sanitize_line(next(texts, ""), _MAX_ERROR_LENGTH)
        first = f" (first: {first_text})" if first_text else ""
        notes.append(
            f"{planned.name}: agent errors in {suite_run.agent_error_count} of "
            f"{len(suite_run.records)} simulations{first}"
        )
    return notes
