"""The options of a run, declared once for the command line, the API, validation and the docs.

Only the standard library is imported here, since pytest loads this module in every session.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from pytest_trace2evolve.utils.option_types import MOST_SEED, MOST_TRIALS, amount, stages, temperature, whole


@dataclass(frozen=True)
class Option:
    """An option of a run.

    Attributes:
        name: The name after `--t2e-`.
        scope: What the option is about: the run, its live models (and no other run), the gate, cases, or the
            improvement loop.
        help: One line.
        metavar: The value's name in the help.
        type: Parses the value.
        choices: All possible values.
        is_repeatable: Whether each use adds a value.
        is_flag: Whether the option takes no value.
        is_path: Whether the value is a path, or may be one.
        alias: A second spelling.
    """

    name: str
    scope: Literal["run", "live", "gate", "cases", "improve"]
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
    def destination(self) -> str:
        """The attribute of pytest's options that holds the value."""
        return f"t2e_{self.name.replace('-', '_')}"

    def argparse(self) -> dict[str, Any]:
        """Keyword arguments for argparse's `add_argument` and pytest's `addoption`."""
        settings: dict[str, Any] = {"dest": self.destination, "help": self.help, "default": None}
        if self.is_flag:
            return settings | {"action": "store_const", "const": True}
        if self.is_repeatable:
            settings["action"] = "append"
        for key in ("metavar", "type", "choices"):
            if (value := getattr(self, key)) is not None:
                settings[key] = value
        return settings


OPTIONS: tuple[Option, ...] = (
    Option(
        "candidate",
        "run",
        "a file of candidates/ (default: v0); ID+NAME uses an adapter, ID+routed all promoted ones",
        metavar="ID",
        alias="--candidate",
    ),
    Option(
        "suite",
        "run",
        "run this suite (repeatable; default: all, or those of the replayed runs)",
        metavar="NAME",
        is_repeatable=True,
    ),
    Option(
        "results",
        "run",
        "replay recorded runs from a tau2 results file or folder (repeatable)",
        metavar="PATH",
        is_repeatable=True,
        is_path=True,
    ),
    Option(
        "agent",
        "run",
        "agent: chat (default with a model), replay (with results), oracle, nop, or a plugin's",
        metavar="NAME",
    ),
    Option(
        "trials", "run", "simulations a task (default: the suite's)", metavar="N", type=whole(1, MOST_TRIALS)
    ),
    Option(
        "baseline",
        "gate",
        "compare with a saved baseline or a results file (default: nearest ancestor's)",
        metavar="NAME|PATH",
    ),
    Option("save-baseline", "gate", "save this run as a baseline of its suites", metavar="NAME"),
    Option(
        "baseline-mode",
        "gate",
        "if the baseline exists: fail (save, default), replace it (update) or add tasks (new-only)",
        choices=("save", "update", "new-only"),
    ),
    Option(
        "gate",
        "gate",
        "gate policy (default: the ini key t2e_gate, or calibrated), or off",
        metavar="POLICY|off",
    ),
    Option(
        "goal",
        "gate",
        "improve (default), hold (not worse) or no-regression (discard only on shown harm)",
        choices=("improve", "hold", "no-regression"),
    ),
    Option(
        "inconclusive",
        "gate",
        "exit status of an inconclusive verdict: 10 (fail, default) or 0 (pass)",
        choices=("fail", "pass"),
    ),
    Option(
        "run-folder",
        "run",
        "where to keep the run (default: below .trace2evolve/runs)",
        metavar="DIR",
        is_path=True,
    ),
    Option(
        "summary",
        "run",
        "write the verdict to FILE as Markdown, or as JSON if it ends in .json (repeatable)",
        metavar="FILE",
        is_repeatable=True,
        is_path=True,
    ),
    Option(
        "case-budget",
        "cases",
        "simulations that one test with run_case may make (default: 200)",
        metavar="N",
        type=whole(1, 10**6),
    ),
    Option(
        "evolve",
        "improve",
        "afterwards train and gate adapters for failed tasks (trace2evolve evolve)",
        is_flag=True,
    ),
    Option(
        "evolve-options",
        "improve",
        "options of trace2evolve evolve, as '--max-adapters 2 --steps 20'",
        metavar="TEXT",
    ),
    Option(
        "freeze",
        "cases",
        "add the cases that failed in tests with run_case to synthetic/pressure.jsonl",
        is_flag=True,
    ),
    Option("judge", "run", "judge model, for natural-language assertions", metavar="MODEL"),
    Option("judge-base-url", "run", "the judge's endpoint (default: OPENAI_BASE_URL)", metavar="URL"),
    Option(
        "model",
        "live",
        "talk to this model: a name at an endpoint, or ./FOLDER",
        metavar="MODEL",
        is_path=True,
    ),
    Option(
        "user-model",
        "live",
        "model of the user simulator (default: the agent's); it plays scripted customers too",
        metavar="MODEL",
        is_path=True,
    ),
    Option("adapter", "live", "LoRA adapter for the agent's model, which must be a folder", metavar="PATH"),
    Option(
        "route",
        "live",
        "a routed candidate chooses an adapter once a task (default) or at each turn",
        choices=("task", "turn"),
    ),
    Option("base-url", "live", "the model's endpoint (default: OPENAI_BASE_URL)", metavar="URL"),
    Option("user-base-url", "live", "the user model's endpoint (default: the agent's)", metavar="URL"),
    Option(
        "api-key-env",
        "live",
        "environment variable that holds the API key (default: OPENAI_API_KEY)",
        metavar="NAME",
    ),
    Option(
        "user-api-key-env",
        "live",
        "environment variable of the user model's API key (default: the agent's)",
        metavar="NAME",
    ),
    Option(
        "temperature",
        "live",
        "the agent's temperature (default: 0; of a model in a folder, that of its generation_config.json)",
        metavar="T",
        type=temperature,
    ),
    Option(
        "seed",
        "live",
        "seed of trial 0; each further trial adds 1 (default: none is sent)",
        metavar="N",
        type=whole(-MOST_SEED, MOST_SEED),
    ),
    Option("reasoning-effort", "live", "reasoning effort that is sent to the agent's model", metavar="LEVEL"),
    Option("extra-body", "live", "JSON object that is merged into the agent's requests", metavar="JSON"),
    Option(
        "fresh",
        "live",
        "run every live simulation again, in addition to those of earlier runs: another draw",
        is_flag=True,
    ),
    Option(
        "max-cost",
        "live",
        "stop before the run costs more, at the prices of prices.toml",
        metavar="DOLLARS",
        type=amount(1e9),
    ),
    Option(
        "max-tokens",
        "live",
        "stop before the run uses more tokens, prompts and completions together",
        metavar="N",
        type=whole(1, 10**15),
    ),
    Option("max-minutes", "live", "stop the run after so many minutes", metavar="N", type=amount(1e6)),
    Option(
        "requests-per-minute",
        "live",
        "rate limit of the whole run, all processes together",
        metavar="N",
        type=amount(1e6),
    ),
    Option(
        "call-timeout",
        "live",
        "retry a model call that takes longer than this (default: 600)",
        metavar="SECONDS",
        type=amount(86_400),
    ),
    Option(
        "cache",
        "live",
        "reuse models' answers stored in .trace2evolve/cache.sqlite, and store new ones",
        is_flag=True,
    ),
    Option(
        "record",
        "live",
        "write all models' answers of this run to a cassette, a new file",
        metavar="FILE",
        is_path=True,
    ),
    Option(
        "playback",
        "live",
        "take all models' answers from a cassette: no key, no endpoint (agent chat)",
        metavar="FILE",
        is_path=True,
    ),
    Option(
        "max-reruns",
        "gate",
        "reruns that may confirm falls, fresh simulations of both sides (default: 640; 0: none)",
        metavar="N",
        type=whole(0, 10**6),
    ),
    Option(
        "stages",
        "gate",
        "live: add trials in stages and stop if the gate decides (default: 2,4,8)",
        metavar="N,N,…|default",
        type=stages,
    ),
    Option(
        "baseline-base-url",
        "live",
        "endpoint of the baseline's model for reruns (default: the agent's, if it is the same model)",
        metavar="URL",
    ),
    Option(
        "baseline-api-key-env",
        "live",
        "environment variable of the baseline model's API key (default: the agent's)",
        metavar="NAME",
    ),
    Option(
        "concurrency",
        "live",
        "simulations at once, whatever the number of workers (default: 16)",
        metavar="N",
        type=whole(1, 4_096),
    ),
    Option(
        "ray",
        "run",
        "make simulations on a Ray cluster: its address, or auto",
        metavar="ADDRESS|auto",
    ),
    Option(
        "ray-per-actor",
        "run",
        "simulations at once in one process of the cluster (default: 32)",
        metavar="N",
        type=whole(1, 1_000),
    ),
    Option(
        "ray-pip",
        "run",
        "requirements that the nodes install for the run",
        metavar="FILE",
        is_path=True,
    ),
    Option(
        "ray-env",
        "run",
        "hand this environment variable to the nodes (repeatable)",
        metavar="NAME",
        is_repeatable=True,
    ),
)


def stray_path(arguments: Sequence[str], folder: Path) -> tuple[str, str] | None:
    """The first option whose path pytest would mistake for a test path outside `folder`, with the path.

    pytest determines its rootdir before it knows the options of plugins, so it takes the value of such an
    option for a test path. A path outside `folder` would then move the rootdir away from the project. Paths
    that do not exist yet count too, because a replacement worker finds the files that the run has written.
    """
    flags = {option.flag for option in OPTIONS if option.is_path} | {"--t2e-baseline"}
    for flag, value in pairwise(arguments):
        if flag in flags and _lies_outside(folder / value, folder):
            return flag, value
    return None


def _lies_outside(place: Path, folder: Path) -> bool:
    try:
        return not place.resolve().is_relative_to(folder.resolve())
    except (OSError, ValueError):  # for example, a name too long for a path
        return False
