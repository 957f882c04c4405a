"""Synthesis of an environment: a model revises a module until it is admitted and calibrated.

Every module is stored with its problems for review. No module runs outside the sandbox.
"""

import asyncio
import json
import secrets
from collections.abc import Callable, Coroutine, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pytest_trace2evolve.cases.case import generate
from pytest_trace2evolve.diagnose.diagnosis import by_rules
from pytest_trace2evolve.diagnose.traces import gather
from pytest_trace2evolve.environments.admission import admit
from pytest_trace2evolve.environments.generated import MODULE, Synthesized, offer_of, save_module
from pytest_trace2evolve.environments.held_out import held_out_of
from pytest_trace2evolve.environments.registry import BUILT_IN_NAMES, Environments, require_same_tools
from pytest_trace2evolve.environments.sandbox.box import Sandbox, missing
from pytest_trace2evolve.errors import CaseError, ConfigError, GeneratorError, SandboxError, WorldError
from pytest_trace2evolve.judges.environments import (
    PROMPT_VERSION,
    read_module,
    revision_messages,
    synthesis_messages,
)
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.records.capability import Capability, Presence
from pytest_trace2evolve.records.environment import AdmissionReport, Calibration, Outcome
from pytest_trace2evolve.records.message import Message
from pytest_trace2evolve.records.protocols import Model, World
from pytest_trace2evolve.records.task import Content
from pytest_trace2evolve.utils.canonical import digest_text
from pytest_trace2evolve.utils.files import write_together
from pytest_trace2evolve.utils.reading import problem_in
from pytest_trace2evolve.worlds.registry import WorldName, Worlds

ROUNDS = 5  # default number of rounds
SEEDS = 200  # scenarios of a module checked in a round; `environment check` checks more
MAX_FIRST_SEED = 1_000_000  # exclusive upper bound of the random first seed of an admission
MAX_PROBLEMS = 8  # most problems sent back at once
MAX_FAILURES = 3  # most failures shown to the model
SAMPLE_RECORDS = 2  # records shown of each table

TARGET = ("trace2evolve", "support")
"""The world in which synthesized scenarios are played. Its sessions accept any records and cost little."""

CalibrateOffer = Callable[[Environments, str], Coroutine[Any, Any, Calibration]]
"""Calibrates one of the given environments, by its name."""


@dataclass(frozen=True)
class SynthesisTask:
    """A capability for which a model writes an environment.

    Attributes:
        tables: A sample of the target's records.
        failures: Traces that lack the capability, each with the reason.
        held_out: Ids and people that no scenario may contain.
    """

    capability: Capability
    world: World
    tables: dict[str, Any]
    failures: Sequence[tuple[str, Sequence[Message]]] = ()
    held_out: Sequence[str] = ()


@dataclass(frozen=True)
class Round:
    """One module and its problems. A module that was admitted and calibrated has none."""

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
    name: str,
    root: Path,
    calibrate: CalibrateOffer,
    rounds: int = ROUNDS,
    on_progress: Callable[[str], None] = lambda line: None,
) -> Synthesis:
    """Let a model write and revise a module until it is admitted and calibrated, or the rounds are used up.

    Args:
        judge: The model that writes.
        name: The name recorded for the judge.
        root: The project's folder. An admitted module is saved in `environments/`, every module in
            `.trace2evolve/`.
        calibrate: Measures the base model in an environment.
        on_progress: Called with one line on the result of each round.

    Raises:
        SandboxError: this platform cannot isolate generated code. The judge is not asked.
    """
    if lacking := missing():
        raise SandboxError(f"nothing is synthesized: this platform cannot isolate generated code: {lacking}")
    capability, world = task.capability, task.world
    request = synthesis_messages(
        capability, world.policy(), world.tools("assistant"), task.tables, task.failures
    )
    messages = request
    folder = root / ".trace2evolve" / "synthesis" / capability.name
    done: list[Round] = []
    for number in range(1, rounds + 1):
        completion = await judge.complete(messages, (), trial=number)
        source = read_module(completion.content)
        # Stored before it is tried, so that a module that was paid for is not lost if something breaks.
        _store_round(folder, Round(number, source, ("not tried to the end",)))
        result = await _try_module(task, number, source, calibrate)
        done.append(result)
        _store_round(folder, result)
        on_progress(f"round {number}: {'; '.join(result.problems[:2]) or 'admitted, and calibrated'}")
        if not result.problems:
            record = Synthesized(
                capability=capability.name,
                description=capability.description,
                source=digest_text(source),
                judge=name,
                prompt=PROMPT_VERSION,
                rounds=number,
                provider=world.provider,
                domain=world.domain,
                created_at=datetime.now(UTC).isoformat(timespec="seconds"),
            )
            return Synthesis(tuple(done), save_module(root, record, source), folder)
        messages = [*request, *revision_messages(source, result.problems)]
    return Synthesis(tuple(done), None, folder)


async def _try_module(task: SynthesisTask, number: int, source: str, calibrate: CalibrateOffer) -> Round:
    """Try the sandbox's rules, admission and calibration in turn, up to the first that fails."""
    name = task.capability.name
    admission: AdmissionReport | None = None
    calibration: Calibration | None = None
    try:
        if not source:
            raise GeneratorError("the answer holds no module: write one ```python block")
        # Rejected sources and modules that fail to load end here, with the line and the remedy.
        Sandbox(source, f"environment {name!r}").close()
        offer = offer_of(name, source, task.capability.description, task.world)
        with closing(Environments({name: offer})) as environments:
            # A random first seed, because a module must not know the scenarios by which it is judged.
            first = secrets.randbelow(MAX_FIRST_SEED)
            admission = await asyncio.to_thread(
                admit, environments, name, seeds=SEEDS, held_out=task.held_out, first=first
            )
            problems = [f"{line.check}: {line.detail}" for line in admission.checks if not line.passed]
            if not problems:
                calibration = await calibrate(environments, name)
                problems = _calibration_problems(calibration)
    except (CaseError, GeneratorError, SandboxError, WorldError) as error:
        problems = [str(error)]
    return Round(number, source, tuple(problems[:MAX_PROBLEMS]), admission, calibration)


def _calibration_problems(calibration: Calibration) -> list[str]:
    if calibration.outcome is Outcome.FITS:
        return []
    return [
        f"calibration at difficulty {tried.difficulty}: {'; '.join(tried.outside)} "
        f"(mean {tried.figures.mean:.2f})"
        for tried in calibration.tried
    ]


def _store_round(folder: Path, result: Round) -> None:
    record = {
        "round": result.number,
        "problems": list(result.problems),
        "admission": result.admission.model_dump(mode="json") if result.admission else None,
        "calibration": result.calibration.model_dump(mode="json") if result.calibration else None,
    }
    name = f"round-{result.number}"
    write_together(
        {
            folder / f"{name}{MODULE}": result.source,
            folder / f"{name}.json": f"{json.dumps(record, indent=1)}\n",
        }
    )


def synthesis_task(
    name: str, description: str | None, runs: Sequence[str], *, project: Project, here: Path
) -> SynthesisTask:
    """The task of synthesizing an environment for a capability.

    Args:
        runs: Runs whose failures are shown to the model.
        project: The project. Its sealed tasks are not shown and may not occur in a scenario.
        here: The folder that relative paths start from.
    """
    if name in BUILT_IN_NAMES:
        raise ConfigError(f"{name!r} has a built-in environment: see 'trace2evolve environment list'")
    if not description:
        raise ConfigError(f"{name!r} is not described: say what it is with --description")
    try:
        capability = Capability(name=name, description=description)
    except ValidationError as error:
        raise ConfigError(f"{name!r} is no name of a capability: {problem_in(error, 'name')}") from None
    worlds = project.open_worlds()
    [sample] = generate("sample", 1, Content.TRAIN, ("multi_step_task_completion",))
    return SynthesisTask(
        capability=capability,
        world=worlds.open(*TARGET),
        tables={
            table: dict(list(records.items())[:SAMPLE_RECORDS])
            for table, records in sample.task.tables.items()
        },
        failures=_failures(name, runs, worlds, project, here) if runs else (),
        held_out=held_out_of(project),
    )


def _failures(
    name: str, runs: Sequence[str], worlds: Worlds, project: Project, here: Path
) -> list[tuple[str, Sequence[Message]]]:
    """Failures that lack the capability according to the rules, or any failures if the rules find none."""

    def check_world(what: str, world: WorldName) -> None:
        require_same_tools(what, world, [TARGET], worlds)

    traces = gather(runs, worlds, project=project, here=here, check_world=check_world)
    failed = {behavior.simulation.id: behavior for behavior in traces.behaviors if not behavior.passed}
    lacking = [
        (label.why, failed[label.trace].trace)
        for label in by_rules(traces).runs[0].labels
        if label.capability == name and label.presence is Presence.LACKING and label.trace in failed
    ]
    return (lacking or [("it failed", behavior.trace) for behavior in failed.values()])[:MAX_FAILURES]
