"""The draws of a run: the stores of its simulations, and their entries in the ledger.

A sealed split is drawn once for a candidate and an agent. A second draw would allow a choice between the two,
so the ledger records each draw before any of its simulations can be seen.
"""

import os
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

from pytest_trace2evolve.engine.engine import StorageLocation
from pytest_trace2evolve.errors import ResultsError, StorageError
from pytest_trace2evolve.evidence.draws import DrawStore, SimulationStore
from pytest_trace2evolve.evidence.ledger import Ledger
from pytest_trace2evolve.records.ledger import ContentVersion, Draw, DrawOrigin
from pytest_trace2evolve.session.ledger import entry_maker, has_fields
from pytest_trace2evolve.session.plan import SCRIPTED_AGENTS, Plan, PlannedSuite
from pytest_trace2evolve.session.provenance import (
    agent_settings,
    conditions_digest,
    provenance_of,
    tested_agent_digest,
    trial_key,
)
from pytest_trace2evolve.session.traces import SEALED_ROLES
from pytest_trace2evolve.utils.canonical import digest
from pytest_trace2evolve.utils.files import remove_abandoned_files
from pytest_trace2evolve.worlds.registry import Worlds


class Draws:
    """The draws of a run.

    Args:
        plan: The run's plan.
        worlds: Opens the suites' worlds.
        scratch_folder: A folder for simulations that no other run reads; None in a run without a model.
    """

    def __init__(self, plan: Plan, worlds: Worlds, scratch_folder: Path | None = None) -> None:
        self._plan = plan
        self._worlds = worlds
        self._scratch_store = (
            SimulationStore(scratch_folder / "fresh") if scratch_folder is not None else None
        )
        self._stores: dict[tuple[str, str, str], DrawStore] = {}
        self._own_agent_draws: set[tuple[str, str, str]] = set()
        self._splits = {
            (name, task_id): split
            for name, planned in plan.suites.items()
            for split, tasks in planned.lock.splits.items()
            for task_id in tasks
        }
        self._selected_tasks: frozenset[tuple[str, str]] = frozenset(self._splits)
        self._declared_splits: set[tuple[str, str]] = set()
        self._lock = threading.Lock()

    @property
    def origin(self) -> DrawOrigin:
        """The origin of the run's simulations."""
        live = self._plan.live
        if live is None:
            return DrawOrigin.UNSTORED
        if live.cassette is not None:
            return DrawOrigin.PLAYED
        return DrawOrigin.FRESH if self._plan.is_fresh else DrawOrigin.KEPT

    def draw_id(self, suite: str) -> str:
        """Return the id of the candidate's draw on a suite.

        Raises:
            OSError: a new draw cannot be written.
            ResultsError: the account of a draw was changed.
        """
        live = self._plan.live
        if live is not None and live.cassette is not None:
            return digest(["cassette", live.cassette.header.digest])
        return self._store(suite, baseline=False).id if self.origin is DrawOrigin.KEPT else self._plan.draw_id

    def location_of(self, suite: str, task_id: str, trial: int, *, baseline: bool = False) -> StorageLocation:
        """Return the place of a live simulation in the store; `baseline` selects a fresh baseline trial.

        Raises:
            OSError, ResultsError: as in `draw_id`.
        """
        plan = self._plan
        planned = plan.suites[suite]
        task = plan.project.world(planned.suite, self._worlds).tasks()[task_id]
        key = trial_key(plan, planned, task, trial, plan.setup_of(suite, baseline=baseline))
        if self.origin is not DrawOrigin.KEPT:
            assert self._scratch_store is not None
            return StorageLocation(self._scratch_store, key)
        store = self._store(suite, baseline=baseline)
        return StorageLocation(store, store.draw_key(key))

    def select_tasks(self, tasks: Iterable[tuple[str, str]]) -> None:
        """Select the tasks of the run, as pairs of suite and task id; all are selected by default."""
        self._selected_tasks = frozenset(tasks)

    def declare_draw(self, suite: str, task_id: str) -> None:
        """Record the draw of a task's split in the ledger, before a simulation of it is stored or shown.

        Raises:
            StorageError: the ledger cannot be written.
        """
        split = self._splits[suite, task_id]
        with self._lock:
            if (suite, split) in self._declared_splits or not self.is_drawn(suite, split):
                return
            try:
                self._append_draw(suite, split)
            except OSError as error:
                raise StorageError.from_os_error(error, self._plan.project.ledger_folder) from None
            except ResultsError as error:
                raise StorageError(str(error)) from None
            self._declared_splits.add((suite, split))

    def has_repeated_loss(self, suite: str, task_id: str, trials: Iterable[int]) -> bool:
        """Return whether an earlier run also lost one of the trials that this run lost."""
        if self.origin is not DrawOrigin.KEPT:
            return False
        store = self._store(suite, baseline=False)
        return any(store.count_losses(self.location_of(suite, task_id, trial).key) > 1 for trial in trials)

    def end(self) -> None:
        """End the draws of the project's own agents, so that later runs make new ones.

        Nothing can prove that such an agent still behaves alike, so its simulations only serve to resume.

        Raises:
            OSError, ResultsError: as in `draw_id`.
        """
        for identity, store in self._stores.items():
            if identity in self._own_agent_draws:
                store.end()

    def find_problems(self) -> Iterator[str]:
        """Yield a line for each problem in the stored simulations that the run would read.

        The method also removes temporary files that killed runs left behind.
        """
        if self.origin is not DrawOrigin.KEPT:
            return
        for folder, _, _ in os.walk(self._plan.project.finished_folder):
            remove_abandoned_files(Path(folder))
        live_suites = [name for name, planned in self._plan.suites.items() if planned.recorded_runs is None]
        for suite in live_suites:
            self._store(suite, baseline=False)
        for suite in self._plan.baseline_sides:
            self._store(suite, baseline=True)
        for store in self._stores.values():
            yield from store.find_problems()

    def is_drawn(self, suite: str, split: str) -> bool:
        """Return whether the run makes simulations of a gate or guard split with an unscripted agent."""
        planned = self._plan.suites[suite]
        is_ledger_split = self._plan.project.splits[split].role in SEALED_ROLES
        return is_ledger_split and planned.recorded_runs is None and planned.agent not in SCRIPTED_AGENTS

    def _draw_origin(self, planned: PlannedSuite) -> DrawOrigin:
        """Return the origin of a suite's draw.

        Simulations of a world or an agent that cannot be identified are `UNSTORED`, because no later run
        reads them.
        """
        world, live = planned.identity.world, self._plan.live
        agent = None if live is None or live.function is None else live.function.code
        is_unknown = any(code is not None and code.unknown for code in (world, agent))
        origin = DrawOrigin.UNSTORED if is_unknown else self.origin
        if origin is DrawOrigin.KEPT and live is not None and live.function is not None:
            origin = DrawOrigin.RESUMABLE
        is_single = origin in (DrawOrigin.FRESH, DrawOrigin.RESUMABLE)
        return DrawOrigin.CACHED if is_single and live is not None and live.uses_cache else origin

    def _append_draw(self, suite: str, split: str) -> None:
        plan = self._plan
        planned = plan.suites[suite]
        fields = {
            "suite": suite,
            "split": split,
            "lock": planned.lock.digest,
            "candidate": ContentVersion(id=plan.candidate.id, digest=plan.candidate.digest),
            "agent": tested_agent_digest(plan, provenance_of(plan, planned)),
            "draw": self.draw_id(suite),
            "made": self._draw_origin(planned),
            "gated": self._is_gated(planned),
            "whole": all((suite, task_id) in self._selected_tasks for task_id in planned.lock.splits[split]),
            "run": plan.run_id,
            "trials": plan.stage.max_trials if plan.stage else planned.trials,
        }
        place = {name: fields[name] for name in ("suite", "split", "lock", "draw", "trials")}
        Ledger(plan.project.ledger_folder).append(entry_maker(Draw, **fields), has_fields(Draw, place))

    def _is_gated(self, planned: PlannedSuite) -> bool:
        return self._plan.policy is not None and planned.baseline is not None

    def _store(self, suite: str, *, baseline: bool) -> DrawStore:
        plan = self._plan
        setup = plan.setup_of(suite, baseline=baseline)
        assert setup.live is not None
        settings = agent_settings(plan.suites[suite], setup.live)
        is_unknown = settings.code is not None and bool(settings.code.unknown)
        record = settings.model_dump(mode="json")
        agent = digest([record, plan.run_id] if is_unknown else record)
        conditions = conditions_digest(plan, plan.suites[suite])
        if setup.live.function is not None and self._is_gated(plan.suites[suite]):
            # The ledger does not count runs without a gate, so a gated run must not choose one to resume.
            conditions = digest([conditions, "gated"])
        identity = (setup.candidate.digest, agent, conditions)
        if setup.live.function is not None:
            self._own_agent_draws.add(identity)
        if identity not in self._stores:
            project = plan.project
            self._stores[identity] = DrawStore(
                project.finished_folder, project.draws_folder, identity, plan.run_id
            )
        return self._stores[identity]
