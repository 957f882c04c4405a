"""What a model is asked to write an environment from: a capability, the target, and failures that lack it."""

from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from pytest_trace2evolve.capabilities.dictionary import BUILT_IN
from pytest_trace2evolve.cases.case import generate
from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.records.base import complaint
from pytest_trace2evolve.records.capability import Capability, Presence
from pytest_trace2evolve.records.message import Message
from pytest_trace2evolve.records.script import Content
from pytest_trace2evolve.workflow.capabilities.gather import gather
from pytest_trace2evolve.workflow.capabilities.mine import by_rules
from pytest_trace2evolve.workflow.environments.admit import held_out_of
from pytest_trace2evolve.workflow.environments.registry import BUILT_IN_NAMES, require_same_tools
from pytest_trace2evolve.workflow.environments.synthesize import Commission, sample_tables
from pytest_trace2evolve.workflow.project import Project
from pytest_trace2evolve.worlds.registry import WorldName, Worlds

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
