"""Options of live runs: who talks, how often, for how much, and what is kept.

Options of every run: what is run, against what, and where it is told.

Command-line options and ini keys. Standard library and pytest only: this is loaded in every pytest run.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_trace2evolve.utils.option_types import MOST_SEED, MOST_TRIALS, amount, stages, temperature, whole

ROUTES = ("task", "turn")

LIVE: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = (
    (
        ("--t2e-model",),
        {
            "dest": "t2e_model",
            "metavar": "MODEL",
            "help": "talk to this model: a name at an endpoint, or ./FOLDER",
        },
    ),
    (
        ("--t2e-user-model",),
        {
            "dest": "t2e_user_model",
            "metavar": "MODEL",
            "help": "model of the user simulator (default: the agent's)",
        },
    ),
    (
        ("--t2e-adapter",),
        {
            "dest": "t2e_adapter",
            "metavar": "PATH",
            "help": "a LoRA adapter that the agent's model, a folder, talks with",
        },
    ),
    (
        ("--t2e-route",),
        {
            "dest": "t2e_route",
            "choices": ROUTES,
            "help": "a routed candidate chooses an adapter once a task (default) or at each turn",
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
            "type": temperature,
            "help": "the agent's temperature (default: 0)",
        },
    ),
    (
        ("--t2e-seed",),
        {
            "dest": "t2e_seed",
            "metavar": "N",
            "type": whole(-MOST_SEED, MOST_SEED),
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
            "help": "make every live simulation again, beside those of earlier runs: a further draw",
        },
    ),
    (
        ("--t2e-max-cost",),
        {
            "dest": "t2e_max_cost",
            "metavar": "DOLLARS",
            "type": amount(1e9),
            "help": "stop before the run costs more, at the prices of prices.toml",
        },
    ),
    (
        ("--t2e-max-tokens",),
        {
            "dest": "t2e_max_tokens",
            "metavar": "N",
            "type": whole(1, 10**15),
            "help": "stop before the run uses more tokens, prompts and completions together",
        },
    ),
    (
        ("--t2e-max-minutes",),
        {
            "dest": "t2e_max_minutes",
            "metavar": "N",
            "type": amount(1e6),
            "help": "stop the run after so many minutes",
        },
    ),
    (
        ("--t2e-requests-per-minute",),
        {
            "dest": "t2e_requests_per_minute",
            "metavar": "N",
            "type": amount(1e6),
            "help": "rate limit of the whole run, all processes together",
        },
    ),
    (
        ("--t2e-call-timeout",),
        {
            "dest": "t2e_call_timeout",
            "metavar": "SECONDS",
            "type": amount(86_400),
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
            "type": whole(0, 10**6),
            "help": "fresh simulations that may confirm falls, both sides together (default: 640; 0: none)",
        },
    ),
    (
        ("--t2e-stages",),
        {
            "dest": "t2e_stages",
            "metavar": "N,N,…|default",
            "type": stages,
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
        ("--t2e-concurrency",),
        {
            "dest": "t2e_concurrency",
            "metavar": "N",
            "type": whole(1, 4_096),
            "help": "simulations at once, a process (default: 16)",
        },
    ),
)


GOALS = ("improve", "hold", "no-regression")
INCONCLUSIVE = ("fail", "pass")
BASELINE_MODES = ("save", "update", "new-only")

RUN: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = (
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
            "type": whole(1, MOST_TRIALS),
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
            "help": "claim to be better (improve, default), not worse (hold), or nothing: discard only on "
            "shown harm (no-regression)",
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
    (
        ("--t2e-case-budget",),
        {
            "dest": "t2e_case_budget",
            "metavar": "N",
            "type": whole(1, 10**6),
            "help": "simulations that one test with run_case may make (default: 200)",
        },
    ),
    (
        ("--t2e-evolve",),
        {
            "dest": "t2e_evolve",
            "action": "store_const",
            "const": True,
            "help": "then train adapters for what failing tests lack, and gate them (trace2evolve evolve)",
        },
    ),
    (
        ("--t2e-evolve-options",),
        {
            "dest": "t2e_evolve_options",
            "metavar": "TEXT",
            "help": "options of trace2evolve evolve, as '--most 2 --steps 20'",
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


OPTIONS = (*RUN, *LIVE)

DESTINATIONS = tuple(settings["dest"] for _, settings in OPTIONS)


def add_options(parser: pytest.Parser) -> None:
    """Declare every option and ini key."""
    group = parser.getgroup("trace2evolve", "evaluate tool-using agents and gate changes to them")
    for names, settings in OPTIONS:
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
    "--t2e-model",
    "--t2e-user-model",
)


PATHS = frozenset(name.removeprefix("--").replace("-", "_") for name in _WITH_PATHS) - {"t2e_baseline"}
"""Destinations of options whose value is a path; a baseline's may be a name, which is checked as one."""


def joined(arguments: Sequence[str], folder: Path) -> list[str] | None:
    """The arguments with `--t2e-replay PATH` written `--t2e-replay=PATH`; None where that changes nothing.

    pytest looks for its rootdir before it knows the options of plugins. A path that follows one of ours is
    taken for a test path then, and a path outside `folder` drags the rootdir away from the project. A path
    that does not exist yet counts too: a worker that replaces another one finds what the run has written.
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
        return not place.resolve().is_relative_to(folder.resolve())
    except (OSError, ValueError):  # a name too long for a path, say
        return False


def is_active(config: pytest.Config) -> bool:
    """Whether anything of ours was asked for."""
    if any(getattr(config.option, name, None) is not None for name in DESTINATIONS):
        return True
    return bool(config.getini("t2e_suites"))
