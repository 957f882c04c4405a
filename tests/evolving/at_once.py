"""An evolution whose runs and trainings end at once."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest

from pytest_trace2evolve.diagnose.diagnosis import Learnt
from pytest_trace2evolve.environments.registry import Environments
from pytest_trace2evolve.evidence.integrity import verdict_digest
from pytest_trace2evolve.evidence.ledger import Ledger
from pytest_trace2evolve.improve import stages
from pytest_trace2evolve.improve.order import EvolveOrder
from pytest_trace2evolve.improve.processes import Work
from pytest_trace2evolve.improve.routing import Routed, Row
from pytest_trace2evolve.improve.runs import Runs
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.records.evidence import CandidateRef
from pytest_trace2evolve.records.improvement import Missing, Ready, Stage
from pytest_trace2evolve.records.ledger import Version
from pytest_trace2evolve.records.routing import NONE, Routing
from pytest_trace2evolve.records.verdict import Decision, Goal, Label, RunVerdict
from pytest_trace2evolve.serving.folder import folder_digest, read_model
from pytest_trace2evolve.training.recipe import Recipe, read_recipe
from pytest_trace2evolve.utils.resources import embedded_model
from tests.adapter_folders import write_adapter
from tests.gate_helpers import write_candidate
from tests.ledger_helpers import judged

ONE, TWO = "precondition_verification", "conditional_detail_retrieval"
BASE = read_model(embedded_model())
WEIGHTS = folder_digest(BASE.path)
DIFFICULTY = 2
PLAYED = 3
"""Simulations of each run."""


def digest_of(capability: str) -> str:
    """Of the environment in which these evolutions train it."""
    return Environments().generator(capability, DIFFICULTY).digest


class World:
    """A project, and its runs and trainings: each is written down at once.

    Attributes:
        decisions: What the gate says, by candidate.
        dies: The run or training at which everything ends, as if it were killed.
        after: Whether that is after its end, instead of before its beginning.
        silent: Runs that leave no verdict.
        unrecorded: Runs whose verdict the ledger does not hold.
        cut: Why runs ended early, by candidate; empty if tasks were left out.
        baselines: The baseline of each run, by candidate.
        folders: The folder of each run, by candidate.
    """

    def __init__(self, root: Path) -> None:
        (root / "candidates").mkdir()
        write_candidate(root / "candidates", "v6", text="Be kind.")
        self.project = Project(root=root, suites_folder=root / "suites")
        self.decisions: dict[str, Decision] = {}
        self.ran: list[str] = []
        self.dies = ""
        self.after = False
        self.silent: set[str] = set()
        self.unrecorded: set[str] = set()
        self.cut: dict[str, str] = {}
        self.baselines: dict[str, str | None] = {}
        self.folders: dict[str, Path] = {}
        self.told: list[tuple[Stage, str]] = []

    def run_all(self, works: list[Work], here: Path, lock: int, *, at_once: int, told: Any) -> None:
        for work in works:
            with self._counted(work.name):
                told(work.name, "at work")
                self.training(work)

    def make(
        self, candidate: str, folder: Path, baseline: str | None, on_progress: Callable[[str], None]
    ) -> None:
        """Stands in for `Runs.make`."""
        with self._counted(candidate):
            self.baselines[candidate], self.folders[candidate] = baseline, folder
            on_progress("at work")
            self.run(candidate, folder, gated=baseline is not None)

    def check(self, baseline: Path, folder: Path) -> None:
        """Stands in for `Runs.check`."""
        self.ran.append("check")
        self.baselines["check"] = str(baseline)

    @contextmanager
    def _counted(self, name: str) -> Iterator[None]:
        if name == self.dies and not self.after:
            raise KeyboardInterrupt
        self.ran.append(name)
        yield
        if name == self.dies:
            raise KeyboardInterrupt

    def training(self, work: Work) -> None:
        given = dict(pairwise(work.arguments))
        capability = given["--capability"]
        write_adapter(
            self.project.adapters.folder,
            work.name,
            base=WEIGHTS,
            environments={capability: digest_of(capability)},
            recipe=read_recipe("pocket", Path(given["--config"])).model_dump(mode="json"),
            difficulty={capability: int(given["--difficulty"])},
            candidate=given["--candidate"],
            informed_by=(),
        )

    def run(self, name: str, folder: Path, *, gated: bool) -> None:
        folder.mkdir(parents=True)
        candidate = self.project.candidates[name]
        provenance = {
            "domain": "support",
            "provider": "trace2evolve",
            "run_id": folder.name,
            "candidate": candidate.ref().model_dump(mode="json"),
            "agent": {"implementation": "chat", "model": "pocket", "arguments": {"weights": WEIGHTS}},
        }
        agent = {"implementation": "chat", "llm": "pocket", "llm_args": {"weights": WEIGHTS}}
        info = {
            "agent_info": agent,
            "user_info": {"implementation": "script"},
            "environment_info": {"domain_name": "support"},
            "trace2evolve": provenance,
        }
        task = {"id": "t", "user_scenario": {"instructions": "x"}}
        simulations = [
            {
                "id": f"{folder.name}-{number}",
                "task_id": "t",
                "trial": number,
                "termination_reason": "user_stop",
            }
            for number in range(PLAYED)
        ]
        results = {"info": info, "simulations": simulations, "tasks": [task]}
        (folder / "results.json").write_text(json.dumps(results), encoding="utf-8")
        if gated and name not in self.silent:
            self.verdict(folder, candidate.ref(), self.decisions[name])

    def verdict(self, folder: Path, candidate: CandidateRef, decision: Decision) -> None:
        record = RunVerdict(
            run=folder.name,
            time="2026-11-22T10:00:00+00:00",
            verdict=decision,
            partial=candidate.id in self.cut,
            stopped=self.cut.get(candidate.id, ""),
            policy="calibrated",
            goal=Goal.IMPROVE,
            candidate=candidate,
        )
        told = record.model_dump(mode="json")
        part = {"verdict": decision.value, "whole": True, "lock": "l", "baseline": None}
        part |= {"evidence": {"path": "e", "digest": "d"}, "verdicts": [{"verdict": decision.value}]}
        told["suites"] = {"support": part}
        (folder / "verdict.json").write_text(json.dumps(told), encoding="utf-8")
        if candidate.id in self.unrecorded:
            return
        fields = {
            "suite": "support",
            "candidate": Version(id=candidate.id, digest=candidate.digest),
            "run": folder.name,
            "decision": decision,
            "label": Label.DEVELOPMENT,
            "evidence": "d",
            "verdict": verdict_digest(folder),
        }
        Ledger(self.project.ledger_folder).append(
            lambda root, parents, at: judged(at, root=root, parents=parents, **fields)
        )

    def evolving(self, **changes: Any) -> stages.Evolving:
        told = {"candidate": "v6", "run": None, "base": BASE, "recipe": Recipe(steps=2), "preset": "pocket"}
        order = EvolveOrder(**{**told, **changes})
        return stages.Evolving(
            order,
            self.project,
            Environments(),
            cast("Runs", self),
            lambda stage, text: self.told.append((stage, text)),
        )


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    own = World(tmp_path)
    own.decisions = {
        f"v6+{ONE}": Decision.PROMOTE,
        f"v6+{TWO}": Decision.DISCARD,
        "v6+routed": Decision.PROMOTE,
    }
    missing = tuple(Missing(name=name, delta=0.4, coverage=0.3) for name in (ONE, TWO, "unheard_of"))
    learnt = Learnt(missing, ("run",), ("support::discovery",), failed=7, traces=9, environments=(ONE, TWO))

    def ready(
        environments: Any, names: list[str], *others: Any, played: Callable[[int], None], **told: Any
    ) -> list[Ready]:
        played(30)
        return [Ready(name=name, difficulty=DIFFICULTY, mean=0.4) for name in names]

    def routed(base: Any, table: list[Row], openings: Any, told: Callable[[int], None]) -> Routed:
        shares = dict.fromkeys([*(row.name for row in table), NONE], 0.5)
        return Routed(openings, [Routing(chosen=one.label, shares=shares) for one in openings])

    monkeypatch.setattr(stages, "run_all", own.run_all)
    monkeypatch.setattr(stages, "missing_of", lambda *given: learnt)
    monkeypatch.setattr(stages, "ready", ready)
    monkeypatch.setattr(stages, "route_locally", routed)
    return own
