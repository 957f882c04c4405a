"""Runs an evolution after a session with `--t2e-evolve`, to learn from the failures of the session."""

import shlex
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_trace2evolve.engine.live import is_model_folder
from pytest_trace2evolve.environments.generated import project_environments
from pytest_trace2evolve.environments.registry import Environments
from pytest_trace2evolve.errors import Trace2EvolveError
from pytest_trace2evolve.improve.arguments import (
    key_arguments,
    parse_evolve_options,
    run_arguments,
    run_values,
)
from pytest_trace2evolve.improve.loop import evolve
from pytest_trace2evolve.improve.plan import EvolutionPlan, budget_text, check_budget, compute_budget
from pytest_trace2evolve.improve.planner import plan_evolution
from pytest_trace2evolve.plugin.controller import Controller
from pytest_trace2evolve.plugin.items import PLUGIN_NAME as RUN_PLUGIN_NAME
from pytest_trace2evolve.plugin.settings import context_of, suites_under, usage_error
from pytest_trace2evolve.project.extensions import read_hooks
from pytest_trace2evolve.records.improvement import Stage
from pytest_trace2evolve.report.improvement import evolution_text
from pytest_trace2evolve.session.planner import Resources
from pytest_trace2evolve.utils.crashes import write_crash_report
from pytest_trace2evolve.utils.sanitize import sanitize_line

PLUGIN_NAME = "trace2evolve-evolution"

_OTHER_AGENT_OPTIONS = ("t2e_results", "t2e_playback", "t2e_agent", "t2e_base_url")
"""Options that select an agent other than a model folder."""

_UNUSABLE_STATUSES = (
    pytest.ExitCode.INTERRUPTED,
    pytest.ExitCode.INTERNAL_ERROR,
    pytest.ExitCode.USAGE_ERROR,
)
"""Exit statuses of sessions after which no evolution runs."""


def register_evolution(config: pytest.Config) -> None:
    """Register the hooks of an evolution, which validate options before the controller starts servers."""
    controller = config.pluginmanager.getplugin(RUN_PLUGIN_NAME)
    assert isinstance(controller, Controller)
    config.pluginmanager.register(EvolutionHooks(config, controller), PLUGIN_NAME)


class EvolutionHooks:
    """Plans an evolution before the tests start, and runs it after the session has ended.

    The exit status remains that of the session, because its verdict does not depend on the evolution.
    """

    def __init__(self, config: pytest.Config, controller: Controller) -> None:
        self._config = config
        self._controller = controller
        self._resources: Resources | None = None
        self._session: pytest.Session | None = None
        self._values = run_values(None)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Validate the evolution and print its budget.

        Raises:
            pytest.UsageError: an option is incompatible with `--t2e-evolve`, or the budget is too small.
        """
        option = self._config.option
        if option.help or option.version or option.collectonly:
            return
        _check_options(self._config)
        try:
            resources = self._controller.resources
            hooks = read_hooks(self._config, resources.project.suites_folder)
            project = replace(resources.project, hooks=hooks)
            self._resources = replace(resources, project=project)
            with self._open_plan(None) as (plan, environments):
                self._values = plan.values
                budget = compute_budget(plan, environments.names)
                self._print(budget_text(plan, budget))
                check_budget(plan, budget)
        except (Trace2EvolveError, OSError) as error:
            raise usage_error(error) from None
        self._session = session

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        """Run the evolution after the servers of the session have stopped."""
        run_folder = None if self._controller.plan is None else self._controller.plan.run_folder
        if (
            self._session is None
            or self._session.exitstatus in _UNUSABLE_STATUSES
            or run_folder is None
            or not run_folder.exists()
        ):
            return
        try:
            self._evolve(run_folder)
        except (Trace2EvolveError, OSError) as error:
            failure = str(error)
        except KeyboardInterrupt:
            failure = "interrupted"
        except Exception as error:
            failure = write_crash_report(error, self._config.rootpath)
        else:
            return
        self._print(f"trace2evolve: {sanitize_line(failure)}")
        self._print(
            "trace2evolve: to resume from this run: trace2evolve "
            f"{shlex.join(self._resume_arguments(run_folder))}"
        )

    def _evolve(self, run_folder: Path) -> None:
        assert self._resources is not None
        with self._open_plan(run_folder) as (plan, environments):
            state = evolve(plan, self._resources, environments, self._on_stage)
        self._print(evolution_text(state, self._resources.project.adapters).rstrip("\n"))

    @contextmanager
    def _open_plan(self, run_folder: Path | None) -> Iterator[tuple[EvolutionPlan, Environments]]:
        """Yield the plan of the evolution and its environments, which close when the context ends."""
        assert self._resources is not None
        option = self._config.option
        evolve_options = parse_evolve_options(option.t2e_evolve_options or "")
        evolve_options.candidate = evolve_options.candidate or option.t2e_candidate
        evolve_options.from_run = None if run_folder is None else str(run_folder)
        evolve_options.heldout_rollouts = option.t2e_heldout_rollouts or evolve_options.heldout_rollouts
        evolve_options.parallel = option.t2e_parallel
        if evolve_options.base is None and option.t2e_model is not None:
            evolve_options.base = Path(option.t2e_model)
        values = run_values(option)
        values.t2e_suite = values.t2e_suite or self._suites_of_paths()
        with closing(project_environments(self._resources.project)) as environments:
            context = context_of(self._config)
            yield plan_evolution(evolve_options, values, self._resources, environments, context), environments

    def _suites_of_paths(self) -> list[str] | None:
        """Return the suites that the given paths select; None without paths, or if they select all suites."""
        if self._config.args_source is not pytest.Config.ArgsSource.ARGS:
            return None
        project = self._controller.resources.project
        names = suites_under(self._config, project)
        return names if names != list(project.suite_names) else None

    def _resume_arguments(self, run: Path) -> list[str]:
        """Return the arguments of `trace2evolve` that resume the evolution."""
        option, current_folder = self._config.option, self._config.invocation_params.dir
        arguments = ["--root", str(self._config.rootpath), "evolve", "--from-run", str(run)]
        arguments += [] if option.t2e_candidate is None else ["--candidate", option.t2e_candidate]
        arguments += (
            []
            if option.t2e_model is None
            else ["--base", str(current_folder / Path(option.t2e_model).expanduser())]
        )
        arguments += shlex.split(option.t2e_evolve_options or "")
        arguments += key_arguments(self._values)
        return [*arguments, "--", *run_arguments(self._values)]

    def _on_stage(self, stage: Stage, line: str) -> None:
        self._print(f"{stage.value}: {sanitize_line(line)[:160]}")

    def _print(self, text: str) -> None:
        if reporter := self._config.pluginmanager.getplugin("terminalreporter"):
            reporter.write_line(text)
            reporter.flush()


def _check_options(config: pytest.Config) -> None:
    """Check that the agent is the base model and that all tasks run, because adapters are compared with it.

    Raises:
        pytest.UsageError: an option selects a different agent or deselects tasks.
    """
    option = config.option
    for name in _OTHER_AGENT_OPTIONS:
        if getattr(option, name) is not None:
            raise usage_error(
                f"--{name.replace('_', '-')} cannot be combined with --t2e-evolve, which trains "
                "adapters of the embedded model or of a model folder; use --t2e-model ./FOLDER"
            )
    if option.t2e_model is not None and not is_model_folder(option.t2e_model, config.invocation_params.dir):
        raise usage_error(
            f"--t2e-model {option.t2e_model}: --t2e-evolve needs a model folder, because it trains "
            "adapters; use --t2e-model ./FOLDER"
        )
    if option.t2e_stages is not None:
        raise usage_error(
            "--t2e-stages cannot be combined with --t2e-evolve, because a run that may stop early "
            "cannot be the baseline of the adapters' runs; leave it out"
        )
    narrowing_options = {
        "-k": option.keyword,
        "-x (or --maxfail)": option.maxfail,
        "--lf": getattr(option, "lf", False),
        "--stepwise": getattr(option, "stepwise", False),
        "--stepwise-skip": getattr(option, "stepwise_skip", False),
        "--stepwise-reset": getattr(option, "stepwise_reset", False),
        **{
            argument: True
            for argument in map(str, config.invocation_params.args)
            if _deselects_tests(argument, config)
        },
        **{str(path): True for path in config.args if "::" in str(path)},
    }
    for name, value in narrowing_options.items():
        if value:
            raise usage_error(
                f"{name} cannot be combined with --t2e-evolve, because adapters are compared with the "
                "session's run, which must be complete; leave it out"
            )


def _deselects_tests(argument: str, config: pytest.Config) -> bool:
    """Whether a command-line argument deselects tests.

    `addopts` is not checked, because its arguments may concern tests that are not tasks.
    """
    if argument.startswith("-m"):
        return bool(config.option.markexpr)
    return argument.partition("=")[0] in ("--deselect", "--ignore", "--ignore-glob")
