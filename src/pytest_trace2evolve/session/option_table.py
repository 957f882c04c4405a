"""The options of a run, declared once for the command line, the API, validation and the docs.

This module imports no third-party package, because pytest loads it in every session.
"""

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from pytest_trace2evolve.utils.option_types import (
    MAX_SEED,
    MAX_TRIALS,
    parse_stages,
    parse_temperature,
    positive_number_parser,
    whole_number_parser,
)


@dataclass(frozen=True)
class Option:
    """An option of a run.

    Attributes:
        name: The name after `--t2e-`.
        scope: What the option configures: the run, the models of a live run, the gate, cases, or the
            improvement loop; a `key` is an ini key instead, which is rarely needed.
        help: The help text, in one line.
        metavar: The value's name in the help.
        type: Parses the value.
        choices: All possible values.
        is_repeatable: Whether the option may be given several times; each use then adds a value.
        is_flag: Whether the option takes no value.
        is_path: Whether the value is a path, or may be one.
        alias: An alternative name of the option.
    """

    name: str
    scope: Literal["run", "live", "gate", "cases", "improve", "key"]
    help: str
    metavar: str | None = None
    type: Callable[[str], Any] | None = None
    choices: tuple[str, ...] | None = None
    is_repeatable: bool = False
    is_flag: bool = False
    is_path: bool = False
    alias: str | None = None

    @property
    def flag(self) -> str:
        """The option as it is written on a command line."""
        return f"--t2e-{self.name}"

    @property
    def is_key(self) -> bool:
        """Whether the option is an ini key, `t2e_NAME`, which `-o t2e_NAME=VALUE` overrides."""
        return self.scope == "key"

    @property
    def label(self) -> str:
        """The option as messages name it."""
        return self.destination if self.is_key else self.flag

    @property
    def destination(self) -> str:
        """The attribute of pytest's options that holds the value."""
        return f"t2e_{self.name.replace('-', '_')}"

    def parse(self, text: str) -> Any:
        """Return the value of an ini key; None if the text is empty.

        Raises:
            ConfigError: the text is not a possible value.
        """
        from pytest_trace2evolve.errors import ConfigError

        if not text.strip():
            return None
        if choices := ("true", "false") if self.is_flag else self.choices:
            if text not in choices:
                raise ConfigError(f"{self.destination}: {text!r} is not one of {', '.join(choices)}")
            return (text == "true" or None) if self.is_flag else text
        if self.is_repeatable:
            return text.split()
        try:
            return text if self.type is None else self.type(text)
        except argparse.ArgumentTypeError as error:
            raise ConfigError(f"{self.destination}: {error}") from None

    def argparse_arguments(self) -> dict[str, Any]:
        """Return the keyword arguments for argparse's `add_argument` and pytest's `addoption`."""
        settings: dict[str, Any] = {"dest": self.destination, "help": self.help, "default": None}
        if self.is_flag:
            return settings | {"action": "store_const", "const": True}
        if self.is_repeatable:
            settings["action"] = "append"
        for key in ("metavar", "type", "choices"):
            if (value := getattr(self, key)) is not None:
                settings[key] = value
        return settings


def _option(usage: str, help_text: str, **settings: Any) -> Option:
    """Return an option from its scope and usage, such as `run suite=NAME…` for one that can be repeated."""
    scope, _, text = usage.partition(" ")
    name, _, metavar = text.removesuffix("…").partition("=")
    settings.setdefault("is_path", metavar in ("PATH", "DIR", "FILE"))
    settings |= {"scope": scope, "is_repeatable": text.endswith("…")}
    return Option(name, help=help_text, metavar=metavar or None, **settings)


_COUNT = whole_number_parser(1, 10**6)
_NUMBER = positive_number_parser(1e6)

OPTIONS: tuple[Option, ...] = (
    _option(
        "run candidate=ID",
        "a file of candidates/ (default: v0); ID+NAME uses an adapter, ID+routed all promoted ones",
        alias="--candidate",
    ),
    _option("run suite=NAME…", "run this suite (repeatable; default: all, or those of the replayed runs)"),
    _option("run results=PATH…", "replay recorded runs from a tau2 results file or folder (repeatable)"),
    _option(
        "run agent=NAME",
        "agent: chat (default with a model), replay (with results), oracle, nop, module:function, a URL, or "
        "a plugin's",
    ),
    _option(
        "run trials=N", "simulations per task (default: the suite's)", type=whole_number_parser(1, MAX_TRIALS)
    ),
    _option(
        "gate baseline=NAME|PATH",
        "compare with a saved baseline or a results file (default: nearest ancestor's)",
    ),
    _option("gate against=COMMIT", "use the saved baselines as this commit has them"),
    _option("gate save-baseline=NAME", "save this run as a baseline of its suites"),
    _option(
        "gate baseline-mode",
        "if the baseline exists: fail (save, default), replace it (update), add tasks (new-only) or trials",
        choices=("save", "update", "new-only", "more-trials"),
    ),
    _option("gate gate=POLICY|off", "gate policy (default: the ini key t2e_gate, or calibrated), or off"),
    _option(
        "gate goal",
        "improve (default), hold (not worse) or no-regression (discard only on shown harm)",
        choices=("improve", "hold", "no-regression"),
    ),
    _option(
        "gate dry-run",
        "print what the run costs and can show, and start nothing; exit status 2 if a suite cannot decide",
        is_flag=True,
    ),
    _option("run run-folder=DIR", "folder in which to store the run (default: below .trace2evolve/runs)"),
    _option(
        "run summary=FILE…",
        "write the verdict to FILE as Markdown, or as JSON if it ends in .json (repeatable)",
    ),
    _option(
        "improve evolve",
        "after a run that is not green, train and gate adapters: --t2e-improve='--proposer adapters'",
        is_flag=True,
    ),
    _option(
        "improve improve=OPTIONS",
        "after a run that is not green, search with these options of trace2evolve improve; give them as "
        "--t2e-improve='--proposer ablate'",
    ),
    _option(
        "cases freeze",
        "add the cases that failed in tests with run_case to synthetic/pressure.jsonl",
        is_flag=True,
    ),
    _option("run judge=MODEL", "judge model, for natural-language assertions"),
    _option("live model=MODEL", "the agent's model: a name at an endpoint, or ./FOLDER", is_path=True),
    _option(
        "live user-model=MODEL",
        "model of the user simulator (default: the agent's); also plays scripted customers",
        is_path=True,
    ),
    _option("live base-url=URL", "the model's endpoint (default: OPENAI_BASE_URL)"),
    _option(
        "live temperature=T",
        "the agent's temperature (default: 0; of a model in a folder, that of its generation_config.json)",
        type=parse_temperature,
    ),
    _option(
        "live seed=N",
        "seed of trial 0; each further trial adds 1 (default: no seed is sent)",
        type=whole_number_parser(-MAX_SEED, MAX_SEED),
    ),
    _option(
        "live fresh",
        "rerun every live simulation as a new draw; those of earlier runs are kept",
        is_flag=True,
    ),
    _option(
        "live max-cost=DOLLARS",
        "stop before the run costs more, at the prices of prices.toml",
        type=positive_number_parser(1e9),
    ),
    _option(
        "live max-tokens=N",
        "stop before the run uses more tokens (prompts and completions)",
        type=whole_number_parser(1, 10**15),
    ),
    _option("live max-minutes=N", "stop the run after this many minutes", type=positive_number_parser(1e6)),
    _option(
        "live cache",
        "reuse models' answers stored in .trace2evolve/cache.sqlite, and store new ones",
        is_flag=True,
    ),
    _option("live record=FILE", "write all models' answers of this run to a cassette, a new file"),
    _option("live playback=FILE", "replay all models' answers from a cassette, without a key or endpoint"),
    _option(
        "gate stages=N,N,…|default",
        "add live trials in stages, and stop once the gate decides (default: 2,4,8)",
        type=parse_stages,
    ),
    _option(
        "live concurrency=N",
        "maximum number of simulations at once, over all workers (default: 16)",
        type=whole_number_parser(1, 4_096),
    ),
    _option("run ray=ADDRESS|auto", "make simulations on a Ray cluster: its address, or auto"),
    _option("key api-key-env", "variable that holds the API key of the models (default: OPENAI_API_KEY)"),
    _option("key user-base-url", "the user model's endpoint (default: the agent's)"),
    _option("key user-api-key-env", "variable that holds the user model's API key (default: the agent's)"),
    _option("key baseline-base-url", "endpoint of the baseline's model for reruns (default: the agent's)"),
    _option(
        "key baseline-api-key-env", "variable that holds the baseline model's API key (default: the agent's)"
    ),
    _option("key judge-base-url", "the judge's endpoint (default: OPENAI_BASE_URL)"),
    _option("key reasoning-effort", "reasoning effort that is sent to the agent's model"),
    _option("key extra-body", "JSON object that is merged into the agent's requests"),
    _option(
        "key allow-ignored-tools", "true: run even if the endpoint ignores a request's tools", is_flag=True
    ),
    _option(
        "key max-answer-tokens",
        "end an answer after this many tokens (default: 16384; of a model in a folder, its own limit)",
        type=whole_number_parser(1, 10**9),
    ),
    _option(
        "key requests-per-minute", "request rate limit of the whole run, over all processes", type=_NUMBER
    ),
    _option(
        "key call-timeout",
        "seconds after which a model call is retried, and a step of your own agent ends (default: 600)",
        type=positive_number_parser(86_400),
    ),
    _option(
        "key max-reruns",
        "maximum number of fresh simulations that confirm regressions (default: 640; 0: none)",
        type=whole_number_parser(0, 10**6),
    ),
    _option(
        "key report", "file of a gated run's report page (default: report.html in the run's folder), or none"
    ),
    _option(
        "key case-budget",
        "maximum number of simulations of one test with run_case (default: 200)",
        type=whole_number_parser(1, 10**6),
    ),
    _option("key ray-pip", "requirements file that the nodes of a Ray cluster install for the run"),
    _option("key ray-env…", "environment variables that are passed to the nodes"),
    _option(
        "key provider", "provider of the world of results files (default: the suite's, else inspect_evals)"
    ),
    _option("key resamples", "calibrate, power: simulated comparisons (default: 2000)", type=_COUNT),
    _option("key repeats", "capabilities: times of labelling (default: 1; judges: 10)", type=_COUNT),
    _option("key coverage", "capabilities: least coverage, ρ (default: 0.1)", type=positive_number_parser(1)),
    _option("key contrast", "capabilities: least contrast, δ (default: 0.2)", type=positive_number_parser(1)),
    _option("key rounds", "environment synthesize: number of attempts (default: 5)", type=_COUNT),
    _option("key device", "serve: torch device (default: cuda if available, else cpu)"),
    _option(
        "key plateau",
        "improve: stop after this many proposals without a promotion (default: 20)",
        type=_COUNT,
    ),
    _option("key reflect-base-url", "improve: endpoint of the proposing model (default: OPENAI_BASE_URL)"),
    _option("key reflect-api-key-env", "improve: variable that holds its API key (default: OPENAI_API_KEY)"),
    _option(
        "key writer-base-url", "environment synthesize: the writer's endpoint (default: OPENAI_BASE_URL)"
    ),
    _option(
        "key rollouts",
        "environment tune: rollouts of each scenario (default: 16)",
        type=whole_number_parser(2, 10**6),
    ),
    _option("key heldout-rollouts", "train: rollouts of each held-out scenario (default: 4)", type=_COUNT),
    _option(
        "key heldout-others",
        "train: held-out scenarios of each other environment (default: half of --heldout; 0 for none)",
        type=whole_number_parser(0, 10**6),
    ),
    _option("key threads", "serve: torch threads (default: 1 for small models on cpu)", type=_COUNT),
    _option("key batch-size", "serve: requests decoded together (default: 64)", type=_COUNT),
    _option("key queue-size", "serve: requests that may wait (default: 1024)", type=_COUNT),
)
"""The options on the command line of pytest, and then the ini keys of sessions and commands."""


def stray_path(arguments: Sequence[str], folder: Path) -> tuple[str, str] | None:
    """Return the first option, and its path, that pytest would mistake for a test path outside `folder`.

    pytest determines its rootdir before it knows the options of plugins, so it takes the value of such an
    option for a test path. A path outside `folder` would then move the rootdir away from the project. Paths
    that do not exist yet count too, because a replacement worker finds the files that the run has written.
    """
    flags = {option.flag for option in OPTIONS if option.is_path} | {"--t2e-baseline"}
    for flag, value in pairwise(arguments):
        if flag in flags and _lies_outside(folder / value, folder):
            return flag, value
    return None


def _lies_outside(path: Path, folder: Path) -> bool:
    try:
        # As `is_inside` of utils/files.py, which the idle plugin does not import.
        return not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))
    except (OSError, ValueError):  # for example, a name too long for a path
        return False
