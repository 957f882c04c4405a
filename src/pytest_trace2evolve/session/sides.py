"""Evidence from whatever a user names: results files, run folders, baselines."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from pytest_trace2evolve.errors import ResultsError
from pytest_trace2evolve.evidence.baselines import is_evidence, parse_evidence
from pytest_trace2evolve.evidence.results import OWN_BLOCK, ResultsFile, combine, decode, read_results
from pytest_trace2evolve.gate.comparable import agent_differences, differences
from pytest_trace2evolve.records.evidence import Evidence, Mode, Provenance, Settings, SimulationEvidence
from pytest_trace2evolve.records.protocols import Judge, rules_of
from pytest_trace2evolve.records.rules import Finding
from pytest_trace2evolve.records.score import Score
from pytest_trace2evolve.records.task import Task
from pytest_trace2evolve.records.trace import Simulation
from pytest_trace2evolve.scoring.invariants import breaches_in
from pytest_trace2evolve.scoring.metrics import as_evidence
from pytest_trace2evolve.scoring.reward import SCORER_VERSION, score
from pytest_trace2evolve.utils.canonical import digest_text
from pytest_trace2evolve.utils.reading import problem_in
from pytest_trace2evolve.worlds.registry import DEFAULT_PROVIDER, Worlds


@dataclass(frozen=True)
class Scored:
    """One simulation with its task, score and compact record, and what breaks an invariant in it."""

    simulation: Simulation
    task: Task
    score: Score
    record: SimulationEvidence
    found: tuple[Finding, ...] = ()


def expand(paths: Iterable[Path]) -> Iterator[Path]:
    """Run folders of several suites as the results folders inside them; any other path as itself."""
    for path in paths:
        inside: list[Path] = []
        if path.is_dir() and not (path / "results.json").exists():
            inside = sorted(folder.parent for folder in path.glob("*/results.json"))
        yield from inside or [path]


def rescore(
    file: ResultsFile, worlds: Worlds, provider: str | None, judge: Judge | None = None
) -> list[Scored]:
    """Score every simulation of a file with the tasks embedded in it.

    Raises:
        ResultsError: the file names no domain.
        WorldError: the provider has no such domain.
    """
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
        scored.append(Scored(simulation, task, result, record, found or ()))
    return scored


def domain_of(file: ResultsFile) -> str:
    """The file's domain.

    Raises:
        ResultsError: it names none.
    """
    if file.domain is None:
        raise ResultsError(
            f"{file.path}: names no domain in info.environment_info or in its tasks' scenarios"
        )
    return file.domain


def mode_of(file: ResultsFile) -> Mode:
    """The file's domain, and whether its runs were solo: tau2 then records a dummy as the user.

    Raises:
        ResultsError: it names no domain, or our own block in it is damaged.
    """
    return Mode(domain_of(file), provenance(file).mode.solo)


def provenance(file: ResultsFile) -> Provenance:
    """Where a results file comes from: our own block where it has one, else what tau2 recorded."""
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
        max_steps=_number(info.get("max_steps")),
        max_errors=_number(info.get("max_errors")),
        sources=(file.path.name,),
    )


def origin_of(
    files: Sequence[ResultsFile],
    provider: str | None = None,
    judge: Judge | None = None,
    one_agent: bool = False,
) -> Provenance:
    """Where the files of one side come from, scored again as they are: by today's scorer and `judge`.

    Args:
        files: Results files of one domain and mode.
        provider: Whose world they are scored on, where they do not say whose they ran on.
        judge: Judge of natural-language assertions.
        one_agent: Whether candidate and agent must agree too.

    Raises:
        ResultsError: two of them differ in what one side must agree in; names both files and values.
    """
    again = {"scorer_version": SCORER_VERSION, "judge": getattr(judge, "model", None)}
    origins = []
    for file in files:
        says_its_own = isinstance(file.info.get(OWN_BLOCK), dict)
        named = {} if says_its_own or provider is None else {"provider": provider}
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


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


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


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def load_sides(
    paths: Sequence[Path],
    worlds: Worlds,
    provider: str | None = None,
    judge: Judge | None = None,
    one_agent: bool = False,
    by_suite: bool = False,
    on_file: Callable[[ResultsFile], None] | None = None,
) -> tuple[list[Evidence], tuple[str, ...]]:
    """One candidate's evidence from several paths, one `Evidence` a domain and mode.

    Args:
        paths: Results files, run folders, or compact evidence.
        worlds: Where domains are opened.
        provider: Whose world they are scored on, where they do not say.
        judge: Judge of natural-language assertions.
        one_agent: Whether candidate and agent of a side must agree.
        by_suite: Whether files of several suites of a domain are kept apart instead of refused.
        on_file: Called with each results file that was read.

    Returns:
        The evidence, and notes on what was renumbered.

    Raises:
        ResultsError: a path cannot be read or trusted, or compact evidence and results files are mixed.
        WorldError: a domain cannot be opened.
    """
    compact: list[Evidence] = []
    files: dict[tuple[Mode, str | None], list[ResultsFile]] = {}

    def side_of(mode: Mode, suite: str | None) -> tuple[Mode, str | None]:
        return mode, suite if by_suite else None

    for path in expand(paths):
        record = decode(path) if path.is_file() else None
        if is_evidence(record):
            compact.append(parse_evidence(record, path))
            continue
        file = read_results(path)
        files.setdefault(side_of(mode_of(file), provenance(file).suite), []).append(file)
        if on_file is not None:
            on_file(file)
    sides = [side_of(one.provenance.mode, one.provenance.suite) for one in compact]
    for side in {*sides, *files}:
        if sides.count(side) + (side in files) > 1:
            raise ResultsError(
                f"two baselines of domain {side[0]} on one side; give one, or results files only"
            )
    notes: list[str] = []
    for group in files.values():
        evidence, told = evidence_of(group, worlds, provider, judge, one_agent)
        compact.append(evidence)
        notes.extend(told)
    return compact, tuple(notes)


def evidence_of(
    files: Sequence[ResultsFile],
    worlds: Worlds,
    provider: str | None = None,
    judge: Judge | None = None,
    one_agent: bool = False,
) -> tuple[Evidence, tuple[str, ...]]:
    """One candidate's evidence from its results files of one domain and mode, scored again.

    Raises:
        ResultsError: two files differ in what one side must agree in.
        WorldError: the domain cannot be opened.
    """
    simulations, notes = combine(files)
    origin = origin_of(files, provider, judge, one_agent)
    trial = {simulation.id: simulation.trial or 0 for simulation in simulations}
    records = [
        scored.record.model_copy(update={"trial": trial[scored.simulation.id]})
        for file in files
        for scored in rescore(file, worlds, provider, judge)
    ]
    return Evidence(provenance=origin, simulations=tuple(records)), notes


def only(evidence: Evidence, task_ids: Iterable[str]) -> Evidence:
    """The part of evidence that concerns some tasks."""
    wanted = set(task_ids)
    kept = tuple(record for record in evidence.simulations if record.task_id in wanted)
    return evidence.model_copy(update={"simulations": kept})
