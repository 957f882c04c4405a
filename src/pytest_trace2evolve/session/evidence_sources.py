"""Reads evidence from paths: results files, run folders, compact evidence and runs to replay.

The current scorer scores results files again when they are read. Compact evidence is used unchanged.
Scoring, worlds and the gate are imported where they are used: a comparison of saved baselines scores nothing.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pydantic import ValidationError

from pytest_trace2evolve.errors import ConfigError, ResultsError, name_suggestion
from pytest_trace2evolve.evidence.baselines import is_evidence, parse_evidence
from pytest_trace2evolve.evidence.results import (
    OWN_BLOCK_KEY,
    ResultsFile,
    TrialNumbers,
    check_copies,
    check_copy,
    combine_results,
    decode_results,
    read_results,
)
from pytest_trace2evolve.records.evidence import Evidence, Mode, Provenance, Settings, SimulationEvidence
from pytest_trace2evolve.records.score import NO_JUDGE_NOTE, RECORDED_VERDICTS, SCORER_VERSION
from pytest_trace2evolve.records.task_revision import named_revision
from pytest_trace2evolve.records.trace import FULL_DUPLEX, Simulation
from pytest_trace2evolve.session.figures import LoadedEvidence, figures_key, read_figures, store_figures
from pytest_trace2evolve.utils.canonical import digest_text
from pytest_trace2evolve.utils.reading import first_problem

if TYPE_CHECKING:
    from pytest_trace2evolve.project.candidates import Candidate
    from pytest_trace2evolve.project.project import Project
    from pytest_trace2evolve.project.suites import Suite
    from pytest_trace2evolve.records.protocols import Judge, World
    from pytest_trace2evolve.records.rules import Finding
    from pytest_trace2evolve.records.score import Score
    from pytest_trace2evolve.records.task import Task
    from pytest_trace2evolve.scoring.metrics import Metrics
    from pytest_trace2evolve.scoring.trace_checks import CheckResult
    from pytest_trace2evolve.session.trace_checks import TraceChecks
    from pytest_trace2evolve.worlds.registry import Worlds

T = TypeVar("T")


def path_exists(path: Path) -> bool:
    """Return whether a path exists; False for a text that cannot be a path, such as one with a NUL."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def find_evidence(name: str, project: "Project | None", base_folder: Path, suite: str | None = None) -> Path:
    """Find a path as `find_run` does, or that of a saved baseline. Without a project, the name is a path."""
    if project is None or path_exists(base_folder / name):
        return Path(name)
    return find_run(name, project, base_folder, project.baseline_files(suite))


def find_run(
    run: str, project: "Project | None", base_folder: Path, baselines: Mapping[str, Path] | None = None
) -> Path:
    """Find the path of a run from its id, the beginning of its id, its folder, or a results file.

    Paths are relative to `base_folder`. Names of `baselines` are found too.
    """
    if path_exists(base_folder / run):
        return base_folder / run
    if baselines and run in baselines:
        return baselines[run]
    if project is None:
        raise ConfigError(f"{run}: no such path, and no project here to search for runs; give --root")
    folder = project.runs_folder
    ids = sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    matching_ids = [run] if run in ids else [name for name in ids if name.startswith(run)]
    if len(matching_ids) > 1:
        names = ", ".join(matching_ids[:5])
        raise ConfigError(f"run {run!r} matches several runs: {names}; give more of the id")
    if not matching_ids:
        raise ConfigError(
            f"{run!r} is neither a path{', a saved baseline' if baselines is not None else ''} nor a run in "
            f"{folder}; {name_suggestion(run, [*(baselines or ()), *ids[-20:]])}"
        )
    return folder / matching_ids[0]


def expand_run_folders(paths: Iterable[Path]) -> Iterator[Path]:
    """Replace each run folder of several suites by the results folders inside, and keep all other paths."""
    for path in paths:
        result_folders: list[Path] = []
        if path.is_dir() and not (path / "results.json").exists():
            result_folders = sorted(folder.parent for folder in path.glob("*/results.json"))
        yield from result_folders or [path]


def domain_of(file: ResultsFile) -> str:
    """Return the file's domain.

    Raises:
        ResultsError: the file does not name a domain.
    """
    if file.domain is None:
        raise ResultsError(f"{file.path}: has no domain in info.environment_info or in its tasks' scenarios")
    return file.domain


def mode_of(file: ResultsFile) -> Mode:
    """Return the mode of a file: its domain, and whether its runs were solo (with tau2's dummy user)."""
    return Mode(domain_of(file), file_provenance(file).mode.solo)


def file_provenance(file: ResultsFile) -> Provenance:
    """Return the provenance of a results file, from this package's block or else from tau2's fields."""
    from pytest_trace2evolve.worlds.registry import DEFAULT_PROVIDER

    info = file.info
    own_block = info.get(OWN_BLOCK_KEY)
    if isinstance(own_block, dict):
        try:
            return Provenance.model_validate(own_block)
        except ValidationError as error:
            raise ResultsError(
                f"{file.path}: damaged at info.{OWN_BLOCK_KEY}.{first_problem(error)}"
            ) from None
    environment = info.get("environment_info")
    policy = environment.get("policy") if isinstance(environment, dict) else None
    return Provenance(
        domain=domain_of(file),
        provider=DEFAULT_PROVIDER,
        task_revision=named_revision(file.tasks),
        scorer_version=SCORER_VERSION,
        policy=digest_text(policy) if isinstance(policy, str) else None,
        agent=_settings(info.get("agent_info")),
        user=_settings(info.get("user_info")),
        max_steps=_typed(info.get("max_steps"), int),
        max_errors=_typed(info.get("max_errors"), int),
        sources=(file.path.name,),
    )


def _settings(info: object) -> Settings:
    if not isinstance(info, dict):
        return Settings()
    arguments, guidelines = info.get("llm_args"), info.get("global_simulation_guidelines")
    return Settings(
        implementation=_typed(info.get("implementation"), str),
        model=_typed(info.get("llm"), str),
        arguments=_typed(arguments, dict),
        guidelines=digest_text(guidelines) if isinstance(guidelines, str) else None,
    )


def _typed(value: object, kind: type[T]) -> T | None:
    return value if isinstance(value, kind) and not isinstance(value, bool) else None


@dataclass(frozen=True)
class ScoredSimulation:
    """One simulation with its task, score and compact record, and the invariants that it breaks.

    `check_results` holds the results of the project's own checks by id.
    """

    simulation: Simulation
    task: "Task"
    score: "Score"
    record: SimulationEvidence
    findings: "tuple[Finding, ...]" = ()
    check_results: "Mapping[str, CheckResult]" = field(default_factory=dict)


def rescore(
    file: ResultsFile,
    worlds: "Worlds",
    provider: str | None,
    judge: "Judge | None" = None,
    trace_checks: "TraceChecks | None" = None,
) -> Iterator[ScoredSimulation]:
    """Score the simulations of a file one by one, with the tasks embedded in it."""
    origin = file_provenance(file)
    world = worlds.open(provider or origin.provider, domain_of(file))
    for simulation in file.simulations:
        yield score_simulation(
            simulation,
            file.tasks[simulation.task_id],
            world,
            judge,
            trace_checks,
            solo=origin.mode.solo,
            talks=origin.is_conversational,
        )


def score_simulation(
    simulation: Simulation,
    task: "Task",
    world: "World",
    judge: "Judge | None",
    trace_checks: "TraceChecks | None",
    *,
    solo: bool,
    talks: bool,
) -> ScoredSimulation:
    """Score a simulation, and find its broken rules and checks.

    Args:
        solo: Whether no user is simulated.
        talks: Whether the agent talks, so that rules and the project's own checks apply.
    """
    from pytest_trace2evolve.scoring.invariants import breaches_in
    from pytest_trace2evolve.scoring.metrics import to_evidence
    from pytest_trace2evolve.scoring.reward import score

    result = score(simulation, task, world, judge)
    findings = breaches_in(simulation, result, world if talks else None)
    check_results = trace_checks.run(simulation, result, task, world) if trace_checks and talks else {}
    record = to_evidence(
        simulation,
        task,
        result,
        world.tool_types(),
        solo=solo,
        findings=findings,
        check_results=check_results,
    )
    return ScoredSimulation(simulation, task, result, record, findings or (), check_results)


@dataclass(frozen=True)
class ScoredFile:
    """One results file with every simulation scored again."""

    path: Path
    domain: str
    simulations: tuple[ScoredSimulation, ...]
    metrics: "Metrics"
    notes: tuple[str, ...]


def rescore_files(
    paths: Sequence[Path],
    worlds: "Worlds",
    provider: str | None,
    judge: "Judge | None",
    trace_checks: "TraceChecks | None" = None,
) -> list[ScoredFile]:
    """Read all files, so that bad input is reported at once, then score them one by one."""
    from pytest_trace2evolve.scoring.metrics import compute_metrics
    from pytest_trace2evolve.session.trace_checks import describe_check_failures

    scored_files = []
    for file in [read_results(path) for path in expand_run_folders(paths)]:
        check_copies([file])
        scored_simulations = tuple(rescore(file, worlds, provider, judge, trace_checks))
        records = [simulation.record for simulation in scored_simulations]
        notes = tuple(_score_notes(records))
        notes += tuple(
            describe_check_failures(
                (name, result, simulation.record.task_id, simulation.record.trial)
                for simulation in scored_simulations
                for name, result in simulation.check_results.items()
            )
        )
        scored_files.append(
            ScoredFile(file.path, domain_of(file), scored_simulations, compute_metrics(records), notes)
        )
    return scored_files


def _score_notes(records: Sequence[SimulationEvidence]) -> Iterator[str]:
    """Yield notes on simulations without a reward, with recorded verdicts, and without a recorded reward."""
    groups: dict[str, list[SimulationEvidence]] = {}
    for record in records:
        if record.note and record.reward is None:
            cause = record.note if record.note in (NO_JUDGE_NOTE, FULL_DUPLEX) else ""
            groups.setdefault(cause, []).append(record)
    for cause, group in groups.items():
        remedy = "; give --judge MODEL (pytest: --t2e-judge)" if cause == NO_JUDGE_NOTE else ""
        yield f"{len(group)} not scored, first {group[0].id!r}: {group[0].note}{remedy}"
    if count := sum(record.note == RECORDED_VERDICTS for record in records):
        yield f"{count} scored with {RECORDED_VERDICTS}, which --judge MODEL replaces"
    scored = [record for record in records if record.reward is not None]
    compared_count = sum(record.recorded_reward is not None for record in scored)
    if 0 < compared_count < len(scored):
        yield f"recorded: the mean over {compared_count} of {len(scored)} scored; the others record no reward"


def load_evidence(
    paths: Sequence[Path],
    worlds: "Worlds",
    provider: str | None = None,
    judge: "Judge | None" = None,
    *,
    require_one_agent: bool = False,
    split_by_suite: bool = False,
    trace_checks: "TraceChecks | None" = None,
) -> LoadedEvidence:
    """Read one candidate's evidence from results files, run folders or compact evidence.

    Results are scored once on this machine: see `session.figures`.

    Args:
        provider: The provider of the world that scores results which name no provider.
        require_one_agent: Whether all files of a side must have the same candidate and agent.
        split_by_suite: Whether files of several suites of a domain are kept apart instead of rejected.
        trace_checks: The project's own checks that measure results files.

    Raises:
        ResultsError: a path cannot be read or trusted, files of one side differ in a fact that must be
            equal, or compact evidence and results files are mixed.
    """
    paths = list(expand_run_folders(paths))
    rules = [provider, *((require_one_agent, split_by_suite) if len(paths) > 1 else ())]
    key = figures_key(paths, rules, judge, trace_checks)
    if (stored := read_figures(key, paths, worlds)) is not None:
        return stored
    sides: list[Evidence] = []
    files: list[ResultsFile] = []
    groups: dict[tuple[Mode, str | None], list[ResultsFile]] = {}

    def group_key(mode: Mode, suite: str | None) -> tuple[Mode, str | None]:
        return mode, suite if split_by_suite else None

    for path in paths:
        content = decode_results(path) if path.is_file() else None
        if is_evidence(content):
            sides.append(parse_evidence(content, path))
        else:
            file = read_results(path, content, streams=judge is None)
            files.append(file)
            groups.setdefault(group_key(mode_of(file), file_provenance(file).suite), []).append(file)
    saved = [group_key(side.provenance.mode, side.provenance.suite) for side in sides]
    for name in {*saved, *groups}:
        if saved.count(name) + (name in groups) > 1:
            raise ResultsError(
                f"two baselines of domain {name[0]} on one side; give one, or results files only"
            )
    notes: list[str] = []
    for group in groups.values():
        origin = combined_provenance(group, provider, judge, require_one_agent=require_one_agent)
        checks = trace_checks.recorded_origins if trace_checks and origin.is_conversational else None
        origin = origin.model_copy(update={"checks": checks})
        if judge is not None:  # nothing is paid for a side that does not count
            combine_results(group)
            check_copies(group)
        trials, records = TrialNumbers(), []
        seen: dict[object, str] = {}
        for file in group:
            for scored in rescore(file, worlds, provider, judge, trace_checks):
                trials.add(file.path, scored.simulation)
                check_copy(file.path, scored.simulation, seen)
                records.append(scored.record)  # the trace is dropped
        numbers, renumbering_notes = trials.numbers()
        notes += renumbering_notes
        records = [record.model_copy(update={"trial": numbers[record.id]}) for record in records]
        names = ", ".join(file.path.name for file in group)
        noted = [
            record for record in records if record.note in (NO_JUDGE_NOTE, FULL_DUPLEX, RECORDED_VERDICTS)
        ]
        notes += [f"{names}: {note}" for note in _score_notes(noted)]
        if any(record.note == RECORDED_VERDICTS for record in records):
            judges = {file_provenance(file).judge or RECORDED_VERDICTS for file in group}
            origin = origin.model_copy(update={"judge": ", ".join(sorted(judges))})
        sides.append(Evidence(provenance=origin, simulations=tuple(records)))
    loaded = LoadedEvidence(
        sides=tuple(sides),
        notes=tuple(notes),
        files=tuple((file.path, file.run) for file in files),
        providers=tuple({provider or file_provenance(file).provider: None for file in files}),
    )
    if len(files) == len(paths) and key == figures_key(paths, rules, judge, trace_checks):  # no file changed
        store_figures(key, loaded, worlds)
    return loaded


def combined_provenance(
    files: Sequence[ResultsFile],
    provider: str | None = None,
    judge: "Judge | None" = None,
    *,
    require_one_agent: bool = False,
) -> Provenance:
    """Return the common provenance of one side's files, as scored by the current scorer and `judge`.

    Raises:
        ResultsError: two files differ in a fact that must be equal; the message names both.
    """
    from pytest_trace2evolve.gate.comparable import agent_differences, provenance_differences

    scoring_fields = {
        "scorer_version": SCORER_VERSION,
        "judge": getattr(judge, "model", None),
        "checks": None,  # all files are measured by the same checks
    }
    origins = []
    for file in files:
        has_own_block = isinstance(file.info.get(OWN_BLOCK_KEY), dict)
        provider_fields = {} if has_own_block or provider is None else {"provider": provider}
        origins.append(file_provenance(file).model_copy(update={**scoring_fields, **provider_fields}))
    for file, origin in zip(files[1:], origins[1:], strict=True):
        problems = list(provenance_differences(origins[0], origin))
        if require_one_agent:
            problems += agent_differences(origins[0], origin)
        if problems:
            raise ResultsError(
                f"{files[0].path} and {file.path} cannot form one side: {'; '.join(problems)}; "
                "compare them separately"
            )
    return origins[0].model_copy(update={"sources": tuple(file.path.name for file in files)})


@dataclass(frozen=True)
class RecordedRuns:
    """The recorded simulations of one candidate in one domain and mode, by task id.

    Each simulation has its task as the same file records it.
    """

    by_task: "Mapping[str, list[tuple[Simulation, Task]]]"
    files: tuple[ResultsFile, ...]
    notes: tuple[str, ...]


def read_replays(paths: Sequence[Path]) -> dict[Mode, RecordedRuns]:
    """Read recorded runs by domain and mode; files that share both must belong to one candidate."""
    from pytest_trace2evolve.evidence.run_folder import to_safe_id

    groups: dict[Mode, list[ResultsFile]] = {}
    for path in expand_run_folders(paths):
        file = read_results(path)
        groups.setdefault(mode_of(file), []).append(file)
    runs_by_mode = {}
    for mode, files in groups.items():
        simulations, notes = combine_results(files)
        check_copies(files)
        combined_provenance(files)  # raises if the files are not of one side
        tasks_by_id = {
            simulation.id: file.tasks[simulation.task_id] for file in files for simulation in file.simulations
        }
        by_task: dict[str, list[tuple[Simulation, Task]]] = {}
        for simulation in simulations:
            safe_simulation = simulation.model_copy(update={"id": to_safe_id(simulation.id)})
            recorded = safe_simulation, tasks_by_id[simulation.id]
            by_task.setdefault(simulation.task_id, []).append(recorded)
        runs_by_mode[mode] = RecordedRuns(by_task, tuple(files), notes)
    return runs_by_mode


def check_replayed_candidate(recorded_runs: Mapping[Mode, RecordedRuns], candidate: "Candidate") -> None:
    """Check that every recorded run is of this candidate in its current version.

    Runs that name no candidate are accepted unless the candidate has an adapter.
    """
    for file in (file for runs in recorded_runs.values() for file in runs.files):
        ref = file_provenance(file).candidate
        if ref is None and not candidate.adapter:
            continue
        if ref is None or ref.digest != candidate.digest:
            owner = "an unknown candidate" if ref is None else f"candidate {ref.id!r}"
            if ref is not None and ref.id == candidate.id:
                owner = f"an earlier version of candidate {ref.id!r}"
            raise ResultsError(
                f"{file.path}: was recorded with {owner}, but --t2e-results must hold runs of candidate "
                f"{candidate.id!r}{' with its current weights' if candidate.adapter else ''}; run it live"
            )


def check_replayed_suites(
    recorded_runs: Mapping[Mode, RecordedRuns], suites: Sequence["Suite"], *, require_all_suites: bool
) -> None:
    """Check that every replayed file belongs to a selected suite; optionally, that every suite has one."""
    for mode, runs in recorded_runs.items():
        if mode not in {suite.mode for suite in suites}:
            files = ", ".join(str(file.path) for file in runs.files)
            suite_text = (
                ", ".join(f"{suite.name} ({suite.mode.short_text})" for suite in suites)
                or "none of this domain"
            )
            remedy = "; they need a suite with solo = true" if mode.solo else ""
            raise ResultsError(
                f"{files}: holds results of domain {mode}, but the selected suites are {suite_text}{remedy}"
            )
    for suite in suites:
        if recorded_runs and require_all_suites and suite.mode not in recorded_runs:
            raise ResultsError(
                f"suite {suite.name!r} has domain {suite.mode}, but no --t2e-results file has it; "
                f"the files have {', '.join(mode.short_text for mode in recorded_runs)}"
            )
