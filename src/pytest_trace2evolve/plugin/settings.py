"""The options of a command line as plain values, checked one by one. What contradicts what, the plan says."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_trace2evolve.engine.live import (
    DEFAULT_CONCURRENCY,
    Address,
    LiveSettings,
    adapted,
    extra_instruction,
    model_folder,
    names_folder,
)
from pytest_trace2evolve.errors import ConfigError, shortened
from pytest_trace2evolve.evidence.saving import SaveMode
from pytest_trace2evolve.models.prices import FREE, PRICES_NAME, Price, read_prices
from pytest_trace2evolve.models.settings import CALL_TIMEOUT, ModelSettings
from pytest_trace2evolve.plugin.options import DESTINATIONS, PATHS
from pytest_trace2evolve.plugin.usage import usage_error
from pytest_trace2evolve.records.budget import Budgets
from pytest_trace2evolve.records.protocols import Judge
from pytest_trace2evolve.records.verdict import Goal
from pytest_trace2evolve.session.cassettes import played
from pytest_trace2evolve.session.confirmation import Endpoint
from pytest_trace2evolve.session.plan import Options
from pytest_trace2evolve.utils.reading import parse_json, reported
from pytest_trace2evolve.utils.resources import embedded_model, has_embedded_model


def refuse_empty(config: pytest.Config) -> None:
    """An empty value is an unset variable of somebody's script, never a wish for the default."""
    for name in DESTINATIONS:
        value = getattr(config.option, name, None)
        if value == "" or (isinstance(value, list) and "" in value):
            raise usage_error(f"--{name.replace('_', '-')} is empty; leave it out or give a value")
        if name in PATHS:
            for path in [value] if isinstance(value, str) else value or ():
                _refuse_long(name, path)


def _refuse_long(name: str, path: str) -> None:
    """Report a path that no file system takes before something tries it."""
    longest = max(len(os.fsencode(part)) for part in Path(path).parts or ("",))
    if longest > 255 or len(os.fsencode(path)) > 4_000:
        raise usage_error(
            f"--{name.replace('_', '-')} {shortened(path, 80)}: the path is too long "
            f"({len(path)} characters); choose a shorter one"
        )


def _refuse_kept(option: str, name: str, config: pytest.Config) -> None:
    """Refuse to write where the gate's own files lie.

    Raises:
        ConfigError: the path is the project's folder, or lies in a folder whose files decide about verdicts.
    """
    root, path = config.rootpath.resolve(), (config.invocation_params.dir / name).resolve()
    kept = ("baselines", "candidates", "ledger", "policies", config.getini("t2e_suites") or "suites")
    for folder in kept:
        if path.is_relative_to((root / folder).resolve()):
            raise ConfigError(
                f"{option} {name} lies in {folder}/, which the gate reads; choose another place"
            )
    if path == root:
        raise ConfigError(f"{option} {name} is the project's folder; choose another place")


def read_options(
    config: pytest.Config, served: Mapping[str, Address] | None = None, *, may_embed: bool = True
) -> Options:
    """The options as plain values, paths made absolute; `served` are the run's own servers, on a worker."""
    option, here = config.option, config.invocation_params.dir
    if option.t2e_evolve_options is not None and not option.t2e_evolve:
        raise ConfigError("--t2e-evolve-options says nothing without --t2e-evolve")
    for name in option.t2e_summary or ():
        if (here / name).is_dir():
            raise ConfigError(f"--t2e-summary {name} is a folder; name a file")
        _refuse_kept("--t2e-summary", name, config)
    for given, name in (("--t2e-run-folder", option.t2e_run_folder), ("--t2e-record", option.t2e_record)):
        if name:
            _refuse_kept(given, name, config)
    named = option.t2e_model or option.t2e_agent or config.getini("t2e_agent") or option.t2e_base_url
    embedded = not (named or option.t2e_replay or option.t2e_playback) and has_embedded_model()
    model = str(embedded_model()) if embedded else option.t2e_model
    talk = _live(option, model, here, read_prices(config.rootpath / PRICES_NAME), served or {})
    return Options(
        candidate=option.t2e_candidate,
        suites=tuple(option.t2e_suite or ()),
        replays=tuple(here / path for path in option.t2e_replay or ()),
        agent=option.t2e_agent,
        default_agent=config.getini("t2e_agent") or None,
        trials=option.t2e_trials,
        baseline=option.t2e_baseline,
        save_baseline=option.t2e_save_baseline,
        baseline_mode=SaveMode(option.t2e_baseline_mode) if option.t2e_baseline_mode else None,
        gate=option.t2e_gate or config.getini("t2e_gate") or None,
        goal=Goal(option.t2e_goal or Goal.IMPROVE),
        run_folder=here / option.t2e_run_folder if option.t2e_run_folder else None,
        live=None if embedded else talk,
        embedded=talk if embedded and may_embed else None,
        unused=_given(option, _ONLY_LIVE) if option.t2e_model is None else "",
        budgets=Budgets(
            cost=option.t2e_max_cost,
            tokens=option.t2e_max_tokens,
            minutes=option.t2e_max_minutes,
            requests_per_minute=option.t2e_requests_per_minute,
        ),
        fresh=bool(option.t2e_fresh or option.t2e_record or option.t2e_playback),
        confirm=option.t2e_confirm,
        stages=option.t2e_stages or (),
        baseline_endpoint=Endpoint(option.t2e_baseline_base_url, option.t2e_baseline_key_var),
        concurrency=option.t2e_concurrency or DEFAULT_CONCURRENCY,
        invocation_dir=here,
    )


_PACE = (
    "t2e_max_cost",
    "t2e_max_tokens",
    "t2e_max_minutes",
    "t2e_requests_per_minute",
    "t2e_call_timeout",
)

_TALK = (
    "t2e_user_model",
    "t2e_adapter",
    "t2e_route",
    "t2e_base_url",
    "t2e_user_base_url",
    "t2e_key_var",
    "t2e_user_key_var",
    "t2e_baseline_base_url",
    "t2e_baseline_key_var",
    "t2e_temperature",
    "t2e_seed",
    "t2e_reasoning_effort",
    "t2e_extra_body",
    "t2e_cache",
    "t2e_record",
    *_PACE,
)

_SETTLED = ("t2e_model", *_TALK)
"""Options that a cassette leaves nothing to say to."""

_ONLY_LIVE = (*_TALK, "t2e_fresh")
"""Options that say nothing where no model is asked."""


def _lies_here(model: str, base_url: str | None, here: Path) -> bool:
    """Whether a model is a folder of this machine, and not a name at an endpoint that was given."""
    return base_url is None and names_folder(model, here)


def _of_folder(
    settings: ModelSettings,
    here: Path,
    prices: Mapping[str, Price],
    served: Mapping[str, Address],
    adapter: str | None = None,
) -> tuple[ModelSettings, float]:
    """The settings of a model in a folder, and the temperature that its own settings name."""
    folder, weights = model_folder(settings.model, here, served)
    price = prices.get(folder.name, FREE)
    found = replace(
        settings, model=folder.name, base_url="", price=price, folder=folder.path, weights=weights
    )
    return found if adapter is None else adapted(found, adapter, here), folder.temperature


def _given(option: Any, names: Sequence[str]) -> str:
    """The first of some options that was given, as it is written; empty where none was."""
    return next((f"--{name.replace('_', '-')}" for name in names if getattr(option, name) is not None), "")


def _live(
    option: Any,
    model: str | None,
    here: Path,
    prices: Mapping[str, Price],
    served: Mapping[str, Address],
) -> LiveSettings | None:
    if option.t2e_playback is not None:
        if needless := _given(option, _SETTLED):
            raise ConfigError(
                f"{needless} does not go with --t2e-playback: "
                "the cassette says which models answered, and how they were asked"
            )
        return played(here / option.t2e_playback, extra_instruction())
    if model is None:
        if needless := _given(option, _ONLY_LIVE):
            raise ConfigError(f"{needless} says nothing without --t2e-model")
        return None
    with reported("--t2e-extra-body", ConfigError, "give a JSON object"):
        extra_body = parse_json(option.t2e_extra_body, unique=True) if option.t2e_extra_body else {}
    if not isinstance(extra_body, dict):
        raise ConfigError(f"--t2e-extra-body is a JSON {type(extra_body).__name__}, not an object")
    concurrency = option.t2e_concurrency or DEFAULT_CONCURRENCY
    agent = ModelSettings(
        model=model,
        base_url=option.t2e_base_url,
        key_var=option.t2e_key_var or "OPENAI_API_KEY",
        temperature=0.0 if option.t2e_temperature is None else option.t2e_temperature,
        seed=option.t2e_seed,
        reasoning_effort=option.t2e_reasoning_effort,
        extra_body=extra_body,
        max_connections=concurrency,
        timeout=option.t2e_call_timeout or CALL_TIMEOUT,
        price=prices.get(model),
        url_option="--t2e-base-url",
        timeout_option="--t2e-call-timeout",
    )
    user = replace(
        agent,
        model=option.t2e_user_model or agent.model,
        base_url=option.t2e_user_base_url or agent.base_url,
        url_option="--t2e-user-base-url" if option.t2e_user_base_url else agent.url_option,
        key_var=option.t2e_user_key_var or agent.key_var,
        temperature=0.0,
        reasoning_effort=None,
        extra_body={},
        price=prices.get(option.t2e_user_model or agent.model),
    )
    if _lies_here(agent.model, option.t2e_base_url, here):
        agent, own = _of_folder(agent, here, prices, served, option.t2e_adapter)
        if option.t2e_temperature is None:
            agent = replace(agent, temperature=own)
    elif option.t2e_adapter is not None:
        raise ConfigError("--t2e-adapter goes with a model that lies in a folder: --t2e-model ./path")
    if _lies_here(user.model, user.base_url, here):
        user, _ = _of_folder(user, here, prices, served)
    _refuse_keys(agent.key_var, user.key_var, option.t2e_baseline_key_var or agent.key_var)
    return LiveSettings(
        agent,
        user,
        extra_instruction(),
        cache=bool(option.t2e_cache),
        scripts=option.t2e_user_model is None,
        record=here / option.t2e_record if option.t2e_record else None,
        each_turn=option.t2e_route == "turn",
    )


def _refuse_keys(*names: str) -> None:
    """A key given where its variable's name belongs would be shown in the next error."""
    for name in names:
        if not os.environ.get(name) and not re.fullmatch("[A-Z_][A-Z0-9_]*", name):
            raise ConfigError(
                "--t2e-key-var, --t2e-user-key-var and --t2e-baseline-key-var take the name of a variable "
                "that holds the key, never the key: no variable of the given name is set"
            )


def read_max_age(config: pytest.Config) -> float | None:
    """The days after which a baseline draws a warning; None where the ini key is not set.

    Raises:
        ConfigError: it is no number above 0.
    """
    text = config.getini("t2e_baseline_max_age")
    if not text:
        return None
    try:
        days = float(text)
    except ValueError:
        days = 0.0
    if not 0.0 < days < float("inf"):
        raise ConfigError(f"t2e_baseline_max_age: {text!r} is not a number of days above 0")
    return days


def read_judge(config: pytest.Config) -> Judge | None:
    """The judge that was asked for."""
    if config.option.t2e_judge is None:
        return None
    from pytest_trace2evolve.judges.chat import ChatJudge

    return ChatJudge(config.option.t2e_judge, base_url=config.option.t2e_judge_base_url)
