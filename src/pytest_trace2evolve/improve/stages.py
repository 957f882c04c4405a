"""The stages of an evolution, one after the other; each is kept before the next begins."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pytest_trace2evolve.diagnose.diagnosis import missing_of
from pytest_trace2evolve.environments.admit import random_first
from pytest_trace2evolve.environments.registry import Environments
from pytest_trace2evolve.errors import ConfigError, ResultsError, TrainingError
from pytest_trace2evolve.evidence.integrity import VERDICT_NAME, edited_run, refuse_unrecorded
from pytest_trace2evolve.improve.environments import ready
from pytest_trace2evolve.improve.order import OPENINGS, EvolveOrder
from pytest_trace2evolve.improve.processes import Work, run_all
from pytest_trace2evolve.improve.request import suites_of
from pytest_trace2evolve.improve.routing import openings_of, route_locally, table_of
from pytest_trace2evolve.improve.runs import Runs, origins_of, refuse_other, refuse_partial, simulations_in
from pytest_trace2evolve.improve.state import free, locked, read_state, write_state
from pytest_trace2evolve.improve.trainings import (
    names_of,
    note_evidence,
    played_by,
    threads_of,
    trained,
    training_of,
)
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.records.adapter import AdapterState
from pytest_trace2evolve.records.improvement import Evolution, Judged, Stage
from pytest_trace2evolve.records.ledger import Evaluation
from pytest_trace2evolve.records.verdict import Decision, RunVerdict
from pytest_trace2evolve.session.access_log import Looks
from pytest_trace2evolve.session.adapters import gate_of, note_verdict, state_of
from pytest_trace2evolve.session.run_verdict import read_verdict

KEPT_EVERY = 60.0
"""Seconds after which the minutes of a stage that works on are written down."""

Told = Callable[[Stage, str], None]
"""Hears at which stage what happens."""


@dataclass
class Evolving:
    """One evolution at work.

    Args:
        order: What is asked for.
        project: Where everything lies.
        environments: Those that are known.
        runs: Makes the runs.
        told: Hears how far it is.
    """

    order: EvolveOrder
    project: Project
    environments: Environments
    runs: Runs
    told: Told = lambda stage, text: None
    state: Evolution = field(init=False)
    _lock: int = field(init=False, default=-1)
    _stage: Stage = field(init=False, default=Stage.RUN)
    _since: float = field(init=False, default=0.0)
    _alone: threading.RLock = field(init=False, default_factory=threading.RLock)

    @property
    def folder(self) -> Path:
        """Where its state and its logs lie."""
        return self.project.root / ".trace2evolve" / "evolving" / self.order.name

    def run(self) -> Evolution:
        """Go through all stages, from where an earlier call was interrupted.

        Raises:
            ConfigError: nothing failed, nothing is missing, or another process works on it.
            TrainingError: a training failed, or a run was not whole.
            ResultsError: what is kept is damaged, or of other content.
            OSError: something cannot be written.
        """
        with locked(self.folder) as self._lock:
            self.state = read_state(self.folder, self.order.candidate, self.order.identity)
            if set(self.state.done) == set(Stage):
                self.told(
                    Stage.ROUTED,
                    "all of this was done before, and nothing is done now; to evolve anew, move "
                    f"{self.folder} away",
                )
            stages: Mapping[Stage, Callable[[], int]] = {
                Stage.RUN: self._session,
                Stage.CAPABILITIES: self._capabilities,
                Stage.ENVIRONMENTS: self._environments,
                Stage.ADAPTERS: self._adapters,
                Stage.GATE: self._gate,
                Stage.ROUTER: self._router,
                Stage.ROUTED: self._routed,
            }
            for stage, work in stages.items():
                if stage not in self.state.done:
                    self._refuse_late(stage)
                    with self._timed(stage):
                        played = work()
                        self._keep(done=(*self.state.done, stage), rollouts=self._with(played))
            return self.state

    def _keep(self, **changes: object) -> None:
        """Write down how far it is, and the minutes until now: whoever is killed loses no more than those
        since the last time."""
        with self._alone:
            now = time.monotonic()
            spent = self.state.minutes.get(self._stage, 0.0) + (now - self._since) / 60
            self._since = now
            minutes = {**self.state.minutes, self._stage: spent}
            self.state = self.state.model_copy(update={**changes, "minutes": minutes})
            write_state(self.folder, self.state)

    @contextmanager
    def _timed(self, stage: Stage) -> Iterator[None]:
        self._stage, self._since = stage, time.monotonic()
        try:
            yield
        finally:
            self._keep()

    def _with(self, played: int) -> dict[Stage, int]:
        """All rollouts, with further ones of this stage."""
        return {**self.state.rollouts, self._stage: self.state.rollouts.get(self._stage, 0) + played}

    def _tell(self, stage: Stage, text: str) -> None:
        """Tell how far it is, and now and then write down how long that took."""
        self.told(stage, text)
        if time.monotonic() - self._since > KEPT_EVERY:
            self._keep()

    def _refuse_late(self, stage: Stage) -> None:
        most = self.order.max_minutes
        spent = sum(self.state.minutes.values())
        if most is not None and spent >= most:
            raise ConfigError(
                f"--max-minutes {most:g}: {spent:.1f} were spent before stage {stage.value!r}; what is done "
                "is kept, and the same command with more minutes goes on"
            )

    # Stages; each gives how many rollouts it played, beside those that it wrote down itself.

    def _session(self) -> int:
        given = self.order.run
        folder = given or self._run_of("run", self.order.candidate, baseline=None)
        refuse_other(folder, origins_of(folder), self.order.candidate, self.order.base)
        refuse_partial(folder, self.project, suites_of(self.project, self.order.options))
        if given:
            self._refuse_edited(given)
            self.runs.check(given, free(self.folder / "check"))
        self._keep(folder=str(folder))
        return 0 if given else simulations_in(folder)

    def _capabilities(self) -> int:
        learnt = missing_of(self.project, self.state.folder, self.project.root, self.environments)
        known = learnt.trainable
        for one in learnt.missing:
            if one not in known:
                self.told(Stage.CAPABILITIES, f"{one.name} has no environment in this world and is left out")
        chosen = known[: self.order.most]
        self._keep(missing=chosen, runs=learnt.runs, splits=learnt.splits)
        text = ", ".join(f"{one.name} (Δ {one.delta:+.2f})" for one in chosen if one.delta is not None)
        self.told(Stage.CAPABILITIES, f"{learnt.failed} of {learnt.traces} traces failed; missing: {text}")
        return 0

    def _environments(self) -> int:
        found = ready(
            self.environments,
            self._names,
            self.order.base,
            self.project.candidates[self.order.candidate].instruction,
            self.project,
            first=random_first(self.order.recipe.first_scenario, self.order.recipe.scenarios),
            told=lambda name, done, total: self._tell(Stage.ENVIRONMENTS, f"{name} {done}/{total}"),
            played=lambda rollouts: self._keep(rollouts=self._with(rollouts)),
        )
        for one in found:
            fits = "" if one.fits else ", which does not fit all targets"
            mean = "calibrated before" if one.mean is None else f"mean reward {one.mean:.2f}{fits}"
            self.told(Stage.ENVIRONMENTS, f"{one.name}: admitted; difficulty {one.difficulty}, {mean}")
        self._keep(environments={one.name: one for one in found})
        return 0

    def _adapters(self) -> int:
        adapters = self.project.adapters
        if self.state.threads is None:
            self._keep(threads=threads_of(self.order))
        # Kept before they are trained: what was interrupted goes on under the same name.
        self._keep(adapters=names_of(self.order, self.state, adapters, self.environments))
        there = trained(self.state.adapters, adapters)
        works = [
            training_of(capability, name, self.order, self.state, self.project, self.folder)
            for capability, name in self.state.adapters.items()
            if name not in there
        ]
        self._train(works)
        return sum(
            played_by(note_evidence(name, self.state, adapters)) for name in self.state.adapters.values()
        )

    def _gate(self) -> int:
        for name in self.state.adapters.values():
            candidate = f"{self.order.candidate}+{name}"
            if candidate in self.state.judged:
                continue
            folder = self._run_of(f"gate-{name}", candidate, baseline=self.state.folder)
            record = self._verdict(folder)
            note_verdict(self.project, record)
            manifest = self.project.adapters[name].manifest
            why = "" if manifest.verdict is None else manifest.verdict.why
            self._judged(
                Judged(
                    candidate=candidate,
                    gate=gate_of(record),
                    state=manifest.state,
                    run=record.run,
                    why=why,
                ),
                simulations_in(folder),
            )
        return 0

    def _router(self) -> int:
        if not any(map(self._promoted, self.state.adapters.values())):
            self.told(Stage.ROUTER, "no adapter was promoted: there is nothing to route to")
            return 0
        # Of all promoted adapters, as the routed candidate has them: earlier evolutions' too.
        table = table_of(self.environments, (), self.project, self.order.base)
        openings = openings_of(self.environments, table, OPENINGS)
        found = route_locally(
            self.order.base,
            table,
            openings,
            told=lambda done: self._tell(Stage.ROUTER, f"{done}/{len(openings)}"),
        )
        self._keep(confusion=found.confusion)
        return 0

    def _routed(self) -> int:
        if self.state.confusion is None:
            return 0
        candidate = f"{self.order.candidate}+routed"
        folder = self._run_of("gate-routed", candidate, baseline=self.state.folder)
        record = self._verdict(folder)
        gate = gate_of(record)
        routed = Judged(candidate=candidate, gate=gate, state=state_of(gate), run=record.run)
        self._judged(routed, simulations_in(folder))
        return 0

    # What stages have in common.

    @property
    def _names(self) -> list[str]:
        return [one.name for one in self.state.missing or ()]

    def _promoted(self, adapter: str) -> bool:
        judged = self.state.judged.get(f"{self.order.candidate}+{adapter}")
        return judged is not None and judged.state is AdapterState.PROMOTED

    def _judged(self, one: Judged, played: int) -> None:
        self._keep(judged={**self.state.judged, one.candidate: one}, rollouts=self._with(played))
        why = f" ({one.why})" if one.why else ""
        self.told(Stage.GATE, f"{one.candidate}: {one.state.value}{why}")

    def _verdict(self, folder: Path) -> RunVerdict:
        """The verdict of a whole run. A promotion counts only if the ledger holds it."""
        record = read_verdict(folder)
        if record.partial:
            why = record.stopped or "tasks were left out of it"
            raise TrainingError(
                f"the run of {record.candidate.id} was not whole: {why} (see {folder}); what is finished is "
                "kept: give it what it lacks, and run the same command again"
            )
        if gate_of(record) is Decision.PROMOTE:
            suites = [suite for suite, one in record.suites.items() if one.verdict is not None]
            refuse_unrecorded(folder, record, Looks(self.project).entries, suites)
        return record

    def _refuse_edited(self, run: Path) -> None:
        """See that the verdict and the evidence of a run are what the run recorded; promoted or not, since a
        run that is learnt from need not be.

        Raises:
            ResultsError: one of them was edited.
        """
        runs = {origin.run_id for origin in origins_of(run)}
        own = [one for one in Looks(self.project).entries if isinstance(one, Evaluation) and one.run in runs]
        for wrong in edited_run(run, own):
            raise ResultsError(str(wrong))

    def _run_of(self, name: str, candidate: str, *, baseline: str | None) -> Path:
        """Run a candidate; returns the run folder."""
        folder = free(self.folder / name)
        stage = Stage.RUN if baseline is None else Stage.GATE
        self.runs.make(candidate, folder, baseline, lambda line: self._tell(stage, f"{candidate}: {line}"))
        if baseline is not None and not (folder / VERDICT_NAME).exists():
            raise ResultsError(f"{folder}: the run left no verdict; run the same command again")
        return folder

    def _train(self, works: list[Work]) -> None:
        def told(name: str, line: str) -> None:
            self._tell(Stage.ADAPTERS, f"{name}: {line}")

        run_all(works, self.project.root, self._lock, at_once=self.order.parallel, told=told)
