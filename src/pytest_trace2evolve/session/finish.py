"""The end of a run, on the controller: headers, baselines, the ledger and the scoreboard."""

import json
import subprocess
from collections.abc import Iterable
from dataclasses import asdict

from pytest_trace2evolve.evidence.integrity import VERDICT_NAME
from pytest_trace2evolve.evidence.run_folder import RunStore, header
from pytest_trace2evolve.evidence.scoreboard import ScoreboardLine, append
from pytest_trace2evolve.records.budget import State, Totals
from pytest_trace2evolve.records.score import Status
from pytest_trace2evolve.records.task import Task
from pytest_trace2evolve.records.verdict import CheckStatus, RunVerdict, SideFigures, Verdict
from pytest_trace2evolve.session.access_log import DECIDING, Looks
from pytest_trace2evolve.session.confirmation import MOST_FRESH
from pytest_trace2evolve.session.draws import Draws
from pytest_trace2evolve.session.plan import Plan, PlannedSuite
from pytest_trace2evolve.session.provenance import provenance_of
from pytest_trace2evolve.session.run_verdict import save_baseline
from pytest_trace2evolve.session.trials import SIDES
from pytest_trace2evolve.session.verdicts import SuiteOutcome, SuiteRun, claim_of, evidence
from pytest_trace2evolve.utils.files import write_atomic
from pytest_trace2evolve.worlds.registry import Worlds


def keep(
    plan: Plan,
    runs: Iterable[SuiteRun],
    outcomes: Iterable[SuiteOutcome],
    worlds: Worlds,
    looks: Looks,
    draws: Draws,
) -> list[str]:
    """Write the headers of the run folder and the baselines asked for, with their entries in the ledger.

    The ledger also names the traces of suites of which the run drew a sealed split.

    Returns:
        Notes for the user, a line each.

    Raises:
        OSError: something could not be written; what was there before is as it was.
        ResultsError: the run's folder cannot be read again.
    """
    pairs = list(zip(runs, outcomes, strict=True))
    notes: list[str] = []
    for run, _ in pairs:
        notes += _keep_header(plan, run, worlds)
        if _drew(run, draws):
            name = run.planned.name
            looks.record_traces(name, plan.run_id, plan.suite_folder(name), draws.account(name))
    if plan.saving is not None:
        notes += [save_baseline(plan, run, outcome, looks) for run, outcome in pairs]
    return notes


def _drew(run: SuiteRun, draws: Draws) -> bool:
    """Whether a simulation of a sealed split was made, and not lost."""
    return any(
        record.status is not Status.INFRASTRUCTURE_ERROR
        for split in run.planned.lock.splits
        if draws.is_drawn(run.planned.name, split)
        for record in run.in_split(split)
    )


def record_verdicts(
    plan: Plan,
    runs: Iterable[SuiteRun],
    outcomes: Iterable[SuiteOutcome],
    looks: Looks,
    draws: Draws,
    record: RunVerdict,
) -> None:
    """Write the verdicts to the ledger and the scoreboard, after everything else is written.

    A run that cannot store its evidence is no test: it spends nothing, and no later run repeats it. A stage
    after which another follows is not recorded either.

    Args:
        record: The run's verdict, as `verdict.json` holds it.

    Raises:
        OSError: something could not be written; if it was the ledger, there is no `verdict.json` either.
    """
    whole = [
        (run, verdict)
        for run, outcome in zip(runs, outcomes, strict=True)
        for verdict in outcome.verdicts
        if not verdict.partial
    ]
    # The ledger first: a line of the scoreboard without an entry would pass for an entry taken out.
    try:
        for run, verdict in whole:
            split = verdict.split or ""
            if verdict.decision is not None and plan.project.splits[split].role in DECIDING:
                claim = claim_of(plan, run, split, draws, verdict.label)
                looks.record(plan, run.planned, verdict, claim, record)
    except OSError:
        (plan.run_folder / VERDICT_NAME).unlink(missing_ok=True)
        raise
    if whole:
        append(plan.project.scoreboard, [_line(plan, run.planned, verdict) for run, verdict in whole])


def keep_totals(plan: Plan, totals: Totals, stopped: str) -> None:
    """Write what a live run used to `run.json` in its folder.

    Args:
        plan: The run's plan.
        totals: Where it stood at its end.
        stopped: Why it ended before its time; empty where it did not.

    Raises:
        OSError: the file could not be written.
    """
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


def _keep_header(plan: Plan, run: SuiteRun, worlds: Worlds) -> list[str]:
    planned = run.planned
    side = evidence(plan, run)
    store = RunStore(plan.suite_folder(planned.name))
    dropped = store.drop_unreported(side.simulations)
    world = plan.project.world(planned.suite, worlds)
    store.write_header(
        header(
            side.provenance,
            _tasks(plan, run, worlds),
            store.stored(side.simulations),
            policy=world.policy(solo=planned.suite.solo),
            git_commit=_git_commit(plan),
            trials=max((len(task_run.records) for task_run in run.runs.values()), default=0),
            max_errors=planned.suite.max_errors,
        )
    )
    _keep_fresh(plan, run, worlds)
    return [f"{len(dropped)} traces that no worker reported were set aside in unreported/"] if dropped else []


def _keep_fresh(plan: Plan, run: SuiteRun, worlds: Worlds) -> None:
    """Write the headers of fresh trials, a folder a side; what was lost and made again is set aside."""
    planned = run.planned
    for side in SIDES:
        store = RunStore(plan.fresh_folder(planned.name, side))
        if not store.folder.exists():
            continue
        records = [record for fresh in run.fresh.values() for record in getattr(fresh, side)]
        store.drop_unreported(records)
        world = plan.project.world(planned.suite, worlds)
        origin = provenance_of(plan, planned)
        if side == "baseline" and planned.baseline is not None:
            settled = planned.baseline.evidence.provenance
            origin = origin.model_copy(update={"candidate": settled.candidate, "agent": settled.agent})
        store.write_header(
            header(
                origin,
                [world.tasks()[task_id] for task_id in run.fresh],
                records,
                policy=world.policy(solo=planned.suite.solo),
                git_commit=_git_commit(plan),
                trials=MOST_FRESH // len(SIDES),
                max_errors=planned.suite.max_errors,
            )
        )


def _tasks(plan: Plan, run: SuiteRun, worlds: Worlds) -> list[Task]:
    """The tasks that were run, as they were run."""
    planned = run.planned
    if planned.recorded is not None:
        recorded = planned.recorded.by_task
        return [recorded[task_id][0].task for task_id in run.runs if task_id in recorded]
    tasks = plan.project.world(planned.suite, worlds).tasks()
    return [tasks[task_id] for task_id in run.runs]


def _git_commit(plan: Plan) -> str:
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=plan.project.root, capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return done.stdout.strip() if done.returncode == 0 else "unknown"


def _line(plan: Plan, planned: PlannedSuite, verdict: Verdict) -> ScoreboardLine:
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
