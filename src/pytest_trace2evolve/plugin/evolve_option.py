"""`--t2e-evolve`: after a normal session, an evolution learns from the session's failures."""

import shlex
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_trace2evolve.engine.live import names_folder
from pytest_trace2evolve.environments.generated import project_environments
from pytest_trace2evolve.environments.registry import Environments
from pytest_trace2evolve.errors import Trace2EvolveError
from pytest_trace2evolve.improve.arguments import parse_evolve_options, run_arguments, run_values
from pytest_trace2evolve.improve.loop import evolve
from pytest_trace2evolve.improve.plan import EvolutionPlan, budget_of, budget_text, check_budget
from pytest_trace2evolve.improve.planner import plan_evolution
from pytest_trace2evolve.plugin.controller import Controller
from pytest_trace2evolve.plugin.items import PLUGIN_NAME as RUN_NAME
from pytest_trace2evolve.plugin.settings import context_of, suites_under, usage_error
from pytest_trace2evolve.project.extensions import read_hooks
from pytest_trace2evolve.records.improvement import Stage
from pytest_trace2evolve.report.improvement import evolution_text
from pytest_trace2evolve.session.planner import Resources
from pytest_trace2evolve.utils.crashes import crash_line
from pytest_trace2evolve.utils.sanitize import sanitize_line

PLUGIN_NAME = "trace2evolve-evolution"

_OTHER_AGENTS = ("t2e_results", "t2e_playback", "t2e_agent", "t2e_base_url", "t2e_adapter")
"""Options that select an agent other than a model in a folder."""

_FAILED = (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERNAL_ERROR, pytest.ExitCode.USAGE_ERROR)
"""Exit statuses of sessions from whose runs no evolution learns."""


def register_evolution(config: pytest.Config) -> None:
    """Register an evolution's hooks after the controller, so they validate before it starts servers."""
    controller = config.pluginmanager.getplugin(RUN_NAME)
    assert isinstance(controller, Controller)
    config.pluginmanager.register(EvolutionHooks(config, controller), PLUGIN_NAME)


class EvolutionHooks:
    """Plans the evolution before the tests start, and runs it once the session has ended.

    The exit status stays the session's, because its verdict on the candidate stands whatever the evolution
    does.
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
            project = replace(resources.project, hooks=read_hooks(self._config))
            self._resources = replace(resources, project=project)
            with self._plan(None) as (plan, environments):
                self._values = plan.values
                budget = budget_of(plan, environments.names)
                self._print(budget_text(plan, budget))
                check_budget(plan, budget)
        except (Trace2EvolveError, OSError) as error:
            raise usage_error(error) from None
        self._session = session

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        """Learn from the session's run, after its servers have ended."""
        run = None if self._controller.plan is None else self._controller.plan.run_folder
        if self._session is None or self._session.exitstatus in _FAILED or run is None or not run.exists():
            return
        try:
            self._evolve(run)
        except (Trace2EvolveError, OSError) as error:
            failure = str(error)
        except KeyboardInterrupt:
            failure = "interrupted"
        except Exception as error:
            failure = crash_line(error, self._config.rootpath)
        else:
            return
        self._print(f"trace2evolve: {sanitize_line(failure)}")
        self._print(f"trace2evolve: to resume from this run: trace2evolve {shlex.join(self._command(run))}")

    def _evolve(self, run: Path) -> None:
        assert self._resources is not None
        with self._plan(run) as (plan, environments):
            state = evolve(plan, self._resources, environments, self._report)
        self._print(evolution_text(state, self._resources.project.adapters).rstrip("\n"))

    @contextmanager
    def _plan(self, run: Path | None) -> Iterator[tuple[EvolutionPlan, Environments]]:
        """Yield the plan of the evolution and its environments, which close when the context ends."""
        assert self._resources is not None
        option = self._config.option
        asked = parse_evolve_options(option.t2e_evolve_options or "")
        asked.candidate = asked.candidate or option.t2e_candidate
        asked.from_run = None if run is None else str(run)
        if asked.base is None and option.t2e_model is not None:
            asked.base = Path(option.t2e_model)
        values = run_values(option)
        values.t2e_suite = values.t2e_suite or self._suites_by_path()
        with closing(project_environments(self._resources.project)) as environments:
            context = context_of(self._config)
            yield plan_evolution(asked, values, self._resources, environments, context), environments

    def _suites_by_path(self) -> list[str] | None:
        """The suites that the given paths select; None without paths, or if the paths select all suites."""
        if self._config.args_source is not pytest.Config.ArgsSource.ARGS:
            return None
        project = self._controller.resources.project
        names = suites_under(self._config, project)
        return names if names != list(project.suite_names) else None

    def _command(self, run: Path) -> list[str]:
        """The arguments of `trace2evolve` that resume the evolution."""
        option, here = self._config.option, self._config.invocation_params.dir
        words = ["--root", str(self._config.rootpath), "evolve", "--from-run", str(run)]
        words += [] if option.t2e_candidate is None else ["--candidate", option.t2e_candidate]
        words += (
            [] if option.t2e_model is None else ["--base", str(here / Path(option.t2e_model).expanduser())]
        )
        return [*words, *shlex.split(option.t2e_evolve_options or ""), *run_arguments(self._values)]

    def _report(self, stage: Stage, line: str) -> None:
        self._print(f"{stage.value}: {sanitize_line(line)[:160]}")

    def _print(self, text: str) -> None:
        if reporter := self._config.pluginmanager.getplugin("terminalreporter"):
            reporter.write_line(text)
            reporter.flush()


def _check_options(config: pytest.Config) -> None:
    """Check that the base is the agent, and that its run is complete, because adapters are compared with it.

    Raises:
        pytest.UsageError: an option selects a different agent or narrows the run.
    """
    option = config.option
    for name in _OTHER_AGENTS:
        if getattr(option, name) is not None:
            raise usage_error(
                f"--{name.replace('_', '-')} does not go with --t2e-evolve, which trains adapters of the "
                "embedded model, or of one in a folder: --t2e-model ./FOLDER"
            )
    if option.t2e_model is not None and not names_folder(option.t2e_model, config.invocation_params.dir):
        raise usage_error(
            f"--t2e-model {option.t2e_model}: --t2e-evolve trains adapters, and needs a model that lies in a "
            "folder: --t2e-model ./FOLDER"
        )
    if option.t2e_stages is not None:
        raise usage_error(
            "--t2e-stages does not go with --t2e-evolve: a run that may stop early is no baseline of the "
            "adapters' runs; leave it out"
        )
    narrowing = {
        "-k": option.keyword,
        "-x (or --maxfail)": option.maxfail,
        "--lf": getattr(option, "lf", False),
        "--stepwise": getattr(option, "stepwise", False),
        "--stepwise-skip": getattr(option, "stepwise_skip", False),
        "--stepwise-reset": getattr(option, "stepwise_reset", False),
        **{word: True for word in map(str, config.invocation_params.args) if _leaves_tests_out(word, config)},
        **{str(path): True for path in config.args if "::" in str(path)},
    }
    for name, value in narrowing.items():
        if value:
            raise usage_error(
                f"{name} does not go with --t2e-evolve: adapters are judged against the session's run, which "
                "must be whole; leave it out"
            )


def _leaves_tests_out(word: str, config: pytest.Config) -> bool:
    """Whether an argument of the command line leaves tests out.

    `addopts` is not checked, because its arguments may concern tests that are not tasks.
    """
    if word.startswith("-m"):
        return bool(config.option.markexpr)
    return word.partition("=")[0] in ("--deselect", "--ignore", "--ignore-glob")
