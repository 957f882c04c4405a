"""A promoted candidate becomes the baseline: every ground for refusing, then one change, whole or absent.

The run's folder says what was measured and decided, and the ledger's entries of the run must say the same;
nothing is scored or judged again. All that the verdict rested on must be unchanged: the evidence, the
candidate's text, the lock, and the baseline that was beaten.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_trace2evolve.errors import ConfigError, ResultsError, nearest
from pytest_trace2evolve.evidence.baselines import (
    evidence_digest,
    is_evidence,
    parse_evidence,
    read_evidence,
    render_evidence,
)
from pytest_trace2evolve.evidence.integrity import VERDICT_NAME, check_baseline, check_promotion
from pytest_trace2evolve.evidence.results import decode
from pytest_trace2evolve.evidence.saving import require_name
from pytest_trace2evolve.gate.comparable import lock_differences
from pytest_trace2evolve.project.candidates import ROUTED, WITH, source_of
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.records.adapter import AdapterState
from pytest_trace2evolve.records.evidence import Evidence
from pytest_trace2evolve.records.verdict import Decision, Goal, RunVerdict, SuiteVerdict
from pytest_trace2evolve.session.access_log import Looks
from pytest_trace2evolve.session.adapters import gate_of, note_verdict, settle
from pytest_trace2evolve.session.run_verdict import read_verdict
from pytest_trace2evolve.utils.files import alone_in, write_together


@dataclass(frozen=True)
class NewBaseline:
    """One suite's baseline as it will be.

    Attributes:
        path: Its file.
        evidence: What it will hold.
        beaten: Name of the baseline that it beat.
        done: Whether the file holds just that already.
    """

    suite: str
    path: Path
    evidence: Evidence
    beaten: str
    done: bool


@dataclass(frozen=True)
class Promotion:
    """What promoting a run comes to.

    Attributes:
        record: The run's verdict.
        baselines: What is written, a suite each.
        without: Suites of the run that gave no verdict, each with the reason.
    """

    record: RunVerdict
    baselines: tuple[NewBaseline, ...]
    without: tuple[tuple[str, str], ...] = ()

    @property
    def done(self) -> bool:
        """Whether all of it was done before."""
        return all(one.done for one in self.baselines)


def promote(
    project: Project,
    run: str,
    *,
    name: str | None = None,
    suites: Sequence[str] = (),
    here: Path,
    dry_run: bool = False,
) -> Promotion:
    """Make a run's evidence the baselines of its suites, all of them or none.

    The manifest of an adapter that the candidate talked with then says that it was promoted.

    Args:
        project: Where baselines, candidates and the lock lie.
        run: The run's folder (relative to `here`), or its id or the beginning of it.
        name: Name of the baselines; the candidate's id unless given.
        suites: Only these suites; all that gave a verdict where none is named.
        here: The folder that the user stands in.
        dry_run: Check everything and write nothing.

    Returns:
        What was (or would be) done; `done` where it was done before.

    Raises:
        ConfigError: no such run or suite, or the run was not promoted: nothing has changed.
        ResultsError: something that the verdict rested on has changed or is damaged, or the ledger is damaged
            or does not bear the verdict out: nothing has changed.
        OSError: a baseline or its entry of the ledger could not be written: no baseline has changed.
    """
    folder = find_run(project, run, here)
    record = read_verdict(folder)
    name = require_name(name or record.candidate.id, "--name")
    _refuse_not_promoted(folder, record)
    wanted = _wanted(project, record, suites)
    looks = Looks(project)
    with alone_in(project.root):
        baselines = tuple(_new_baseline(project, folder, record, suite, name) for suite in wanted)
        promotion = Promotion(record, baselines, _without(record, wanted))
        if promotion.done:
            return promotion
        if looks.problems:
            raise ResultsError(
                f"{looks.damage}, and nothing is promoted until it is restored, or 'trace2evolve ledger "
                "repair' accepts the damage"
            )
        check_promotion(folder, record, looks.entries, wanted)
        _refuse_changed_candidate(project, record)
        _refuse_forgetting(project, record)
        left = [one for one in baselines if not one.done]
        for one in left:
            _refuse_changed_lock(project, record.suites[one.suite], one)
            _refuse_changed_baseline(project, record.suites[one.suite], one, looks)
        if not dry_run:
            _write(left, name, looks)
            note_verdict(project, record)
    return promotion


def _write(baselines: Sequence[NewBaseline], name: str, looks: Looks) -> None:
    """Write baselines with their entries of the ledger, or no baseline."""
    before = {one.path: one.path.read_text(encoding="utf-8") for one in baselines if one.path.exists()}
    write_together({one.path: render_evidence(one.evidence) for one in baselines})
    try:
        for one in baselines:
            looks.record_saved(one.suite, name, one.evidence, one.evidence.provenance.replaces)
    except OSError:
        for one in baselines:
            if one.path not in before:
                one.path.unlink()
        write_together(before)
        raise


def find_run(project: Project, run: str, here: Path) -> Path:
    """A run's folder, by its path, its id, or a beginning of its id that no other run shares.

    Raises:
        ConfigError: there is none, or there are several.
    """
    place = here / run
    try:
        if place.is_dir():
            return place
    except (OSError, ValueError):
        pass  # a name that could be no path
    runs = project.runs_folder
    ids = sorted(path.name for path in runs.iterdir() if path.is_dir()) if runs.is_dir() else []
    if run in ids:
        return runs / run
    found = [one for one in ids if one.startswith(run)]
    if len(found) > 1:
        raise ConfigError(f"{run!r} begins {len(found)} runs: {', '.join(found[:3])}; give more of the id")
    if not found:
        raise ConfigError(f"{run!r} is no folder and no run below {runs}; {nearest(run, ids[-20:])}")
    return runs / found[0]


def _refuse_not_promoted(folder: Path, record: RunVerdict) -> None:
    says = f"{folder / VERDICT_NAME}: run {record.run} of candidate {record.candidate.id}"
    if record.partial:
        why = f" ({record.stopped})" if record.stopped else ""
        raise ConfigError(f"{says} is partial{why}; only a whole run can be promoted")
    if record.verdict is None:
        reasons = "; ".join(f"{suite}: {one.reason}" for suite, one in record.suites.items())
        raise ConfigError(f"{says} gave no verdict ({reasons}); nothing is promoted")
    if record.verdict is not Decision.PROMOTE:
        told = ", ".join(
            f"{suite} {one.verdict.value}" for suite, one in record.suites.items() if one.verdict is not None
        )
        raise ConfigError(
            f"{says} ended in {record.verdict.value} ({told}); only a promoted one becomes a baseline"
        )
    if record.goal is Goal.NO_REGRESSION:
        raise ConfigError(
            f"{says} had goal {record.goal.value}, which shows nothing that a baseline could rest on; "
            "run it with goal improve or hold"
        )


def _wanted(project: Project, record: RunVerdict, suites: Sequence[str]) -> list[str]:
    judged = [suite for suite, one in record.suites.items() if one.verdict is not None]
    for suite in suites:
        if suite not in judged:
            raise ConfigError(
                f"run {record.run} gave no verdict on suite {suite!r}; it gave one on {', '.join(judged)}"
            )
    wanted = list(dict.fromkeys(suites)) or judged
    for suite in wanted:
        if suite not in project.lock.suites:
            raise ConfigError(
                f"suite {suite!r} of run {record.run} is not in {project.lock_path}; "
                f"{nearest(suite, project.lock.suites)}"
            )
    return wanted


def _without(record: RunVerdict, wanted: Sequence[str]) -> tuple[tuple[str, str], ...]:
    return tuple(
        (suite, one.reason or "not asked for") for suite, one in record.suites.items() if suite not in wanted
    )


def _new_baseline(project: Project, folder: Path, record: RunVerdict, suite: str, name: str) -> NewBaseline:
    judged = record.suites[suite]
    if judged.baseline is None:
        raise ResultsError(
            f"{folder / VERDICT_NAME}: damaged at suites.{suite}.baseline: missing; run it again"
        )
    source = folder / judged.evidence.path
    measured = read_evidence(source)
    if (found := evidence_digest(measured)) != judged.evidence.digest:
        raise ResultsError(
            f"{source}: holds evidence {found}, and the verdict rests on {judged.evidence.digest}; "
            "run it again"
        )
    lineage = {"replaces": judged.baseline.digest, "promoted_from": record.run}
    evidence = measured.model_copy(update={"provenance": measured.provenance.model_copy(update=lineage)})
    path = project.baseline_path(suite, name)
    done = path.exists() and evidence_digest(read_evidence(path)) == evidence_digest(evidence)
    return NewBaseline(suite, path, evidence, judged.baseline.name, done)


def _refuse_changed_candidate(project: Project, record: RunVerdict) -> None:
    ref = record.candidate
    now = project.candidates[ref.id].digest
    if now != ref.digest:
        what = "text or weights have" if WITH in ref.id else "text has"
        raise ResultsError(
            f"{source_of(ref.id)}: its {what} changed since run {record.run}: "
            f"it was {ref.digest} and is {now}; run it again"
        )


def _refuse_forgetting(project: Project, record: RunVerdict) -> None:
    """What the gate cannot see of an adapter, its manifest tells: that is not promoted by hand either."""
    name = record.candidate.id.partition(WITH)[2]
    if name in ("", ROUTED):
        return
    manifest = project.adapters[name].manifest
    state, why = settle(gate_of(record), manifest)
    if state is not AdapterState.PROMOTED:
        raise ConfigError(
            f"adapters/{name}: run {record.run} was promoted by the gate, and the adapter {why}: it is "
            f"{state.value}; train one that is measured and keeps what it could do"
        )


def _refuse_changed_lock(project: Project, judged: SuiteVerdict, one: NewBaseline) -> None:
    locked = project.lock.suites[one.suite]
    if project.suite(one.suite).definition != locked.definition:
        raise ResultsError(
            f"{project.suite_path(one.suite)}: its settings changed since {project.lock_path.name} was "
            "written; restore it, or lock it and run the candidate again"
        )
    if judged.lock == locked.digest:
        return
    origin = one.evidence.provenance
    now = origin.model_copy(update={"lock": locked.digest, "lock_parts": locked.parts})
    digests = {record.task_id: record.task_digest for record in one.evidence.simulations}
    found = list(lock_differences(origin, now, digests, locked.tasks))
    told = "; ".join(found) or f"lock {judged.lock!r} and {locked.digest!r}"
    raise ResultsError(f"{project.lock_path}: {one.suite} has changed since the run: {told}; run it again")


def _refuse_changed_baseline(project: Project, judged: SuiteVerdict, one: NewBaseline, looks: Looks) -> None:
    used = judged.baseline
    assert used is not None
    old = None if used.path is None else project.root / used.path
    if old is not None and not old.exists():
        raise ResultsError(f"{old}: the baseline that the run beat is gone; restore it, or run it again")
    if old is not None and old.is_file() and is_evidence(record := decode(old)):
        evidence = parse_evidence(record, old)
        if old == project.baseline_path(one.suite, used.name):
            check_baseline(looks.entries, one.suite, used.name, old, evidence)
        if (found := evidence_digest(evidence)) != used.digest:
            raise ResultsError(
                f"{old}: the baseline has changed since the run: it was {used.digest} and is {found}; "
                "run it again"
            )
    if one.path.exists() and one.path != old:
        raise ResultsError(
            f"{one.path}: exists, and is not the baseline that the run beat ({used.name}); "
            "give another --name"
        )
