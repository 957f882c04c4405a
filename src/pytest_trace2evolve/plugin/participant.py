"""What every process of a run does: plan, collect, simulate; and what a worker takes over."""

import os
import sqlite3
import tempfile
from collections.abc import Generator, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from pytest_trace2evolve.engine.participants import (
    BUILT_IN_AGENTS,
    AgentFactory,
    identify,
    refuse_without_solo,
)
from pytest_trace2evolve.errors import ConfigError, ModelFolderError, Trace2EvolveError
from pytest_trace2evolve.evidence.account import MAIN, Account
from pytest_trace2evolve.plugin import xdist
from pytest_trace2evolve.plugin.items import SuiteFile, TaskItem, planned_suite
from pytest_trace2evolve.plugin.options import DESTINATIONS
from pytest_trace2evolve.plugin.settings import read_judge, read_options, refuse_empty
from pytest_trace2evolve.plugin.staging import staged_run
from pytest_trace2evolve.plugin.usage import usage_error
from pytest_trace2evolve.project.candidates import Candidate
from pytest_trace2evolve.project.extensions import registered
from pytest_trace2evolve.project.project import LockedSuite, Project
from pytest_trace2evolve.records.evidence import Identity
from pytest_trace2evolve.session.draws import Draws
from pytest_trace2evolve.session.live import CHAT, DEFAULT_CONCURRENCY
from pytest_trace2evolve.session.plan import Plan, Shared
from pytest_trace2evolve.session.planner import make_plan
from pytest_trace2evolve.session.servers import LocalServers, at_servers, folders
from pytest_trace2evolve.session.start import refuse_damaged, start
from pytest_trace2evolve.session.trials import Runner
from pytest_trace2evolve.utils import crashes
from pytest_trace2evolve.utils.files import Scratch
from pytest_trace2evolve.worlds.registry import Worlds

WORKER_INPUT = "trace2evolve"


class Participant:
    """What controller and workers share: the plan, the collection of items, and their simulations."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.project = project_of(config)
        try:
            _ = self.project.splits
            self.worlds = Worlds(registered(config, "worlds"))
            self.agents: Mapping[str, AgentFactory] = {**BUILT_IN_AGENTS, **registered(config, "agents")}
        except (Trace2EvolveError, OSError) as error:
            raise usage_error(error) from None
        self.plan: Plan | None = None
        self.runner: Runner | None = None
        self.draws: Draws | None = None
        self.account: Account | None = None
        self.counts: Account | None = None
        self.staged = staged_run(config)
        self.servers = LocalServers() if self.staged is None else self.staged.servers
        self._own_folder: Scratch | None = None
        self._order: dict[pytest.Item, int] = {}
        self._looking_ahead = False
        self._interrupted = False
        self.crashed = False
        """Whether pytest reported an internal error, of this process or of a worker."""
        self.left_out: tuple[str, ...] = ()
        """Suites and pressure tests that a session without options does not run, since no agent is named."""

    def prepare(self, shared: Shared | None) -> None:
        """Make the plan, or leave it out if no suite and no pressure test takes part.

        Raises:
            pytest.UsageError: anything the user wrote is wrong.
        """
        wanted = any_option(self.config)
        refuse_empty(self.config)
        if wanted and self.config.args_source is not pytest.Config.ArgsSource.ARGS:
            self.config.args[:] = [str(self.project.suites_folder)]
        names, pressure = suites_under(self.config, self.project), self._pressure_in_args(files=wanted)
        asked = wanted or bool(self.config.option.collectonly)
        try:
            if not asked:
                names, pressure = self._with_agent(names, pressure=pressure)
            if not names and not wanted and not pressure:
                return
            if not self.project.suite_names and not pressure:
                raise ConfigError(
                    f"no suites in {self.project.suites_folder}: set the ini key t2e_suites to their folder"
                )
            if not names and not pressure:
                given = ", ".join(str(arg) for arg in self.config.args)
                raise ConfigError(
                    f"the options ask for a run, and no suite lies under {given}; "
                    f"name {self.project.suites_folder.name}/ too (is a path meant for --t2e-replay?)"
                )
            options = read_options(self.config, {} if shared is None else shared.served)
            if not asked and not self._names_any(names):
                options = replace(options, embedded=None)
            plan = make_plan(
                options,
                self.project,
                self.worlds,
                suite_names=names,
                agents=sorted({*self.agents, CHAT}),
                judge=read_judge(self.config),
                checks=registered(self.config, "checks"),
                shared=shared,
                listing=bool(self.config.option.collectonly),
                stage=0 if self.staged is None else self.staged.number,
                draw="" if self.staged is None else self.staged.draw,
                identify=self._identify,
            )
            if not self.config.option.collectonly:
                refuse_without_solo(plan, self.agents)
                embedded = options.embedded is not None and plan.live is not None
                plan = self._served(plan, shared, embedded=embedded)
                for live in plan.everyone:
                    live.require_endpoints()
        except (Trace2EvolveError, OSError) as error:
            raise usage_error(error) from None
        self.plan = plan
        confirms = plan.confirm is not None and plan.confirm.possible
        if (plan.live is not None or confirms) and not self.config.option.collectonly:
            # Agents that are no models use nothing that could be counted, except for their fresh trials.
            self.counts = self._open_account(plan, shared)
            self.account = None if plan.live is None else self.counts
        concurrency = self.config.option.t2e_concurrency or DEFAULT_CONCURRENCY
        self.draws = Draws(plan, self.worlds, None if self.account is None else self.account.path.parent)
        try:
            if xdist.hands_out(self.config):
                refuse_damaged(plan)
            else:
                self.runner = start(
                    plan, self.worlds, self.agents, self.counts, self.draws, concurrency=concurrency
                )
        except (Trace2EvolveError, OSError) as error:
            self.servers.close()
            raise usage_error(error) from None
        if self.counts is not None and shared is None:
            for server in self.servers.running:
                server.watch(partial(self._server_ended, self.counts))

    def _identify(self, suite: LockedSuite, agent: str, candidate: Candidate) -> Identity:
        """The identities of agent, user and world in the simulations of a suite."""
        world = self.project.world(suite.suite, self.worlds)
        code = self.worlds.code(suite.suite.provider, suite.domain)
        return identify(suite, agent, candidate, agents=self.agents, world=world, code=code)

    @staticmethod
    def _server_ended(counts: Account, told: str) -> None:
        """A local server is gone: every further request would find nobody."""
        with suppress(sqlite3.Error):  # the run has ended too
            counts.stop(told, refused=True)

    def _with_agent(self, names: list[str], *, pressure: bool) -> tuple[list[str], bool]:
        """Select the suites and pressure tests of a session without options, from those under its paths.

        A path may name them: they run, and need an agent. Or a path is a folder above them: they run if the
        project's settings name an agent, and are left out otherwise, so that a plain `pytest` runs the
        project's other tests.

        Returns:
            The suites, and whether pressure tests run.

        Raises:
            SuiteError: the file of a suite is broken.
        """
        talks = bool(self.config.getini("t2e_agent"))
        kept = [
            name
            for name in names
            if talks or self._names_suite(name) or self.project.suite(name).default_agent is not None
        ]
        left = [f"suite {name}" for name in names if name not in kept]
        runs_pressure = pressure and (talks or self._names_pressure())
        if pressure and not runs_pressure and any(self._pressure_folder.rglob("test_*.py")):
            left.append(f"the pressure tests of {self._pressure_folder.name}/")
        self.left_out = tuple(left)
        return kept, runs_pressure

    def _names_any(self, names: list[str]) -> bool:
        return self._names_pressure() or any(self._names_suite(name) for name in names)

    def _names_suite(self, name: str) -> bool:
        """Whether a path is that of a suite or of the folder of suites."""
        folder = self.project.suites_folder.resolve()
        return any(place in (folder, folder / f"{name}.toml") for place in places_of(self.config))

    def _names_pressure(self) -> bool:
        """Whether a path lies in the folder of pressure tests, or is that folder."""
        folder = self._pressure_folder
        return any(place == folder or folder in place.parents for place in places_of(self.config))

    @property
    def _pressure_folder(self) -> Path:
        return self.project.root.resolve() / "synthetic"

    def _served(self, plan: Plan, shared: Shared | None, *, embedded: bool) -> Plan:
        """The plan with the addresses of its local models; the controller starts their servers."""
        if shared is not None:
            return at_servers(plan, shared.served)
        if wanted := folders(plan):
            try:
                self.servers.start(wanted)
            except ModelFolderError as error:
                self.servers.close()
                if not embedded:
                    raise
                raise ConfigError(
                    f"no agent is named, and the embedded model cannot be served: {error}; or name an agent: "
                    "--t2e-agent or --t2e-model"
                ) from None
            except BaseException:
                self.servers.close()
                raise
        return at_servers(plan, self.servers.addresses)

    def _open_account(self, plan: Plan, shared: Shared | None) -> Account:
        if shared is not None:
            assert shared.account is not None
            worker = self.config.workerinput["workerid"]  # type: ignore[attr-defined]  # set by xdist
            return Account(shared.account, worker, plan.budgets)
        # On the local disk: SQLite's shared memory does not work over a network.
        try:
            if self.staged is not None:
                account = Account(self.staged.account_folder() / "account.sqlite", MAIN, plan.budgets)
                account.forget_lost()  # by an earlier stage; this one tries again
                return account
            self._own_folder = Scratch()
            return Account(self._own_folder.path / "account.sqlite", MAIN, plan.budgets)
        except (OSError, sqlite3.Error) as error:
            raise usage_error(
                f"the account of the run cannot be made in {tempfile.gettempdir()} ({error}); "
                "make room there, or set TMPDIR to another folder"
            ) from None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        """Have the simulations of this item made, and in free slots those of the items ahead."""
        if self.runner is None:
            return
        if not self._order:
            self._order = {one: place for place, one in enumerate(item.session.items)}
        if self.runner.shared:
            # Whoever is first makes what any process of the run needs: from here to the end, then the rest.
            if not self._looking_ahead:
                self._looking_ahead = True
                place = self._order.get(item, 0)
                items = item.session.items
                self.runner.ahead(_tasks([*items[place:], *items[:place]]))
        elif hasattr(self.config, "workerinput"):
            # What a worker runs after the next item is not known.
            self.runner.ahead(_tasks([one for one in (item, nextitem) if one is not None]))
        else:
            self.runner.ahead(_tasks(item.session.items[self._order.get(item, 0) :]))

    def wind_down(self, session: pytest.Session, exitstatus: int | pytest.ExitCode) -> None:
        """Finish what other processes may wait for; give it up where the session ends before its time."""
        if self.ended_early(session, exitstatus):
            if self.account is not None:  # also where only workers make simulations: they must not go on
                self.account.stop("the session was stopped")
        elif self.runner is not None:
            self.runner.drain()

    def pytest_keyboard_interrupt(self) -> None:
        """Note an interrupt: with `pytest.exit(returncode=...)` the exit status does not tell."""
        self._interrupted = True

    @pytest.hookimpl(tryfirst=True)
    def pytest_internalerror(self, excrepr: object, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Note that no verdict can count, and report an error of this package in one line."""
        # xdist fails again after the internal error of a worker.
        crashes.shorten(excrepr, excinfo.value, self.config.rootpath, is_consequence=self.crashed)
        self.crashed = True

    def ended_early(self, session: pytest.Session, exitstatus: int | pytest.ExitCode) -> bool:
        """Whether a session ended before its time."""
        cut_off = exitstatus in (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERNAL_ERROR)
        return bool(session.shouldstop or session.shouldfail) or self._interrupted or self.crashed or cut_off

    def pytest_unconfigure(self) -> None:
        """End the thread that ran the simulations, and the servers."""
        if self.runner is not None:
            self.runner.close()
        if self.staged is None:
            self.servers.close()
        if self.counts is not None:
            self.counts.close()
        if self._own_folder is not None:
            self._own_folder.close()

    def _pressure_in_args(self, *, files: bool) -> bool:
        """Whether tests that run cases may lie under the paths given: `synthetic/`, or else a Python file."""
        folder = self._pressure_folder
        return any(
            (files and place.suffix == ".py")
            or (folder.is_dir() and place in (folder, *folder.parents))
            or folder in place.parents
            for place in places_of(self.config)
        )

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Deselect pressure tests without an agent, in a session without options that does not name them."""
        asked = any_option(config) or config.option.collectonly or self._names_pressure()
        if asked or (self.plan is not None and self.plan.talker is not None):
            return
        folder = self._pressure_folder
        left = [item for item in items if _runs_cases(item) and folder in item.path.resolve().parents]
        if left:
            items[:] = [item for item in items if item not in left]
            config.hook.pytest_deselected(items=left)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Reject options that no collected test uses, and tests that no agent can serve.

        Raises:
            pytest.UsageError: there are such. A worker sends a report instead, and the controller raises the
                error once.
        """
        refusal = self._refusal(session.items)
        if not refusal:
            if self.runner is not None:
                self.runner.select(_tasks(session.items))
            return
        if not hasattr(self.config, "workerinput"):
            raise usage_error(f"trace2evolve: {refusal}")
        report = pytest.CollectReport(nodeid="", outcome="failed", longrepr=refusal, result=None)
        report.trace2evolve_refusal = refusal  # type: ignore[attr-defined]  # extra attributes travel as JSON
        self.config.hook.pytest_collectreport(report=report)

    def _refusal(self, items: list[pytest.Item]) -> str:
        """Why the options do not fit the collected tests; empty if they do."""
        if self.plan is None or not items:
            return ""
        if any(_runs_cases(item) for item in items):
            asked = any_option(self.config) or self._names_pressure()
            if self.plan.talker is None and asked and not self.config.option.collectonly:
                return "no agent for 'run_case': give --t2e-agent or --t2e-model, or the ini key t2e_agent"
            return ""
        if not self.plan.suites and any_option(self.config):
            return (
                "the options ask for a run, and none of these tests uses 'run_case'; "
                f"name {self.project.suites_folder.name}/ too"
            )
        for name in ("t2e_freeze", "t2e_case_budget"):
            if getattr(self.config.option, name) is not None:
                return (
                    f"--{name.replace('_', '-')} has no effect, since no test uses 'run_case'; "
                    "name synthetic/ too"
                )
        return ""

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
        if isinstance(item, TaskItem) and item.unstored:
            report.trace2evolve_unstored = item.unstored  # type: ignore[attr-defined]  # as above
        if isinstance(item, TaskItem) and call.when == "call" and item.suspicion:
            # Not passed, and no failure: for JUnit's readers it is skipped, with its reason.
            report.outcome = "skipped"
            report.longrepr = (str(item.path), 0, f"suspected: {item.suspicion}")
            report.trace2evolve_suspected = True  # type: ignore[attr-defined]  # as above
        return report

    def pytest_report_teststatus(
        self, report: pytest.TestReport | pytest.CollectReport
    ) -> tuple[str, str, tuple[str, dict[str, bool]]] | None:
        """A fall that is only suspected is an outcome of its own."""
        if getattr(report, "trace2evolve_suspected", False):
            return "suspected", "~", ("SUSPECTED", {"yellow": True})
        return None


class Worker(Participant):
    """A process that runs items for a controller elsewhere."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self) -> None:
        """Take over what the controller settled."""
        raw = self.config.workerinput.get(WORKER_INPUT)  # type: ignore[attr-defined]  # set by xdist
        if raw is not None:
            self.prepare(xdist.taken_over(raw))

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int | pytest.ExitCode) -> None:
        """Wind down before the controller is told that this worker is done."""
        self.wind_down(session, exitstatus)


def _tasks(items: list[pytest.Item]) -> Iterator[tuple[str, str]]:
    """Suite and task of the items that are ours."""
    return ((planned_suite(one).name, one.name) for one in items if isinstance(one, TaskItem))


def _runs_cases(item: pytest.Item) -> bool:
    """Whether a test uses the fixture `run_case`."""
    return "run_case" in getattr(item, "fixturenames", ())


def any_option(config: pytest.Config) -> bool:
    """Whether the command line asks for a run (an ini key alone only runs the suites in its paths)."""
    return any(getattr(config.option, name, None) is not None for name in DESTINATIONS)


def project_of(config: pytest.Config) -> Project:
    """The project that pytest runs in.

    Raises:
        pytest.UsageError: its suites lie elsewhere.
    """
    folder = Path(os.path.normpath(config.rootpath / (config.getini("t2e_suites") or "suites")))
    if not folder.is_relative_to(config.rootpath):
        raise usage_error(f"t2e_suites: {folder} lies outside the rootdir {config.rootpath}")
    return Project(root=config.rootpath, suites_folder=folder)


def places_of(config: pytest.Config) -> list[Path]:
    """The paths given on the command line."""
    here = config.invocation_params.dir
    return [(here / str(arg).split("::", 1)[0]).resolve() for arg in config.args]


def suites_under(config: pytest.Config, project: Project) -> list[str]:
    """The suites whose files lie under the paths given on the command line."""
    places = places_of(config)
    folder = project.suites_folder.resolve()
    return [
        name
        for name in project.suite_names
        if any(place in (path := folder / f"{name}.toml", *path.parents) for place in places)
    ]
