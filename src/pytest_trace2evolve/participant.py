"""What every process of a run does: plan, collect, simulate; and what a worker takes over."""

from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_trace2evolve.collect import SuiteFile, TaskItem
from pytest_trace2evolve.errors import ConfigError, Trace2EvolveError
from pytest_trace2evolve.options import DESTINATIONS
from pytest_trace2evolve.records.protocols import Judge
from pytest_trace2evolve.records.verdict import Goal
from pytest_trace2evolve.workflow.plan import Options, Plan, Shared, make_plan
from pytest_trace2evolve.workflow.project import Project
from pytest_trace2evolve.workflow.trials import BUILT_IN_AGENTS, AgentFactory, Runner
from pytest_trace2evolve.worlds.registry import Worlds

WORKER_INPUT = "trace2evolve"


def usage_error(error: Trace2EvolveError) -> pytest.UsageError:
    """An error of ours as pytest's, one line."""
    return pytest.UsageError(" ".join(str(error).split()))


class Participant:
    """What controller and workers share: the plan, the collection of items, and their simulations."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        folder = config.rootpath / (config.getini("t2e_suites") or "suites")
        self.project = Project(root=config.rootpath, suites_folder=folder)
        try:
            _ = self.project.splits
        except Trace2EvolveError as error:
            raise usage_error(error) from None
        self.worlds = Worlds(self._from_hooks(config.hook.pytest_t2e_worlds(config=config)))
        self.agents: Mapping[str, AgentFactory] = {
            **BUILT_IN_AGENTS,
            **self._from_hooks(config.hook.pytest_t2e_agents(config=config)),
        }
        self.plan: Plan | None = None
        self.runner: Runner | None = None

    @staticmethod
    def _from_hooks(answers: list[Mapping[str, Any]]) -> dict[str, Any]:
        return {name: factory for answer in answers for name, factory in answer.items()}

    def prepare(self, shared: Shared | None) -> None:
        """Make the plan, or leave it out where no suite takes part.

        Raises:
            pytest.UsageError: anything the user wrote is wrong.
        """
        wanted = any_option(self.config)
        if wanted and self.config.args_source is not pytest.Config.ArgsSource.ARGS:
            self.config.args[:] = [str(self.project.suites_folder)]
        names = self._names_in_args()
        if not names and not wanted:
            return
        try:
            if not self.project.suite_names:
                raise ConfigError(
                    f"no suites in {self.project.suites_folder}: set the ini key t2e_suites to their folder"
                )
            options = read_options(self.config)
            plan = make_plan(
                options,
                self.project,
                self.worlds,
                suite_names=names,
                agents=sorted(self.agents),
                judge=_judge(self.config),
                shared=shared,
                verify=not self.config.option.collectonly,
            )
        except Trace2EvolveError as error:
            raise usage_error(error) from None
        self.plan = plan
        self.runner = Runner(plan, self.worlds, self.agents)

    def _names_in_args(self) -> list[str]:
        """The suites whose files lie under the paths given on the command line."""
        places = [
            (self.config.invocation_params.dir / str(arg).split("::", 1)[0]).resolve()
            for arg in self.config.args
        ]
        folder = self.project.suites_folder.resolve()
        return [
            name
            for name in self.project.suite_names
            if any(place in (path := folder / f"{name}.toml", *path.parents) for place in places)
        ]

    def pytest_collect_file(self, file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
        """Collect a suite's file where the plan holds the suite."""
        if self.plan is None or file_path.suffix != ".toml" or file_path.stem not in self.plan.suites:
            return None
        if file_path.parent != self.project.suites_folder:
            return None
        collector: pytest.Collector = SuiteFile.from_parent(parent, path=file_path)
        return collector

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Let the report of an item's setup carry its records: reports survive transport and crashes."""
        report = yield
        if isinstance(item, TaskItem) and call.when == "setup" and item.task_run is not None:
            report.trace2evolve = item.payload()  # type: ignore[attr-defined]  # extra attributes travel as JSON
        return report


class Worker(Participant):
    """A process that runs items for a controller elsewhere."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self) -> None:
        """Take over what the controller settled."""
        raw = self.config.workerinput.get(WORKER_INPUT)  # type: ignore[attr-defined]  # set by xdist
        if raw is not None:
            shared = Shared(raw["run_id"], Path(raw["run_folder"]), raw["started"], raw["baselines"])
            self.prepare(shared)


def any_option(config: pytest.Config) -> bool:
    """Whether the command line asks for a run (an ini key alone only runs the suites in its paths)."""
    return any(getattr(config.option, name, None) is not None for name in DESTINATIONS)


def read_options(config: pytest.Config) -> Options:
    """The options as plain values, paths made absolute."""
    option, here = config.option, config.invocation_params.dir
    return Options(
        candidate=option.t2e_candidate,
        suites=tuple(option.t2e_suite or ()),
        replays=tuple(here / path for path in option.t2e_replay or ()),
        agent=option.t2e_agent,
        default_agent=config.getini("t2e_agent") or None,
        trials=option.t2e_trials,
        baseline=option.t2e_baseline,
        save_baseline=option.t2e_save_baseline,
        gate=option.t2e_gate,
        goal=Goal(option.t2e_goal or Goal.IMPROVE),
        run_folder=here / option.t2e_run_folder if option.t2e_run_folder else None,
        invocation_dir=here,
    )


def _judge(config: pytest.Config) -> Judge | None:
    if config.option.t2e_judge is None:
        return None
    from pytest_trace2evolve.judges.chat import ChatJudge

    return ChatJudge(config.option.t2e_judge, base_url=config.option.t2e_judge_base_url)
