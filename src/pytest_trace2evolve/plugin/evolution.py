"""`--t2e-evolve`: after a session, learn from its failures."""

import argparse
import contextlib
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest

from pytest_trace2evolve.cli.improve import add_evolve_options, print_stage
from pytest_trace2evolve.engine.live import names_folder
from pytest_trace2evolve.environments.generated_store import project_environments
from pytest_trace2evolve.errors import LONGEST_LINE, ConfigError, Trace2EvolveError
from pytest_trace2evolve.improve.request import (
    DECIDING,
    NO_GATE,
    OFF,
    PACING,
    checked_budget,
    read_order,
)
from pytest_trace2evolve.improve.runs import Runs
from pytest_trace2evolve.improve.stages import Evolving
from pytest_trace2evolve.plugin.selection import Selection
from pytest_trace2evolve.report.improvement import evolved_text
from pytest_trace2evolve.serving.folder import expanded
from pytest_trace2evolve.session.option_table import OPTIONS
from pytest_trace2evolve.session.planner import Resources
from pytest_trace2evolve.session.settings import Context
from pytest_trace2evolve.utils.sanitize import sanitize, sanitize_line

_NO_BASE = ("t2e_replay", "t2e_playback", "t2e_agent", "t2e_base_url", "t2e_adapter")
"""Options with which no model of a folder talks for itself."""

_STEPWISE = ("stepwise_reset", "stepwise_skip", "stepwise")  # pytest sets the last with each of the others

_NARROWING = ("-m", "--deselect", "--ignore", "--ignore-glob")
"""Options that leave tests out: rejected if typed, while `addopts` may hold them for other tests."""


class SessionEvolution:
    """The evolution that follows a session.

    Args:
        config: The configuration of the controller.
        resources: What the project and its plugins offer.
        context: Where the options were given.
        selection: What the session runs.

    Attributes:
        budget: What the evolution takes at most, in one line.

    Raises:
        ConfigError: an option leaves nothing to evolve, or the evolution cannot be as asked for.
    """

    def __init__(
        self, config: pytest.Config, resources: Resources, context: Context, selection: Selection
    ) -> None:
        _check_options(config)
        self._resources, self._context = resources, context
        self._request = _request(config)
        self._values = SimpleNamespace(**vars(config.option))
        if self._values.t2e_suite is None and selection.suites != tuple(resources.project.suite_names):
            self._values.t2e_suite = list(selection.suites)
        with contextlib.closing(project_environments(resources.project)) as environments:
            order = read_order(self._request, self._values, context, resources, environments)
            self.budget = checked_budget(order, resources, environments)

    def run(self, folder: Path) -> None:
        """Learn from the session's run, and print what came of it.

        An evolution that ends early prints the command that resumes it; the session's verdict stands.

        Args:
            folder: The run folder of the session.
        """
        self._request.from_run = str(folder)
        try:
            with contextlib.closing(project_environments(self._resources.project)) as environments:
                order = read_order(self._request, self._values, self._context, self._resources, environments)
                print(checked_budget(order, self._resources, environments), file=sys.stderr, flush=True)
                runs = Runs(order, self._resources)
                state = Evolving(order, self._resources.project, environments, runs, print_stage).run()
            print(sanitize(evolved_text(state, self._resources.project.adapters).rstrip("\n")))
            return
        except KeyboardInterrupt:
            why = "the evolution was interrupted"
        except (Trace2EvolveError, OSError) as error:
            why = str(error)
        print(sanitize_line(f"trace2evolve: {why}", LONGEST_LINE), file=sys.stderr)
        print(
            sanitize_line(f"trace2evolve: to evolve from this run: {self._command(folder)}", LONGEST_LINE),
            file=sys.stderr,
        )

    def _command(self, folder: Path) -> str:
        """The command that evolves from the session's run, without another session."""
        words = ["trace2evolve", "--root", str(self._context.root), "evolve"]
        if self._request.candidate is not None:
            words += ["--candidate", self._request.candidate]
        if self._request.base is not None:
            words += ["--base", str(self._request.base)]
        words += [*shlex.split(self._values.t2e_evolve_options or ""), "--from-run", str(folder), "--"]
        for option in OPTIONS:
            value = getattr(self._values, option.destination, None)
            if option.name in (*DECIDING, *PACING) and value is not None:
                given = value if option.is_repeatable else [value]
                words += [f"{option.flag}={each}" for each in given]
        return shlex.join(words)


def _request(config: pytest.Config) -> argparse.Namespace:
    """The evolution's options: those of `--t2e-evolve-options`, the session's candidate and its model."""
    option = config.option
    parser = _EvolveOptions(add_help=False, allow_abbrev=False)
    add_evolve_options(parser)
    try:
        words = shlex.split(option.t2e_evolve_options or "")
    except ValueError as error:
        raise ConfigError(f"--t2e-evolve-options: {error}") from None
    base = None
    if option.t2e_model is not None:
        base = config.invocation_params.dir / expanded(Path(option.t2e_model))
    own = argparse.Namespace(candidate=option.t2e_candidate, from_run=None, base=base)
    return parser.parse_args(words, own)


class _EvolveOptions(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"--t2e-evolve-options: {message}")


def _check_options(config: pytest.Config) -> None:
    """Check that the session leaves a verdict, and a run that adapters can be compared with."""
    option, typed = config.option, map(str, config.invocation_params.args)
    for name in _NO_BASE:
        if getattr(option, name, None) is not None:
            raise ConfigError(
                f"--{name.replace('_', '-')} does not go with --t2e-evolve, which trains adapters of the "
                "embedded model, or of one in a folder: --t2e-model ./FOLDER"
            )
    if option.t2e_stages is not None:
        raise ConfigError(
            "--t2e-stages does not go with --t2e-evolve: a run that may stop early is no baseline of the "
            "adapters' runs; leave it out"
        )
    if (option.t2e_gate or config.getini("t2e_gate")) == OFF:
        raise ConfigError(
            f"--t2e-evolve: {NO_GATE}, and the gate is {OFF}: leave --t2e-gate out, or name a policy if the "
            f"ini key t2e_gate is {OFF}"
        )
    narrowing = {
        "-k": option.keyword,
        "-x (or --maxfail)": option.maxfail,
        "--lf": getattr(option, "lf", False),
        **{f"--{name.replace('_', '-')}": getattr(option, name, False) for name in _STEPWISE},
        **{word: True for word in typed if _narrows(word, option)},
        **{str(argument): True for argument in config.args if "::" in str(argument)},
    }
    for name, value in narrowing.items():
        if value:
            raise ConfigError(
                f"{name} does not go with --t2e-evolve: adapters are compared with the session's run, which "
                "must be whole; leave it out"
            )
    if option.t2e_model is not None and not names_folder(option.t2e_model, config.invocation_params.dir):
        raise ConfigError(
            f"--t2e-model {option.t2e_model}: --t2e-evolve trains adapters, and needs a model that lies in a "
            "folder: --t2e-model ./FOLDER"
        )


def _narrows(word: str, option: argparse.Namespace) -> bool:
    """Whether a word of the command line leaves tests out; an empty `-m` undoes that of `addopts`."""
    name = word.partition("=")[0] if word.startswith("--") else word[:2]
    return name in _NARROWING and (name != "-m" or bool(option.markexpr))
