"""Applies a candidate's adapter or router to the models of a run, and records and plays cassettes."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pytest_trace2evolve.agents.probe import PROBE_FILE, read_probe
from pytest_trace2evolve.engine.http_agent import check_url, public_url, read_version
from pytest_trace2evolve.engine.live import (
    EXTRA_INSTRUCTION_VAR,
    AgentFunction,
    LiveSettings,
    Routes,
    with_adapter,
)
from pytest_trace2evolve.errors import AdapterError, CassetteError, ConfigError, InfrastructureError
from pytest_trace2evolve.evidence.answer_store import AnswerFile, Cassette, read_cassette, render_cassette
from pytest_trace2evolve.evidence.identity import agent_code
from pytest_trace2evolve.models.prices import FREE_PRICE, Price
from pytest_trace2evolve.models.settings import ModelSettings
from pytest_trace2evolve.project.adapters import Adapter, Adapters
from pytest_trace2evolve.project.candidates import ADAPTER_SEPARATOR, ROUTED, Candidate
from pytest_trace2evolve.project.project import LockedSuite
from pytest_trace2evolve.project.tool_settings import find_code_folders
from pytest_trace2evolve.records.evidence import CHAT, SCRIPTED_USER, Code, Settings
from pytest_trace2evolve.serving.folder import folder_digest, read_model
from pytest_trace2evolve.utils.canonical import digest
from pytest_trace2evolve.utils.files import write_atomic
from pytest_trace2evolve.utils.git import checked_out
from pytest_trace2evolve.utils.import_path import add_to_path, is_own_agent, is_url, project_paths
from pytest_trace2evolve.utils.resources import embedded_model


def playback_settings(path: Path, environment_instruction: str) -> LiveSettings:
    """Return the settings of a run that plays a cassette back, as the cassette recorded them.

    Args:
        path: The cassette.
        environment_instruction: The extra instruction from the environment; if empty, the recorded one
            is used.

    Raises:
        CassetteError: the cassette is invalid, or was recorded with a different extra instruction.
    """
    cassette = read_cassette(path)
    agent, recorded_instruction = cassette.header.agent, _recorded_instruction(cassette)
    if environment_instruction and environment_instruction != recorded_instruction:
        raise CassetteError(
            f"{EXTRA_INSTRUCTION_VAR} differs from the instruction that cassette {path} was recorded with "
            f"({repr(recorded_instruction[:60]) if recorded_instruction else 'none'}); unset it, or record "
            "again with --t2e-record"
        )
    return LiveSettings(
        agent=_model_settings(cassette, agent),
        user=_model_settings(cassette, cassette.header.user),
        extra_instruction=recorded_instruction,
        uses_scripts=cassette.header.scripts,
        cassette=cassette,
    )


def cassette_gap_notes(
    cassette: Cassette, candidate: Candidate, suites: Sequence[LockedSuite]
) -> tuple[str, ...]:
    """Return the reasons why a cassette may lack answers for this run, one note each."""
    header, name = cassette.header, cassette.path.name
    notes = []
    if header.partial:
        notes.append(f"cassette {name} is partial: {header.partial}")
    if header.candidate.digest != candidate.digest:
        notes.append(
            f"cassette {name} was recorded with candidate {header.candidate.id!r}, whose instruction "
            f"differs from that of {candidate.id!r}"
        )
    for suite in suites:
        if header.suites[suite.name] != suite.lock.digest:
            notes.append(f"cassette {name} was recorded before suite {suite.name!r} changed")
    return tuple(notes)


def check_weights(cassette: Cassette, candidate: Candidate) -> None:
    """Check that a cassette was recorded with a candidate's weights, if either has an adapter.

    Requests do not name weights, so playback would also find the answers of a different candidate with the
    same instruction.

    Raises:
        CassetteError: the cassette holds answers of a different candidate, or the candidate is routed.
    """
    recorded_candidate = cassette.header.candidate
    if candidate.adapter == ROUTED:
        raise CassetteError(
            f"--t2e-playback {cassette.path}: a cassette holds the answers of one model, but candidate "
            f"{candidate.id!r} uses several; omit it"
        )
    if (
        candidate.adapter or ADAPTER_SEPARATOR in recorded_candidate.id
    ) and recorded_candidate.digest != candidate.digest:
        weights_text = (
            "with different weights or a different text"
            if recorded_candidate.id == candidate.id
            else f"with {recorded_candidate.id!r}"
        )
        raise CassetteError(
            f"--t2e-playback {cassette.path}: was recorded {weights_text}, so it lacks the answers of "
            f"candidate {candidate.id!r}; record them with --t2e-record"
        )


def recording_path(run_folder: Path) -> Path:
    """Return the file in which the processes of a run collect answers."""
    return run_folder / "answers.sqlite"


def check_recordable(path: Path) -> None:
    """Check that a cassette can be written to a path.

    Raises:
        CassetteError: the path exists, or no file can be created there.
    """
    if path.exists():
        raise CassetteError(f"--t2e-record {path} exists; delete it, or choose a different name")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        probe = path.with_name(f".{path.name}.probe")
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise CassetteError(f"--t2e-record {path} cannot be written: {error.strerror}") from None


def export_cassette(
    live: LiveSettings, candidate: Candidate, suites: Sequence[LockedSuite], source: Path, partial_reason: str
) -> str:
    """Write the cassette of a run to `live.record`, and return a line about it.

    Args:
        live: The run's settings.
        candidate: The run's candidate.
        suites: The run's suites.
        source: The file of answers from `recording_path`.
        partial_reason: The reason why answers may be missing; empty if the recording is complete.

    Raises:
        CassetteError: the cassette could not be written, or nothing was recorded; `source` stays unchanged.
    """
    assert live.record is not None
    path = live.record
    header = {
        "partial": partial_reason,
        "candidate": candidate.to_ref(),
        "suites": {suite.name: suite.lock.digest for suite in sorted(suites, key=lambda suite: suite.name)},
        "agent": live.agent_settings(),
        "user": live.user_settings(),
        "scripts": live.uses_scripts,
    }
    try:
        with contextlib.closing(AnswerFile(source, "record again")) as file:
            answers = list(file.items())
        if not answers:
            raise CassetteError(f"cassette {path} was not written: no model answered")
        write_atomic(path, render_cassette(header, answers), exclusive=True)
    except FileExistsError:
        raise CassetteError(
            f"cassette {path} was not written: another run wrote it first; the answers are in {source}"
        ) from None
    except (OSError, InfrastructureError) as error:
        raise CassetteError(
            f"cassette {path} was not written ({error}); the answers are in {source}"
        ) from None
    line = f"cassette {path}: {len(answers)} answers"
    return f"{line}, partial: {partial_reason}" if partial_reason else line


def _recorded_instruction(cassette: Cassette) -> str:
    instruction = (cassette.header.agent.arguments or {}).get("extra_instruction", "")
    return instruction if isinstance(instruction, str) else ""


def _model_settings(cassette: Cassette, settings: Settings) -> ModelSettings:
    name = settings.implementation or ""
    if settings.model is None and (is_own_agent(name) or name == SCRIPTED_USER):
        # A project's own agent may choose its models itself, and a scripted user has none.
        return ModelSettings(model="", base_url=str((settings.arguments or {}).get("endpoint", "")))
    try:
        return ModelSettings.from_record(settings.model, settings.arguments or {})
    except ValueError as error:
        raise CassetteError(f"cassette {cassette.path}:1: damaged at {error}") from None


def models_of(
    candidate: Candidate,
    live: LiveSettings | None,
    adapters: Adapters,
    prices: Mapping[str, Price] = MappingProxyType({}),
) -> LiveSettings | None:
    """Return the models that a candidate uses.

    Args:
        candidate: The candidate.
        live: The models from the options, without the candidate's adapter; None if the agent is not a model.
        adapters: The project's adapters.
        prices: Prices of models by name.

    Raises:
        ConfigError: the agent is not a model, the candidate's commit cannot be read, the options name an
            adapter too, or answers of a routed candidate would be stored.
        CassetteError: the cassette holds the answers of a different candidate.
        AdapterError: the adapter is unknown or of a different base, or no adapter is promoted.
        ModelFolderError: an adapter or the router cannot be served with the model.
    """
    name = candidate.adapter
    if live is not None and live.cassette is not None:
        check_weights(live.cassette, candidate)
        if live.function is None:
            return live
    if live is not None:
        live = _with_settings(live, candidate, prices, adapters.folder.parent)
    elif candidate.ref:
        raise ConfigError(
            f"candidate {candidate.id!r} sets ref, but this run's agent is not named by an import path; give "
            "--t2e-agent module:function, or remove ref"
        )
    elif candidate.model or candidate.parameters.given:
        raise ConfigError(
            f"candidate {candidate.id!r} sets a model or its parameters, but this run's agent is not a "
            "model; give --t2e-model, or an agent of your own with --t2e-agent module:function"
        )
    if not name:
        return live
    if live is None:
        raise ConfigError(
            f"candidate {candidate.id!r} uses an adapter, but this run's agent is not a model; give "
            "--t2e-model ./FOLDER, or omit --t2e-agent"
        )
    if name == ROUTED:
        return _with_routes(live, candidate, adapters)
    return replace(live, agent=_with_adapter(live.agent, adapters[name]))


def _with_settings(
    live: LiveSettings, candidate: Candidate, prices: Mapping[str, Price], root: Path
) -> LiveSettings:
    """Apply the model, the parameters and the agent that a candidate sets."""
    own_parameters: dict[str, Any] = candidate.parameters.given
    agent = live.agent
    if candidate.model is not None:
        if agent.folder is not None:
            raise ConfigError(
                f"candidate {candidate.id!r} sets model {candidate.model!r}, but --t2e-model is a folder; "
                "give the name of a model at an endpoint"
            )
        agent = replace(agent, model=candidate.model, price=prices.get(candidate.model))
    function = live.function
    if function is None:
        if candidate.agent or candidate.ref:
            raise ConfigError(
                f"candidate {candidate.id!r} sets an agent, but this run's agent is {CHAT!r}; leave "
                "--t2e-model out, or remove the candidate's agent"
            )
        return replace(live, agent=agent.with_parameters(own_parameters))
    function = replace(
        function, path=candidate.agent or function.path, parameters={**function.parameters, **own_parameters}
    )
    return replace(live, agent=agent, function=_with_code(function, candidate, root))


def _with_code(function: AgentFunction, candidate: Candidate, root: Path) -> AgentFunction:
    """Locate and identify the code of an agent function."""
    if is_url(function.path):
        if candidate.ref is not None:
            raise ConfigError(
                f"candidate {candidate.id!r} sets ref, but agent {public_url(function.path)} is a URL, whose "
                "code no commit determines; remove ref"
            )
        check_url(function.path)
        return replace(
            function, path=public_url(function.path), url=function.path, code=_code_of_url(function.path)
        )
    module = function.path.partition(":")[0]
    if candidate.ref is not None:
        folder, commit = checked_out(root, candidate.ref)
        code, is_commit, code_folders = Code(files={"(commit)": commit}), True, {}
    else:
        folder, is_commit = root, False
        for path in reversed(project_paths(root, root)):
            add_to_path(path)
        code_folders = find_code_folders(root)
        code = agent_code(module, code_folders)
    return replace(
        function,
        folder=folder,
        import_folders=project_paths(root, folder),
        is_commit=is_commit,
        url="",
        code=code,
        code_folders=code_folders,
    )


def _code_of_url(url: str) -> Code:
    """Identify an agent behind a URL by the version that the URL reports, because its code is unknown."""
    if version := read_version(url):
        return Code(fingerprint=version)
    return Code(unknown=f'{public_url(url)} tells no version: let GET return {{"version": …}}')


def _with_routes(live: LiveSettings, candidate: Candidate, adapters: Adapters) -> LiveSettings:
    if live.uses_cache or live.record is not None:
        option = "--t2e-record" if live.record is not None else "--t2e-cache"
        raise ConfigError(
            f"{option} stores the answers of one model, but candidate {candidate.id!r} uses several; omit it"
        )
    # The router reads hidden states: those of the base, or of the embedded model if the base has no folder.
    folder, path = read_model(live.agent.folder or embedded_model()), adapters.folder / PROBE_FILE
    probe = read_probe(f"{folder.name}+router", path, folder.path, folder_digest(folder.path))
    ids = f"{folder_digest(folder.path)}+{adapters.router_digest}"
    router = ModelSettings(probe.name, "", folder=folder.path, adapter=path, weights=ids, price=FREE_PRICE)
    owners = _capability_owners(live.agent, adapters, probe.labels)
    models = {name: _with_adapter(live.agent, adapters[name]) for name in sorted(set(owners.values()))}
    weights = live.agent.weights
    if weights is not None:
        weights += f"+{digest({model.model: model.weights for model in (*models.values(), router)})}"
    agent = replace(live.agent, model=f"{live.agent.model}{ADAPTER_SEPARATOR}{ROUTED}", weights=weights)
    return replace(live, agent=agent, routes=Routes(live.agent, models, owners, router))


def _capability_owners(base: ModelSettings, adapters: Adapters, labels: Sequence[str]) -> dict[str, str]:
    """Return the adapter of each of a router's labels: the one trained for the fewest capabilities."""
    promoted = adapters.routed_adapters()
    # At an endpoint, bases may share a name: of adapters for the same capabilities, the last promoted counts.
    fitting = [adapter for adapter in promoted if _was_trained_on(adapter, base)]
    fitting.sort(key=lambda adapter: (-len(adapter.manifest.environments), adapter.promotion_key))
    owners = {name: item.name for item in fitting for name in item.manifest.environments if name in labels}
    if not owners:
        names = ", ".join(f"{adapter.name} (of {adapter.manifest.base!r})" for adapter in promoted)
        raise AdapterError(
            f"no promoted adapter in {adapters.folder} was trained on model {base.model!r} of this run for a "
            f"capability of the router; promoted: {names or 'none'}"
        )
    return owners


def _was_trained_on(adapter: Adapter, base: ModelSettings) -> bool:
    if base.folder is None:
        return adapter.manifest.base == base.model
    return adapter.manifest.base_digest == base.base_weights


def _with_adapter(model: ModelSettings, adapter: Adapter) -> ModelSettings:
    """Return a model with an adapter; the model name of an endpoint then includes the adapter's name."""
    if model.folder is None:
        return replace(model, model=f"{model.model}{ADAPTER_SEPARATOR}{adapter.name}")
    if not _was_trained_on(adapter, model):
        raise AdapterError(
            f"adapter {adapter.name!r} was trained on {adapter.manifest.base!r} "
            f"({adapter.manifest.base_digest[:12]}), but this run's model is {model.model!r} "
            f"({model.base_weights[:12]}): give --t2e-model with that folder, or train one on this model"
        )
    return with_adapter(model, adapter.path, adapter.path)
