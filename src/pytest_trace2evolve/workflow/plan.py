"""The plan of a run: everything the user asked for, checked before the first simulation."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

from pytest_trace2evolve.candidates import DEFAULT_CANDIDATE, Candidate
from pytest_trace2evolve.errors import ConfigError, ResultsError
from pytest_trace2evolve.evidence.baselines import read_evidence
from pytest_trace2evolve.evidence.results import SIMULATIONS, ResultsFile, combine, read_results
from pytest_trace2evolve.evidence.store import safe_id
from pytest_trace2evolve.gate.pairs import Trials
from pytest_trace2evolve.gate.policy import DEFAULT_POLICY, Policy, get_policy
from pytest_trace2evolve.lock import SuiteLock
from pytest_trace2evolve.records.evidence import Evidence
from pytest_trace2evolve.records.protocols import Judge
from pytest_trace2evolve.records.task import Task
from pytest_trace2evolve.records.trace import Simulation
from pytest_trace2evolve.records.verdict import Goal
from pytest_trace2evolve.suites import Suite
from pytest_trace2evolve.workflow.project import Project
from pytest_trace2evolve.workflow.sides import domain_of, expand, load_sides, only
from pytest_trace2evolve.worlds.registry import Worlds

REPLAY = "replay"
"""The agent that reads recorded runs instead of talking."""


@dataclass(frozen=True)
class Options:
    """What the user asked for, as plain values; None means not said."""

    candidate: str | None = None
    suites: tuple[str, ...] = ()
    replays: tuple[Path, ...] = ()
    agent: str | None = None
    default_agent: str | None = None
    trials: int | None = None
    baseline: str | None = None
    save_baseline: str | None = None
    gate: str | None = None
    goal: Goal = Goal.IMPROVE
    run_folder: Path | None = None
    invocation_dir: Path = field(default_factory=Path.cwd)


@dataclass(frozen=True)
class Recorded:
    """The recorded simulations of one domain, by task, with the tasks embedded in their files."""

    simulations: Mapping[str, list[Simulation]]
    tasks: Mapping[str, Task]
    files: tuple[ResultsFile, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Baseline:
    """What a suite's candidate is compared with."""

    name: str
    evidence: Evidence

    def fails(self, task_id: str) -> bool:
        """Whether the baseline ran a task and failed it."""
        records = tuple(record for record in self.evidence.simulations if record.task_id == task_id)
        return Trials(records).passes is False


@dataclass(frozen=True)
class PlannedSuite:
    """One suite of a run: what it is, who runs it, and against what."""

    suite: Suite
    path: Path
    lock: SuiteLock
    agent: str
    trials: int
    recorded: Recorded | None = None
    baseline: Baseline | None = None

    def trials_of(self, task_id: str) -> int:
        """How many simulations of a task this run makes or replays."""
        if self.recorded is None:
            return self.trials
        return len(self.recorded.simulations.get(task_id, ()))


@dataclass(frozen=True)
class Plan:
    """One run, ready to start."""

    project: Project
    candidate: Candidate
    lineage: tuple[Candidate, ...]
    suites: Mapping[str, PlannedSuite]
    policy: Policy | None
    goal: Goal
    run_id: str
    run_folder: Path
    started: str
    save_baseline: str | None
    notes: tuple[str, ...]
    judge: Judge | None = None

    def suite_folder(self, name: str) -> Path:
        """Where a suite's simulations go: the run folder itself, or a part of it where there are several."""
        return self.run_folder if len(self.suites) == 1 else self.run_folder / name

    def baseline_file(self, name: str) -> Path:
        """The copy of a suite's baseline that the controller leaves for its workers and for the record."""
        return self.run_folder / "baselines" / f"{name}.json"


@dataclass(frozen=True)
class Shared:
    """What the controller settles and its workers take over."""

    run_id: str
    run_folder: Path
    started: str
    baselines: Mapping[str, str]


def make_plan(
    options: Options,
    project: Project,
    worlds: Worlds,
    *,
    suite_names: Sequence[str],
    agents: Sequence[str],
    judge: Judge | None = None,
    shared: Shared | None = None,
    verify: bool = True,
) -> Plan:
    """Check what the user asked for and settle every choice.

    Args:
        options: What the user asked for.
        project: Where things lie.
        worlds: Opens the suites' worlds.
        suite_names: The suites that may take part, before `options` narrows them.
        agents: Names of the agents that can talk (`replay` apart).
        judge: Judge of natural-language assertions.
        shared: On a worker, what the controller settled.
        verify: Whether to hold the locks against the worlds (a run does, listing its items does not).

    Raises:
        ConfigError: anything the user wrote is wrong.
        ResultsError: a replay or baseline cannot be trusted, or does not belong to a selected suite.
        WorldError: a world cannot be opened.
    """
    name = options.candidate or DEFAULT_CANDIDATE
    lineage = tuple(project.candidates.lineage(name))
    policy = None if options.gate == "off" else get_policy(options.gate or DEFAULT_POLICY)
    if options.replays and options.trials is not None:
        raise ConfigError(
            "--t2e-trials does not go with --t2e-replay, which uses the trials that the files hold"
        )
    if options.replays and options.agent not in (None, REPLAY):
        raise ConfigError(f"--t2e-replay replays recorded runs: agent {options.agent!r} does not go with it")
    recorded = _read_replays(options.replays)
    suites = _select(options, project, suite_names, recorded)
    _refuse_stray_replays(options, suites, recorded)
    planned: dict[str, PlannedSuite] = {}
    for suite in suites:
        lock = project.locked(suite, worlds)
        if verify and shared is None:
            project.verify_world(suite, lock, worlds)
        planned[suite.name] = PlannedSuite(
            suite=suite,
            path=project.suite_path(suite.name),
            lock=lock,
            agent=_agent(options, suite, agents, recorded),
            trials=options.trials or suite.trials,
            recorded=recorded.get(suite.domain),
        )
    started = shared.started if shared else datetime.now(UTC).isoformat(timespec="seconds")
    run_id = shared.run_id if shared else f"{started[:19].replace(':', '')}-{name}-{uuid4().hex[:6]}"
    plan = Plan(
        project=project,
        candidate=lineage[0],
        lineage=lineage,
        suites=planned,
        policy=policy,
        goal=options.goal,
        run_id=run_id,
        run_folder=shared.run_folder if shared else options.run_folder or project.runs_folder / run_id,
        started=started,
        save_baseline=options.save_baseline,
        notes=tuple(note for group in recorded.values() for note in group.notes),
        judge=judge,
    )
    if shared is None:
        _refuse_used_names(plan)
    return _with_baselines(plan, options, worlds, shared)


def _read_replays(paths: Sequence[Path]) -> dict[str, Recorded]:
    files: dict[str, list[ResultsFile]] = {}
    for path in [inner for outer in paths for inner in expand(outer)]:
        file = read_results(path)
        files.setdefault(domain_of(file), []).append(file)
    recorded = {}
    for domain, group in files.items():
        simulations, notes = combine(group)
        by_task: dict[str, list[Simulation]] = {}
        for simulation in simulations:
            named = simulation.model_copy(update={"id": safe_id(simulation.id)})
            by_task.setdefault(simulation.task_id, []).append(named)
        tasks = {task_id: task for file in group for task_id, task in file.tasks.items()}
        recorded[domain] = Recorded(by_task, tasks, tuple(group), notes)
    return recorded


def _select(
    options: Options, project: Project, names: Sequence[str], recorded: Mapping[str, Recorded]
) -> list[Suite]:
    for name in options.suites:
        project.suite_path(name)
    wanted = [name for name in names if not options.suites or name in options.suites]
    suites = [project.suite(name) for name in wanted]
    if recorded and not options.suites:
        return [suite for suite in suites if suite.domain in recorded]
    return suites


def _refuse_stray_replays(
    options: Options, suites: Sequence[Suite], recorded: Mapping[str, Recorded]
) -> None:
    if not recorded:
        return
    domains = {suite.domain for suite in suites}
    for domain, group in recorded.items():
        if domain not in domains:
            files = ", ".join(str(file.path) for file in group.files)
            has = ", ".join(f"{suite.name} ({suite.domain})" for suite in suites) or "none of this domain"
            raise ResultsError(f"{files}: results of domain {domain!r}, and the selected suites are {has}")
    for suite in suites:
        if suite.domain not in recorded and options.suites:
            raise ResultsError(
                f"suite {suite.name!r} is of domain {suite.domain!r}, and no --t2e-replay file is; "
                f"they hold {', '.join(recorded)}"
            )


def _agent(options: Options, suite: Suite, agents: Sequence[str], recorded: Mapping[str, Recorded]) -> str:
    if suite.domain in recorded:
        return REPLAY
    name = options.agent or options.default_agent or suite.default_agent
    if name is None:
        raise ConfigError(
            f"suite {suite.name!r} has no agent: give --t2e-agent or --t2e-replay, "
            f"or a default_agent in {suite.name}.toml"
        )
    if name == REPLAY:
        raise ConfigError("agent 'replay' needs recorded runs: give --t2e-replay PATH")
    if name not in agents:
        near = difflib.get_close_matches(name, agents, n=1, cutoff=0.4)
        mend = f"did you mean {near[0]!r}?" if near else f"known are {', '.join([*agents, REPLAY])}"
        raise ConfigError(f"unknown agent {name!r}; {mend}")
    return name


def _refuse_used_names(plan: Plan) -> None:
    for folder in (plan.run_folder, *(plan.suite_folder(name) for name in plan.suites)):
        if (folder / SIMULATIONS).exists():
            raise ConfigError(f"{folder} holds a run already; choose another --t2e-run-folder")
    if plan.save_baseline is None:
        return
    for suite in plan.suites:
        path = plan.project.baseline_path(suite, plan.save_baseline)
        if path.exists():
            raise ConfigError(f"{path} exists, and a baseline never moves by itself; choose another name")


def _with_baselines(plan: Plan, options: Options, worlds: Worlds, shared: Shared | None) -> Plan:
    if shared is not None:
        baselines = {
            name: Baseline(label, read_evidence(plan.baseline_file(name)))
            for name, label in shared.baselines.items()
        }
        notes: tuple[str, ...] = ()
    else:
        baselines, notes = _find_baselines(plan, options, worlds)
    suites = {
        name: PlannedSuite(**{**vars(planned), "baseline": baselines.get(name)})
        for name, planned in plan.suites.items()
    }
    return Plan(**{**vars(plan), "suites": suites, "notes": plan.notes + notes})


def _find_baselines(
    plan: Plan, options: Options, worlds: Worlds
) -> tuple[dict[str, Baseline], tuple[str, ...]]:
    if options.baseline is None:
        return _inherited(plan), ()
    path = options.invocation_dir / options.baseline
    if path.exists():
        return _from_path(plan, path, worlds)
    found = {
        name: _checked(plan, name, Baseline(options.baseline, read_evidence(file)), file)
        for name in plan.suites
        if (file := plan.project.baseline_path(name, options.baseline)).exists()
    }
    if plan.suites and not found:
        saved = sorted({known for name in plan.suites for known in plan.project.baseline_names(name)})
        raise ConfigError(
            f"baseline {options.baseline!r} is no file and no saved baseline of {', '.join(plan.suites)}; "
            f"saved are {', '.join(saved) or 'none'}"
        )
    return found, ()


def _inherited(plan: Plan) -> dict[str, Baseline]:
    """The baseline of the candidate's nearest ancestor that has one, suite by suite."""
    found: dict[str, Baseline] = {}
    for name in plan.suites:
        for ancestor in plan.lineage[1:]:
            path = plan.project.baseline_path(name, ancestor.id)
            if path.exists():
                found[name] = _checked(plan, name, Baseline(ancestor.id, read_evidence(path)), path)
                break
    return found


def _from_path(plan: Plan, path: Path, worlds: Worlds) -> tuple[dict[str, Baseline], tuple[str, ...]]:
    providers = {planned.suite.provider for planned in plan.suites.values()}
    sides, notes = load_sides([path], worlds, providers.pop() if len(providers) == 1 else None, plan.judge)
    by_domain = {side.provenance.domain: side for side in sides}
    found = {
        name: _checked(plan, name, Baseline(path.name, by_domain[planned.suite.domain]), path)
        for name, planned in plan.suites.items()
        if planned.suite.domain in by_domain
    }
    if plan.suites and not found:
        wanted = ", ".join(f"{name} ({planned.suite.domain})" for name, planned in plan.suites.items())
        domains = ", ".join(by_domain)
        raise ResultsError(f"{path}: results of domain {domains}, and the selected suites are {wanted}")
    return found, notes


def _checked(plan: Plan, name: str, baseline: Baseline, path: Path) -> Baseline:
    """A baseline that may be compared on a suite, cut to the suite's tasks.

    Raises:
        ResultsError: it was measured on another suite, or under another lock.
    """
    planned, origin = plan.suites[name], baseline.evidence.provenance
    if origin.suite not in (None, name):
        raise ResultsError(f"{path}: a baseline of suite {origin.suite!r}, not of {name!r}")
    if origin.lock not in (None, planned.lock.digest):
        raise ResultsError(
            f"{path}: measured under lock {origin.lock}, and {name!r} is now {planned.lock.digest}; "
            "measure the baseline again with --t2e-save-baseline"
        )
    return Baseline(baseline.name, only(baseline.evidence, planned.lock.tasks))
