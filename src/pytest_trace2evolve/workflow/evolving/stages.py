"""The stages of an evolution, one after the other; each is kept before the next begins."""

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pytest_trace2evolve.errors import ConfigError, ResultsError
from pytest_trace2evolve.evidence.atomic import write_atomic
from pytest_trace2evolve.evidence.results import read_results
from pytest_trace2evolve.records.adapter import MANIFEST, AdapterState
from pytest_trace2evolve.records.evolving import Evolution, Judged, Stage
from pytest_trace2evolve.serving.folder import folder_digest
from pytest_trace2evolve.workflow.capabilities.missing import missing_of
from pytest_trace2evolve.workflow.environments.registry import Environments
from pytest_trace2evolve.workflow.evolving.environments import ready
from pytest_trace2evolve.workflow.evolving.keeping import free, locked, read_state, write_state
from pytest_trace2evolve.workflow.evolving.order import OPENINGS, EvolveOrder
from pytest_trace2evolve.workflow.evolving.processes import Work, run_all
from pytest_trace2evolve.workflow.judging.adapters import gate_of, note_verdict
from pytest_trace2evolve.workflow.judging.finish import EXIT_STATUS
from pytest_trace2evolve.workflow.judging.forgetting import state_of
from pytest_trace2evolve.workflow.judging.run_verdict import VERDICT_NAME, read_verdict
from pytest_trace2evolve.workflow.project import Project
from pytest_trace2evolve.workflow.recorded.sides import expand, provenance
from pytest_trace2evolve.workflow.routing.measure import openings_of, route_locally, table_of

FINE = (0, 1, *EXIT_STATUS.values())
"""Exit statuses of a session that ran: with failing tests, or with any verdict."""

_OF_SESSIONS = re.compile(r"^trace2evolve: [\d,]+ of [\d,]+ done| · policy |^=+ .* in [\d.]+s")
"""Lines of a session that are told: how far it is, verdicts, and its end."""

Told = Callable[[Stage, str], None]
"""Hears at which stage what happens."""


@dataclass
class Evolving:
    """One evolution at work.

    Args:
        order: What is asked for.
        project: Where everything lies.
        environments: Those that are known.
        told: Hears how far it is.
    """

    order: EvolveOrder
    project: Project
    environments: Environments
    told: Told = lambda stage, text: None
    state: Evolution = field(init=False)
    _lock: int = field(init=False, default=-1)

    @property
    def folder(self) -> Path:
        """Where its state and its logs lie."""
        return self.project.root / ".trace2evolve" / "evolving" / self.order.name

    def run(self) -> Evolution:
        """Go through all stages, from where an earlier call was interrupted.

        Raises:
            ConfigError: nothing failed, nothing is missing, or another process works on it.
            TrainingError: a session or a training failed; names its log.
            ResultsError: what is kept is damaged, or of other content.
            OSError: something cannot be written.
        """
        with locked(self.folder) as self._lock:
            self.state = read_state(self.folder, self.order.candidate, self.order.identity)
            stages: Mapping[Stage, Callable[[], int]] = {
                Stage.RUN: self._session,
                Stage.CAPABILITIES: self._capabilities,
                Stage.ENVIRONMENTS: self._environments,
                Stage.ADAPTERS: self._adapters,
                Stage.GATE: self._gate,
                Stage.ROUTER: self._router,
                Stage.ROUTED: self._routed,
            }
            for stage, done in stages.items():
                if stage not in self.state.minutes:
                    self._refuse_late(stage)
                    with self._timed(stage):
                        played = done()
                        self._keep(rollouts={**self.state.rollouts, stage: played})
            return self.state

    def _keep(self, **changes: object) -> None:
        self.state = self.state.model_copy(update=changes)
        write_state(self.folder, self.state)

    @contextmanager
    def _timed(self, stage: Stage) -> Iterator[None]:
        began = time.monotonic()
        yield
        self._keep(minutes={**self.state.minutes, stage: (time.monotonic() - began) / 60})

    def _refuse_late(self, stage: Stage) -> None:
        most = self.order.max_minutes
        spent = sum(self.state.minutes.values())
        if most is not None and spent >= most:
            raise ConfigError(
                f"--max-minutes {most:g}: {spent:.1f} were spent before stage {stage.value!r}; what is done "
                "is kept, and the same command with more minutes goes on"
            )

    # Stages; each gives how many rollouts it played.

    def _session(self) -> int:
        given = self.order.run
        folder = given or self._run_of("run", self.order.candidate, baseline=None)
        files = [read_results(path) for path in expand([folder])]
        origins = [provenance(one) for one in files]
        for origin in origins:
            named = origin.candidate.id if origin.candidate else None
            if named != self.order.candidate:
                raise ConfigError(
                    f"run {folder.name} is of candidate {named!r}, and {self.order.candidate!r} is to "
                    "evolve; name that one, or another run"
                )
            weights = (origin.agent.arguments or {}).get("weights")
            base = folder_digest(self.order.base.path)
            if weights != base:
                raise ConfigError(
                    f"in run {folder.name} model {origin.agent.model!r} ({str(weights)[:12]}) talked, and "
                    f"the base is {self.order.base.name!r} ({base[:12]}): what failed is not its failing; "
                    "name that model's folder with --base"
                )
        self._keep(run=origins[0].run_id or folder.name, folder=str(folder))
        return 0 if given else sum(len(one.simulations) for one in files)

    def _capabilities(self) -> int:
        learnt = missing_of(self.project, self.state.folder, self.project.root)
        known = learnt.trainable(self.environments.names)
        for one in learnt.missing:
            if one not in known:
                self.told(Stage.CAPABILITIES, f"{one.name} has no environment, and is left out")
        chosen = known[: self.order.most]
        self._keep(missing=chosen, runs=learnt.runs, splits=learnt.splits)
        text = ", ".join(f"{one.name} (Δ {one.delta:+.2f})" for one in chosen if one.delta is not None)
        self.told(Stage.CAPABILITIES, f"{learnt.failed} of {learnt.traces} traces failed; missing: {text}")
        return 0

    def _environments(self) -> int:
        found, played = ready(
            self.environments,
            self._names,
            self.order.base,
            self.project.candidates[self.order.candidate].instruction,
            self.project,
            told=lambda name, done, total: self.told(Stage.ENVIRONMENTS, f"{name} {done}/{total}"),
        )
        for one in found:
            fits = "" if one.fits else ", which does not fit all targets"
            mean = "calibrated before" if one.mean is None else f"mean reward {one.mean:.2f}{fits}"
            self.told(Stage.ENVIRONMENTS, f"{one.name}: admitted; difficulty {one.difficulty}, {mean}")
        self._keep(environments={one.name: one for one in found})
        return played

    def _adapters(self) -> int:
        folder = self.project.adapters.folder
        if not self.state.adapters:
            # Kept before they are trained: what was interrupted goes on under the same name.
            self._keep(adapters={name: _free_name(folder, name) for name in self._names})
        one_thread = {"threads": 1} if self.order.parallel > 1 else {}
        recipe = self.order.recipe.model_copy(update=one_thread)
        config = self.folder / "recipe.toml"
        lines = [f"{key} = {json.dumps(value)}" for key, value in recipe.model_dump(mode="json").items()]
        write_atomic(config, "\n".join(lines) + "\n")
        works = [
            self._training(capability, name, config)
            for capability, name in self.state.adapters.items()
            if not (folder / name / MANIFEST).exists()
        ]
        self._run(Stage.ADAPTERS, works, at_once=self.order.parallel)
        played = 0
        for name in self.state.adapters.values():
            manifest = self.project.adapters[name].manifest
            told = {"evidence": self.state.runs, "informed_by": self.state.splits}
            text = manifest.model_copy(update=told).model_dump_json(indent=1)
            write_atomic(folder / name / MANIFEST, text + "\n")
            played += manifest.rollouts + 2 * sum(one.rollouts for one in manifest.heldout.values())
        return played

    def _training(self, capability: str, name: str, config: Path) -> Work:
        order = self.order
        arguments = [
            *("-m", "pytest_trace2evolve", "--root", str(self.project.root), "train"),
            *("--capability", capability, "--name", name, "--base", str(order.base.path)),
            *("--preset", order.preset, "--config", str(config), "--candidate", order.candidate),
            *("--difficulty", str(self.state.environments[capability].difficulty)),
            *("--heldout", str(order.heldout), "--heldout-rollouts", str(order.rollouts)),
        ]
        return Work(name, arguments, self.folder / f"train-{name}.log")

    def _gate(self) -> int:
        played = 0
        for name in self.state.adapters.values():
            candidate = f"{self.order.candidate}+{name}"
            if candidate in self.state.judged:
                continue
            folder = self._run_of(f"gate-{name}", candidate, baseline=self.state.folder)
            record = read_verdict(folder)
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
                )
            )
            played += self._simulations(folder)
        return played

    def _router(self) -> int:
        if not any(map(self._promoted, self.state.adapters.values())):
            self.told(Stage.ROUTER, "no adapter was promoted: there is nothing to route to")
            return 0
        # Of all promoted adapters, as the routed candidate has them: earlier evolutions' too.
        names = table_of(self.environments, (), self.project, self.order.base)
        openings = openings_of(self.environments, names, OPENINGS)
        found = route_locally(
            self.order.base,
            self.environments,
            names,
            openings,
            told=lambda done: self.told(Stage.ROUTER, f"{done}/{len(openings)}"),
        )
        self._keep(confusion=found.confusion)
        return 0

    def _routed(self) -> int:
        if self.state.confusion is None:
            return 0
        candidate = f"{self.order.candidate}+routed"
        folder = self._run_of("gate-routed", candidate, baseline=self.state.folder)
        record = read_verdict(folder)
        gate = gate_of(record)
        self._judged(Judged(candidate=candidate, gate=gate, state=state_of(gate), run=record.run))
        return self._simulations(folder)

    # What stages have in common.

    @property
    def _names(self) -> list[str]:
        return [one.name for one in self.state.missing or ()]

    def _promoted(self, adapter: str) -> bool:
        judged = self.state.judged.get(f"{self.order.candidate}+{adapter}")
        return judged is not None and judged.state is AdapterState.PROMOTED

    def _judged(self, one: Judged) -> None:
        self._keep(judged={**self.state.judged, one.candidate: one})
        why = f" ({one.why})" if one.why else ""
        self.told(Stage.GATE, f"{one.candidate}: {one.state.value}{why}")

    def _run_of(self, name: str, candidate: str, *, baseline: str | None) -> Path:
        """Run a session of a candidate; its folder."""
        folder = free(self.folder / name)
        arguments = ["-m", "pytest", *self.order.session, f"--candidate={candidate}"]
        arguments += [f"--t2e-run-folder={folder}"]
        arguments += [] if baseline is None else [f"--t2e-baseline={baseline}"]
        stage = Stage.RUN if baseline is None else Stage.GATE
        self._run(stage, [Work(candidate, arguments, self.folder / f"{name}.log", FINE, _OF_SESSIONS)])
        if baseline is not None and not (folder / VERDICT_NAME).exists():
            raise ResultsError(f"{folder}: the session left no verdict; see {self.folder / f'{name}.log'}")
        return folder

    def _run(self, stage: Stage, works: list[Work], *, at_once: int = 1) -> None:
        def told(name: str, line: str) -> None:
            self.told(stage, f"{name}: {line}")

        run_all(works, self.project.root, self._lock, at_once=at_once, told=told)

    @staticmethod
    def _simulations(folder: Path) -> int:
        return sum(len(read_results(path).simulations) for path in expand([folder]))


def _free_name(folder: Path, name: str) -> str:
    """The name, or the first of `name_2`, `name_3`, … that no adapter has: adapters stay beside new ones."""
    found, number = name, 1
    while (folder / found).exists():
        number += 1
        found = f"{name}_{number}"
    return found
