"""Makes the plan of a run: validates its options and fixes all settings before the first simulation."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

from pytest_trace2evolve.engine.factories import BUILT_IN_AGENTS, identify, takes_solo
from pytest_trace2evolve.errors import ConfigError, nearest
from pytest_trace2evolve.evidence.cassettes import Cassette
from pytest_trace2evolve.evidence.results import SIMULATIONS
from pytest_trace2evolve.evidence.saving import SaveMode, Saving, require_name, settle
from pytest_trace2evolve.gate.policy import DEFAULT_POLICY
from pytest_trace2evolve.gate.protocols import Check
from pytest_trace2evolve.models.prices import PRICES_NAME, read_prices
from pytest_trace2evolve.project.candidates import DEFAULT_CANDIDATE, AgentFactory, Candidate
from pytest_trace2evolve.project.lock import LOCK_NAME
from pytest_trace2evolve.project.policies import find_policy
from pytest_trace2evolve.project.project import LockedSuite, Project
from pytest_trace2evolve.project.suites import Suite
from pytest_trace2evolve.records.evidence import CHAT, REPLAY, Identity, Mode
from pytest_trace2evolve.records.protocols import Judge
from pytest_trace2evolve.records.task import natural_order
from pytest_trace2evolve.records.verdict import Goal
from pytest_trace2evolve.session.baselines import find_baselines
from pytest_trace2evolve.session.candidate_models import models_of
from pytest_trace2evolve.session.cassettes import check_recordable, possible_gaps, recording
from pytest_trace2evolve.session.confirmation import BaselineSides, how_to_confirm
from pytest_trace2evolve.session.evidence_sources import (
    RecordedRuns,
    check_replayed_candidate,
    check_replayed_suites,
    read_replays,
)
from pytest_trace2evolve.session.plan import Options, Plan, PlannedSuite, records_by_task
from pytest_trace2evolve.utils.canonical import digest_text
from pytest_trace2evolve.worlds.registry import Worlds


@dataclass(frozen=True)
class Resources:
    """The worlds, agents and checks that a project and its plugins offer to a run.

    Attributes:
        agents: Factories of agents by name, except agent `chat`.
        checks: Further checks that a policy may name, by id.
    """

    project: Project
    worlds: Worlds = field(default_factory=Worlds)
    agents: Mapping[str, AgentFactory] = field(default_factory=lambda: dict(BUILT_IN_AGENTS))
    checks: Mapping[str, Check] = field(default_factory=dict)

    @property
    def agent_names(self) -> list[str]:
        """The names of all agents that can make simulations."""
        return sorted({*self.agents, CHAT})


def resources_of(project: Project) -> Resources:
    """The resources of a project, including those from hooks of its `conftest.py` and plugins.

    Raises:
        ConfigError: a hook is invalid.
    """
    extensions = project.extensions
    agents = {**BUILT_IN_AGENTS, **extensions.agents}
    return Resources(project, Worlds(extensions.worlds), agents, extensions.checks)


def make_plan(
    options: Options,
    resources: Resources,
    *,
    suite_names: Sequence[str],
    judge: Judge | None = None,
    listing: bool = False,
    is_worker: bool = False,
) -> Plan:
    """Validate the options of a run and make its plan.

    Args:
        options: The options of the run.
        resources: The resources of the project.
        suite_names: The suites that may take part, before `options` narrows them.
        judge: Judge of natural-language assertions.
        listing: Whether items are only listed. Locks are then not compared with worlds, and no agent is
            needed.
        is_worker: Whether another process has begun the run. The run folder is then in use already.

    Raises:
        ConfigError: an option or a file of the user is invalid.
        ResultsError: a replay or baseline cannot be trusted, or does not belong to a selected suite.
        WorldError: a world cannot be opened.
    """
    project, worlds = resources.project, resources.worlds
    _check_options(options)
    _check_prices(options, project)
    lineage = tuple(project.candidates.lineage(options.candidate or DEFAULT_CANDIDATE))
    candidate = lineage[0]
    policy = None
    if options.gate != "off":
        policy = find_policy(options.gate or DEFAULT_POLICY, project, resources.checks)
    recorded = read_replays(options.replays)
    selected = _select(options, project, suite_names, recorded)
    check_replayed_suites(recorded, selected, suites_named=bool(options.suites))
    check_replayed_candidate(recorded, candidate)
    notes = [note for group in recorded.values() for note in group.notes]
    if not listing:
        options, served = with_embedded(options, selected)
        if left_out := [suite.name for suite in selected if suite not in served]:
            notes.append(f"left out, since their customers need a model (--t2e-model): {', '.join(left_out)}")
        selected = served
    plain = options.live
    if not listing and not options.replays:
        options = replace(options, live=models_of(candidate, plain, project.adapters))
        _check_routes(options, selected)
    names = resources.agent_names
    agents = {suite.name: "" if listing else _agent(options, suite, names, recorded) for suite in selected}
    suites = [_locked(suite, resources, verify=not listing) for suite in selected]
    _check_solo(suites, agents, resources.agents)

    started = datetime.now(UTC).isoformat(timespec="seconds")
    run_id = f"{started[:19].replace(':', '')}-{candidate.id}-{uuid4().hex[:6]}"
    run_folder = options.run_folder or project.runs_folder / run_id
    stages = [f"stage-{number + 1}" for number in range(len(options.stages))]
    stage_folders = [
        run_folder / name if options.run_folder else run_folder.with_name(f"{run_id}-{name}")
        for name in stages
    ]
    if not is_worker:
        _check_unused(options, suites, [run_folder, *stage_folders])
    baselines, baseline_notes = find_baselines(
        options.baseline, suites, project, lineage, worlds, here=options.invocation_dir, judge=judge
    )
    notes += baseline_notes
    planned = {
        suite.name: PlannedSuite(
            suite=suite.suite,
            path=suite.path,
            lock=suite.lock,
            agent=agents[suite.name],
            trials=options.trials or suite.suite.trials,
            recorded=recorded.get(suite.suite.mode),
            baseline=baselines.get(suite.name),
            guidelines=None
            if options.live is None or listing
            else digest_text(project.world(suite.suite, worlds).guidelines()),
            identity=Identity() if listing else _identity(suite, agents[suite.name], candidate, resources),
        )
        for suite in suites
    }
    confirm = None
    if not listing:
        _check_stage_baselines(planned.values(), options.stages)
        if options.live is not None and options.live.cassette is not None:
            notes += possible_gaps(options.live.cassette, candidate, suites)
        notes += _identity_notes(planned.values())
        sides = BaselineSides(
            live=options.live,
            plain=plain,
            adapters=project.adapters,
            candidates=project.candidates,
            endpoint=options.baseline_endpoint,
            prices=read_prices(project.root / PRICES_NAME),
            priced=options.budgets.cost is not None,
        )
        confirm = how_to_confirm(policy, options.confirm, sides, planned)
    return Plan(
        project=project,
        candidate=candidate,
        lineage=lineage,
        suites=planned,
        policy=policy,
        goal=options.goal,
        run_id=run_id,
        run_folder=run_folder,
        started=started,
        saving=_saving(options, project, suites),
        notes=tuple(notes),
        judge=judge,
        live=options.live,
        fresh=options.fresh,
        budgets=options.budgets,
        confirm=confirm,
        schedule=() if policy is None else tuple(options.stages),
        stage_folders=tuple(stage_folders),
        agent=None if listing else _agent_of_cases(options, names),
        draw=uuid4().hex,
        concurrency=options.concurrency,
        ray=options.ray,
    )


def with_embedded(options: Options, suites: Sequence[Suite]) -> tuple[Options, list[Suite]]:
    """Use the embedded model for suites with scripted customers if no agent is named.

    Returns:
        The options with the embedded model, and the suites with scripted customers. Without suites the run
        has only cases, whose customers are always scripted. Options and suites are unchanged if the model is
        not used, because a suite names an agent, or because the user named a suite whose customers need a
        model.

    Raises:
        ConfigError: the embedded model is not used, and an option was given that needs a model.
    """
    if options.embedded is None:
        return options, list(suites)
    if not suites:
        return replace(options, live=options.embedded), []
    if not any(suite.default_agent for suite in suites):
        served = [suite for suite in suites if suite.scripted]
        if served and (len(served) == len(suites) or not options.suites):
            return replace(options, live=options.embedded), served
    if options.unused:
        raise ConfigError(f"{options.unused} has no effect without --t2e-model")
    return options, list(suites)


def _check_options(options: Options) -> None:
    """Reject options that contradict one another."""
    live, agent, replays = options.live, options.agent, bool(options.replays)
    plays = live is not None and live.cassette is not None
    source = "--t2e-playback" if plays else "--t2e-model"
    if options.save_baseline is not None:
        require_name(options.save_baseline, "--t2e-save-baseline")
    _reject(
        {
            "--t2e-baseline-mode has no effect without --t2e-save-baseline": (
                options.baseline_mode is not None and options.save_baseline is None
            ),
            "--t2e-trials does not go with --t2e-results, which uses the trials that the files hold": (
                replays and options.trials is not None
            ),
            "--t2e-playback runs simulations and --t2e-results none: give one of them": replays and plays,
            "--t2e-model talks to a model and --t2e-results to none: give one of them": (
                replays and live is not None
            ),
            f"{source} is for agent {CHAT!r}: agent {agent!r} does not go with it": (
                live is not None and agent not in (None, CHAT)
            ),
            f"agent {CHAT!r} needs a model: give --t2e-model": live is None and agent == CHAT,
            f"--t2e-results replays recorded runs: agent {agent!r} does not go with it": (
                replays and agent not in (None, REPLAY)
            ),
        }
    )
    if options.stages:
        without = "--t2e-stages does not go with"
        instead = f"give --t2e-trials {options.stages[-1]} instead"
        _reject(
            {
                f"{without} --t2e-playback: a cassette holds one run": plays,
                f"{without} --t2e-results, which has the trials that the files hold": replays,
                "--t2e-stages adds trials of a live run: give --t2e-model": live is None,
                f"{without} --t2e-trials: it says how many trials each stage has": (
                    options.trials is not None
                ),
                f"{without} --t2e-record: a cassette holds one run": (
                    live is not None and live.record is not None
                ),
                f"{without} --t2e-save-baseline: a run that may stop early is no baseline; {instead}": (
                    options.save_baseline is not None
                ),
                f"{without} --t2e-goal no-regression, which decides at the first stage; {instead}": (
                    options.goal is Goal.NO_REGRESSION
                ),
                "--t2e-stages stops where the gate decides, and the gate is off": options.gate == "off",
            }
        )


def _reject(problems: Mapping[str, bool]) -> None:
    """Raise the first problem that is present.

    Raises:
        ConfigError: a problem is present.
    """
    for message, is_present in problems.items():
        if is_present:
            raise ConfigError(message)


def _check_stage_baselines(suites: Iterable[PlannedSuite], schedule: Sequence[int]) -> None:
    """Check that the baselines hold as many trials of each task as the last stage."""
    if not schedule:
        return
    given, last = ",".join(map(str, schedule)), schedule[-1]
    remedy = f"save one with --t2e-trials {last} --t2e-save-baseline NAME"
    for suite in suites:
        if suite.baseline is None:
            raise ConfigError(f"--t2e-stages {given}: suite {suite.name!r} has no baseline; {remedy}")
        by_task = records_by_task(suite.baseline.evidence.simulations)
        short = sorted((task for task, records in by_task.items() if len(records) < last), key=natural_order)
        if short:
            raise ConfigError(
                f"--t2e-stages {given}: baseline {suite.baseline.name!r} of {suite.name!r} holds "
                f"{len(by_task[short[0]])} of the {last} trials of task {short[0]!r}; {remedy}"
            )


def _check_prices(options: Options, project: Project) -> None:
    if options.live is None or options.budgets.cost is None:
        return
    for model in (options.live.agent, options.live.user):
        if model.price is None:
            raise ConfigError(
                f"--t2e-max-cost needs the price of model {model.model!r}: "
                f"add it to {project.root / PRICES_NAME}"
            )


def _check_routes(options: Options, suites: Sequence[Suite]) -> None:
    if options.live is not None and options.live.each_turn and options.live.routes is None:
        raise ConfigError("--t2e-route has no effect unless the candidate is routed: --candidate ID+routed")
    solo = next((suite.name for suite in suites if suite.solo), None)
    if solo is not None and options.live is not None and options.live.routes is not None:
        raise ConfigError(
            f"suite {solo!r} is a solo suite, and a router reads how a customer opens; leave it out, or name "
            "one adapter"
        )


def _check_solo(
    suites: Sequence[LockedSuite], agents: Mapping[str, str], factories: Mapping[str, AgentFactory]
) -> None:
    for suite in suites:
        factory = factories.get(agents[suite.name])
        if suite.suite.solo and factory is not None and not takes_solo(factory):
            raise ConfigError(
                f"suite {suite.name!r} is a solo suite, and agent {agents[suite.name]!r} has no solo mode: "
                "its factory takes no keyword 'solo'"
            )


def _select(
    options: Options, project: Project, names: Sequence[str], recorded: Mapping[Mode, RecordedRuns]
) -> list[Suite]:
    for name in options.suites:
        project.suite_path(name)
    suites = [project.suite(name) for name in names if not options.suites or name in options.suites]
    if options.live is not None and options.live.cassette is not None:
        return _suites_of_cassette(suites, options.live.cassette, named=bool(options.suites))
    if recorded and not options.suites:
        return [suite for suite in suites if suite.mode in recorded]
    return suites


def _suites_of_cassette(suites: Sequence[Suite], cassette: Cassette, *, named: bool) -> list[Suite]:
    """The suites that a cassette holds; it must hold all suites that the user named."""
    held = cassette.header.suites
    absent = [suite.name for suite in suites if suite.name not in held]
    if absent and (named or len(absent) == len(suites)):
        raise ConfigError(
            f"cassette {cassette.path} was recorded without suite {absent[0]!r}; it holds {', '.join(held)}"
        )
    return [suite for suite in suites if suite.name in held]


def _locked(suite: Suite, resources: Resources, *, verify: bool) -> LockedSuite:
    project = resources.project
    lock = project.locked(suite, resources.worlds)
    if verify:
        project.verify_world(suite, lock, resources.worlds)
    return LockedSuite(suite, project.suite_path(suite.name), lock)


def _agent(
    options: Options, suite: Suite, names: Sequence[str], recorded: Mapping[Mode, RecordedRuns]
) -> str:
    if suite.mode in recorded:
        return REPLAY
    name = CHAT if options.live else options.agent or options.default_agent or suite.default_agent
    if name is None:
        raise ConfigError(
            f"suite {suite.name!r} has no agent: give --t2e-model, --t2e-agent or --t2e-results, "
            f"or a default_agent in {suite.name}.toml"
        )
    if name == REPLAY:
        raise ConfigError("agent 'replay' needs recorded runs: give --t2e-results PATH")
    if name not in names:
        raise ConfigError(f"unknown agent {name!r}; {nearest(name, [*names, REPLAY])}")
    return name


def _agent_of_cases(options: Options, names: Sequence[str]) -> str | None:
    if options.replays:
        return REPLAY
    name = CHAT if options.live else options.agent or options.default_agent
    if name not in (None, REPLAY, *names):
        raise ConfigError(f"unknown agent {name!r}; {nearest(str(name), [*names, REPLAY])}")
    return name


def _identity(suite: LockedSuite, agent: str, candidate: Candidate, resources: Resources) -> Identity:
    return identify(
        suite,
        agent,
        candidate,
        agents=resources.agents,
        world=resources.project.world(suite.suite, resources.worlds),
        code=resources.worlds.code(suite.suite.provider, suite.domain),
    )


def _identity_notes(suites: Iterable[PlannedSuite]) -> Iterator[str]:
    """Notes on code that cannot be identified, and on locks that do not cover the tools' implementation."""
    for suite in suites:
        identity = suite.identity
        codes = {"agent": identity.agent.code, "user": identity.user.code, "world": identity.world}
        for part, code in codes.items():
            if code is not None and code.unknown:
                yield (
                    f"{suite.name}: the code of its {part} cannot be identified ({code.unknown}): nothing is "
                    "resumed, confirmed or counted as the same test again"
                )
        if suite.lock.code is None:
            yield (
                f"{suite.name}: {LOCK_NAME} does not cover the implementation of its tools; "
                "run 'trace2evolve lock' and commit the result"
            )


def _check_unused(options: Options, suites: Sequence[LockedSuite], folders: Sequence[Path]) -> None:
    run_folder = folders[0]
    for folder in folders:
        for place in (folder, *(folder / suite.name for suite in suites)):
            if (place / SIMULATIONS).exists():
                raise ConfigError(f"{place} holds a run already; choose another --t2e-run-folder")
    if options.live is not None and options.live.record is not None:
        check_recordable(options.live.record)
        if recording(run_folder).exists():
            raise ConfigError(f"{run_folder} holds a recording already; choose another --t2e-run-folder")


def _saving(options: Options, project: Project, suites: Sequence[LockedSuite]) -> Saving | None:
    if options.save_baseline is None:
        return None
    paths = {suite.name: project.baseline_path(suite.name, options.save_baseline) for suite in suites}
    return settle(options.save_baseline, options.baseline_mode or SaveMode.SAVE, paths)
