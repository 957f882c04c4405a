"""Command-line options and ini keys. Standard library and pytest only: this is loaded in every pytest run."""

import argparse
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

GOALS = ("improve", "hold")
INCONCLUSIVE = ("fail", "pass")
BASELINE_MODES = ("save", "update", "new-only")
DEFAULT_STAGES = (2, 4, 8)


def _positive(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return value


def _count(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = -1
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 0 or more")
    return value


def _stages(text: str) -> tuple[int, ...]:
    if text == "default":
        return DEFAULT_STAGES
    try:
        stages = tuple(int(part) for part in text.split(","))
    except ValueError:
        stages = ()
    if len(stages) < 2 or stages[0] < 1 or any(one >= next_ for one, next_ in pairwise(stages)):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no schedule: two or more rising numbers of trials, as in 2,4,8, or default"
        )
    return stages


def _amount(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def _temperature(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= 2.0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 2")
    return value


_OPTIONS: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = (
    (
        ("--candidate", "--t2e-candidate"),
        {
            "dest": "t2e_candidate",
            "metavar": "ID",
            "help": "candidate to run: a file of candidates/ (default: v0)",
        },
    ),
    (
        ("--t2e-suite",),
        {"dest": "t2e_suite", "metavar": "NAME", "action": "append", "help": "run this suite (repeatable)"},
    ),
    (
        ("--t2e-replay",),
        {
            "dest": "t2e_replay",
            "metavar": "PATH",
            "action": "append",
            "help": "replay recorded runs from a tau2 results file or folder (repeatable)",
        },
    ),
    (
        ("--t2e-agent",),
        {"dest": "t2e_agent", "metavar": "NAME", "help": "agent: replay, chat, oracle, nop, or a plugin's"},
    ),
    (
        ("--t2e-trials",),
        {
            "dest": "t2e_trials",
            "metavar": "N",
            "type": _positive,
            "help": "simulations a task (default: the suite's)",
        },
    ),
    (
        ("--t2e-baseline",),
        {
            "dest": "t2e_baseline",
            "metavar": "NAME|PATH",
            "help": "compare with a saved baseline or a results file (default: nearest ancestor's)",
        },
    ),
    (
        ("--t2e-save-baseline",),
        {"dest": "t2e_save_baseline", "metavar": "NAME", "help": "save this run as a baseline of its suites"},
    ),
    (
        ("--t2e-baseline-mode",),
        {
            "dest": "t2e_baseline_mode",
            "choices": BASELINE_MODES,
            "help": "where it exists: refuse (save, default), replace (update) or add tasks (new-only)",
        },
    ),
    (
        ("--t2e-gate",),
        {
            "dest": "t2e_gate",
            "metavar": "POLICY|off",
            "help": "gate policy (default: the ini key t2e_gate, or calibrated), or off",
        },
    ),
    (
        ("--t2e-goal",),
        {
            "dest": "t2e_goal",
            "choices": GOALS,
            "help": "claim to be better (improve, default) or not worse (hold)",
        },
    ),
    (
        ("--t2e-inconclusive",),
        {
            "dest": "t2e_inconclusive",
            "choices": INCONCLUSIVE,
            "help": "exit status of an inconclusive verdict: 10 (fail, default) or 0 (pass)",
        },
    ),
    (
        ("--t2e-run-folder",),
        {
            "dest": "t2e_run_folder",
            "metavar": "DIR",
            "help": "where to keep the run (default: below .trace2evolve/runs)",
        },
    ),
    (
        ("--t2e-summary",),
        {
            "dest": "t2e_summary",
            "metavar": "FILE",
            "action": "append",
            "help": "write the verdict to FILE as Markdown, or as JSON where it ends in .json (repeatable)",
        },
    ),
    (("--t2e-model",), {"dest": "t2e_model", "metavar": "MODEL", "help": "talk to this model (agent chat)"}),
    (
        ("--t2e-user-model",),
        {
            "dest": "t2e_user_model",
            "metavar": "MODEL",
            "help": "model of the user simulator (default: the agent's)",
        },
    ),
    (
        ("--t2e-base-url",),
        {"dest": "t2e_base_url", "metavar": "URL", "help": "the model's endpoint (default: OPENAI_BASE_URL)"},
    ),
    (
        ("--t2e-user-base-url",),
        {
            "dest": "t2e_user_base_url",
            "metavar": "URL",
            "help": "the user model's endpoint (default: the agent's)",
        },
    ),
    (
        ("--t2e-key-var",),
        {
            "dest": "t2e_key_var",
            "metavar": "NAME",
            "help": "variable that holds the key (default: OPENAI_API_KEY)",
        },
    ),
    (
        ("--t2e-user-key-var",),
        {
            "dest": "t2e_user_key_var",
            "metavar": "NAME",
            "help": "the same for the user model (default: the agent's)",
        },
    ),
    (
        ("--t2e-temperature",),
        {
            "dest": "t2e_temperature",
            "metavar": "T",
            "type": _temperature,
            "help": "the agent's temperature (default: 0)",
        },
    ),
    (
        ("--t2e-seed",),
        {
            "dest": "t2e_seed",
            "metavar": "N",
            "type": int,
            "help": "seed of trial 0; each further trial adds 1",
        },
    ),
    (
        ("--t2e-reasoning-effort",),
        {"dest": "t2e_reasoning_effort", "metavar": "LEVEL", "help": "sent to the agent's model"},
    ),
    (
        ("--t2e-extra-body",),
        {"dest": "t2e_extra_body", "metavar": "JSON", "help": "merged into the agent's requests"},
    ),
    (
        ("--t2e-fresh",),
        {
            "dest": "t2e_fresh",
            "action": "store_const",
            "const": True,
            "help": "run every live simulation again, also those that finished in an earlier run",
        },
    ),
    (
        ("--t2e-max-cost",),
        {
            "dest": "t2e_max_cost",
            "metavar": "DOLLARS",
            "type": _amount,
            "help": "stop before the run costs more, at the prices of prices.toml",
        },
    ),
    (
        ("--t2e-max-tokens",),
        {
            "dest": "t2e_max_tokens",
            "metavar": "N",
            "type": _positive,
            "help": "stop before the run uses more tokens, prompts and completions together",
        },
    ),
    (
        ("--t2e-max-minutes",),
        {
            "dest": "t2e_max_minutes",
            "metavar": "N",
            "type": _amount,
            "help": "stop the run after so many minutes",
        },
    ),
    (
        ("--t2e-requests-per-minute",),
        {
            "dest": "t2e_requests_per_minute",
            "metavar": "N",
            "type": _amount,
            "help": "rate limit of the whole run, all processes together",
        },
    ),
    (
        ("--t2e-call-timeout",),
        {
            "dest": "t2e_call_timeout",
            "metavar": "SECONDS",
            "type": _amount,
            "help": "give up one try of a model call after this time and try again (default: 600)",
        },
    ),
    (
        ("--t2e-cache",),
        {
            "dest": "t2e_cache",
            "action": "store_const",
            "const": True,
            "help": "take models' answers from .trace2evolve/cache.sqlite where it has them, keep new ones",
        },
    ),
    (
        ("--t2e-record",),
        {
            "dest": "t2e_record",
            "metavar": "FILE",
            "help": "write all models' answers of this run to a cassette, a new file",
        },
    ),
    (
        ("--t2e-playback",),
        {
            "dest": "t2e_playback",
            "metavar": "FILE",
            "help": "take all models' answers from a cassette: no key, no endpoint (agent chat)",
        },
    ),
    (
        ("--t2e-confirm",),
        {
            "dest": "t2e_confirm",
            "metavar": "N",
            "type": _count,
            "help": "fresh simulations that may confirm falls, both sides together (default: 640; 0: none)",
        },
    ),
    (
        ("--t2e-stages",),
        {
            "dest": "t2e_stages",
            "metavar": "N,N,…|default",
            "type": _stages,
            "help": "live: add trials in stages and stop where the gate decides (default: 2,4,8)",
        },
    ),
    (
        ("--t2e-baseline-base-url",),
        {
            "dest": "t2e_baseline_base_url",
            "metavar": "URL",
            "help": "where fresh trials ask the baseline's model (default: the agent's, where it was that)",
        },
    ),
    (
        ("--t2e-baseline-key-var",),
        {
            "dest": "t2e_baseline_key_var",
            "metavar": "NAME",
            "help": "variable that holds the key for it (default: the agent's)",
        },
    ),
    (
        ("--t2e-case-budget",),
        {
            "dest": "t2e_case_budget",
            "metavar": "N",
            "type": _positive,
            "help": "simulations that one test with run_case may make (default: 200)",
        },
    ),
    (
        ("--t2e-freeze",),
        {
            "dest": "t2e_freeze",
            "action": "store_const",
            "const": True,
            "help": "add the cases on which such tests failed to synthetic/pressure.jsonl",
        },
    ),
    (
        ("--t2e-concurrency",),
        {
            "dest": "t2e_concurrency",
            "metavar": "N",
            "type": _positive,
            "help": "simulations at once, a process (default: 16)",
        },
    ),
    (
        ("--t2e-judge",),
        {
            "dest": "t2e_judge",
            "metavar": "MODEL",
            "help": "judge of natural-language assertions (OpenAI-compatible)",
        },
    ),
    (
        ("--t2e-judge-base-url",),
        {
            "dest": "t2e_judge_base_url",
            "metavar": "URL",
            "help": "the judge's endpoint (default: OPENAI_BASE_URL)",
        },
    ),
)

DESTINATIONS = tuple(settings["dest"] for _, settings in _OPTIONS)


def add_options(parser: pytest.Parser) -> None:
    """Declare every option and ini key."""
    group = parser.getgroup("trace2evolve", "evaluate tool-using agents and gate changes to them")
    for names, settings in _OPTIONS:
        group.addoption(*names, default=None, **settings)
    parser.addini("t2e_suites", "folder of suites; setting it activates trace2evolve", default="")
    parser.addini("t2e_agent", "agent of suites that name none", default="")
    parser.addini("t2e_gate", "gate policy of runs that name none (default: calibrated)", default="")
    parser.addini("t2e_baseline_max_age", "days after which a baseline draws a warning", default="")


_WITH_PATHS = (
    "--t2e-replay",
    "--t2e-baseline",
    "--t2e-run-folder",
    "--t2e-summary",
    "--t2e-record",
    "--t2e-playback",
)


def joined(arguments: Sequence[str], folder: Path) -> list[str] | None:
    """The arguments with `--t2e-replay PATH` written `--t2e-replay=PATH`; None where that changes nothing.

    pytest looks for its rootdir before it knows the options of plugins. A path that follows one of ours is
    taken for a test path then, and a path outside `folder` drags the rootdir away from the project.
    """
    fixed: list[str] = []
    stray = False
    for argument in arguments:
        if fixed and fixed[-1] in _WITH_PATHS:
            stray = stray or _lies_outside(folder / argument, folder)
            fixed[-1] = f"{fixed[-1]}={argument}"
        else:
            fixed.append(argument)
    return fixed if stray else None


def _lies_outside(place: Path, folder: Path) -> bool:
    try:
        return place.exists() and not place.resolve().is_relative_to(folder.resolve())
    except (OSError, ValueError):  # a name too long for a path, say
        return False


def is_active(config: pytest.Config) -> bool:
    """Whether anything of ours was asked for."""
    if any(getattr(config.option, name, None) is not None for name in DESTINATIONS):
        return True
    return bool(config.getini("t2e_suites"))
