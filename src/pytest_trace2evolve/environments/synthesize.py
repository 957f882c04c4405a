"""Synthesis of an environment: a model writes a module, which is tried until it is admitted and calibrated.

Every module is kept with what was found wrong with it, for whoever reviews it; none runs outside of the
sandbox.

What a model is asked to write an environment from: a capability, the target, and failures that lack it.
"""

import asyncio
import json
import secrets
from collections.abc import Callable, Coroutine, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pytest_trace2evolve.cases.case import generate
from pytest_trace2evolve.diagnose.diagnosis import by_rules
from pytest_trace2evolve.diagnose.traces import gather
from pytest_trace2evolve.environments.admit import admit, held_out_of
from pytest_trace2evolve.environments.generated_store import MODULE, Synthesized, keep_module, offer_of
from pytest_trace2evolve.environments.registry import BUILT_IN_NAMES, Environments, require_same_tools
from pytest_trace2evolve.environments.sandbox.box import Sandbox, missing
from pytest_trace2evolve.errors import ConfigError, GeneratorError, SandboxError, Trace2EvolveError
from pytest_trace2evolve.judges.environments import (
    PROMPT_VERSION,
    mending_messages,
    read_module,
    synthesis_messages,
)
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.records.capability import BUILT_IN, Capability, Presence
from pytest_trace2evolve.records.environment import AdmissionReport, Calibration, Outcome
from pytest_trace2evolve.records.message import Message
from pytest_trace2evolve.records.protocols import Model, World
from pytest_trace2evolve.records.task import Content
from pytest_trace2evolve.utils.canonical import digest_text
from pytest_trace2evolve.utils.files import write_together
from pytest_trace2evolve.utils.reading import complaint
from pytest_trace2evolve.worlds.registry import WorldName, Worlds

ROUNDS = 5
"""How often a model may try."""

SEEDS = 200
"""Scenarios that a module is looked at for in a round; `environment check` looks at more."""

SEEDS_FROM = 1_000_000
"""Below which the first seed of an admission is drawn."""

PROBLEMS_MOST = 8
"""Problems that a model is told of at once."""

CalibrateOffer = Callable[[Environments, str], Coroutine[Any, Any, Calibration]]
"""Calibrates the environment of a name among those that are known."""


@dataclass(frozen=True)
class Commission:
    """What is to be written.

    Attributes:
        capability: What it shall pay.
        world: The target.
        tables: A sample of the target's records.
        shown: Traces that lack the capability, each with why it does.
        held_out: Ids and people that no scenario may hold.
    """

    capability: Capability
    world: World
    tables: dict[str, Any]
    shown: Sequence[tuple[str, Sequence[Message]]] = ()
    held_out: Sequence[str] = ()


@dataclass(frozen=True)
class Round:
    """One module and what was found wrong with it; nothing, where it was admitted and calibrated."""

    number: int
    source: str
    problems: tuple[str, ...]
    admission: AdmissionReport | None = None
    calibration: Calibration | None = None


@dataclass(frozen=True)
class Synthesis:
    """What came of it.

    Attributes:
        rounds: Every round, in order.
        module: The admitted module; None where every round failed.
        kept: Where all modules lie.
    """

    rounds: tuple[Round, ...]
    module: Path | None
    kept: Path
    calibration: Calibration | None = field(default=None)


async def synthesize(
    commission: Commission,
    judge: Model,
    *,
    name: str,
    root: Path,
    calibrate: CalibrateOffer,
    rounds: int = ROUNDS,
    told: Callable[[str], None] = lambda line: None,
) -> Synthesis:
    """Have a module written, and try it, until one holds or the rounds are used up.

    Args:
        commission: What is wanted.
        judge: Who writes.
        name: The judge's model.
        root: The project: an admitted module goes to its `environments/`, all of them to `.trace2evolve/`.
        calibrate: Measures the base model in an environment.
        rounds: How often the judge may try.
        told: Hears what came of each round.

    Raises:
        SandboxError: this platform cannot hold generated code: nothing is asked.
        InfrastructureError: the judge gave no answer.
        EndpointError: the endpoint refuses the judge.
    """
    if lacking := missing():
        raise SandboxError(f"nothing is synthesized: this platform cannot isolate generated code: {lacking}")
    capability, world = commission.capability, commission.world
    messages = synthesis_messages(
        capability, world.policy(), world.tools("assistant"), commission.tables, commission.shown
    )
    kept = root / ".trace2evolve" / "synthesis" / capability.name
    done: list[Round] = []
    for number in range(1, rounds + 1):
        completion = await judge.complete(messages, (), trial=number)
        source = read_module(completion.content)
        # Kept before it is tried: what was paid for must not be lost with whatever breaks next.
        _keep(kept, Round(number, source, ("not tried to the end",)))
        one = await _tried(commission, number, source, calibrate)
        done.append(one)
        _keep(kept, one)
        told(f"round {number}: {'; '.join(one.problems[:2]) or 'admitted, and calibrated'}")
        if not one.problems:
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
            return Synthesis(tuple(done), keep_module(root, record, source), kept, one.calibration)
        messages = [*messages[:2], *mending_messages(source, one.problems)]
    return Synthesis(tuple(done), None, kept)


async def _tried(commission: Commission, number: int, source: str, calibrate: CalibrateOffer) -> Round:
    """One module, tried as far as it goes: its rules, its admission, its calibration."""
    if not source:
        return Round(number, source, ("the answer holds no module: one ```python block is wanted",))
    name = commission.capability.name
    try:
        # Refused sources and modules that fail while they are loaded end here, with the line and the mend.
        with Sandbox(source, f"environment {name!r}"):
            pass
    except SandboxError as error:
        return Round(number, source, (str(error),))
    offer = offer_of(name, source, commission.capability.description, commission.world)
    with closing(Environments({name: offer})) as environments:
        report = await asyncio.to_thread(_admitted, environments, name, commission)
        if isinstance(report, str):
            return Round(number, source, (report,))
        problems = [f"{line.check}: {line.detail}" for line in report.checks if not line.passed]
        if problems:
            return Round(number, source, tuple(problems[:PROBLEMS_MOST]), report)
        try:
            calibration = await calibrate(environments, name)
        except (GeneratorError, SandboxError) as error:
            return Round(number, source, (str(error),), report)
    return Round(number, source, tuple(_outside(calibration)), report, calibration)


def _admitted(environments: Environments, name: str, commission: Commission) -> AdmissionReport | str:
    try:
        # A drawn beginning: a module must not know the scenarios by which it is judged.
        first = secrets.randbelow(SEEDS_FROM)
        return admit(environments, name, seeds=SEEDS, held_out=commission.held_out, first=first)
    except Trace2EvolveError as error:
        return str(error)


def _outside(calibration: Calibration) -> list[str]:
    """What a calibration that fits no difficulty found, difficulty by difficulty."""
    if calibration.outcome is Outcome.FITS:
        return []
    return [
        f"calibration at difficulty {one.difficulty}: {'; '.join(one.outside)} (mean {one.figures.mean:.2f})"
        for one in calibration.tried
    ]


def _keep(folder: Path, one: Round) -> None:
    """Write a round down, whatever comes after."""
    found = {
        "round": one.number,
        "problems": list(one.problems),
        "admission": one.admission.model_dump(mode="json") if one.admission else None,
        "calibration": one.calibration.model_dump(mode="json") if one.calibration else None,
    }
    record = folder / f"round-{one.number}.json"
    write_together(
        {folder / f"round-{one.number}{MODULE}": one.source, record: f"{json.dumps(found, indent=1)}\n"}
    )


def sample_tables(tables: dict[str, Any], most: int = 2) -> dict[str, Any]:
    """A few records of each table, for a prompt."""
    return {name: dict(list(records.items())[:most]) for name, records in tables.items()}


SHOWN_MOST = 3
"""Failures that are shown."""

TARGET = ("trace2evolve", "support")
"""The world in which synthesized scenarios are played: its sessions take any records, and cost little."""


def commission_of(
    name: str, description: str | None, runs: Sequence[str], *, project: Project, here: Path
) -> Commission:
    """What is wanted of a module.

    Args:
        name: The capability.
        description: What it is; None takes it from the dictionary.
        runs: Runs whose failures are shown.
        project: Whose sealed tasks are left out, and may not be seen in a scenario.
        here: The folder that paths start from.

    Raises:
        ConfigError: the name is invalid, the capability has no description, or a run is of a world with other
            tools.
        ResultsError: a run cannot be read.
    """
    if name in BUILT_IN_NAMES:
        raise ConfigError(f"{name!r} has a built-in environment: see 'trace2evolve environment list'")
    known = {one.name: one.description for one in BUILT_IN}
    text = description or known.get(name)
    if not text:
        raise ConfigError(
            f"{name!r} is not in the dictionary ({', '.join(known)}): say what it is with --description"
        )
    try:
        capability = Capability(name=name, description=text)
    except ValidationError as error:
        raise ConfigError(f"{name!r} is no name of a capability: {complaint(error, 'name')}") from None
    worlds = project.open_worlds()
    [sample] = generate("sample", 1, Content.TRAIN, ("multi_step_task_completion",))
    return Commission(
        capability=capability,
        world=worlds.open(*TARGET),
        tables=sample_tables(sample.task.tables),
        shown=_shown(name, runs, worlds, project, here),
        held_out=held_out_of(project),
    )


def _shown(
    name: str, runs: Sequence[str], worlds: Worlds, project: Project, here: Path
) -> list[tuple[str, Sequence[Message]]]:
    """Failures that lack the capability by the rules; of one that the rules do not know, any failures."""
    if not runs:
        return []

    def check_world(what: str, world: WorldName) -> None:
        require_same_tools(what, world, [TARGET], worlds)

    gathered = gather(runs, worlds, project=project, here=here, check_world=check_world)
    failed = {one.simulation.id: one for one in gathered.conducts if not one.passed}
    labels = [
        label
        for label in by_rules(gathered).runs[0].labels
        if label.capability == name and label.presence is Presence.LACKING and label.trace in failed
    ]
    if labels:
        return [(label.why, failed[label.trace].trace) for label in labels[:SHOWN_MOST]]
    return [("it failed", one.trace) for one in list(failed.values())[:SHOWN_MOST]]
