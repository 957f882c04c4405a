"""The settings of the models of a live run, for the agent and the user.

A model may be a folder on this machine. Evidence and keys contain the folder's digest, because the address at
which the folder is served changes with each run.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pytest_trace2evolve.evidence.answer_store import Cassette
from pytest_trace2evolve.models.prices import Price
from pytest_trace2evolve.models.settings import ModelSettings
from pytest_trace2evolve.project.candidates import Candidate
from pytest_trace2evolve.records.evidence import CHAT, SCRIPTED_USER, Code, Settings
from pytest_trace2evolve.serving.folder import (
    CONFIG_FILE,
    ModelFolder,
    expand_home,
    folder_digest,
    read_adapter,
    read_model,
)
from pytest_trace2evolve.utils.files import real_path
from pytest_trace2evolve.utils.secrets import remove_secret_fields

EXTRA_INSTRUCTION_VAR = "TAU2_AGENT_EXTRA_INSTRUCTION"
"""The environment variable with an extra instruction for the agent, which τ²'s own tools read too."""

RECORDED_ENDPOINT = frozenset({"endpoint", "weights", "extra_instruction"})
"""Recorded arguments of a project's own agent that are not parameters of its model."""

DEFAULT_CONCURRENCY = 16
"""The default number of concurrent simulations in one process."""


@dataclass(frozen=True)
class RaySettings:
    """The settings of a Ray cluster that runs simulations.

    Attributes:
        address: The cluster's address, or `auto`.
        pip: A file of requirements that the nodes install for the run; None to install nothing.
        env: Names of the environment variables that are passed to the nodes.
    """

    address: str
    pip: Path | None = None
    env: tuple[str, ...] = ()


@dataclass(frozen=True)
class Routes:
    """The models that a routed agent chooses from.

    Attributes:
        base: The base model, which answers if no adapter is chosen.
        models: The base model with each adapter, by the adapter's name.
        owners: The adapter of each capability.
        router: The router, which a local server serves next to its model.
    """

    base: ModelSettings
    models: Mapping[str, ModelSettings]
    owners: Mapping[str, str]
    router: ModelSettings


@dataclass(frozen=True)
class AgentFunction:
    """The function of a project that makes its agent.

    Attributes:
        path: The import path, `package.module:attribute`, or the URL without credentials.
        folder: The folder to import from, in which the agent's processes run.
        import_folders: The folders in which modules are looked up first; empty for `folder` alone.
        is_commit: Whether `folder` holds an earlier commit, whose modules no other copy may replace.
        url: The URL of an agent that is served over HTTP, with credentials; empty for a function.
        log_folder: The folder for the output of the agent's processes.
        timeout: Seconds that the agent has to be made, and to answer each message or tool result.
        parameters: The parameters of the model that the candidate or an option sets.
        prices: Prices of models by name.
        needs_prices: Whether a request to a model without a price ends the run.
        code: The identity of the agent's code.
        code_folders: Further folders with the agent's code, by their paths in the project.
    """

    path: str
    folder: Path
    log_folder: Path = field(compare=False)
    timeout: float
    import_folders: tuple[Path, ...] = ()
    is_commit: bool = False
    url: str = field(default="", repr=False)
    parameters: Mapping[str, Any] = field(default_factory=dict)
    prices: Mapping[str, Price] = field(default_factory=dict, repr=False, compare=False)
    needs_prices: bool = False
    code: Code = field(default_factory=Code, repr=False)
    code_folders: Mapping[str, Path] = field(default_factory=dict, compare=False)

    @property
    def recorded_parameters(self) -> dict[str, Any]:
        """The parameters as evidence records them, without secrets."""
        parameters = dict(self.parameters)
        if body := parameters.get("extra_body"):
            parameters["extra_body"] = remove_secret_fields(body)
        return parameters


@dataclass(frozen=True)
class LiveSettings:
    """The models of a live run.

    Attributes:
        agent: The agent's model; for a routed agent, the settings that evidence records for all its models.
        user: The model of the user simulator.
        extra_instruction: An instruction for the agent from the environment; may be empty.
        uses_cache: Whether answers are read from and written to the project's cache.
        uses_scripts: Whether customers of synthetic cases follow their scripts instead of a model.
        record: The cassette to which the run's answers are written; None to write no cassette.
        cassette: The recorded answers that replace the models; None if models are called.
        routes: The models that a routed agent chooses from; None if the agent is one model.
        function: The function that makes the project's own agent; None for agent `chat`. With a
            function, `agent` describes the endpoint of the agent's requests, and its model name may be empty.
    """

    agent: ModelSettings
    user: ModelSettings
    extra_instruction: str = ""
    uses_cache: bool = False
    uses_scripts: bool = True
    record: Path | None = None
    cassette: Cassette | None = field(default=None, repr=False)
    routes: Routes | None = None
    function: AgentFunction | None = None

    def require_endpoints(self) -> None:
        """Check that every model that will be called has a key and a URL.

        Raises:
            EndpointError: the variable that should hold a key is empty, or a base URL is invalid.
        """
        for model in () if self.cassette else self.models:
            # An agent of the project may call no model, or one that needs no key.
            if self.function is None or model is not self.agent:
                model.key()
            model.require_url()

    @property
    def models(self) -> Iterator[ModelSettings]:
        """All models of the run: those of the agent, then the user's."""
        routes = self.routes
        yield from [self.agent] if routes is None else [routes.base, *routes.models.values(), routes.router]
        if self.has_user_model:
            yield self.user

    @property
    def agent_name(self) -> str:
        """The name of the agent: `chat`, or the import path of a project's own agent."""
        return CHAT if self.function is None else self.function.path

    @property
    def call_timeout(self) -> float | None:
        """The seconds that the project's function has for each step.

        None for other agents, and for a cassette, which does not record them.
        """
        if self.function is None or self.function.url or self.cassette is not None:
            return None
        return self.function.timeout

    @property
    def has_user_model(self) -> bool:
        """Whether the run has a user model. With a project's own agent, it has one only without scripts."""
        return self.function is None or not self.uses_scripts

    @property
    def answer_limits(self) -> list[int]:
        """The limits of an answer in tokens of the models that this package calls, in ascending order."""
        if self.cassette is not None:
            return []
        called = [model for model in self.models if self.function is None or model is not self.agent]
        return sorted({limit for model in called if (limit := model.answer_limit) is not None})

    def map_models(self, function: Callable[[ModelSettings], ModelSettings]) -> "LiveSettings":
        """The same settings with `function` applied to all models."""
        routes = self.routes
        if routes is not None:
            models = {name: function(model) for name, model in routes.models.items()}
            routes = Routes(function(routes.base), models, routes.owners, function(routes.router))
        return replace(self, agent=function(self.agent), user=function(self.user), routes=routes)

    def agent_settings(self) -> Settings:
        """The settings of the agent as evidence records them."""
        if self.function is not None:
            agent_record = self.agent.to_record()
            endpoint: dict[str, object] = {
                name: value for name, value in agent_record.items() if name in RECORDED_ENDPOINT
            }
            if self.extra_instruction:
                endpoint["extra_instruction"] = self.extra_instruction
            return Settings(
                implementation=self.function.path,
                model=self.agent.model or None,
                arguments={**self.function.recorded_parameters, **endpoint},
                code=self.function.code,
            )
        arguments = self.agent.to_record()
        if self.extra_instruction:
            arguments["extra_instruction"] = self.extra_instruction
        return Settings(implementation=CHAT, model=self.agent.model, arguments=arguments)

    def user_settings(self) -> Settings:
        """The settings of the user simulator as evidence records them."""
        if not self.has_user_model:
            return Settings(implementation=SCRIPTED_USER)
        return Settings(implementation=CHAT, model=self.user.model, arguments=self.user.to_record())


@dataclass(frozen=True)
class CandidateSetup:
    """A candidate with the settings of its models.

    Attributes:
        live: The settings; None if the candidate's agent is a plugin's.
    """

    candidate: Candidate
    live: LiveSettings | None


def read_extra_instruction() -> str:
    """The extra instruction from the environment; empty if there is none."""
    return os.environ.get(EXTRA_INSTRUCTION_VAR, "").strip()


_PATH_PREFIXES = ("./", "../", "/", "~")
"""Prefixes that mark a path, because no name of a model starts with them."""


@dataclass(frozen=True)
class ServedModel:
    """The base URL and token of the server of a folder's model, and the folder's digest."""

    base_url: str
    token: str = field(repr=False)
    weights: str


def is_model_folder(model: str, base_folder: Path) -> bool:
    """Whether `model` names a folder, as a path or as the name of a model folder in `base_folder`."""
    return (
        model.startswith(_PATH_PREFIXES)
        or model in (".", "..")
        or (base_folder / model / CONFIG_FILE).is_file()
    )


def read_model_folder(
    model: str, base_folder: Path, servers: Mapping[str, ServedModel]
) -> tuple[ModelFolder, str]:
    """A model's folder and its digest.

    Raises:
        ModelFolderError: the folder cannot be served.
    """
    path = real_path(base_folder / expand_home(Path(model)))
    server = servers.get(str(path))
    return read_model(path), folder_digest(path) if server is None else server.weights


def with_adapter(model: ModelSettings, adapter: str | Path, base_folder: Path) -> ModelSettings:
    """The settings of a folder's model with an adapter. The name and the digest combine those of both.

    Raises:
        ModelFolderError: the adapter cannot be served with that model.
    """
    assert model.folder is not None
    path = real_path(base_folder / expand_home(Path(adapter)))
    name = f"{model.model}+{path.name}"
    read_adapter(name, path, read_model(model.folder))
    return replace(model, model=name, adapter=path, weights=f"{model.weights}+{folder_digest(path)}")
