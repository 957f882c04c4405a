"""Makes the plan of a run: validates its options and fixes all settings before the first simulation."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from uuid import uuid4

from pytest_trace2evolve.engine.factories import (
    BUILT_IN_AGENTS,
    identify,
    make_scripted_user,
    supports_solo,
)
from pytest_trace2evolve.errors import ConfigError, ResultsError, name_suggestion
from pytest_trace2evolve.evidence.saving import SaveMode, plan_save, validate_name
from pytest_trace2evolve.gate.policy import DEFAULT_POLICY
from pytest_trace2evolve.gate.protocols import Check
from pytest_trace2evolve.models.prices import PRICES_NAME, read_prices
from pytest_trace2evolve.project.candidates import DEFAULT_CANDIDATE, AgentFactory, Candidate
from pytest_trace2evolve.project.policies import find_policy
from pytest_trace2evolve.project.project import LockedSuite, Project
from pytest_trace2evolve.project.suites import LockedText, Suite
from pytest_trace2evolve.project.tool_settings import find_code_folders
from pytest_trace2evolve.records.evidence import CHAT, REPLAY, Identity, Mode
from pytest_trace2evolve.records.protocols import Judge
from pytest_trace2evolve.records.trace_check import TraceCheck
from pytest_trace2evolve.records.verdict import Goal
from pytest_trace2evolve.session.baselines import find_baselines
from pytest_trace2evolve.session.candidate_models import cassette_gap_notes, models_of
from pytest_trace2evolve.session.confirmation import plan_confirmation
from pytest_trace2evolve.session.evidence_sources import (
    RecordedRuns,
    check_replayed_candidate,
    check_replayed_suites,
    read_replays,
)
from pytest_trace2evolve.session.plan import Options, Plan, PlannedSuite, check_folders_unused
from pytest_trace2evolve.session.provenance import identity_notes
from pytest_trace2evolve.session.trace_checks import plan_trace_checks
from pytest_trace2evolve.utils.canonical import digest_text
from pytest_trace2evolve.utils.import_path import is_own_agent
from pytest_trace2evolve.worlds.registry import Worlds


@dataclass(frozen=True)
class Resources:
    """The worlds, agents and checks that a project and its plugins offer to a run.

    Attributes:
        agents: Factories of agents by name, except agent `chat`.
        checks: Further checks that a policy may name, by id.
        trace_checks: The project's own checks of traces, by id.
    """

    project: Project
    worlds: Worlds = field(default_factory=Worlds)
    agents: Mapping[str, AgentFactory] = field(default_factory=lambda: dict(BUILT_IN_AGENTS))
    checks: Mapping[str, Check] = field(default_factory=dict)
    trace_checks: Mapping[str, TraceCheck] = field(default_factory=dict)

    @property
    def agent_names(self) -> list[str]:
        """The names of all agents that can make simulations."""
        return sorted({*self.agents, CHAT})


def resources_of(project: Project) -> Resources:
    """Return the resources of a project, including those from hooks of its `conftest.py` and plugins.

    Raises:
        ConfigError: a hook is invalid.
    """
    extensions = project.extensions
    agents = {**BUILT_IN_AGENTS, **extensions.agents}
    worlds = Worlds(extensions.worlds, project.root, project.find_agent_files)
    return Resources(project, worlds, agents, extensions.checks, extensions.trace_checks)


def make_plan(
    options: Options,
    resources: Resources,
    *,
    suite_names: Sequence[str],
    judge: Judge | None = None,
    is_listing: bool = False,
    is_worker: bool = False,
) -> Plan:
    """Validate the options of a run and make its plan.

    Args:
        options: The options of the run.
        resources: The resources of the project.
        suite_names: The suites that may take part, before `options` narrows them.
        judge: Judge of natural-language assertions.
        is_listing: Whether pytest only lists the items. If so, locks are not compared with worlds, and no
            agent is needed.
        is_worker: Whether another process has begun the run, so that the run folder is already in use.

    Raises:
        ConfigError: an option or a file of the user is invalid.
        ResultsError: a replay or baseline cannot be trusted, or does not belong to a selected suite.
        WorldError: a world cannot be opened.
    """
    project, worlds = resources.project, resources.worlds
    lineage = tuple(project.candidates.lineage(options.candidate or DEFAULT_CANDIDATE))
    candidate = lineage[0]
    policy = None
    if options.gate != "off":
        policy = find_policy(
            options.gate or DEFAULT_POLICY, project, resources.checks, resources.trace_checks
        )
    trace_checks = plan_trace_checks(resources.trace_checks, project, judge)
    if options.replays:
        _check_options(options)
    recorded_runs = read_replays(options.replays)
    selected_suites = _select_suites(options, project, suite_names, recorded_runs)
    options = replace(options, default_agent=options.default_agent or project.settings.agent)
    options = use_own_agent(options, candidate, selected_suites, project)
    _check_options(options)
    _check_prices(options, project)
    check_replayed_suites(recorded_runs, selected_suites, require_all_suites=bool(options.suites))
    check_replayed_candidate(recorded_runs, candidate)
    notes = [note for runs in recorded_runs.values() for note in runs.notes]
    notes += trace_checks.notes
    if not is_listing:
        options, served_suites = use_embedded_model(options, selected_suites)
        if left_out := [suite.name for suite in selected_suites if suite not in served_suites]:
            notes.append(f"left out, since their customers need a model (--t2e-model): {', '.join(left_out)}")
        selected_suites = served_suites
    live_without_adapter = options.live
    if not is_listing and not options.replays:
        prices = read_prices(project.root / PRICES_NAME)
        live = models_of(candidate, live_without_adapter, project.adapters, prices)
        options = replace(options, live=live)
        _check_models(options, selected_suites)
    agent_names = resources.agent_names
    agents = {
        suite.name: "" if is_listing else _agent_name(options, suite, agent_names, recorded_runs)
        for suite in selected_suites
    }
    suites = [_lock_suite(suite, resources, verify_world=not is_listing) for suite in selected_suites]
    if not is_listing:
        _check_texts(candidate, suites, resources)
        _check_users(options, suites, resources)
    _check_solo(suites, agents, resources.agents)

    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    run_id = f"{started_at[:19].replace(':', '')}-{candidate.id}-{uuid4().hex[:6]}"
    run_folder = options.run_folder or project.runs_folder / run_id
    if options.live is not None and options.live.function is not None:
        logs = project.runs_folder.parent / "agents" / run_id
        function = replace(options.live.function, log_folder=logs)
        options = replace(options, live=replace(options.live, function=function))
    stage_names = [f"stage-{number + 1}" for number in range(len(options.stages))]
    stage_folders = [
        run_folder / name if options.run_folder else run_folder.with_name(f"{run_id}-{name}")
        for name in stage_names
    ]
    if not is_worker:
        check_folders_unused(options.live, [suite.name for suite in suites], [run_folder, *stage_folders])
    saving, is_addition = None, False
    if (saved_name := options.save_baseline) is not None:
        paths = {suite.name: project.baseline_path(suite.name, saved_name) for suite in suites}
        saving = plan_save(saved_name, options.baseline_mode or SaveMode.SAVE, paths)
        is_addition = bool(saving.kept_tasks or saving.kept_trials)
    if is_addition:
        policy = None  # a part of a suite decides nothing
    try:
        baselines, baseline_notes = find_baselines(
            options.baseline,
            suites,
            project,
            lineage,
            worlds,
            base_folder=options.invocation_dir,
            commit=options.against,
            uses_own=options.goal is Goal.NO_REGRESSION,
            judge=judge,
            trace_checks=trace_checks,
        )
    except ResultsError as error:
        if policy is not None:
            raise
        baselines, baseline_notes = {}, (f"compared with no baseline: {error}",)
    notes += baseline_notes
    planned_suites = {
        suite.name: PlannedSuite(
            suite=suite.suite,
            path=suite.path,
            lock=suite.lock,
            agent=agents[suite.name],
            trials=options.trials or suite.suite.trials,
            recorded_runs=recorded_runs.get(suite.suite.mode),
            baseline=baselines.get(suite.name),
            guidelines=None
            if options.live is None or is_listing
            else digest_text(project.world(suite.suite, worlds).guidelines()),
            identity=Identity()
            if is_listing
            else _suite_identity(suite, agents[suite.name], candidate, resources),
            kept_tasks=saving.tasks_with(suite.name, options.trials or suite.suite.trials) if saving else (),
            kept_trials=saving.kept_trials.get(suite.name, {}) if saving else {},
            claimed_tasks=_claimed_tasks(candidate, suite, resources),
        )
        for suite in suites
    }
    if saving and is_addition and not any(suite.planned_splits for suite in planned_suites.values()):
        held = f"every {'trial' if saving.kept_trials else 'task'} of {', '.join(planned_suites)}"
        raise ConfigError(
            f"baseline {saving.name!r} already holds {held}, so there is "
            "nothing to add; to measure it again, give --t2e-baseline-mode update"
        )
    confirmation = None
    if not is_listing:
        _check_stage_baselines(planned_suites.values(), options.stages)
        if options.live is not None and options.live.cassette is not None:
            notes += cassette_gap_notes(options.live.cassette, candidate, suites)
        notes += identity_notes(planned_suites.values(), options.live)
        confirmation = plan_confirmation(policy, options, live_without_adapter, project, planned_suites)
    return Plan(
        project=project,
        candidate=candidate,
        lineage=lineage,
        suites=planned_suites,
        policy=policy,
        goal=options.goal,
        run_id=run_id,
        run_folder=run_folder,
        started_at=started_at,
        saving=saving,
        notes=tuple(notes),
        judge=judge,
        live=options.live,
        is_fresh=options.is_fresh,
        budgets=options.budgets,
        confirmation=confirmation,
        schedule=() if policy is None else tuple(options.stages),
        stage_folders=tuple(stage_folders),
        agent=None if is_listing else _case_agent_name(options, agent_names),
        draw_id=uuid4().hex,
        concurrency=options.concurrency,
        ray=options.ray,
        trace_checks=trace_checks,
    )


def use_own_agent(
    options: Options, candidate: Candidate, suites: Sequence[Suite], project: Project
) -> Options:
    """Use the project's own agent if the options, the candidate, a suite or the project name one.

    Returns:
        The options with the agent's settings; unchanged if the agent is not one of the project's own.

    Raises:
        ConfigError: the suites name different agents or include a solo suite, or an option needs a model.
    """
    settings = options.own_agent_settings
    if settings is None or settings.function is None:
        return options
    defaults = {options.agent or suite.default_agent or options.default_agent for suite in suites} or {
        options.agent or options.default_agent
    }
    names = {candidate.agent} if candidate.agent else defaults
    own_names = sorted(name for name in names if name is not None and is_own_agent(name))
    if not own_names:
        has_embedded = options.embedded_settings is not None or options.embedded_problem is not None
        if options.live is None and not has_embedded and options.unused_option:
            raise ConfigError(f"{options.unused_option} has no effect without --t2e-model")
        return options
    if len(names) > 1:
        names_text = ", ".join(sorted(str(name) for name in names))
        raise ConfigError(
            f"the suites of this run have different agents ({names_text}); run one of them with --t2e-suite, "
            "or name one agent with --t2e-agent"
        )
    if solo_suite := next((suite.name for suite in suites if suite.solo), None):
        raise ConfigError(
            f"suite {solo_suite!r} is a solo suite, but agent {own_names[0]!r} has no solo mode"
        )
    # A baseline whose candidate names no agent was measured with the default agent, so keep that agent here.
    own_defaults = sorted(name for name in defaults if name is not None and is_own_agent(name))
    function = replace(settings.function, path=(own_defaults or own_names)[0])
    live = replace(settings, function=function)
    return replace(options, agent=None, live=live, embedded_settings=None, embedded_problem=None)


def use_embedded_model(options: Options, suites: Sequence[Suite]) -> tuple[Options, list[Suite]]:
    """Use the embedded model for suites with scripted customers if no agent is named.

    Returns:
        The options with the embedded model, and the suites with scripted customers. Without suites the run
        has only cases, whose customers are always scripted. Options and suites are unchanged if the model is
        not used, because a suite names an agent, or because the user named a suite whose customers need a
        model.

    Raises:
        ConfigError: the embedded model is not used, and an option was given that needs a model.
    """
    if options.embedded_settings is None and options.embedded_problem is None:
        return options, list(suites)
    if not suites:
        return _with_embedded_model(options), []
    if not any(suite.default_agent for suite in suites):
        served_suites = [suite for suite in suites if suite.is_scripted]
        if served_suites and (len(served_suites) == len(suites) or not options.suites):
            return _with_embedded_model(options), served_suites
    if options.unused_option:
        raise ConfigError(f"{options.unused_option} has no effect without --t2e-model")
    return options, list(suites)


def _with_embedded_model(options: Options) -> Options:
    if options.embedded_problem is not None:
        raise options.embedded_problem
    return replace(options, live=options.embedded_settings)


def _check_options(options: Options) -> None:
    """Reject options that contradict each other."""
    live, agent, has_replays = options.live, options.agent, bool(options.replays)
    plays_cassette = live is not None and live.cassette is not None
    model_option = "--t2e-playback" if plays_cassette else "--t2e-model"
    is_saved = options.save_baseline is not None
    if options.save_baseline is not None:
        validate_name(options.save_baseline, "--t2e-save-baseline")
    for is_present, message in (
        (
            options.baseline_mode is not None and not is_saved,
            "--t2e-baseline-mode has no effect without --t2e-save-baseline",
        ),
        (
            has_replays and options.trials is not None,
            "--t2e-trials cannot be combined with --t2e-results, which uses the trials in the files",
        ),
        (
            has_replays and live is not None,
            f"{model_option} runs simulations, but --t2e-results replays them; give one of them",
        ),
        (
            live is not None and agent not in (None, CHAT),
            f"{model_option} requires agent {CHAT!r}, but --t2e-agent is {agent!r}",
        ),
        (live is None and agent == CHAT, f"agent {CHAT!r} needs a model: give --t2e-model"),
        (
            has_replays and agent not in (None, REPLAY),
            f"--t2e-results requires agent {REPLAY!r}, but --t2e-agent is {agent!r}",
        ),
    ):
        if is_present:
            raise ConfigError(message)
    is_recorded = live is not None and live.record is not None
    remedy = f"; give --t2e-trials {options.stages[-1]} instead" if options.stages else ""
    for is_present, text in (
        (plays_cassette, "--t2e-playback: a cassette holds one run"),
        (has_replays, "--t2e-results, which uses the trials in the files"),
        (live is None, ""),
        (options.trials is not None, "--t2e-trials: --t2e-stages sets the trials of each stage"),
        (is_recorded, "--t2e-record: a cassette holds one run"),
        (is_saved, f"--t2e-save-baseline: a run that may stop early cannot be a baseline{remedy}"),
        (
            options.goal is Goal.NO_REGRESSION,
            f"--t2e-goal no-regression, which decides at the first stage{remedy}",
        ),
    ):
        if is_present and options.stages:
            raise ConfigError(
                f"--t2e-stages cannot be combined with {text}"
                if text
                else "--t2e-stages adds trials of a live run: give --t2e-model"
            )
    if options.stages and options.gate == "off":
        raise ConfigError("--t2e-stages stops when the gate decides, but the gate is off")


def _check_stage_baselines(suites: Iterable[PlannedSuite], schedule: Sequence[int]) -> None:
    """Check that every suite of a run in stages has a baseline."""
    for suite in suites:
        if schedule and suite.baseline is None:
            raise ConfigError(
                f"--t2e-stages {','.join(map(str, schedule))}: suite {suite.name!r} has no baseline; "
                f"save one with --t2e-trials {schedule[-1]} --t2e-save-baseline NAME"
            )


def _check_prices(options: Options, project: Project) -> None:
    if options.live is None or options.budgets.cost is None:
        return
    for model in options.live.models:
        # An agent of the project may choose its model itself; the proxy checks each of its requests.
        if model.price is None and model.model:
            raise ConfigError(
                f"--t2e-max-cost needs the price of model {model.model!r}: "
                f"add it to {project.root / PRICES_NAME}"
            )


def _check_models(options: Options, suites: Sequence[Suite]) -> None:
    if options.ray is not None and options.live is not None and options.live.function is not None:
        raise ConfigError(
            f"agent {options.live.function.path!r} runs in processes of this machine, which --t2e-ray cannot "
            "move to a cluster; omit --t2e-ray, or provide the agent with the hook pytest_t2e_agents"
        )

    solo_suite = next((suite.name for suite in suites if suite.solo), None)
    if solo_suite is not None and options.live is not None and options.live.routes is not None:
        raise ConfigError(
            f"suite {solo_suite!r} is a solo suite, but a router reads a customer's first message; omit the "
            "suite, or name one adapter"
        )


def _claimed_tasks(candidate: Candidate, suite: LockedSuite, resources: Resources) -> frozenset[str]:
    """Return the tasks of a suite on which a candidate claims a gain; empty for all.

    Raises:
        ConfigError: no task has a claimed tag.
    """
    if not candidate.claimed_tags:
        return frozenset()
    tasks = resources.project.world(suite.suite, resources.worlds).tasks()
    tags = {task: tasks[task].tags for task in suite.lock.tasks}
    for tag in candidate.claimed_tags:
        if not any(tag in known for known in tags.values()):
            known_tags = sorted({name for names in tags.values() for name in names})
            raise ConfigError(
                f"candidate {candidate.id!r} claims a gain on tag {tag!r}, which no task of suite "
                f"{suite.name!r} has; {name_suggestion(tag, known_tags)}"
            )
    return frozenset(task for task, names in tags.items() if {*names} & {*candidate.claimed_tags})


def _check_users(options: Options, suites: Sequence[LockedSuite], resources: Resources) -> None:
    """Check that every task has a scripted user if no model plays the users.

    Raises:
        ConfigError: a task has no scripted user.
    """
    if options.live is None or options.live.has_user_model:
        return
    task_names = []
    for suite in suites:
        tasks = resources.project.world(suite.suite, resources.worlds).tasks()
        task_names += [
            f"task {task_id!r} of suite {suite.name!r}"
            for task_id in suite.lock.tasks
            if make_scripted_user(tasks[task_id], 0) is None
        ]
    if task_names:
        more = f" and {len(task_names) - 1} more" if task_names[1:] else ""
        raise ConfigError(
            f"{task_names[0]}{more}: no model plays the user, and there is no script; write the task with "
            "user.goal and user.knows, or name a model with --t2e-user-model"
        )


def _check_texts(candidate: Candidate, suites: Sequence[LockedSuite], resources: Resources) -> None:
    """Check that the candidate replaces only texts that the suites do not lock, and that the tools exist.

    Raises:
        ConfigError: a suite locks a text that the candidate replaces.
        CandidateError: the candidate describes a tool or a parameter that a suite's world does not have.
    """
    for locked_suite in suites:
        suite = locked_suite.suite
        texts: dict[LockedText, tuple[str, object]] = {
            "policy": ("prompt", candidate.prompt),
            "tools": ("tools", candidate.tools),
        }
        for text, (name, value) in texts.items():
            if value and suite.is_locked(text):
                raise ConfigError(
                    f"candidate {candidate.id!r} sets {name!r}, but suite {suite.name!r} locks its {text}; "
                    f"run a suite that does not lock it, or use the candidate's instruction instead"
                )
        if candidate.tools:
            world = resources.project.world(suite, resources.worlds)
            candidate.describe_tools(world.tools("assistant"))


def _check_solo(
    suites: Sequence[LockedSuite], agents: Mapping[str, str], factories: Mapping[str, AgentFactory]
) -> None:
    for suite in suites:
        factory = factories.get(agents[suite.name])
        if suite.suite.solo and factory is not None and not supports_solo(factory):
            raise ConfigError(
                f"suite {suite.name!r} is a solo suite, but agent {agents[suite.name]!r} has no solo mode: "
                "its factory does not accept the keyword 'solo'"
            )


def _select_suites(
    options: Options, project: Project, names: Sequence[str], recorded_runs: Mapping[Mode, RecordedRuns]
) -> list[Suite]:
    for name in options.suites:
        project.suite_path(name)
    suites = [project.suite(name) for name in names if not options.suites or name in options.suites]
    if options.live is not None and options.live.cassette is not None:
        cassette = options.live.cassette
        recorded_suites = cassette.header.suites
        missing = [suite.name for suite in suites if suite.name not in recorded_suites]
        if missing and (options.suites or len(missing) == len(suites)):
            raise ConfigError(
                f"cassette {cassette.path} was recorded without suite {missing[0]!r}; "
                f"it holds {', '.join(recorded_suites)}"
            )
        return [suite for suite in suites if suite.name in recorded_suites]
    if recorded_runs and not options.suites:
        return [suite for suite in suites if suite.mode in recorded_runs]
    return suites


def _lock_suite(suite: Suite, resources: Resources, *, verify_world: bool) -> LockedSuite:
    project = resources.project
    lock = project.suite_lock(suite, resources.worlds)
    if verify_world:
        project.verify_world(suite, lock, resources.worlds)
    return LockedSuite(suite, project.suite_path(suite.name), lock)


def _agent_name(
    options: Options, suite: Suite, names: Sequence[str], recorded_runs: Mapping[Mode, RecordedRuns]
) -> str:
    if suite.mode in recorded_runs:
        return REPLAY
    name = (
        options.live.agent_name
        if options.live
        else options.agent or suite.default_agent or options.default_agent
    )
    if name is None:
        raise ConfigError(
            f"suite {suite.name!r} has no agent: give --t2e-model, --t2e-agent or --t2e-results, "
            f"or a default_agent in {suite.name}.toml"
        )
    if name == REPLAY:
        raise ConfigError("agent 'replay' needs recorded runs: give --t2e-results PATH")
    if not options.live and name not in names:
        raise _unknown_agent_error(name, names)
    return name


def _case_agent_name(options: Options, names: Sequence[str]) -> str | None:
    if options.replays:
        return REPLAY
    if options.live:
        return options.live.agent_name
    name = options.agent or options.default_agent
    if name not in (None, REPLAY, *names):
        raise _unknown_agent_error(str(name), names)
    return name


def _unknown_agent_error(name: str, names: Sequence[str]) -> ConfigError:
    text = f"unknown agent {name!r}; {name_suggestion(name, [*names, REPLAY])}"
    if any(sign in name for sign in ":/."):
        path, _, attribute = name.partition(":")
        example = f"{path.removesuffix('.py').strip('./').replace('/', '.')}:{attribute or 'make'}"
        text += f", or module:function, such as {example if is_own_agent(example) else 'app.bot:make'}"
    return ConfigError(text)


def _suite_identity(suite: LockedSuite, agent: str, candidate: Candidate, resources: Resources) -> Identity:
    return identify(
        suite,
        agent,
        candidate,
        agents=resources.agents,
        world=resources.project.world(suite.suite, resources.worlds),
        code=resources.worlds.code(suite.suite.provider, suite.domain),
        folders=find_code_folders(resources.project.root),
    )
