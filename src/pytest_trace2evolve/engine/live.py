"""The models of a live run, for the agent and the user, and how each is asked.

A model may be a folder of this machine. Evidence and keys hold the folder's digest, since its address changes
with each run.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from pytest_trace2evolve.evidence.cassettes import Cassette
from pytest_trace2evolve.models.settings import ModelSettings
from pytest_trace2evolve.project.candidates import Candidate
from pytest_trace2evolve.records.adapter import Skill
from pytest_trace2evolve.records.evidence import CHAT, Settings
from pytest_trace2evolve.serving.folder import (
    CONFIG,
    ModelFolder,
    expanded,
    folder_digest,
    read_adapter,
    read_model,
)

EXTRA_INSTRUCTION_VAR = "TAU2_AGENT_EXTRA_INSTRUCTION"
"""An instruction from the environment, honoured as τ²'s own tools honour it."""

DEFAULT_CONCURRENCY = 16
"""Simulations at once in one process."""


@dataclass(frozen=True)
class RaySettings:
    """A Ray cluster on which simulations are made.

    Attributes:
        address: The cluster's address, or `auto`.
        per_actor: Simulations at once in one actor; None for the executor's default.
        pip: A file of requirements that nodes install for the run; None for none.
        env: Names of environment variables that are handed to the nodes.
    """

    address: str
    per_actor: int | None = None
    pip: Path | None = None
    env: tuple[str, ...] = ()


@dataclass(frozen=True)
class Routes:
    """What a routed agent chooses from.

    Attributes:
        base: The base model, which chooses, and answers if it chooses no adapter.
        models: The same model with each adapter, by the adapter's name.
        skills: The router's table, in the order of `models`.
        each_turn: Whether it chooses after each message of the customer, instead of once a task.
    """

    base: ModelSettings
    models: Mapping[str, ModelSettings]
    skills: tuple[Skill, ...]
    each_turn: bool = False


@dataclass(frozen=True)
class LiveSettings:
    """The models of a live run.

    Attributes:
        agent: The agent's model; of a routed agent what is recorded of all its models together.
        cache: Whether answers are taken from the project's cache and kept there.
        scripts: Whether customers of synthetic cases follow their scripts, though a model could play them.
        record: Where to write the run's answers; None: nowhere.
        cassette: Where the answers come from instead of a model; None if models are asked.
        routes: What a routed agent chooses from; None if the agent is one model.
        each_turn: Whether a routed agent chooses at each turn.
    """

    agent: ModelSettings
    user: ModelSettings
    extra_instruction: str = ""
    cache: bool = False
    scripts: bool = True
    record: Path | None = None
    cassette: Cassette | None = field(default=None, repr=False)
    routes: Routes | None = None
    each_turn: bool = False

    def require_endpoints(self) -> None:
        """Check that all models that are asked have a key and a URL.

        Raises:
            EndpointError: the variable that should hold a key is empty, or a base URL is invalid.
        """
        for model in () if self.cassette else self.models:
            model.key()
            model.require_url()

    @property
    def models(self) -> Iterator[ModelSettings]:
        """All models that are asked."""
        routes = self.routes
        yield from (self.agent,) if routes is None else (routes.base, *routes.models.values())
        yield self.user

    def map_models(self, function: Callable[[ModelSettings], ModelSettings]) -> "LiveSettings":
        """The same settings with `function` applied to all models."""
        routes = self.routes
        if routes is not None:
            models = {name: function(model) for name, model in routes.models.items()}
            routes = replace(routes, base=function(routes.base), models=models)
        return replace(self, agent=function(self.agent), user=function(self.user), routes=routes)

    def agent_settings(self) -> Settings:
        """What evidence records of the agent."""
        arguments = self.agent.recorded()
        if self.extra_instruction:
            arguments["extra_instruction"] = self.extra_instruction
        if self.routes is not None and self.routes.each_turn:
            arguments["routed"] = "each turn"
        return Settings(implementation=CHAT, model=self.agent.model, arguments=arguments)

    def user_settings(self) -> Settings:
        """What evidence records of the user simulator."""
        return Settings(implementation=CHAT, model=self.user.model, arguments=self.user.recorded())


@dataclass(frozen=True)
class Party:
    """A candidate with the settings of its models; None if its agent is a plugin's."""

    candidate: Candidate
    live: LiveSettings | None


def extra_instruction() -> str:
    """The instruction that the environment adds, or an empty text."""
    return os.environ.get(EXTRA_INSTRUCTION_VAR, "").strip()


_PATH_PREFIXES = ("./", "../", "/", "~")
"""Prefixes of paths that no name of a model has."""


@dataclass(frozen=True)
class Address:
    """Where a folder's model is served, the token to ask it with, and the folder's digest."""

    base_url: str
    token: str = field(repr=False)
    weights: str


def names_folder(model: str, here: Path) -> bool:
    """Whether a model is named by its folder: as a path, or by the name of one that is there."""
    return model.startswith(_PATH_PREFIXES) or model in (".", "..") or (here / model / CONFIG).is_file()


def model_folder(model: str, here: Path, served: Mapping[str, Address]) -> tuple[ModelFolder, str]:
    """A model's folder and its digest.

    Raises:
        ModelFolderError: it cannot be served.
    """
    path = (here / expanded(Path(model))).resolve()
    known = served.get(str(path))
    return read_model(path), folder_digest(path) if known is None else known.weights


def adapted(model: ModelSettings, adapter: str | Path, here: Path) -> ModelSettings:
    """A folder's model that talks with an adapter: named after both, with the digests of both.

    Raises:
        ModelFolderError: it cannot be served with that model.
    """
    assert model.folder is not None
    path = (here / expanded(Path(adapter))).resolve()
    name = f"{model.model}+{path.name}"
    read_adapter(name, path, read_model(model.folder))
    return replace(model, model=name, adapter=path, weights=f"{model.weights}+{folder_digest(path)}")
