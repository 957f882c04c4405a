"""Making a plan: what the user asked for is checked and every choice settled, before the first simulation."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

from pytest_trace2evolve._canonical import digest_text
from pytest_trace2evolve.candidates import DEFAULT_CANDIDATE
from pytest_trace2evolve.errors import ConfigError, nearest
from pytest_trace2evolve.evidence.baselines import read_evidence
from pytest_trace2evolve.evidence.cassettes import Cassette
from pytest_trace2evolve.evidence.results import SIMULATIONS
from pytest_trace2evolve.evidence.saving import SaveMode, Saving, require_name, settle
from pytest_trace2evolve.gate.checks import Check
from pytest_trace2evolve.gate.judgement import Policy
from pytest_trace2evolve.gate.policy import DEFAULT_POLICY
from pytest_trace2evolve.models.prices import PRICES_NAME, read_prices
from pytest_trace2evolve.records.evidence import Mode
from pytest_trace2evolve.records.protocols import Judge
from pytest_trace2evolve.suites import Suite
from pytest_trace2evolve.workflow.locked import LockedSuite
from pytest_trace2evolve.workflow.planning.cassettes import differences, recording, refuse_record
from pytest_trace2evolve.workflow.planning.confirm import (
    Sides,
    how_to_confirm,
)
from pytest_trace2evolve.workflow.planning.live import CHAT
from pytest_trace2evolve.workflow.planning.plan import (
    REPLAY,
    Options,
    Plan,
    PlannedSuite,
    Shared,
    baseline_copy,
)
from pytest_trace2evolve.workflow.planning.stages import (
    first_trials,
    refuse_short_baselines,
    refuse_unstaged,
    stage_of,
)
from pytest_trace2evolve.workflow.planning.talking import Talkers
from pytest_trace2evolve.workflow.policies import find_policy
from pytest_trace2evolve.workflow.project import Project
from pytest_trace2evolve.workflow.recorded.baselines import Baseline, find_baselines
from pytest_trace2evolve.workflow.recorded.replays import Recorded, read_replays, refuse_strays, refuse_unsaid
from pytest_trace2evolve.worlds.registry import Worlds


def make_plan(
    options: Options,
    project: Project,
    worlds: Worlds,
    *,
    suite_names: Sequence[str],
    agents: Sequence[str],
    judge: Judge | None = None,
    checks: Mapping[str, Check] | None = None,
    shared: Shared | None = None,
    listing: bool = False,
    stage: int = 0,
) -> Plan:
    """Check what the user asked for and settle every choice.

    Args:
        options: What the user asked for.
        project: Where things lie.
        worlds: Opens the suites' worlds.
        suite_names: The suites that may take part, before `options` narrows them.
        agents: Names of the agents that can talk (`replay` apart).
        judge: Judge of natural-language assertions.
        checks: Further checks that a policy may name, by id.
        shared: On a worker, what the controller settled.
        listing: Only items are listed: locks are not held against worlds, and nobody needs to talk.
        stage: The number of the run's stage, where `options` has any.

    Raises:
        ConfigError: anything the user wrote is wrong.
        ResultsError: a replay or baseline cannot be trusted, or does not belong to a selected suite.
        WorldError: a world cannot be opened.
    """
    _refuse_contradictions(options)
    _refuse_unpriced(options, project)
    if options.stages:
        refuse_unstaged(options)
    name = options.candidate or DEFAULT_CANDIDATE
    lineage = tuple(project.candidates.lineage(name))
    policy = None if options.gate == "off" else find_policy(options.gate or DEFAULT_POLICY, project, checks)
    recorded = read_replays(options.replays)
    suites = _select(options, project, suite_names, recorded)
    refuse_strays(recorded, suites, suites_named=bool(options.suites))
    refuse_unsaid(recorded, lineage[0])
    notes = [note for group in recorded.values() for note in group.notes]
    if not listing:
        options, served = with_embedded(options, suites)
        notes += _left_out(suites, served)
        suites = served
    talkers = Talkers(options.live, project.adapters)
    if not listing and not options.replays:
        options = replace(options, live=talkers.of(lineage[0]))
        _refuse_routes(options, suites)
    chosen = {suite.name: "" if listing else _agent(options, suite, agents, recorded) for suite in suites}
    verify = shared is None and not listing
    locked = [_locked(suite, project, worlds, verify=verify) for suite in suites]
    run = shared or _new_run(options, project, name, stage, policy)
    saving = None
    if shared is None:
        saving = _saving(options, project, locked)
        _refuse_used_names(options, locked, run.run_folder)
        found, told = find_baselines(
            options.baseline, locked, project, lineage, worlds, here=options.invocation_dir, judge=judge
        )
        notes += told
        baselines = found if listing else _staged(found, options, locked, run)
        if options.live is not None and options.live.cassette is not None:
            notes += differences(options.live.cassette, lineage[0], locked)
    else:
        baselines = _copied_baselines(shared)
    heard = {} if options.live is None or listing else _guidelines(suites, project, worlds)
    trials = options.trials if run.stage is None else run.stage.trials
    planned = {
        one.name: PlannedSuite(
            suite=one.suite,
            path=one.path,
            lock=one.lock,
            agent=chosen[one.name],
            trials=trials or one.suite.trials,
            recorded=recorded.get(one.suite.mode),
            baseline=baselines.get(one.name),
            guidelines=heard.get(one.name),
        )
        for one in locked
    }
    sides = _sides(options, project, talkers)
    confirm = None if listing else how_to_confirm(policy, options.confirm, sides, planned)
    return Plan(
        project=project,
        candidate=lineage[0],
        lineage=lineage,
        suites=planned,
        policy=policy,
        goal=options.goal,
        run_id=run.run_id,
        run_folder=run.run_folder,
        started=run.started,
        saving=saving,
        notes=tuple(notes),
        judge=judge,
        live=options.live,
        fresh=options.fresh,
        budgets=options.budgets,
        confirm=confirm,
        stage=run.stage,
        talker=None if listing else _talker(options, agents),
    )


def _staged(
    baselines: dict[str, Baseline], options: Options, suites: Sequence[LockedSuite], run: Shared
) -> dict[str, Baseline]:
    """What a stage takes of the baselines; all of them where the run has none."""
    if run.stage is None:
        return baselines
    refuse_short_baselines(baselines, suites, options.stages)
    return {suite: first_trials(one, run.stage.trials) for suite, one in baselines.items()}


def _copied_baselines(shared: Shared) -> dict[str, Baseline]:
    """The baselines as the controller left them for its workers."""
    return {
        suite: Baseline(label, read_evidence(baseline_copy(shared.run_folder, suite)))
        for suite, label in shared.baselines.items()
    }


def _guidelines(suites: Sequence[Suite], project: Project, worlds: Worlds) -> dict[str, str]:
    """By suite, the digest of the text that a simulated user follows."""
    return {suite.name: digest_text(project.world(suite, worlds).guidelines()) for suite in suites}


def _sides(options: Options, project: Project, talkers: Talkers) -> Sides:
    return Sides(
        live=options.live,
        talkers=talkers,
        candidates=project.candidates,
        endpoint=options.baseline_endpoint,
        prices=read_prices(project.root / PRICES_NAME),
        priced=options.budgets.cost is not None,
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


def _new_run(
    options: Options, project: Project, candidate: str, number: int, policy: Policy | None
) -> Shared:
    """A fresh run's name and place; its baselines are settled later."""
    started = datetime.now(UTC).isoformat(timespec="seconds")
    run_id = f"{started[:19].replace(':', '')}-{candidate}-{uuid4().hex[:6]}"
    folder = options.run_folder or project.runs_folder / run_id
    if not options.stages or policy is None:
        return Shared(run_id, folder, started, {})
    stage = stage_of(number, options.stages, policy)
    if options.run_folder is not None:
        folder /= f"stage-{stage.number}"
    return Shared(run_id, folder, started, {}, stage=stage)


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
    options: Options, project: Project, names: Sequence[str], recorded: Mapping[Mode, Recorded]
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


def _agent(options: Options, suite: Suite, agents: Sequence[str], recorded: Mapping[Mode, Recorded]) -> str:
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
    """The embedded model talks where nobody else was named, to customers who follow a script.

    Returns:
        The options with that model, and the suites whose customers do; the same as before where it is not
        asked, because a suite names an agent or was named itself and its customers need a model.
    """
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


def _talker(options: Options, agents: Sequence[str]) -> str | None:
    if options.replays:
        return REPLAY
    name = CHAT if options.live else options.agent or options.default_agent
    if name not in (None, REPLAY, *agents):
        raise ConfigError(f"unknown agent {name!r}; {nearest(str(name), [*agents, REPLAY])}")
    return name


def _refuse_used_names(options: Options, suites: Sequence[LockedSuite], run_folder: Path) -> None:
    for folder in (run_folder, *(run_folder / one.name for one in suites)):
        if (folder / SIMULATIONS).exists():
            raise ConfigError(f"{folder} holds a run already; choose another --t2e-run-folder")
    if options.live is not None and options.live.record is not None:
        refuse_record(options.live.record)
        if recording(run_folder).exists():
            raise ConfigError(f"{run_folder} holds a recording already; choose another --t2e-run-folder")


def _saving(options: Options, project: Project, suites: Sequence[LockedSuite]) -> Saving | None:
    if options.save_baseline is None:
        return None
    paths = {one.name: project.baseline_path(one.name, options.save_baseline) for one in suites}
    return settle(options.save_baseline, options.baseline_mode or SaveMode.SAVE, paths)
