"""The draws of a run: the stores of its simulations, and their entries in the ledger.

A sealed split is drawn once for a candidate and an agent. A second draw would allow a choice between the two,
so the ledger records each draw before any of its simulations can be seen.
"""

import os
import threading
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path

from pytest_trace2evolve.engine.engine import Place
from pytest_trace2evolve.errors import ResultsError, StorageError
from pytest_trace2evolve.evidence.draws import DrawStore, Store
from pytest_trace2evolve.evidence.ledger import Ledger
from pytest_trace2evolve.records.ledger import Dated, Draw, Origin, Traces, Version
from pytest_trace2evolve.session.plan import SCRIPTED, Plan, PlannedSuite
from pytest_trace2evolve.session.provenance import NAMED_ROLES, conditions, key_of, provenance_of, tested
from pytest_trace2evolve.utils.canonical import digest
from pytest_trace2evolve.utils.files import remove_abandoned
from pytest_trace2evolve.worlds.registry import Worlds


class Draws:
    """The draws of a run.

    Args:
        plan: The run's plan.
        worlds: Opens the suites' worlds.
        scratch: A folder for simulations that no other run reads; None in a run without a model.
    """

    def __init__(self, plan: Plan, worlds: Worlds, scratch: Path | None = None) -> None:
        self._plan = plan
        self._worlds = worlds
        self._scratch = Store(scratch / "fresh") if scratch is not None else None
        self._stores: dict[tuple[str, str, str], DrawStore] = {}
        self._split_of = {
            (name, task_id): split
            for name, planned in plan.suites.items()
            for split, tasks in planned.lock.splits.items()
            for task_id in tasks
        }
        self._selected: frozenset[tuple[str, str]] = frozenset(self._split_of)
        self._declared: set[tuple[str, str]] = set()
        self._mutex = threading.Lock()

    @property
    def origin(self) -> Origin:
        """The origin of the run's simulations."""
        live = self._plan.live
        if live is None:
            return Origin.UNSTORED
        if live.cassette is not None:
            return Origin.PLAYED
        return Origin.FRESH if self._plan.fresh else Origin.KEPT

    def id_of(self, suite: str) -> str:
        """The id of the candidate's draw on a suite.

        Raises:
            OSError: a new draw cannot be written.
            ResultsError: the account of a draw was changed.
        """
        live = self._plan.live
        if live is not None and live.cassette is not None:
            return digest(["cassette", live.cassette.header.digest])
        return self._store(suite, baseline=False).id if self.origin is Origin.KEPT else self._plan.draw

    def account(self, suite: str) -> tuple[str, str] | None:
        """The id of a suite's draw in the store, and the head of the draw's account; None without a store.

        Raises:
            OSError, ResultsError: as in `id_of`.
        """
        if self.origin is not Origin.KEPT:
            return None
        store = self._store(suite, baseline=False)
        return store.id, store.head

    def place(self, suite: str, task_id: str, trial: int, *, baseline: bool = False) -> Place:
        """The storage place of a simulation in a live run; with `baseline`, of a fresh baseline trial.

        Raises:
            OSError, ResultsError: as in `id_of`.
        """
        plan = self._plan
        planned = plan.suites[suite]
        task = plan.project.world(planned.suite, self._worlds).tasks()[task_id]
        key = key_of(plan, planned, task, trial, plan.party(suite, baseline=baseline))
        if self.origin is not Origin.KEPT:
            assert self._scratch is not None
            return Place(self._scratch, key)
        store = self._store(suite, baseline=baseline)
        return Place(store, store.key(key))

    def select(self, tasks: Iterable[tuple[str, str]]) -> None:
        """Select tasks, each given with its suite; by default all are selected."""
        self._selected = frozenset(tasks)

    def declare(self, suite: str, task_id: str) -> None:
        """Record the draw of a task's split in the ledger, before a simulation of it is stored or shown.

        Raises:
            StorageError: the ledger cannot be written.
        """
        split = self._split_of[suite, task_id]
        with self._mutex:
            if (suite, split) in self._declared or not self.is_drawn(suite, split):
                return
            try:
                self._record(suite, split)
            except OSError as error:
                raise StorageError.of(error, self._plan.project.ledger_folder) from None
            except ResultsError as error:
                raise StorageError(str(error)) from None
            self._declared.add((suite, split))

    def lost_again(self, suite: str, task_id: str, trials: Iterable[int]) -> bool:
        """Whether an earlier run also lost one of the trials that this run lost."""
        if self.origin is not Origin.KEPT:
            return False
        store = self._store(suite, baseline=False)
        return any(store.losses(self.place(suite, task_id, trial).key) > 1 for trial in trials)

    def problems(self) -> Iterator[str]:
        """Yield a line for each problem in the stored simulations that the run would read.

        Also removes temporary files that killed runs left.
        """
        if self.origin is not Origin.KEPT:
            return
        for folder, _, _ in os.walk(self._plan.project.finished_folder):
            remove_abandoned(Path(folder))
        live = [name for name, planned in self._plan.suites.items() if planned.recorded is None]
        sides = self._plan.confirm.sides if self._plan.confirm and self._plan.confirm.possible else ()
        for suite, baseline in [*((suite, False) for suite in live), *((suite, True) for suite in sides)]:
            self._store(suite, baseline=baseline)
        entries = Ledger(self._plan.project.ledger_folder).read().in_time
        ended = [entry for entry in entries if isinstance(entry, Traces) and entry.account is not None]
        for store in self._stores.values():
            yield from store.problems()
            for entry in ended:
                if entry.draw == store.id and not store.continues(entry.account or ""):
                    yield (
                        f"{store.path}: was edited since run {entry.run} ended ({entry.at:%Y-%m-%d}, ledger "
                        f"entry {entry.name}); restore it, or delete it to begin another draw, which the "
                        "ledger counts"
                    )

    def is_drawn(self, suite: str, split: str) -> bool:
        """Whether the run makes simulations of a gate or guard split with an agent that is not scripted."""
        planned = self._plan.suites[suite]
        named = self._plan.project.splits[split].role in NAMED_ROLES
        return named and planned.recorded is None and planned.agent not in SCRIPTED

    def _made(self, planned: PlannedSuite) -> Origin:
        """The origin of a suite's draw.

        Simulations of a world that cannot be identified are `UNSTORED`, because no later run reads them.
        """
        world, live = planned.identity.world, self._plan.live
        if world is not None and world.unknown:
            return Origin.UNSTORED
        cached = live is not None and live.cache and self.origin is Origin.FRESH
        return Origin.CACHED if cached else self.origin

    def _record(self, suite: str, split: str) -> None:
        plan = self._plan
        planned = plan.suites[suite]
        fields = {
            "suite": suite,
            "split": split,
            "lock": planned.lock.digest,
            "candidate": Version(id=plan.candidate.id, digest=plan.candidate.digest),
            "agent": tested(plan, provenance_of(plan, planned)),
            "draw": self.id_of(suite),
            "made": self._made(planned),
            "gated": plan.policy is not None and planned.baseline is not None,
            "whole": all((suite, task_id) in self._selected for task_id in planned.lock.splits[split]),
            "run": plan.run_id,
        }

        def make(root: str, parents: tuple[str, ...], at: datetime) -> Draw:
            return Draw(root=root, parents=parents, at=at, **fields)

        def is_same(entry: Dated) -> bool:
            named = ("suite", "split", "lock", "draw")
            return isinstance(entry, Draw) and all(getattr(entry, name) == fields[name] for name in named)

        Ledger(plan.project.ledger_folder).append_once(make, is_same)

    def _store(self, suite: str, *, baseline: bool) -> DrawStore:
        plan = self._plan
        party = plan.party(suite, baseline=baseline)
        assert party.live is not None
        agent = digest(party.live.agent_settings().model_dump(mode="json"))
        identity = (party.candidate.digest, agent, conditions(plan, plan.suites[suite]))
        if identity not in self._stores:
            project = plan.project
            self._stores[identity] = DrawStore(
                project.finished_folder, project.draws_folder, identity, plan.run_id
            )
        return self._stores[identity]
