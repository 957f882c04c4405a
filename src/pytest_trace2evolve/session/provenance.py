"""Determines the provenance of evidence and its digests, and whether two sides are comparable."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_trace2evolve.engine.live import CandidateSetup, LiveSettings
from pytest_trace2evolve.errors import ResultsError
from pytest_trace2evolve.evidence.baselines import read_evidence
from pytest_trace2evolve.evidence.draws import simulation_key
from pytest_trace2evolve.evidence.ledger import check_traces, knows_evidence, traces_of
from pytest_trace2evolve.evidence.run_folder import RunStore
from pytest_trace2evolve.evidence.saving import SaveMode, merge_obstacles, trials_difference
from pytest_trace2evolve.gate.comparable import agent_changes, provenance_differences, unrecorded_fields
from pytest_trace2evolve.models.settings import CALL_TIMEOUT
from pytest_trace2evolve.project.candidates import describe_source
from pytest_trace2evolve.project.lock import LOCK_NAME
from pytest_trace2evolve.project.suites import Role
from pytest_trace2evolve.records.evidence import (
    DUMMY_USER,
    SCRIPTED_USER,
    SLOT_USER,
    ComparedSides,
    Provenance,
    Settings,
    SimulationEvidence,
    code_differences,
    describe_side,
    split_texts,
    with_texts,
)
from pytest_trace2evolve.records.score import SCORER_VERSION
from pytest_trace2evolve.records.task import Task
from pytest_trace2evolve.scoring.failures import find_divergence
from pytest_trace2evolve.scoring.metrics import Trials, is_success
from pytest_trace2evolve.session.baselines import Baseline
from pytest_trace2evolve.session.evidence_sources import file_provenance
from pytest_trace2evolve.session.ledger import ProjectLedger
from pytest_trace2evolve.session.plan import Plan, PlannedSuite
from pytest_trace2evolve.session.traces import SEALED_ROLES, sealed_splits_of_task
from pytest_trace2evolve.utils.canonical import digest

if TYPE_CHECKING:
    from pytest_trace2evolve.session.trials import TaskRun


def provenance_of(plan: Plan, planned: PlannedSuite) -> Provenance:
    """Return the provenance of the evidence of one suite of a run."""
    common_fields = {
        "suite": planned.suite.name,
        "domain": planned.suite.domain,
        "provider": planned.suite.provider,
        "lock": planned.lock.digest,
        "lock_parts": planned.lock.parts,
        "provider_version": planned.lock.provider_version,
        "task_revision": planned.lock.task_revision,
        "scorer_version": SCORER_VERSION,
        "candidate": plan.candidate.to_ref(),
        "judge": getattr(plan.judge, "model", None),
        "run_id": plan.run_id,
        "created_at": plan.started_at,
    }
    checks = plan.trace_checks.recorded_origins
    if planned.recorded_runs is not None:
        sources = tuple(file.path.name for file in planned.recorded_runs.files)
        provenance = file_provenance(planned.recorded_runs.files[0]).model_copy(
            update={**common_fields, "sources": sources}
        )
    else:
        provenance = Provenance(
            **common_fields,
            world=planned.identity.world,
            agent=agent_settings(planned, plan.live),
            user=user_settings(plan, planned),
            max_steps=planned.suite.max_steps,
            max_errors=planned.suite.max_errors,
            timeout=planned.suite.timeout,
            call_timeout=None if plan.live is None else plan.live.call_timeout,
        )
    return provenance.model_copy(update={"checks": checks if provenance.is_conversational else None})


def agent_settings(planned: PlannedSuite, live: LiveSettings | None) -> Settings:
    """Return the agent's settings, as evidence records them, in a suite that is not replayed."""
    if live is None:
        return planned.identity.agent
    return with_texts(live.agent_settings(), split_texts(planned.identity.agent)[1])


def user_settings(plan: Plan, planned: PlannedSuite) -> Settings:
    """Return the user's settings, as evidence records them, in a suite that is not replayed."""
    if planned.suite.solo:
        return Settings(implementation=DUMMY_USER)
    if plan.live is None:
        return planned.identity.user
    if planned.suite.is_scripted and plan.live.uses_scripts:
        suite = planned.suite
        names = [SCRIPTED_USER] * bool(suite.case_splits) + [SLOT_USER] * bool(suite.task_splits)
        return Settings(implementation=", ".join(names))
    return plan.live.user_settings().model_copy(update={"guidelines": planned.guidelines})


def trial_key(
    plan: Plan, planned: PlannedSuite, task: Task, trial: int, setup: CandidateSetup | None = None
) -> str:
    """Return the key of a task's trial in a live run; `setup` replaces the plan's candidate and models."""
    candidate, live = (plan.candidate, plan.live) if setup is None else (setup.candidate, setup.live)
    assert live is not None
    lock, suite, world = planned.lock, planned.suite, planned.identity.world
    agent = agent_settings(planned, live)
    # Unset values are left out, so that the keys of earlier runs do not change.
    timeout = [] if suite.timeout is None else [suite.timeout]
    return simulation_key(
        {
            "candidate": candidate.digest,
            "task": task.digest_in(solo=suite.solo),
            "task_id": task.id,
            "world": [lock.provider, lock.domain, lock.policy, lock.tools, lock.data],
            # Code that cannot be identified gives a key that no other run has.
            **({} if world is None else {"code": world.digest or plan.run_id}),
            "agent": agent.model_dump(mode="json"),
            **({"agent_run": plan.run_id} if agent.code is not None and agent.code.unknown else {}),
            "user": user_settings(plan, planned).model_dump(mode="json"),
            "trial": trial,
            # A cassette's answers differ from those of a live model with the same settings.
            **({"cassette": live.cassette.header.digest} if live.cassette else {}),
            "budgets": [suite.max_steps, suite.max_errors, *timeout],
            **({"call_timeout": live.call_timeout} if live.call_timeout not in (None, CALL_TIMEOUT) else {}),
            # A simulation drawn outside this split has no ledger entry, and could be picked for its result.
            **({"sealed": sealed_name} if (sealed_name := sealed_split_name(plan, planned, task.id)) else {}),
        }
    )


def sealed_split_name(plan: Plan, planned: PlannedSuite, task_id: str) -> str:
    """Return the `suite::split` of a task if the ledger records the split's draws; otherwise empty text."""
    split = next((name for name, tasks in planned.lock.splits.items() if task_id in tasks), None)
    if split is None or plan.project.splits[split].role not in SEALED_ROLES:
        return ""
    return f"{planned.name}::{split}"


def is_sealed_task(plan: Plan, planned: PlannedSuite, task_id: str) -> bool:
    """Return whether a task belongs to a split, of any suite, whose traces should stay unread."""
    return bool(sealed_splits_of_task(plan.project, planned.suite.domain, task_id))


def conditions_digest(plan: Plan, planned: PlannedSuite) -> str:
    """Return the digest of a suite's conditions in a live run, without tasks, candidate and agent.

    Code that cannot be identified gives a digest that no other run has.
    """
    suite, world = planned.suite, planned.identity.world
    code = None if world is None else world.digest or plan.run_id
    user = user_settings(plan, planned).model_dump(mode="json")
    return digest([user, code, suite.max_steps, suite.max_errors, suite.timeout])


def tested_agent_digest(plan: Plan, origin: Provenance) -> str:
    """Return the digest of the tested agent, without the candidate's text; equal digests mean the same test.

    For an agent that is not built in, the digest includes the code of its user and world.

    Code that cannot be identified gives a digest that no other run has.
    """
    agent = origin.agent.model_dump(mode="json")
    if origin.agent.code is None:
        return digest(agent)
    codes = [code for code in (origin.agent.code, origin.user.code, origin.world) if code is not None]
    unknown_run = plan.run_id if any(code.unknown for code in codes) else ""
    return digest([agent, [code.digest for code in codes], unknown_run])


def identity_notes(suites: Iterable[PlannedSuite], live: LiveSettings | None) -> Iterator[str]:
    """Yield notes on code that cannot be identified, and on locks that do not cover the code of the tools."""
    for suite in suites:
        identity = suite.identity
        agent_code = identity.agent.code
        if live is not None and live.function is not None and suite.recorded_runs is None:
            agent_code = live.function.code
        codes = {"agent": agent_code, "user": identity.user.code, "world": identity.world}
        for role, code in codes.items():
            if code is not None and code.unknown:
                yield (
                    f"{suite.name}: the code of its {role} cannot be identified ({code.unknown}): nothing is "
                    "resumed, confirmed or counted as the same test again"
                )
        if suite.lock.code is None:
            yield (
                f"{suite.name}: {LOCK_NAME} does not cover the implementation of its tools; "
                "run 'trace2evolve lock' and commit the result"
            )


def check_comparable(plan: Plan, planned: PlannedSuite) -> list[str]:
    """Check that the recorded facts of both sides allow a comparison.

    Returns:
        Notes on facts that only one side recorded, and on changed code of the agent or a changed candidate.

    Raises:
        ResultsError: a fact that must be equal differs, or the agents differ and the candidate does not
            declare the change.
    """
    assert planned.baseline is not None
    evidence, new = planned.baseline.evidence, provenance_of(plan, planned)
    old, sides = (
        evidence.provenance,
        f"baseline {planned.baseline.name!r} of {planned.name!r} and",
    )
    digests = {simulation.task_id: simulation.task_digest for simulation in evidence.simulations}
    tasks = planned.lock.tasks
    if problems := list(provenance_differences(old, new, baseline_tasks=digests, candidate_tasks=tasks)):
        raise ResultsError(f"{sides} this run cannot be compared: {'; '.join(problems)}")
    changes = agent_changes(old, new)
    declared_kinds = declared_changes(plan, planned.baseline)
    if undeclared_kinds := [kind for kind in changes if kind not in declared_kinds]:
        phrases = "; ".join(phrase for kind in undeclared_kinds for phrase in changes[kind])
        raise ResultsError(
            f"{sides} this run have different agents: {phrases}; measure a baseline with this agent, or "
            f"declare the change in the front matter of {describe_source(plan.candidate.id)}: "
            f"changes: [{', '.join(undeclared_kinds)}]"
        )
    notes = []
    if missing_text := unrecorded_fields(old, new):
        notes.append(f"{planned.name}: {missing_text}")
    if changed_files := list(code_differences(old.agent.code, new.agent.code)):
        notes.append(
            f"{planned.name}: the agent's code differs from the baseline's: {', '.join(changed_files)}"
        )
    if _is_edited(old, new):
        notes.append(
            f"{planned.name}: {describe_source(plan.candidate.id)} or its prompt was edited after the "
            f"baseline was measured; this run measures the edited candidate"
        )
    return notes


def _is_edited(baseline: Provenance, run: Provenance) -> bool:
    """Return whether both sides have the same candidate id with different texts."""
    old, new = baseline.candidate, run.candidate
    return old is not None and new is not None and old.id == new.id and old.digest != new.digest


def declared_changes(plan: Plan, baseline: Baseline) -> frozenset[str]:
    """Return the agent changes that candidates declare, from the baseline's candidate to the plan's."""
    baseline_candidate = baseline.evidence.provenance.candidate
    kinds: set[str] = set()
    for candidate in plan.lineage:
        if baseline_candidate is not None and candidate.id == baseline_candidate.id:
            break
        kinds |= candidate.declared_changes
    return frozenset(kinds)


def compared_sides(
    plan: Plan, planned: PlannedSuite, records: Sequence[SimulationEvidence]
) -> ComparedSides | None:
    """Return the two sides of a suite's comparison, for reports; None without a baseline.

    `records` are the simulations of the run. Called models are those of the tasks that the run has measured.
    """
    if planned.baseline is None:
        return None
    evidence, new = planned.baseline.evidence, provenance_of(plan, planned)
    old, tasks = evidence.provenance, {record.task_id for record in records}
    old_records = [record for record in evidence.simulations if record.task_id in tasks]
    declared_kinds = declared_changes(plan, planned.baseline)
    changed_code = tuple(code_differences(old.agent.code, new.agent.code))
    is_same_candidate = old.candidate is not None and old.candidate.id == plan.candidate.id
    return ComparedSides(
        baseline=describe_side(old, {name for record in old_records for name in record.models}),
        candidate=describe_side(new, {name for record in records for name in record.models}),
        declared=tuple(kind for kind in agent_changes(old, new) if kind in declared_kinds),
        changed_code=changed_code,
        is_same_candidate=is_same_candidate and (bool(changed_code) or _is_edited(old, new)),
    )


def check_unedited(plan: Plan, ledger: ProjectLedger) -> Iterator[str]:
    """Compare replayed files, and results that serve as a baseline, with the ledger.

    Yields:
        Notes on evidence that the ledger cannot verify.

    Raises:
        ResultsError: a run's folder changed since the run ended.
    """
    is_gated = plan.policy is not None
    for name, planned in plan.suites.items():
        for path, run in _recorded_files(planned, planned.baseline if is_gated else None):
            check_traces(ledger.entries, run, path)
        is_sealed = any(plan.project.splits[split].role is Role.GATE for split in planned.lock.splits)
        is_deciding = is_gated or plan.saving is not None
        if is_sealed and is_deciding and (files := unrecorded_files(planned, ledger)):
            yield (
                f"{name}: not recorded in this project's ledger, so an edit cannot be detected: "
                f"{', '.join(files)}"
            )


def _recorded_files(planned: PlannedSuite, baseline: Baseline | None) -> list[tuple[Path, str]]:
    """Return a suite's replayed files and those of an unsaved baseline, each with its run."""
    runs = planned.recorded_runs
    replayed = [] if runs is None else [(file.path, file.run) for file in runs.files]
    return [*replayed, *(baseline.files if baseline is not None and not baseline.is_saved else ())]


def unrecorded_files(planned: PlannedSuite, ledger: ProjectLedger) -> list[str]:
    """Return the names of a suite's replayed files and unsaved baselines that the ledger does not know."""
    baseline = planned.baseline
    files = _recorded_files(planned, baseline)
    names = [path.name for path, run in files if not traces_of(ledger.entries, run)]
    if baseline is not None and not baseline.is_saved and not baseline.files:
        is_known_evidence = knows_evidence(ledger.entries, planned.name, baseline.all_evidence)
        names += [] if is_known_evidence else [baseline.name]
    return list(dict.fromkeys(names))


def check_mergeable(plan: Plan) -> None:
    """Check that a run can be added to the baselines that it extends.

    Raises:
        ResultsError: a baseline is damaged or differs from the run. The message names the file, the field
            and both values.
    """
    if plan.saving is None or plan.saving.mode not in (SaveMode.NEW_ONLY, SaveMode.MORE_TRIALS):
        return
    for name in plan.saving.digests_before:
        planned = plan.suites[name]
        path = plan.project.baseline_path(name, plan.saving.name)
        evidence, tasks = read_evidence(path), planned.lock.tasks
        problems = list(merge_obstacles(evidence, provenance_of(plan, planned), tasks))
        missing_tasks = tasks.keys() - {simulation.task_id for simulation in evidence.simulations}
        if missing_tasks and plan.saving.mode is SaveMode.NEW_ONLY:
            trials = max(map(planned.trials_of, missing_tasks))
            problems += filter(None, [trials_difference(evidence, trials)])
        if problems:
            raise ResultsError(f"{path}: this run cannot be added to it: {'; '.join(problems)}")


def compare_with_baseline(plan: Plan, planned: PlannedSuite, task_id: str, run: "TaskRun") -> "TaskRun":
    """Add to an explained failure the first difference from a passed trial of the baseline.

    The trace of that trial is one of the run's fresh trials, or one of the run that measured the baseline.
    """
    if run.failure is None or planned.baseline is None:
        return run
    baseline_trials = planned.baseline.trials(task_id, planned.lock.tasks[task_id])
    if baseline_trials is None:
        return run
    suite, run_id = planned.name, planned.baseline.evidence.provenance.run_id
    folders = [plan.project.runs_folder / run_id] if run_id else []
    sources = [(folder / name, baseline_trials.records) for folder in folders for name in ("", suite)]
    if run.fresh_trials is not None:
        sources.insert(0, (plan.fresh_folder(suite, "baseline"), run.fresh_trials.baseline))
    passed_trials = (
        RunStore(folder).read_simulation(record.id)
        for folder, records in sources
        for record in records
        if record.reward is not None and is_success(record.reward)
    )
    old = next(filter(None, passed_trials), None)
    failed_id = next(record.id for record in run.records if record.trial == run.failure.trial)
    new = RunStore(plan.suite_folder(suite)).read_simulation(failed_id)
    if old is None or new is None:
        return run
    return replace(run, failure=replace(run.failure, divergence=find_divergence(old.trace, new.trace)))


def may_have_regressed(planned: PlannedSuite, task_id: str, run: "TaskRun") -> bool:
    """Return whether a task regressed, or could have regressed if its lost trials had been measured."""
    baseline_trials = baseline_trials_of(planned, task_id)
    if baseline_trials is None or not run.records:
        return False
    lost_count = len(baseline_trials.records) - len(baseline_trials.measured_records)
    has_passed_before = 2 * (baseline_trials.pass_count + lost_count) > len(baseline_trials.records)
    return has_passed_before and 2 * Trials(run.records).pass_count <= len(run.records)


def is_suspected(plan: Plan, planned: PlannedSuite, split: str, run: "TaskRun", task_id: str) -> bool:
    """Return whether a task that passed on the baseline but fails now may have regressed by chance.

    Each task is tested alone, at the split's significance level divided by the number of compared tasks.
    """
    baseline_trials, trials = baseline_trials_of(planned, task_id), Trials(run.records)
    if plan.policy is None or not plan.policy.confirms_regressions:
        return False
    if baseline_trials is None or not baseline_trials.passes or trials.passes is not False:
        return False
    from pytest_trace2evolve.gate.confirm import fresh_result
    from pytest_trace2evolve.gate.significance import fisher

    if run.fresh_trials is not None:
        p = fresh_result(run.fresh_trials).p
    else:
        old, new = ((side.pass_count, len(side.measured_records)) for side in (baseline_trials, trials))
        p = float(fisher(*old, *new))
    compared_tasks = sum(baseline_trials_of(planned, name) is not None for name in planned.lock.splits[split])
    return p > plan.alpha / compared_tasks


def baseline_trials_of(planned: PlannedSuite, task_id: str) -> Trials | None:
    """Return the baseline's first trials of a task, as many as this run has; None if none ran this content.

    With more trials than the run, a task would pass more than half of them with another chance.
    """
    if planned.baseline is None:
        return None
    trials = planned.baseline.trials(task_id, planned.lock.tasks[task_id])
    if trials is None:
        return None
    records = sorted(trials.records, key=lambda record: record.trial)
    first_trials = Trials(tuple(records[: max(planned.trials_of(task_id), 1)]))
    return first_trials if first_trials.measured_records else None
