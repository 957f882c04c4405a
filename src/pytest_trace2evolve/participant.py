"""What every process of a run does: plan, collect, simulate; and what a worker takes over."""

import contextlib
import json
import os
from collections.abc import Generator, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from pytest_trace2evolve.collect import SuiteFile, TaskItem, planned_suite
from pytest_trace2evolve.errors import ConfigError, Trace2EvolveError
from pytest_trace2evolve.models.settings import ModelSettings
from pytest_trace2evolve.options import DESTINATIONS
from pytest_trace2evolve.records.protocols import Judge
from pytest_trace2evolve.records.verdict import Goal
from pytest_trace2evolve.workflow.live import (
    CHAT,
    DEFAULT_CONCURRENCY,
    LiveSettings,
    Pool,
    extra_instruction,
)
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
        folder = Path(os.path.normpath(config.rootpath / (config.getini("t2e_suites") or "suites")))
        if not folder.is_relative_to(config.rootpath):
            raise pytest.UsageError(f"t2e_suites: {folder} lies outside the rootdir {config.rootpath}")
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
        self._order: dict[pytest.Item, int] = {}

    @staticmethod
    def _from_hooks(answers: list[Mapping[str, Any]]) -> dict[str, Any]:
        return {name: factory for answer in answers for name, factory in answer.items()}

    def prepare(self, shared: Shared | None) -> None:
        """Make the plan, or leave it out where no suite takes part.

        Raises:
            pytest.UsageError: anything the user wrote is wrong.
        """
        wanted = any_option(self.config)
        _refuse_empty(self.config)
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
            if not names:
                given = ", ".join(str(arg) for arg in self.config.args)
                raise ConfigError(
                    f"the options ask for a run, and no suite lies under {given}; "
                    f"name {self.project.suites_folder.name}/ too (is a path meant for --t2e-replay?)"
                )
            options = read_options(self.config)
            plan = make_plan(
                options,
                self.project,
                self.worlds,
                suite_names=names,
                agents=sorted({*self.agents, CHAT}),
                judge=_judge(self.config),
                shared=shared,
                listing=bool(self.config.option.collectonly),
            )
        except Trace2EvolveError as error:
            raise usage_error(error) from None
        self.plan = plan
        pool = Pool(self.config.option.t2e_concurrency or DEFAULT_CONCURRENCY)
        agents = dict(self.agents)
        try:
            if plan.live is not None:
                from pytest_trace2evolve.workflow.chat import ChatFactory

                agents[CHAT] = ChatFactory(plan.live, pool)
        except Trace2EvolveError as error:
            pool.close()
            raise usage_error(error) from None
        self.runner = Runner(plan, self.worlds, agents, pool)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        """Start the simulations of this item and of those ahead, as far as there is room."""
        if self.runner is None:
            return
        for ahead in self._coming(item, nextitem):
            if isinstance(ahead, TaskItem):
                if ahead is not item and not self.runner.room:
                    return
                with contextlib.suppress(Trace2EvolveError):  # said when the item itself is set up
                    self.runner.start(planned_suite(ahead).name, ahead.name)

    def _coming(self, item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[pytest.Item]:
        """The items that this process runs next; under xdist no more than two are known."""
        if hasattr(self.config, "workerinput"):
            yield from (one for one in (item, nextitem) if one is not None)
            return
        if not self._order:
            self._order = {one: position for position, one in enumerate(item.session.items)}
        yield from islice(item.session.items, self._order.get(item, 0), None)

    def pytest_unconfigure(self) -> None:
        """End the thread that ran the simulations."""
        if self.runner is not None:
            self.runner.close()

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


def _refuse_empty(config: pytest.Config) -> None:
    """An empty value is an unset variable of somebody's script, never a wish for the default."""
    for name in DESTINATIONS:
        value = getattr(config.option, name, None)
        if value == "" or (isinstance(value, list) and "" in value):
            raise pytest.UsageError(f"--{name.replace('_', '-')} is empty; leave it out or give a value")


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
        live=_live(option),
        fresh=bool(option.t2e_fresh),
        invocation_dir=here,
    )


def _live(option: Any) -> LiveSettings | None:
    if option.t2e_model is None:
        needless = [
            name for name in ("t2e_user_model", "t2e_base_url", "t2e_user_base_url") if getattr(option, name)
        ]
        if needless:
            raise ConfigError(f"--{needless[0].replace('_', '-')} says nothing without --t2e-model")
        return None
    try:
        extra_body = json.loads(option.t2e_extra_body) if option.t2e_extra_body else {}
    except ValueError as error:
        raise ConfigError(f"--t2e-extra-body is not JSON: {error}") from None
    if not isinstance(extra_body, dict):
        raise ConfigError(f"--t2e-extra-body is a JSON {type(extra_body).__name__}, not an object")
    concurrency = option.t2e_concurrency or DEFAULT_CONCURRENCY
    agent = ModelSettings(
        model=option.t2e_model,
        base_url=option.t2e_base_url,
        key_var=option.t2e_key_var or "OPENAI_API_KEY",
        temperature=0.0 if option.t2e_temperature is None else option.t2e_temperature,
        seed=option.t2e_seed,
        reasoning_effort=option.t2e_reasoning_effort,
        extra_body=extra_body,
        max_connections=concurrency,
    )
    user = replace(
        agent,
        model=option.t2e_user_model or agent.model,
        base_url=option.t2e_user_base_url or agent.base_url,
        key_var=option.t2e_user_key_var or agent.key_var,
        temperature=0.0,
        reasoning_effort=None,
        extra_body={},
    )
    return LiveSettings(agent, user, extra_instruction())


def _judge(config: pytest.Config) -> Judge | None:
    if config.option.t2e_judge is None:
        return None
    from pytest_trace2evolve.judges.chat import ChatJudge

    return ChatJudge(config.option.t2e_judge, base_url=config.option.t2e_judge_base_url)
