"""What a run is about: candidate, suites, agents and policy, and what of the options contradicts what."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_trace2evolve.errors import ConfigError, nearest
from pytest_trace2evolve.evidence.cassettes import Cassette
from pytest_trace2evolve.evidence.saving import require_name
from pytest_trace2evolve.gate.judgement import Policy
from pytest_trace2evolve.gate.policy import DEFAULT_POLICY
from pytest_trace2evolve.gate.strict import Check
from pytest_trace2evolve.models.prices import PRICES_NAME
from pytest_trace2evolve.project.candidates import DEFAULT_CANDIDATE, Candidate
from pytest_trace2evolve.project.policies import find_policy
from pytest_trace2evolve.project.project import LockedSuite, Project
from pytest_trace2evolve.project.suites import Suite
from pytest_trace2evolve.records.evidence import Mode
from pytest_trace2evolve.session.live import CHAT
from pytest_trace2evolve.session.plan import REPLAY, Options
from pytest_trace2evolve.session.sources import (
    RecordedRuns,
    check_replayed_candidate,
    check_replayed_suites,
    read_replays,
)
from pytest_trace2evolve.session.stages import refuse_unstaged
from pytest_trace2evolve.session.talking import Talkers
from pytest_trace2evolve.worlds.registry import Worlds


@dataclass(frozen=True)
class Chosen:
    """What a run is about, once what the user asked for was held against itself and the project.

    Attributes:
        options: What was asked for, with who talks settled.
        lineage: The candidate and its ancestors.
        policy: The gate's; None where it is off.
        suites: Those that take part.
        agents: By suite, the name of its agent; empty where items are only listed.
        recorded: What is replayed, by domain and mode.
        talkers: Who would talk for another candidate.
        notes: What the user should know.
    """

    options: Options
    lineage: tuple[Candidate, ...]
    policy: Policy | None
    suites: tuple[LockedSuite, ...]
    agents: Mapping[str, str]
    recorded: Mapping[Mode, RecordedRuns]
    talkers: Talkers
    notes: tuple[str, ...]

    @property
    def candidate(self) -> Candidate:
        """Whose run it is."""
        return self.lineage[0]


def choose(
    options: Options,
    project: Project,
    worlds: Worlds,
    *,
    suite_names: Sequence[str],
    agents: Sequence[str],
    checks: Mapping[str, Check] | None,
    listing: bool,
    verify: bool,
) -> Chosen:
    """Settle what a run is about; see `planner.make_plan`, whose arguments these are.

    Args:
        verify: Whether the suites' locks are held against their worlds.

    Raises:
        ConfigError: anything the user wrote is wrong.
        ResultsError: a replay cannot be trusted, or does not belong to a selected suite or the candidate.
        WorldError: a world cannot be opened.
    """
    _refuse_contradictions(options)
    _refuse_unpriced(options, project)
    if options.stages:
        refuse_unstaged(options)
    lineage = tuple(project.candidates.lineage(options.candidate or DEFAULT_CANDIDATE))
    policy = None if options.gate == "off" else find_policy(options.gate or DEFAULT_POLICY, project, checks)
    recorded = read_replays(options.replays)
    suites = _select(options, project, suite_names, recorded)
    check_replayed_suites(recorded, suites, suites_named=bool(options.suites))
    check_replayed_candidate(recorded, lineage[0])
    notes = [note for group in recorded.values() for note in group.notes]
    if not listing:
        options, served = with_embedded(options, suites)
        notes += _left_out(suites, served)
        suites = served
    talkers = Talkers(options.live, project.adapters)
    if not listing and not options.replays:
        options = replace(options, live=talkers.of(lineage[0]))
        _refuse_routes(options, suites)
    talks = {one.name: "" if listing else _agent(options, one, agents, recorded) for one in suites}
    return Chosen(
        options=options,
        lineage=lineage,
        policy=policy,
        suites=tuple(_locked(suite, project, worlds, verify=verify) for suite in suites),
        agents=talks,
        recorded=recorded,
        talkers=talkers,
        notes=tuple(notes),
    )


def _refuse_routes(options: Options, suites: Sequence[Suite]) -> None:
    if options.live is not None and options.live.each_turn and options.live.routes is None:
        raise ConfigError("--t2e-route says nothing where no candidate is routed: --candidate ID+routed")
    solo = next((suite.name for suite in suites if suite.solo), None)
    if solo is not None and options.live is not None and options.live.routes is not None:
        raise ConfigError(
            f"suite {solo!r} is a solo suite, and a router reads how a customer opens; leave it out, or name "
            "one adapter"
        )


def _refuse_contradictions(options: Options) -> None:
    if options.save_baseline is not None:
        require_name(options.save_baseline, "--t2e-save-baseline")
    if options.baseline_mode is not None and options.save_baseline is None:
        raise ConfigError("--t2e-baseline-mode says nothing without --t2e-save-baseline")
    if options.replays and options.trials is not None:
        raise ConfigError(
            "--t2e-trials does not go with --t2e-replay, which uses the trials that the files hold"
        )
    if options.live is not None:
        given = "--t2e-playback" if options.live.cassette is not None else "--t2e-model"
        if options.replays and options.live.cassette is not None:
            raise ConfigError("--t2e-playback runs simulations and --t2e-replay none: give one of them")
        if options.replays:
            raise ConfigError("--t2e-model talks to a model and --t2e-replay to none: give one of them")
        if options.agent not in (None, CHAT):
            raise ConfigError(f"{given} is for agent {CHAT!r}: agent {options.agent!r} does not go with it")
    if options.live is None and options.agent == CHAT:
        raise ConfigError(f"agent {CHAT!r} needs a model: give --t2e-model")
    if options.replays and options.agent not in (None, REPLAY):
        raise ConfigError(f"--t2e-replay replays recorded runs: agent {options.agent!r} does not go with it")


def _refuse_unpriced(options: Options, project: Project) -> None:
    if options.live is None or options.budgets.cost is None:
        return
    for model in (options.live.agent, options.live.user):
        if model.price is None:
            raise ConfigError(
                f"--t2e-max-cost needs the price of model {model.model!r}: "
                f"add it to {project.root / PRICES_NAME}"
            )


def _locked(suite: Suite, project: Project, worlds: Worlds, *, verify: bool) -> LockedSuite:
    lock = project.locked(suite, worlds)
    if verify:
        project.verify_world(suite, lock, worlds)
    return LockedSuite(suite, project.suite_path(suite.name), lock)


def _select(
    options: Options, project: Project, names: Sequence[str], recorded: Mapping[Mode, RecordedRuns]
) -> list[Suite]:
    for name in options.suites:
        project.suite_path(name)
    wanted = [name for name in names if not options.suites or name in options.suites]
    suites = [project.suite(name) for name in wanted]
    if options.live is not None and options.live.cassette is not None:
        return _played_suites(suites, options.live.cassette, named=bool(options.suites))
    if recorded and not options.suites:
        return [suite for suite in suites if suite.mode in recorded]
    return suites


def _played_suites(suites: Sequence[Suite], cassette: Cassette, *, named: bool) -> list[Suite]:
    """The suites that a cassette holds; those that were named must be among them."""
    held = cassette.header.suites
    absent = [suite.name for suite in suites if suite.name not in held]
    if absent and (named or len(absent) == len(suites)):
        raise ConfigError(
            f"cassette {cassette.path} was recorded without suite {absent[0]!r}; it holds {', '.join(held)}"
        )
    return [suite for suite in suites if suite.name in held]


def _agent(
    options: Options, suite: Suite, agents: Sequence[str], recorded: Mapping[Mode, RecordedRuns]
) -> str:
    if suite.mode in recorded:
        return REPLAY
    name = CHAT if options.live else options.agent or options.default_agent or suite.default_agent
    if name is None:
        raise ConfigError(
            f"suite {suite.name!r} has no agent: give --t2e-model, --t2e-agent or --t2e-replay, "
            f"or a default_agent in {suite.name}.toml"
        )
    if name == REPLAY:
        raise ConfigError("agent 'replay' needs recorded runs: give --t2e-replay PATH")
    if name not in agents:
        raise ConfigError(f"unknown agent {name!r}; {nearest(name, [*agents, REPLAY])}")
    return name


def with_embedded(options: Options, suites: Sequence[Suite]) -> tuple[Options, list[Suite]]:
    """The embedded model talks if no agent is named, to customers who follow a script.

    Returns:
        The options with that model, and the suites whose customers do; without suites only cases are run,
        whose customers all do. Both are as before if it does not talk, because a suite names an agent or was
        named itself and its customers need a model.
    """
    if options.embedded is not None and not suites:
        return replace(options, live=options.embedded), []
    if options.embedded is not None and not any(suite.default_agent for suite in suites):
        served = [suite for suite in suites if suite.scripted]
        if served and (len(served) == len(suites) or not options.suites):
            return replace(options, live=options.embedded), served
    if options.embedded is not None and options.unheard:
        raise ConfigError(f"{options.unheard} says nothing without --t2e-model")
    return options, list(suites)


def _left_out(suites: Sequence[Suite], served: Sequence[Suite]) -> list[str]:
    names = [suite.name for suite in suites if suite not in served]
    return (
        [f"left out, since their customers need a model (--t2e-model): {', '.join(names)}"] if names else []
    )
