"""Evidence that a user names: results files, run folders, compact evidence, and runs to replay.

The current scorer scores results files again when they are read. Compact evidence is used unchanged.
Functions that compare files import the gate themselves, because scoring a file does not need it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from pytest_trace2evolve.errors import ResultsError
from pytest_trace2evolve.evidence.baselines import is_evidence, parse_evidence
from pytest_trace2evolve.evidence.results import OWN_BLOCK, ResultsFile, combine, decode, read_results
from pytest_trace2evolve.records.evidence import Evidence, Mode, Provenance, Settings, SimulationEvidence
from pytest_trace2evolve.records.protocols import Judge, rules_of
from pytest_trace2evolve.records.rules import Finding
from pytest_trace2evolve.records.score import Score
from pytest_trace2evolve.records.task import Task
from pytest_trace2evolve.records.trace import Simulation
from pytest_trace2evolve.scoring.invariants import breaches_in
from pytest_trace2evolve.scoring.metrics import Metrics, as_evidence, metrics
from pytest_trace2evolve.scoring.reward import SCORER_VERSION, score
from pytest_trace2evolve.utils.canonical import digest_text
from pytest_trace2evolve.utils.reading import problem_in
from pytest_trace2evolve.worlds.registry import DEFAULT_PROVIDER, Worlds

if TYPE_CHECKING:
    from pytest_trace2evolve.project.candidates import Candidate
    from pytest_trace2evolve.project.suites import Suite


def path_exists(path: Path) -> bool:
    """Whether something exists at a path; False for a text that cannot be a path (too long, holds NUL)."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def expand(paths: Iterable[Path]) -> Iterator[Path]:
    """Replace each run folder of several suites by the results folders inside, and keep all other paths."""
    for path in paths:
        inside: list[Path] = []
        if path.is_dir() and not (path / "results.json").exists():
            inside = sorted(folder.parent for folder in path.glob("*/results.json"))
        yield from inside or [path]


def domain_of(file: ResultsFile) -> str:
    """The file's domain; raises `ResultsError` if the file names none."""
    if file.domain is None:
        raise ResultsError(
            f"{file.path}: names no domain in info.environment_info or in its tasks' scenarios"
        )
    return file.domain


def mode_of(file: ResultsFile) -> Mode:
    """The file's domain, and whether its runs were solo, for which tau2 records a dummy user."""
    return Mode(domain_of(file), provenance(file).mode.solo)


def provenance(file: ResultsFile) -> Provenance:
    """The provenance of a results file, from this package's block if present, else from tau2's fields."""
    info = file.info
    own = info.get(OWN_BLOCK)
    if isinstance(own, dict):
        try:
            return Provenance.model_validate(own)
        except ValidationError as error:
            raise ResultsError(f"{file.path}: damaged at info.{OWN_BLOCK}.{problem_in(error)}") from None
    environment = info.get("environment_info")
    policy = environment.get("policy") if isinstance(environment, dict) else None
    return Provenance(
        domain=domain_of(file),
        provider=DEFAULT_PROVIDER,
        scorer_version=SCORER_VERSION,
        policy=digest_text(policy) if isinstance(policy, str) else None,
        agent=_settings(info.get("agent_info")),
        user=_settings(info.get("user_info")),
        max_steps=_integer(info.get("max_steps")),
        max_errors=_integer(info.get("max_errors")),
        sources=(file.path.name,),
    )


def _settings(info: object) -> Settings:
    if not isinstance(info, dict):
        return Settings()
    arguments, guidelines = info.get("llm_args"), info.get("global_simulation_guidelines")
    return Settings(
        implementation=_text(info.get("implementation")),
        model=_text(info.get("llm")),
        arguments=arguments if isinstance(arguments, dict) else None,
        guidelines=digest_text(guidelines) if isinstance(guidelines, str) else None,
    )


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


@dataclass(frozen=True)
class ScoredSimulation:
    """One simulation with its task, score and compact record, and the invariants that it breaks."""

    simulation: Simulation
    task: Task
    score: Score
    record: SimulationEvidence
    found: tuple[Finding, ...] = ()


def rescore(
    file: ResultsFile, worlds: Worlds, provider: str | None, judge: Judge | None = None
) -> list[ScoredSimulation]:
    """Score every simulation of a file with the tasks embedded in it."""
    domain, origin = domain_of(file), provenance(file)
    world = worlds.open(provider or origin.provider, domain)
    types = world.tool_types()
    rules = rules_of(world) if origin.conversational else None
    scored = []
    for simulation in file.simulations:
        task = file.tasks[simulation.task_id]
        result = score(simulation, task, world, judge)
        found = breaches_in(simulation, result, rules)
        record = as_evidence(simulation, task, result, types, solo=origin.mode.solo, found=found)
        scored.append(ScoredSimulation(simulation, task, result, record, found or ()))
    return scored


@dataclass(frozen=True)
class ScoredFile:
    """One results file with every simulation scored again."""

    path: Path
    domain: str
    scored: tuple[ScoredSimulation, ...]
    metrics: Metrics
    notes: tuple[str, ...]


def rescore_files(
    paths: Sequence[Path], worlds: Worlds, provider: str | None, judge: Judge | None
) -> list[ScoredFile]:
    """Read all files, so that bad input is reported at once, then score them one by one."""
    found = []
    for file in [read_results(path) for path in expand(paths)]:
        scored = rescore(file, worlds, provider, judge)
        records = [simulation.record for simulation in scored]
        unclear = [record for record in records if record.note and record.reward is None]
        notes = [f"{len(unclear)} not scored, first {unclear[0].id!r}: {unclear[0].note}"] if unclear else []
        found.append(ScoredFile(file.path, domain_of(file), tuple(scored), metrics(records), tuple(notes)))
    return found


@dataclass(frozen=True)
class LoadedEvidence:
    """One candidate's evidence, with one `Evidence` for each domain and mode.

    Attributes:
        sides: The evidence.
        notes: Notes on renumbered trials.
        files: The results files from which the evidence was scored.
    """

    sides: tuple[Evidence, ...]
    notes: tuple[str, ...]
    files: tuple[ResultsFile, ...]


def load_evidence(
    paths: Sequence[Path],
    worlds: Worlds,
    provider: str | None = None,
    judge: Judge | None = None,
    *,
    one_agent: bool = False,
    by_suite: bool = False,
) -> LoadedEvidence:
    """Read one candidate's evidence from results files, run folders or compact evidence.

    Args:
        provider: The provider of the world that scores results which name no provider.
        one_agent: Whether all files of a side must have the same candidate and agent.
        by_suite: Whether files of several suites of a domain are kept apart instead of rejected.

    Raises:
        ResultsError: a path cannot be read or trusted, files of one side differ in a fact that must be
            equal, or compact evidence and results files are mixed.
    """
    sides: list[Evidence] = []
    groups: dict[tuple[Mode, str | None], list[ResultsFile]] = {}

    def key_of(mode: Mode, suite: str | None) -> tuple[Mode, str | None]:
        return mode, suite if by_suite else None

    for path in expand(paths):
        record = decode(path) if path.is_file() else None
        if is_evidence(record):
            sides.append(parse_evidence(record, path))
        else:
            file = read_results(path, record)
            groups.setdefault(key_of(mode_of(file), provenance(file).suite), []).append(file)
    keys = [key_of(side.provenance.mode, side.provenance.suite) for side in sides]
    for key in {*keys, *groups}:
        if keys.count(key) + (key in groups) > 1:
            raise ResultsError(
                f"two baselines of domain {key[0]} on one side; give one, or results files only"
            )
    notes: list[str] = []
    for group in groups.values():
        simulations, renumbered = combine(group)
        notes += renumbered
        origin = combined_provenance(group, provider, judge, one_agent=one_agent)
        trial = {simulation.id: simulation.trial or 0 for simulation in simulations}
        records = [
            scored.record.model_copy(update={"trial": trial[scored.simulation.id]})
            for file in group
            for scored in rescore(file, worlds, provider, judge)
        ]
        sides.append(Evidence(provenance=origin, simulations=tuple(records)))
    files = tuple(file for group in groups.values() for file in group)
    return LoadedEvidence(tuple(sides), tuple(notes), files)


def combined_provenance(
    files: Sequence[ResultsFile],
    provider: str | None = None,
    judge: Judge | None = None,
    *,
    one_agent: bool = False,
) -> Provenance:
    """The common provenance of one side's files, as scored by the current scorer and `judge`.

    Raises:
        ResultsError: two files differ in a fact that must be equal; the message names both.
    """
    from pytest_trace2evolve.gate.comparable import agent_differences, differences

    again = {"scorer_version": SCORER_VERSION, "judge": getattr(judge, "model", None)}
    origins = []
    for file in files:
        has_own_block = isinstance(file.info.get(OWN_BLOCK), dict)
        named = {} if has_own_block or provider is None else {"provider": provider}
        origins.append(provenance(file).model_copy(update={**again, **named}))
    for file, origin in zip(files[1:], origins[1:], strict=True):
        found = list(differences(origins[0], origin))
        if one_agent:
            found += agent_differences(origins[0], origin)
        if found:
            raise ResultsError(
                f"{files[0].path} and {file.path} cannot be one side: {'; '.join(found)}; compare them apart"
            )
    return origins[0].model_copy(update={"sources": tuple(file.path.name for file in files)})


@dataclass(frozen=True)
class RecordedSimulation:
    """One recorded simulation, with its task as the same file records it."""

    simulation: Simulation
    task: Task


@dataclass(frozen=True)
class RecordedRuns:
    """The recorded simulations of one candidate in one domain and mode, by task id."""

    by_task: Mapping[str, list[RecordedSimulation]]
    files: tuple[ResultsFile, ...]
    notes: tuple[str, ...]


def read_replays(paths: Sequence[Path]) -> dict[Mode, RecordedRuns]:
    """Read recorded runs by domain and mode; files that share both must belong to one candidate."""
    from pytest_trace2evolve.evidence.run_folder import safe_id

    groups: dict[Mode, list[ResultsFile]] = {}
    for path in expand(paths):
        file = read_results(path)
        groups.setdefault(mode_of(file), []).append(file)
    found = {}
    for mode, files in groups.items():
        simulations, notes = combine(files)
        combined_provenance(files)  # raises if the files are not of one side
        ran = {
            simulation.id: file.tasks[simulation.task_id] for file in files for simulation in file.simulations
        }
        by_task: dict[str, list[RecordedSimulation]] = {}
        for simulation in simulations:
            safe = simulation.model_copy(update={"id": safe_id(simulation.id)})
            recorded = RecordedSimulation(safe, ran[simulation.id])
            by_task.setdefault(simulation.task_id, []).append(recorded)
        found[mode] = RecordedRuns(by_task, tuple(files), notes)
    return found


def check_replayed_candidate(recorded: Mapping[Mode, RecordedRuns], candidate: "Candidate") -> None:
    """Check that every recorded run is of this candidate in its current version.

    Runs that name no candidate are accepted unless the candidate has an adapter.
    """
    for file in (file for group in recorded.values() for file in group.files):
        ref = provenance(file).candidate
        if ref is None and not candidate.adapter:
            continue
        if ref is None or ref.digest != candidate.digest:
            whose = "no candidate that is known" if ref is None else f"candidate {ref.id!r}"
            if ref is not None and ref.id == candidate.id:
                whose = f"an earlier version of candidate {ref.id!r}"
            raise ResultsError(
                f"{file.path}: is of {whose}, and --t2e-results gives candidate {candidate.id!r} only what "
                f"it said itself{', with the weights that it has' if candidate.adapter else ''}: run it live"
            )


def check_replayed_suites(
    recorded: Mapping[Mode, RecordedRuns], suites: Sequence["Suite"], *, suites_named: bool
) -> None:
    """Check that every replayed file belongs to a selected suite, and that every named suite gets one."""
    for mode, group in recorded.items():
        if mode not in {suite.mode for suite in suites}:
            files = ", ".join(str(file.path) for file in group.files)
            has = ", ".join(f"{suite.name} ({suite.mode.brief})" for suite in suites) or "none of this domain"
            remedy = "; a suite with solo = true takes them" if mode.solo else ""
            raise ResultsError(
                f"{files}: results of domain {mode}, and the selected suites are {has}{remedy}"
            )
    for suite in suites:
        if recorded and suites_named and suite.mode not in recorded:
            raise ResultsError(
                f"suite {suite.name!r} is of domain {suite.mode}, and no --t2e-results file is; "
                f"they hold {', '.join(mode.brief for mode in recorded)}"
            )
