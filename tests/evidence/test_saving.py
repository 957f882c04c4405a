"""After each save, update, addition, promotion and failure, baselines are whole, and as asked.

The disk is made to fail at any one step (the flush of a file, a link, a rename), and afterwards every
baseline must be as it was before the step or as the step was to leave it, never anything in between.
"""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_trace2evolve.errors import Trace2EvolveError
from pytest_trace2evolve.evidence.baselines import evidence_digest, read_evidence, write_evidence
from pytest_trace2evolve.evidence.ledger import Ledger
from pytest_trace2evolve.evidence.saving import SaveMode, plan_save, save_baseline
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.records.evidence import Evidence, Provenance, Settings
from pytest_trace2evolve.records.ledger import Evaluation
from pytest_trace2evolve.records.verdict import (
    BaselineReference,
    Decision,
    EvidenceReference,
    Goal,
    RunVerdict,
    SuiteVerdict,
)
from pytest_trace2evolve.session.promote import promote
from pytest_trace2evolve.worlds.registry import Worlds
from tests.failing_disk import failing_disk
from tests.fake_world import FakeWorld
from tests.gate_helpers import sim, write_candidate
from tests.ledger_helpers import judged

SUITES = ("one", "two")
TASKS = ("close", "note", "restart", "look")
TOML = 'provider = "fake"\ndomain = "desk"\n\n[splits]\nheldout = ["close", "note", "restart", "look"]\n'


@dataclass(frozen=True)
class Step:
    """One thing that somebody asks for, and which call to the disk fails during it (none: 0)."""

    what: str
    suite: str
    candidate: str
    tasks: frozenset[str]
    reward: float
    fails: int


STEPS = st.builds(
    Step,
    what=st.sampled_from(["save", "update", "new-only", "promote", "promote"]),
    suite=st.sampled_from(SUITES),
    candidate=st.sampled_from(["v0", "v1"]),
    tasks=st.sets(st.sampled_from(TASKS), min_size=1).map(frozenset),
    reward=st.sampled_from([0.0, 1.0]),
    fails=st.integers(0, 8),
)


class Desk:
    """A project of two suites and what a model says its baselines are."""

    def __init__(self, root: Path) -> None:
        (root / "suites").mkdir(parents=True)
        (root / "candidates").mkdir()
        for suite in SUITES:
            (root / "suites" / f"{suite}.toml").write_text(TOML, encoding="utf-8")
        write_candidate(root / "candidates", "v0")
        write_candidate(root / "candidates", "v1", "parent: v0", text="Be kind.")
        self.project = Project(root, root / "suites")
        self.project.renew_lock(Worlds({"fake": FakeWorld}))
        self.project = Project(root, root / "suites")
        self.runs = 0

    def on_disk(self) -> dict[str, Evidence]:
        """What lies below baselines/, every file of it whole."""
        folder = self.project.baselines_folder
        files = [path for path in folder.rglob("*") if path.is_file()]
        return {path.relative_to(folder).as_posix(): read_evidence(path) for path in files}

    def measured(self, step: Step, suite: str) -> Evidence:
        """A run's evidence on one suite."""
        lock = self.project.lock.suites[suite]
        origin = Provenance(
            domain="desk",
            provider="fake",
            suite=suite,
            lock=lock.digest,
            lock_parts=lock.parts,
            candidate=self.project.candidates[step.candidate].to_ref(),
            agent=Settings(implementation="listed"),
            run_id=f"run{self.runs}",
        )
        records = [sim(task, step.reward, digest=lock.tasks[task]) for task in sorted(step.tasks)]
        return Evidence(provenance=origin, simulations=tuple(records))

    def save(self, step: Step, evidence: Evidence) -> None:
        """Ask for a baseline as a session does: look before the run, write after it."""
        mode, path = SaveMode(step.what), self.project.baseline_path(step.suite, step.candidate)
        saving = plan_save(step.candidate, mode, {step.suite: path})
        with failing_disk(step.fails):
            save_baseline(
                path,
                evidence,
                mode,
                digest_before=saving.digests_before.get(step.suite),
                tasks=TASKS,
                root=self.project.root,
            )

    def judged(self, step: Step, found: dict[str, Evidence]) -> Path:
        """The folder of a run that was promoted on every suite that has a baseline of v0."""
        folder = self.project.runs_folder / f"run{self.runs}"
        suites = {}
        for suite in SUITES:
            path = f"{suite}/v0.json"
            if path not in found:
                continue
            evidence = self.measured(step, suite)
            write_evidence(folder / "evidence" / f"{suite}.json", evidence)
            suites[suite] = SuiteVerdict(
                verdict=Decision.PROMOTE,
                whole=True,
                lock=self.project.lock.suites[suite].digest,
                baseline=BaselineReference(
                    name="v0", digest=evidence_digest(found[path]), path=f"baselines/{path}"
                ),
                evidence=EvidenceReference(path=f"evidence/{suite}.json", digest=evidence_digest(evidence)),
                verdicts=({"verdict": "promote", "split": "heldout"},),
            )
        record = RunVerdict(
            run=folder.name,
            time="2026-11-20T10:00:00+00:00",
            verdict=Decision.PROMOTE,
            partial=False,
            policy="strict",
            goal=Goal.IMPROVE,
            candidate=self.project.candidates[step.candidate].to_ref(),
            suites=suites,
        )
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "verdict.json").write_text(record.model_dump_json(), encoding="utf-8")
        for suite, judgement in suites.items():
            self.recorded(folder, suite, judgement.evidence.digest)
        return folder

    def recorded(self, folder: Path, suite: str, evidence: str) -> None:
        """The ledger's entry of such a run."""

        def make(root: str, parents: tuple[str, ...], at: datetime) -> Evaluation:
            digests = {"evidence": evidence}
            place = {"suite": suite, "run": folder.name, "goal": Goal.HOLD}
            return judged(at, root=root, parents=parents, **place, **digests)

        Ledger(self.project.ledger_folder).append(make)


def check_save(step: Step, new: Evidence, before: dict[str, Evidence], after: dict[str, Evidence]) -> None:
    """What a save that went through must have left."""
    place = f"{step.suite}/{step.candidate}.json"
    old, now = before.get(place), after[place]
    assert {name: one for name, one in after.items() if name != place} == {
        name: one for name, one in before.items() if name != place
    }
    if old is None:
        assert now == new
        return
    assert step.what != "save", "an existing baseline was written over"
    if step.what == "update":
        assert now.simulations == new.simulations
        assert now.provenance.replaces == evidence_digest(old)
        assert {one.task_id for one in old.simulations} <= step.tasks
        return
    kept = {one.id: one for one in now.simulations}
    assert all(kept[one.id] == one for one in old.simulations)
    assert set(kept) == {one.id for one in old.simulations} | {one.id for one in new.simulations}
    assert now is old or now == old or now.provenance.replaces == evidence_digest(old)


@settings(max_examples=30)
@given(steps=st.lists(STEPS, min_size=1, max_size=8))
def test_baselines_are_whole_and_as_asked(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Step]
) -> None:
    desk = Desk(tmp_path_factory.mktemp("desk"))
    for step in steps:
        desk.runs += 1
        before = desk.on_disk()
        new = desk.measured(step, step.suite)
        try:
            if step.what != "promote":
                desk.save(step, new)
                check_save(step, new, before, desk.on_disk())
                continue
            folder = desk.judged(step, before)
            with failing_disk(step.fails):
                done = promote(desk.project, str(folder), base_folder=desk.project.root)
        except (Trace2EvolveError, OSError) as error:
            if "the ledger" in str(error):
                raise  # the run has its entry
            assert desk.on_disk() == before
            continue
        after = desk.on_disk()
        written = {f"{one.suite}/{step.candidate}.json" for one in done.baselines}
        assert written == {
            name.replace("v0.json", f"{step.candidate}.json") for name in before if "v0" in name
        }
        assert {name: one for name, one in after.items() if name not in written} == {
            name: one for name, one in before.items() if name not in written
        }
        for one in done.baselines:
            now = after[f"{one.suite}/{step.candidate}.json"]
            assert now.simulations == desk.measured(step, one.suite).simulations
            assert now.provenance.replaces == evidence_digest(before[f"{one.suite}/v0.json"])
            assert now.provenance.promoted_from == folder.name
        again = promote(desk.project, str(folder), base_folder=desk.project.root)
        assert again.is_done
        assert desk.on_disk() == after
