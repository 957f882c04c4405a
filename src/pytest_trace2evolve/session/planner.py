"""Making a plan: what the user asked for is checked and every choice settled, before the first simulation."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

from pytest_trace2evolve.errors import ConfigError, nearest
from pytest_trace2evolve.evidence.baselines import read_evidence
from pytest_trace2evolve.evidence.results import SIMULATIONS
from pytest_trace2evolve.evidence.saving import SaveMode, Saving, settle
from pytest_trace2evolve.gate.checks import Check, Policy
from pytest_trace2evolve.models.prices import PRICES_NAME, read_prices
from pytest_trace2evolve.project.candidates import Candidate
from pytest_trace2evolve.project.lock import LOCK_NAME
from pytest_trace2evolve.project.project import LockedSuite, Project
from pytest_trace2evolve.records.evidence import Identity
from pytest_trace2evolve.records.protocols import Judge
from pytest_trace2evolve.session.baselines import Baseline, find_baselines
from pytest_trace2evolve.session.cassettes import differences, recording, refuse_record
from pytest_trace2evolve.session.choosing import Chosen, choose
from pytest_trace2evolve.session.confirmation import Sides, how_to_confirm
from pytest_trace2evolve.session.live import CHAT
from pytest_trace2evolve.session.plan import REPLAY, Options, Plan, PlannedSuite, Shared, baseline_copy
from pytest_trace2evolve.session.stages import first_trials, refuse_short_baselines, stage_of
from pytest_trace2evolve.session.talking import Talkers
from pytest_trace2evolve.utils.canonical import digest_text
from pytest_trace2evolve.worlds.registry import Worlds

Identify = Callable[[LockedSuite, str, Candidate], Identity]
"""Finds agent, user and world of the simulations of a suite, by the name of its agent."""


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
    identify: Identify | None = None,
    draw: str = "",
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
        identify: Finds agent, user and world of a suite's simulations; a worker takes over the controller's
            result.
        draw: The id of the draw of all stages of a run; a new one if it is empty.

    Raises:
        ConfigError: anything the user wrote is wrong.
        ResultsError: a replay or baseline cannot be trusted, or does not belong to a selected suite.
        WorldError: a world cannot be opened.
    """
    chosen = choose(
        options,
        project,
        worlds,
        suite_names=suite_names,
        agents=agents,
        checks=checks,
        listing=listing,
        verify=shared is None and not listing,
    )
    options = chosen.options
    run = shared or _new_run(options, project, chosen.candidate.id, stage, chosen.policy, draw or uuid4().hex)
    saving, notes = None, list(chosen.notes)
    if shared is None:
        saving = _saving(options, project, chosen.suites)
        _refuse_used_names(options, chosen.suites, run.run_folder)
        baselines, told = _found_baselines(chosen, project, worlds, run, judge, listing=listing)
        notes += told
    else:
        baselines = _copied_baselines(shared)
    heard = {} if options.live is None or listing else _guidelines(chosen.suites, project, worlds)
    identities = dict(run.identities)
    if shared is None and not listing and identify is not None:
        names, candidate = chosen.agents, chosen.candidate
        identities = {one.name: identify(one, names[one.name], candidate) for one in chosen.suites}
        notes += _unidentified(chosen.suites, identities)
    planned = _planned(chosen, run, baselines, heard, identities)
    sides = _sides(options, project, chosen.talkers)
    return Plan(
        project=project,
        candidate=chosen.candidate,
        lineage=chosen.lineage,
        suites=planned,
        policy=chosen.policy,
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
        confirm=None if listing else how_to_confirm(chosen.policy, options.confirm, sides, planned),
        stage=run.stage,
        talker=None if listing else _talker(options, agents),
        draw=run.draw,
    )


def _found_baselines(
    chosen: Chosen, project: Project, worlds: Worlds, run: Shared, judge: Judge | None, *, listing: bool
) -> tuple[dict[str, Baseline], list[str]]:
    """What the suites are compared with, and notes on it and on a cassette that is played."""
    options = chosen.options
    found, told = find_baselines(
        options.baseline,
        chosen.suites,
        project,
        chosen.lineage,
        worlds,
        here=options.invocation_dir,
        judge=judge,
    )
    notes = list(told)
    baselines = found if listing else _staged(found, options, chosen.suites, run)
    if options.live is not None and options.live.cassette is not None:
        notes += differences(options.live.cassette, chosen.candidate, chosen.suites)
    return baselines, notes


def _unidentified(suites: Sequence[LockedSuite], identities: Mapping[str, Identity]) -> Iterator[str]:
    """Notes on code that cannot be identified, and on locks that do not cover the tools' implementation."""
    for one in suites:
        identity = identities[one.name]
        codes = {"agent": identity.agent.code, "user": identity.user.code, "world": identity.world}
        for part, code in codes.items():
            if code is not None and code.unknown:
                yield (
                    f"{one.name}: the code of its {part} cannot be identified ({code.unknown}): nothing is "
                    "resumed, confirmed or counted as the same test again"
                )
        if one.lock.code is None:
            yield (
                f"{one.name}: {LOCK_NAME} does not cover the implementation of its tools; "
                "run 'trace2evolve lock' and commit the result"
            )


def _planned(
    chosen: Chosen,
    run: Shared,
    baselines: Mapping[str, Baseline],
    heard: Mapping[str, str],
    identities: Mapping[str, Identity],
) -> dict[str, PlannedSuite]:
    """The suites with all that was settled of each; `heard` are digests of what simulated users follow."""
    trials = chosen.options.trials if run.stage is None else run.stage.trials
    return {
        one.name: PlannedSuite(
            suite=one.suite,
            path=one.path,
            lock=one.lock,
            agent=chosen.agents[one.name],
            trials=trials or one.suite.trials,
            recorded=chosen.recorded.get(one.suite.mode),
            baseline=baselines.get(one.name),
            guidelines=heard.get(one.name),
            identity=identities.get(one.name, Identity()),
        )
        for one in chosen.suites
    }


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


def _guidelines(suites: Sequence[LockedSuite], project: Project, worlds: Worlds) -> dict[str, str]:
    """By suite, the digest of the text that a simulated user follows."""
    return {one.name: digest_text(project.world(one.suite, worlds).guidelines()) for one in suites}


def _sides(options: Options, project: Project, talkers: Talkers) -> Sides:
    return Sides(
        live=options.live,
        talkers=talkers,
        candidates=project.candidates,
        endpoint=options.baseline_endpoint,
        prices=read_prices(project.root / PRICES_NAME),
        priced=options.budgets.cost is not None,
    )


def _new_run(
    options: Options, project: Project, candidate: str, number: int, policy: Policy | None, draw: str
) -> Shared:
    """A fresh run's name and place; its baselines are settled later."""
    started = datetime.now(UTC).isoformat(timespec="seconds")
    run_id = f"{started[:19].replace(':', '')}-{candidate}-{uuid4().hex[:6]}"
    folder = options.run_folder or project.runs_folder / run_id
    if not options.stages or policy is None:
        return Shared(run_id, folder, started, {}, draw=draw)
    stage = stage_of(number, options.stages, policy)
    if options.run_folder is not None:
        folder /= f"stage-{stage.number}"
    return Shared(run_id, folder, started, {}, stage=stage, draw=draw)


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
