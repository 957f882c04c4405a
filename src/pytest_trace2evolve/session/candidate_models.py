"""The models of a candidate, after its adapter (`v6+NAME`) or router (`v6+routed`) is applied."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pytest_trace2evolve.engine.live import LiveSettings, Routes, adapted
from pytest_trace2evolve.errors import AdapterError, ConfigError
from pytest_trace2evolve.models.settings import ModelSettings
from pytest_trace2evolve.project.adapters import Adapter, Adapters, last_promoted
from pytest_trace2evolve.project.candidates import ROUTED, WITH, Candidate
from pytest_trace2evolve.session.cassettes import check_weights
from pytest_trace2evolve.utils.canonical import digest


def models_of(candidate: Candidate, live: LiveSettings | None, adapters: Adapters) -> LiveSettings | None:
    """The models that a candidate uses.

    Args:
        candidate: The candidate.
        live: The models from the options, without the candidate's adapter; None if the agent is not a model.
        adapters: The project's adapters.

    Raises:
        ConfigError: the agent is not a model, the options name an adapter too, or answers of a routed
            candidate would be stored.
        CassetteError: the cassette holds the answers of a different candidate.
        AdapterError: the adapter is unknown or of a different base, or no adapter is promoted.
        ModelFolderError: an adapter cannot be served with the model.
    """
    name = candidate.adapter
    if live is not None and live.cassette is not None:
        check_weights(live.cassette, candidate)
        return live
    if not name:
        return live
    if live is None:
        raise ConfigError(
            f"candidate {candidate.id!r} talks with an adapter, and this run's agent is no model: give "
            "--t2e-model ./FOLDER, or leave --t2e-agent out"
        )
    if live.agent.adapter is not None:
        raise ConfigError(
            f"--t2e-adapter does not go with candidate {candidate.id!r}, which names its adapter"
        )
    if name == ROUTED:
        return _routed(live, candidate, adapters)
    return replace(live, agent=_with_adapter(live.agent, adapters[name]))


def _routed(live: LiveSettings, candidate: Candidate, adapters: Adapters) -> LiveSettings:
    if live.cache or live.record is not None:
        option = "--t2e-record" if live.record is not None else "--t2e-cache"
        raise ConfigError(
            f"{option} keeps the answers of one model, and candidate {candidate.id!r} asks several: "
            "leave it out"
        )
    table = routing_table(live.agent, adapters.routed(), adapters.folder)
    models = {adapter.name: _with_adapter(live.agent, adapter) for adapter in table}
    weights = live.agent.weights
    if weights is not None:
        weights = f"{weights}+{digest({name: model.weights for name, model in models.items()})}"
    skills = tuple(adapter.skill for adapter in table if adapter.skill is not None)
    agent = replace(live.agent, model=f"{live.agent.model}{WITH}{ROUTED}", weights=weights)
    return replace(live, agent=agent, routes=Routes(live.agent, models, skills, live.each_turn))


def routing_table(base: ModelSettings, promoted: Sequence[Adapter], folder: Path) -> list[Adapter]:
    """The promoted adapters of a base that a router can choose; `folder` is named in errors."""
    # Bases with different digests may share a name, and only the name of an endpoint's model is known.
    found = last_promoted(
        adapter for adapter in promoted if _is_of(adapter, base) and adapter.skill is not None
    )
    if found:
        return found
    others = ", ".join(f"{adapter.name} (of {adapter.manifest.base!r})" for adapter in promoted)
    raise AdapterError(
        f"no promoted adapter in {folder} was trained on model {base.model!r} of this run; "
        f"promoted: {others or 'none'}"
    )


def _is_of(adapter: Adapter, base: ModelSettings) -> bool:
    if base.folder is None:
        return adapter.manifest.base == base.model
    return adapter.manifest.base_digest == base.base_weights


def _with_adapter(model: ModelSettings, adapter: Adapter) -> ModelSettings:
    """A model with an adapter. For an endpoint, the model name combines both names."""
    if model.folder is None:
        return replace(model, model=f"{model.model}{WITH}{adapter.name}")
    if not _is_of(adapter, model):
        raise AdapterError(
            f"adapter {adapter.name!r} was trained on {adapter.manifest.base!r} "
            f"({adapter.manifest.base_digest[:12]}), and this run's model is {model.model!r} "
            f"({model.base_weights[:12]}): give --t2e-model with that folder, or train one on this model"
        )
    return adapted(model, adapter.path, adapter.path)
