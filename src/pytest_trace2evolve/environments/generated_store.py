"""Environments that a model wrote, as a project keeps them: `environments/generated/<capability>.py.txt`.

The record beside a module says where it comes from; one that was changed since it was admitted is refused.
Its code runs in the sandbox alone: the file's name is one that neither pytest nor Python would ever import.
"""

from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from pytest_trace2evolve.cases.content import vocabulary
from pytest_trace2evolve.environments.generated import Box, GeneratedGenerator
from pytest_trace2evolve.environments.registry import BUILT_IN_NAMES, Environments
from pytest_trace2evolve.errors import GeneratorError, refuse_taken
from pytest_trace2evolve.project.extensions import registered_environments
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.records.base import Record
from pytest_trace2evolve.records.capability import CapabilityName
from pytest_trace2evolve.records.protocols import Generator, Offer, World
from pytest_trace2evolve.records.task import Content, Replies
from pytest_trace2evolve.utils.canonical import digest_text
from pytest_trace2evolve.utils.files import write_together
from pytest_trace2evolve.utils.reading import SETTINGS, read_bytes, read_record, reported
from pytest_trace2evolve.worlds.registry import Worlds

FOLDER = Path("environments") / "generated"
"""The folder of a project that holds them, and nothing else."""

MODULE = ".py.txt"
"""How a module's name ends. As `.py`, one of a capability called `conftest` would be run by plain pytest."""


class Synthesized(Record):
    """Where a module comes from.

    Attributes:
        source: Digest of the module.
        judge: The model that wrote it, and `prompt` the version of what it was asked.
        rounds: How many it took.
        provider, domain: The target.
    """

    schema_version: Literal[1] = 1
    capability: CapabilityName
    description: str
    source: str
    judge: str
    prompt: str
    rounds: Annotated[int, Field(ge=1)]
    provider: str
    domain: str
    created_at: str


def project_environments(project: Project) -> Environments:
    """All environments of a project: built-in, installed, of its hooks, and those that a model wrote.

    Raises:
        ConfigError: the project's hooks cannot be loaded, or a capability is registered twice.
        GeneratorError: as for `generated_offers`.
        WorldError: the target of a generated one cannot be opened.
    """
    worlds = project.open_worlds()
    generated = generated_offers(project.root, worlds)
    hooked = project.extensions.environments
    others = {**registered_environments(), **dict.fromkeys(hooked, "the hook pytest_t2e_environments")}
    for name in generated.keys() & others.keys():
        refuse_taken("environment", name, others[name], f"{FOLDER / name}.json")
    return Environments({**hooked, **generated}, worlds, project)


def generated_offers(root: Path, worlds: Worlds) -> dict[str, Offer]:
    """The offers of a project's modules, by capability.

    Raises:
        GeneratorError: a record is damaged, or a module was changed after it was admitted.
        WorldError: a module's target cannot be opened.
    """
    found = {}
    for path in sorted((root / FOLDER).glob("*.json")):
        record, source = _read(path)
        if record.capability != path.stem:
            raise GeneratorError(f"{path}: is of {record.capability!r}; name the file after it")
        if record.capability in BUILT_IN_NAMES:
            raise GeneratorError(f"{path}: {record.capability!r} is built in; remove the file")
        world = worlds.open(record.provider, record.domain)
        found[record.capability] = offer_of(record.capability, source, record.description, world)
    return found


def _read(path: Path) -> tuple[Synthesized, str]:
    """A record and its module."""
    module = path.with_suffix(MODULE)
    record = read_record(path, Synthesized, GeneratorError, "synthesize it again")
    with reported(module, GeneratorError, "synthesize it again"):
        source = bytes(read_bytes(module, GeneratorError, limit=SETTINGS)).decode("utf-8")
    if digest_text(source) != record.source:
        raise GeneratorError(
            f"{module}: is not what was admitted; bring it back, or run "
            f"'trace2evolve environment synthesize {record.capability}' again"
        )
    return record, source


def offer_of(capability: str, source: str, pays: str, world: World) -> Offer:
    """The offer of a module; its process starts when it is first asked, and serves all difficulties."""
    boxes = [Box(source, f"environment {capability!r}")]

    def apart() -> Box:
        boxes.append(Box(source, f"environment {capability!r}, again"))
        return boxes[-1]

    def close() -> None:
        for box in boxes:
            box.close()

    def made(difficulty: int, content: Content, box: Box) -> Generator:
        return GeneratedGenerator(capability, source, difficulty, content, world, _replies(), box)

    return Offer(
        make=lambda difficulty, content: made(difficulty, content, boxes[0]),
        pays=pays,
        provider=world.provider,
        domain=world.domain,
        elsewhere=lambda difficulty, content: made(difficulty, content, apart()),
        close=close,
    )


@cache
def _replies() -> Replies:
    """How the customers of generated scenarios say what every customer says: in words of training."""
    phrases = vocabulary(Content.TRAIN).phrases
    return Replies.model_validate({name: phrases[name] for name in Replies.model_fields})


def keep_module(root: Path, record: Synthesized, source: str) -> Path:
    """Write an admitted module and its record, both or none; returns the module's path."""
    folder = root / FOLDER
    module = folder / f"{record.capability}{MODULE}"
    told = f"{record.model_dump_json(indent=1)}\n"
    write_together({module: source, folder / f"{record.capability}.json": told})
    return module
