"""Synthesis of an environment: a model revises a module until it is admitted and calibrated.

Every module is stored with its problems for review. No module runs outside the sandbox.
"""

import asyncio
import json
import re
import secrets
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pytest_trace2evolve.cases.case import generate
from pytest_trace2evolve.diagnose.diagnosis import label_set_by_rules
from pytest_trace2evolve.diagnose.traces import TraceSet, gather_traces
from pytest_trace2evolve.environments.admission import admit
from pytest_trace2evolve.environments.generated import MODULE_SUFFIX, ModuleRecord, make_offer, save_module
from pytest_trace2evolve.environments.held_out import collect_held_out_identifiers
from pytest_trace2evolve.environments.registry import BUILT_IN_NAMES, Environments, require_same_tools
from pytest_trace2evolve.environments.sandbox.box import Sandbox, isolation_problem
from pytest_trace2evolve.errors import CaseError, ConfigError, GeneratorError, SandboxError, WorldError
from pytest_trace2evolve.judges.environments import (
    PROMPT_VERSION,
    read_module,
    revision_messages,
    synthesis_messages,
)
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.project.suites import Role
from pytest_trace2evolve.records.capability import Capability, Presence
from pytest_trace2evolve.records.environment import AdmissionReport, Calibration, CalibrationOutcome
from pytest_trace2evolve.records.message import Message
from pytest_trace2evolve.records.protocols import Model, SupportsDatabases
from pytest_trace2evolve.records.task import Content, InitializationData, InitialState
from pytest_trace2evolve.utils.canonical import digest_text
from pytest_trace2evolve.utils.files import write_together
from pytest_trace2evolve.utils.reading import first_problem
from pytest_trace2evolve.worlds.plain_data import to_json
from pytest_trace2evolve.worlds.registry import WorldName, Worlds

ROUNDS = 5  # default number of rounds
SEEDS = 200  # scenarios of a module checked in a round; `environment check` checks more
MAX_FIRST_SEED = 1_000_000  # exclusive upper bound of the random first seed of an admission
MAX_PROBLEMS = 8  # maximum number of problems sent back at once
MAX_FAILURES = 3  # maximum number of failures shown to the model
SAMPLE_RECORDS = 2  # records shown of each table

SUPPORT = ("trace2evolve", "support")
"""The world of the built-in environments, and of all worlds with its tools: its sessions cost little."""

CalibrateOffer = Callable[[Environments, str], Coroutine[Any, Any, Calibration]]
"""Calibrates one of the given environments, by its name."""


@dataclass(frozen=True)
class SynthesisTask:
    """A capability for which a model writes an environment.

    Attributes:
        target: The world in which its scenarios are played, which `worlds` opens.
        tables: A sample of the target's records.
        failures: Traces that lack the capability, each with the reason.
        held_out_identifiers: Ids and people that no scenario may contain.
    """

    capability: Capability
    target: WorldName
    worlds: Worlds
    tables: dict[str, Any]
    failures: Sequence[tuple[str, Sequence[Message]]] = ()
    held_out_identifiers: Sequence[str] = ()


@dataclass(frozen=True)
class Round:
    """One round: a module and its problems. A module that was admitted and calibrated has no problems."""

    number: int
    source: str
    problems: tuple[str, ...]
    admission: AdmissionReport | None = None
    calibration: Calibration | None = None


@dataclass(frozen=True)
class Synthesis:
    """All rounds, whose modules are in `folder`, and the admitted module (None if every round failed)."""

    rounds: tuple[Round, ...]
    module: Path | None
    folder: Path

    @property
    def calibration(self) -> Calibration | None:
        """The calibration of the admitted module; None if there is none."""
        return self.rounds[-1].calibration if self.module is not None else None


async def synthesize(
    task: SynthesisTask,
    judge: Model,
    *,
    judge_name: str,
    root: Path,
    calibrate: CalibrateOffer,
    rounds: int = ROUNDS,
    on_progress: Callable[[str], None] = lambda line: None,
) -> Synthesis:
    """Let a model write and revise a module until it is admitted and calibrated, or the rounds are used up.

    Args:
        judge: The model that writes.
        judge_name: The name recorded for the judge.
        root: The project's folder. An admitted module is saved in `environments/`, every module in
            `.trace2evolve/`.
        calibrate: Measures the base model in an environment.
        on_progress: Called with one line on the result of each round.

    Raises:
        SandboxError: this platform cannot isolate generated code. The judge is not asked.
    """
    if problem := isolation_problem():
        raise SandboxError(
            f"cannot synthesize an environment: this platform cannot isolate generated code: {problem}"
        )
    capability, world = task.capability, task.worlds.open(*task.target)
    request = synthesis_messages(
        capability, world.policy(), world.tools("assistant"), task.tables, task.failures
    )
    messages = request
    folder = root / ".trace2evolve" / "synthesis" / capability.name
    finished_rounds: list[Round] = []
    for number in range(1, rounds + 1):
        completion = await judge.complete(messages, (), trial=number)
        source = read_module(completion.content)
        # Store the module before it is tried, so that an error does not lose a module that was paid for.
        _store_round(folder, Round(number, source, ("not checked to the end",)))
        finished_round = await _try_module(task, number, source, calibrate)
        finished_rounds.append(finished_round)
        _store_round(folder, finished_round)
        on_progress(f"round {number}: {'; '.join(finished_round.problems[:2]) or 'admitted and calibrated'}")
        if not finished_round.problems:
            module_record = ModuleRecord(
                capability=capability.name,
                description=capability.description,
                source=digest_text(source),
                judge=judge_name,
                prompt=PROMPT_VERSION,
                rounds=number,
                provider=task.target[0],
                domain=task.target[1],
                created_at=datetime.now(UTC).isoformat(timespec="seconds"),
            )
            return Synthesis(tuple(finished_rounds), save_module(root, module_record, source), folder)
        messages = [*request, *revision_messages(source, finished_round.problems)]
    return Synthesis(tuple(finished_rounds), None, folder)


async def _try_module(task: SynthesisTask, number: int, source: str, calibrate: CalibrateOffer) -> Round:
    """Check the sandbox's rules, then admission, then calibration; stop at the first failure."""
    name = task.capability.name
    admission: AdmissionReport | None = None
    calibration: Calibration | None = None
    try:
        if not source:
            raise GeneratorError("the answer has no module: write one ```python block")
        # An error here, for a rejected source or a failed load, gives the line and the remedy.
        Sandbox(source, f"environment {name!r}").close()
        offer = make_offer(name, source, task.capability.description, task.target, task.worlds)
        with closing(Environments({name: offer}, task.worlds)) as environments:
            # A random first seed, because a module must not know the scenarios by which it is judged.
            first_seed = secrets.randbelow(MAX_FIRST_SEED)
            admission = await asyncio.to_thread(
                admit,
                environments,
                name,
                seeds=SEEDS,
                held_out_identifiers=task.held_out_identifiers,
                first_seed=first_seed,
            )
            problems = [f"{line.check}: {line.detail}" for line in admission.checks if not line.passed]
            if not problems:
                calibration = await calibrate(environments, name)
                problems = _calibration_problems(calibration)
    except (CaseError, GeneratorError, SandboxError, WorldError) as error:
        problems = [str(error)]
    return Round(number, source, tuple(problems[:MAX_PROBLEMS]), admission, calibration)


def _calibration_problems(calibration: Calibration) -> list[str]:
    if calibration.outcome is CalibrationOutcome.FITS:
        return []
    return [
        f"calibration at difficulty {result.difficulty}: {'; '.join(result.outside)} "
        f"(mean {result.figures.mean:.2f})"
        for result in calibration.tried
    ]


def _store_round(folder: Path, round_to_store: Round) -> None:
    round_json = {
        "round": round_to_store.number,
        "problems": list(round_to_store.problems),
        "admission": round_to_store.admission.model_dump(mode="json") if round_to_store.admission else None,
        "calibration": round_to_store.calibration.model_dump(mode="json")
        if round_to_store.calibration
        else None,
    }
    name = f"round-{round_to_store.number}"
    write_together(
        {
            folder / f"{name}{MODULE_SUFFIX}": round_to_store.source,
            folder / f"{name}.json": f"{json.dumps(round_json, indent=1)}\n",
        }
    )


def synthesis_task(
    name: str,
    description: str | None,
    runs: Sequence[str],
    suite: str | None = None,
    *,
    project: Project,
    base_folder: Path,
) -> SynthesisTask:
    """Return the task of synthesizing an environment for a capability.

    Args:
        runs: Runs whose failures are shown to the model.
        suite: The suite in whose world the environment is played; None for the world of the runs.
        project: The project. Its sealed tasks are not shown and may not occur in a scenario.
        base_folder: The folder to which paths are relative.

    Raises:
        ConfigError: the name is taken or invalid, there is no description, or no environment can be made for
            the world.
    """
    if name in BUILT_IN_NAMES:
        raise ConfigError(f"{name!r} has a built-in environment: see 'trace2evolve environment list'")
    if not description:
        raise ConfigError(f"{name!r} has no description: pass --description")
    try:
        capability = Capability(name=name, description=description)
    except ValidationError as error:
        raise ConfigError(
            f"{name!r} is not a valid capability name: {first_problem(error, 'name')}"
        ) from None
    worlds = project.open_worlds()
    target: WorldName | None = None
    if suite is not None:
        target = (project.suite(suite).provider, project.suite(suite).domain)
        target = _with_support_tools(target, worlds)

    def check_world(source: str, world: WorldName) -> None:
        nonlocal target
        target = target or _with_support_tools(world, worlds)
        require_same_tools(source, world, [target], worlds)

    failures: Sequence[tuple[str, Sequence[Message]]] = ()
    if runs:
        traces = gather_traces(
            runs, worlds, project=project, base_folder=base_folder, check_world=check_world
        )
        failures = _failures(name, traces)
    target = target or SUPPORT
    held_out = {*_sealed_records(project, target, worlds), *collect_held_out_identifiers(project)}
    return SynthesisTask(
        capability=capability,
        target=target,
        worlds=worlds,
        tables=_sample_tables(target, worlds, held_out),
        failures=failures,
        held_out_identifiers=sorted(held_out),
    )


def _with_support_tools(world: WorldName, worlds: Worlds) -> WorldName:
    """The support world if a world has its tools, else the world."""
    return SUPPORT if worlds.interface_of(*world) == worlds.interface_of(*SUPPORT) else world


def _tables_of(target: WorldName, worlds: Worlds) -> Mapping[str, Any]:
    """The tables of a world's database as JSON; a generated case has those of the support world.

    Raises:
        ConfigError: the world does not show its database.
    """
    if target == SUPPORT:
        [sample] = generate("sample", 1, Content.TRAIN, ("multi_step_task_completion",))
        return sample.task.tables
    session = worlds.open(*target).open()
    try:
        database = to_json(session.databases()["agent"]) if isinstance(session, SupportsDatabases) else None
    except WorldError as error:
        raise _no_environment_error(target, str(error)) from None
    if not isinstance(database, dict):
        raise _no_environment_error(
            target, "its sessions show no database with tables; add databases() to them"
        )
    return database


def _no_environment_error(target: WorldName, cause: str) -> ConfigError:
    return ConfigError(f"no environment can be written for {target[1]} (provider {target[0]}): {cause}")


def _sample_tables(target: WorldName, worlds: Worlds, held_out: Collection[str]) -> dict[str, Any]:
    """Some records of each table of a world, without those that only sealed tasks name.

    Raises:
        ConfigError: the world takes no records from a scenario.
    """
    tables: dict[str, Any] = {}
    for table, records in _tables_of(target, worlds).items():
        if isinstance(records, dict):
            shown = (key for key in records if key not in held_out)
            tables[table] = {key: records[key] for key in islice(shown, SAMPLE_RECORDS)}
        else:
            tables[table] = records[:SAMPLE_RECORDS] if isinstance(records, list) else records
    state = InitialState(initialization_data=InitializationData(agent_data=tables))
    try:
        worlds.open(*target).open().initialise(state)
    except WorldError as error:
        raise _no_environment_error(target, f"a scenario brings records of its own, but {error}") from None
    return tables


def _sealed_records(project: Project, target: WorldName, worlds: Worlds) -> set[str]:
    """The keys of a world's records that tasks of splits that decide or guard name, and no other tasks do."""
    words: dict[bool, set[str]] = {True: set(), False: set()}
    for name in project.suite_names:
        suite = project.suite(name)
        if name not in project.lock.suites or (suite.provider, suite.domain) != target or target == SUPPORT:
            continue
        tasks = project.world(suite, worlds).tasks()
        for split, ids in project.lock.suites[name].splits.items():
            is_sealed = project.splits[split].role is not Role.REPORT
            for task in ids:
                words[is_sealed] |= set(re.findall(r"[\w#@.+-]+", tasks[task].model_dump_json()))
    if not words[True]:
        return set()
    keys = {
        key for records in _tables_of(target, worlds).values() if isinstance(records, dict) for key in records
    }
    return (words[True] - words[False]) & keys


def _failures(name: str, traces: TraceSet) -> list[tuple[str, Sequence[Message]]]:
    """Failures that lack the capability according to the rules, or any failures if the rules find none."""
    failures = {behavior.simulation.id: behavior for behavior in traces.behaviors if not behavior.passed}
    lacking_failures = [
        (label.why, failures[label.trace].trace)
        for label in label_set_by_rules(traces).runs[0].labels
        if label.capability == name and label.presence is Presence.LACKING and label.trace in failures
    ]
    return (lacking_failures or [("it failed", behavior.trace) for behavior in failures.values()])[
        :MAX_FAILURES
    ]
