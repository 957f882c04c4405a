"""Reads the options of a run from values, validates each, and makes paths absolute."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pytest_trace2evolve.engine.live import (
    DEFAULT_CONCURRENCY,
    RECORDED_ENDPOINT,
    AgentFunction,
    LiveSettings,
    RaySettings,
    ServedModel,
    is_model_folder,
    read_extra_instruction,
    read_model_folder,
)
from pytest_trace2evolve.errors import ConfigError, MissingExtraError, shorten
from pytest_trace2evolve.evidence.answer_store import Cassette
from pytest_trace2evolve.evidence.saving import SaveMode
from pytest_trace2evolve.models.prices import FREE_PRICE, PRICES_NAME, Price, read_prices
from pytest_trace2evolve.models.settings import CALL_TIMEOUT, MAX_ANSWER_TOKENS, ModelSettings
from pytest_trace2evolve.records.budget import Budgets
from pytest_trace2evolve.records.protocols import Judge
from pytest_trace2evolve.records.verdict import Goal
from pytest_trace2evolve.session.candidate_models import playback_settings
from pytest_trace2evolve.session.option_table import OPTIONS, Option
from pytest_trace2evolve.session.plan import Endpoint, Options
from pytest_trace2evolve.utils.files import is_inside, real_path
from pytest_trace2evolve.utils.import_path import is_own_agent
from pytest_trace2evolve.utils.reading import convert_failures, parse_json
from pytest_trace2evolve.utils.resources import embedded_model, has_embedded_model


def check_not_empty(values: Any) -> None:
    """Reject empty values, which usually come from an unset variable in a script.

    Args:
        values: An object with an attribute for each option's destination.

    Raises:
        ConfigError: a value is empty, or a path is too long for any file system.
    """
    for option in OPTIONS:
        value = getattr(values, option.destination, None)
        if value == "" or (isinstance(value, list | tuple) and "" in value):
            raise ConfigError(f"{option.label} is empty; omit it or give a value")
        if option.is_path:
            for path in [value] if isinstance(value, str) else value or ():
                _check_path_length(option.flag, path)


def _check_path_length(flag: str, path: str) -> None:
    max_part_length = max(len(os.fsencode(part)) for part in Path(path).parts or ("",))
    if max_part_length > 255 or len(os.fsencode(path)) > 4_000:
        raise ConfigError(
            f"{flag} {shorten(path, 80)}: the path is too long ({len(path)} characters); choose a shorter one"
        )


@dataclass(frozen=True)
class Context:
    """The folders that paths in options refer to, and the project's defaults for some options.

    Attributes:
        root: The project's top folder.
        base_folder: The folder to which paths are relative.
        suites: The folder of suites, relative to the root.
        agent: The agent of suites that name none.
        gate: The policy of runs that name none.
        server_addresses: Addresses of the run's own servers, by their models' folders.
    """

    root: Path
    base_folder: Path
    suites: str = "suites"
    agent: str = ""
    gate: str = ""
    server_addresses: Mapping[str, ServedModel] = field(default_factory=dict)


def read_options(values: Any, context: Context, *, can_embed: bool = True) -> Options:
    """Read the options of a run.

    Args:
        values: An object with an attribute for each option's destination; None means not given.
        context: The folders and the project's defaults.
        can_embed: Whether the embedded model is used if no agent is named.

    Raises:
        ConfigError: a value is invalid.
        CassetteError: the cassette cannot be trusted.
        ModelFolderError: a model's folder cannot be served.
    """
    base_folder = context.base_folder
    for name in values.t2e_summary or ():
        if (base_folder / name).is_dir():
            raise ConfigError(f"--t2e-summary {name} is a folder; name a file")
        _check_output_path("--t2e-summary", name, context)
    for flag, name in (("--t2e-run-folder", values.t2e_run_folder), ("--t2e-record", values.t2e_record)):
        if name:
            _check_output_path(flag, name, context)
    is_agent_named = values.t2e_model or values.t2e_agent or context.agent or values.t2e_base_url
    uses_embedded = not (is_agent_named or values.t2e_results or values.t2e_playback) and has_embedded_model()
    model = str(embedded_model()) if uses_embedded else values.t2e_model
    prices = read_prices(context.root / PRICES_NAME)
    live, embedded_problem = None, None
    if model is not None or values.t2e_playback is not None:
        try:
            live = _live_settings(values, model, base_folder, prices, context.server_addresses)
        except MissingExtraError as error:
            # The suites may have agents of their own, which is not known yet.
            if not (uses_embedded and can_embed):
                raise
            embedded_problem = error
    own_agent = None
    if live is not None and live.cassette is not None and is_own_agent(live.cassette.agent_name):
        live = _played_agent(_own_agent(values, live, context, prices), live.cassette)
    elif not (values.t2e_playback or values.t2e_results):
        settings = _live_settings(
            values, values.t2e_model or "", base_folder, prices, context.server_addresses
        )
        own_agent = _own_agent(values, settings, context, prices)
    return Options(
        candidate=values.t2e_candidate,
        suites=tuple(values.t2e_suite or ()),
        replays=tuple(base_folder / path for path in values.t2e_results or ()),
        agent=values.t2e_agent,
        default_agent=context.agent or None,
        trials=values.t2e_trials,
        baseline=values.t2e_baseline,
        against=values.t2e_against,
        save_baseline=values.t2e_save_baseline,
        baseline_mode=SaveMode(values.t2e_baseline_mode) if values.t2e_baseline_mode else None,
        gate=values.t2e_gate or context.gate or None,
        goal=Goal(values.t2e_goal or Goal.IMPROVE),
        run_folder=base_folder / values.t2e_run_folder if values.t2e_run_folder else None,
        live=None if uses_embedded else live,
        own_agent_settings=own_agent,
        embedded_settings=live if uses_embedded and can_embed else None,
        embedded_problem=embedded_problem,
        unused_option=_first_set_flag(values, _MODEL_OPTIONS) if values.t2e_model is None else "",
        budgets=Budgets(
            cost=values.t2e_max_cost,
            tokens=values.t2e_max_tokens,
            minutes=values.t2e_max_minutes,
            requests_per_minute=values.t2e_requests_per_minute,
        ),
        is_fresh=bool(values.t2e_fresh or values.t2e_record or values.t2e_playback),
        max_reruns=values.t2e_max_reruns,
        stages=values.t2e_stages or (),
        baseline_endpoint=Endpoint(values.t2e_baseline_base_url, values.t2e_baseline_api_key_env),
        concurrency=values.t2e_concurrency or DEFAULT_CONCURRENCY,
        ray=_ray_settings(values, base_folder),
        invocation_dir=base_folder,
    )


def _ray_settings(values: Any, base_folder: Path) -> RaySettings | None:
    if values.t2e_ray is None:
        return None
    for option in ("results", "playback"):
        if getattr(values, f"t2e_{option}"):
            raise ConfigError(
                f"--t2e-ray cannot be combined with --t2e-{option}: there is nothing to distribute"
            )
    pip = None if values.t2e_ray_pip is None else base_folder / values.t2e_ray_pip
    if pip is not None and not pip.is_file():
        raise ConfigError(f"t2e_ray_pip {values.t2e_ray_pip}: no such file; name a file of requirements")
    return RaySettings(values.t2e_ray, pip, tuple(values.t2e_ray_env or ()))


def _check_output_path(flag: str, name: str, context: Context) -> None:
    """Reject an output path in the folders that the gate reads.

    Raises:
        ConfigError: the path is the project's folder, or lies in such a folder.
    """
    root, path = real_path(context.root), real_path(context.base_folder / name)
    for folder in ("baselines", "candidates", "ledger", "policies", context.suites or "suites"):
        if is_inside(path, root / folder):
            raise ConfigError(
                f"{flag} {name} lies in {folder}/, which the gate reads; choose a different path"
            )
    if path == root:
        raise ConfigError(f"{flag} {name} is the project's folder; choose a different path")


_LIVE_OPTIONS = [
    option for option in OPTIONS if option.scope == "live" and option.name not in ("playback", "concurrency")
]

_MODEL_OPTIONS = [option for option in _LIVE_OPTIONS if option.name != "model"]
"""Options that have no effect without a model."""

_PLAYBACK_CONFLICTS = [option for option in _LIVE_OPTIONS if option.name != "fresh"]
"""Options that playback rejects, because the cassette determines their values."""


def _use_folder(
    settings: ModelSettings,
    base_folder: Path,
    prices: Mapping[str, Price],
    server_addresses: Mapping[str, ServedModel],
) -> tuple[ModelSettings, float]:
    """Return the settings of a model in a folder, and the temperature that the folder names."""
    folder, weights = read_model_folder(settings.model, base_folder, server_addresses)
    price = prices.get(folder.name, FREE_PRICE)
    folder_settings = replace(
        settings, model=folder.name, base_url="", price=price, folder=folder.path, weights=weights
    )
    return folder_settings, folder.temperature


def _first_set_flag(values: Any, options: Sequence[Option]) -> str:
    """Return the flag of the first option that was given; empty if none was."""
    return next((option.flag for option in options if getattr(values, option.destination) is not None), "")


def _live_settings(
    values: Any,
    model: str | None,
    base_folder: Path,
    prices: Mapping[str, Price],
    server_addresses: Mapping[str, ServedModel],
) -> LiveSettings:
    """Read the settings of the models. An empty `model` means that no option names a model."""
    if values.t2e_playback is not None:
        if useless_flag := _first_set_flag(values, _PLAYBACK_CONFLICTS):
            raise ConfigError(
                f"{useless_flag} cannot be combined with --t2e-playback: "
                "the cassette determines the models and their settings"
            )
        return playback_settings(base_folder / values.t2e_playback, read_extra_instruction())
    assert model is not None
    agent = ModelSettings(
        model=model,
        base_url=values.t2e_base_url,
        api_key_env=values.t2e_api_key_env or "OPENAI_API_KEY",
        temperature=0.0 if values.t2e_temperature is None else values.t2e_temperature,
        seed=values.t2e_seed,
        reasoning_effort=values.t2e_reasoning_effort,
        extra_body=_parse_extra_body(values.t2e_extra_body),
        max_connections=values.t2e_concurrency or DEFAULT_CONCURRENCY,
        timeout=values.t2e_call_timeout or CALL_TIMEOUT,
        price=prices.get(model),
        url_option="--t2e-base-url",
        timeout_option="t2e_call_timeout",
        allows_ignored_tools=bool(values.t2e_allow_ignored_tools),
        max_answer_tokens=MAX_ANSWER_TOKENS,
        parameters=_answer_limit(values),
    )
    user = replace(
        agent,
        model=values.t2e_user_model or agent.model,
        base_url=values.t2e_user_base_url or agent.base_url,
        url_option="t2e_user_base_url" if values.t2e_user_base_url else agent.url_option,
        api_key_env=values.t2e_user_api_key_env or agent.api_key_env,
        temperature=0.0,
        reasoning_effort=None,
        extra_body={},
        price=prices.get(values.t2e_user_model or agent.model),
    )
    if agent.model and agent.base_url is None and is_model_folder(agent.model, base_folder):
        agent, own_temperature = _use_folder(agent, base_folder, prices, server_addresses)
        if values.t2e_temperature is None:
            agent = replace(agent, temperature=own_temperature)
    if user.model and user.base_url is None and is_model_folder(user.model, base_folder):
        user, _ = _use_folder(user, base_folder, prices, server_addresses)
    baseline_api_key_env = values.t2e_baseline_api_key_env or agent.api_key_env
    _check_api_key_envs(agent.api_key_env, user.api_key_env, baseline_api_key_env)
    return LiveSettings(
        agent,
        user,
        read_extra_instruction(),
        uses_cache=bool(values.t2e_cache),
        uses_scripts=values.t2e_user_model is None,
        record=base_folder / values.t2e_record if values.t2e_record else None,
    )


def _own_agent(
    values: Any, settings: LiveSettings, context: Context, prices: Mapping[str, Price]
) -> LiveSettings:
    """Return the settings of a project's own agent, whose import path is not known yet."""
    parameters = {
        "temperature": values.t2e_temperature,
        "reasoning_effort": values.t2e_reasoning_effort,
        "extra_body": _parse_extra_body(values.t2e_extra_body) or None,
        "seed": values.t2e_seed,
        **_answer_limit(values),
    }
    function = AgentFunction(
        path="",
        folder=context.root,
        log_folder=context.root / ".trace2evolve" / "agents",
        timeout=settings.agent.timeout,
        parameters={name: value for name, value in parameters.items() if value is not None},
        prices=prices,
        needs_prices=values.t2e_max_cost is not None,
    )
    return replace(settings, function=function)


def _answer_limit(values: Any) -> dict[str, Any]:
    """The limit of an answer as a parameter of requests, so that evidence records it."""
    limit = values.t2e_max_answer_tokens
    return {} if limit is None else {"max_tokens": limit}


def _played_agent(settings: LiveSettings, cassette: Cassette) -> LiveSettings:
    """Return the settings of a project's own agent as a cassette recorded them."""
    assert settings.function is not None
    recorded_arguments = dict(cassette.header.agent.arguments or {})
    parameters = {name: value for name, value in recorded_arguments.items() if name not in RECORDED_ENDPOINT}
    return replace(
        settings, function=replace(settings.function, path=cassette.agent_name, parameters=parameters)
    )


def _parse_extra_body(text: str | None) -> dict[str, Any]:
    if not text:
        return {}
    with convert_failures("t2e_extra_body", ConfigError, "give a JSON object"):
        body = parse_json(text, require_unique=True)
    if not isinstance(body, dict):
        raise ConfigError(f"t2e_extra_body is a JSON {type(body).__name__}, not an object")
    return body


def _check_api_key_envs(*names: str) -> None:
    """Reject an API key given instead of its variable's name, because later errors would show the key."""
    for name in names:
        if not os.environ.get(name) and not re.fullmatch("[A-Z_][A-Z0-9_]*", name):
            raise ConfigError(
                "t2e_api_key_env, t2e_user_api_key_env and t2e_baseline_api_key_env take the name of a "
                "variable that holds the key, never the key: no variable of the given name is set"
            )


def read_judge(values: Any) -> Judge | None:
    """Return the judge that the options name; None if they name none."""
    if values.t2e_judge is None:
        return None
    from pytest_trace2evolve.judges.chat import ChatJudge

    return ChatJudge(values.t2e_judge, base_url=values.t2e_judge_base_url)
