"""Promotion: a run's evidence becomes the baselines of its suites, all of them or none.

The run's folder holds the evidence and the verdict, and the ledger's entries of the run must confirm them.
Nothing is scored or judged again. Everything that the verdict rested on must be unchanged: the evidence, the
candidate's text, the lock, and the baseline that was beaten.

If a candidate has an adapter, the adapter's manifest records the verdict too. The manifest also holds the
adapter's losses in capabilities that it was not trained for, which the gate cannot see.
"""

from collections.abc import Mapping, Sequence
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
from pytest_trace2evolve.project.adapters import Adapter
from pytest_trace2evolve.project.candidates import ROUTED, WITH, source_of
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.records.adapter import (
    MANIFEST,
    AdapterManifest,
    AdapterState,
    AdapterVerdict,
    RewardChange,
)
from pytest_trace2evolve.records.capability import BUILT_IN_CAPABILITIES
from pytest_trace2evolve.records.evidence import Evidence
from pytest_trace2evolve.records.verdict import Decision, Goal, RunVerdict, SuiteVerdict
from pytest_trace2evolve.session.baselines import lock_changes
from pytest_trace2evolve.session.ledger import ProjectLedger
from pytest_trace2evolve.session.run_verdict import read_verdict
from pytest_trace2evolve.session.traces import find_run
from pytest_trace2evolve.utils.files import alone_in, write_atomic, write_together


@dataclass(frozen=True)
class NewBaseline:
    """The new baseline of one suite.

    Attributes:
        path: The baseline's file.
        evidence: The file's content.
        beaten: Name of the baseline that the run beat.
        done: Whether the file has this content already.
    """

    suite: str
    path: Path
    evidence: Evidence
    beaten: str
    done: bool


@dataclass(frozen=True)
class Promotion:
    """The result of promoting a run.

    Attributes:
        record: The run's verdict.
        baselines: The new baselines, one for each suite.
        without: Suites of the run that get no baseline, each with the reason.
    """

    record: RunVerdict
    baselines: tuple[NewBaseline, ...]
    without: tuple[tuple[str, str], ...] = ()

    @property
    def done(self) -> bool:
        """Whether the run was promoted before."""
        return all(baseline.done for baseline in self.baselines)


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

    If the candidate has an adapter, the adapter's manifest then says that it was promoted.

    Args:
        project: The project, with its baselines, candidates and lock.
        run: The run's folder (relative to `here`), its id, or the beginning of its id.
        name: Name of the baselines; the candidate's id unless given.
        suites: The suites to promote; by default all that gave a verdict.
        here: The user's folder.
        dry_run: Check everything and write nothing.

    Returns:
        The promotion that was made, or that would be made without `dry_run`.

    Raises:
        ConfigError: the run or suite does not exist, or the run was not promoted. Nothing has changed.
        ResultsError: something that the verdict rested on has changed or is damaged, or the ledger is damaged
            or does not confirm the verdict. Nothing has changed.
        OSError: a baseline or its ledger entry could not be written. No baseline has changed.
    """
    folder = find_run(run, project, here)
    record = read_verdict(folder)
    name = require_name(name or record.candidate.id, "--name")
    _check_promoted(folder, record)
    selected = _selected(project, record, suites)
    ledger = ProjectLedger(project)
    with alone_in(project.root):
        baselines = tuple(_new_baseline(project, folder, record, suite, name) for suite in selected)
        without = {
            suite: verdict.reason or "not asked for"
            for suite, verdict in record.suites.items()
            if suite not in selected
        }
        promotion = Promotion(record, baselines, tuple(without.items()))
        if promotion.done:
            return promotion
        if ledger.problems:
            raise ResultsError(
                f"{ledger.damage}, and nothing is promoted until it is restored, or 'trace2evolve ledger "
                "repair' accepts the damage"
            )
        check_promotion(folder, record, ledger.entries, selected)
        _check_candidate(project, record)
        check_adapter_losses(project, record)
        left = [new for new in baselines if not new.done]
        for new in left:
            _check_lock(project, record.suites[new.suite], new)
            _check_beaten_baseline(project, record.suites[new.suite], new, ledger)
        if not dry_run:
            _write(left, name, ledger)
            record_adapter_verdict(project, record)
    return promotion


def _write(baselines: Sequence[NewBaseline], name: str, ledger: ProjectLedger) -> None:
    """Write all baselines and their ledger entries, or leave every baseline unchanged."""
    before = {new.path: new.path.read_text(encoding="utf-8") for new in baselines if new.path.exists()}
    write_together({new.path: render_evidence(new.evidence) for new in baselines})
    try:
        for new in baselines:
            ledger.record_saved(new.suite, name, new.evidence, new.evidence.provenance.replaces)
    except OSError:
        for new in baselines:
            if new.path not in before:
                new.path.unlink()
        write_together(before)
        raise


def _check_promoted(folder: Path, record: RunVerdict) -> None:
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


def _selected(project: Project, record: RunVerdict, suites: Sequence[str]) -> list[str]:
    judged = [suite for suite, one in record.suites.items() if one.verdict is not None]
    for suite in suites:
        if suite not in judged:
            raise ConfigError(
                f"run {record.run} gave no verdict on suite {suite!r}; it gave one on {', '.join(judged)}"
            )
    selected = list(dict.fromkeys(suites)) or judged
    for suite in selected:
        if suite not in project.lock.suites:
            raise ConfigError(
                f"suite {suite!r} of run {record.run} is not in {project.lock_path}; "
                f"{nearest(suite, project.lock.suites)}"
            )
    return selected


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


def _check_candidate(project: Project, record: RunVerdict) -> None:
    ref = record.candidate
    now = project.candidates[ref.id].digest
    if now != ref.digest:
        what = "text or weights have" if WITH in ref.id else "text has"
        raise ResultsError(
            f"{source_of(ref.id)}: its {what} changed since run {record.run}: "
            f"it was {ref.digest} and is {now}; run it again"
        )


def _check_lock(project: Project, judged: SuiteVerdict, new: NewBaseline) -> None:
    locked = project.lock.suites[new.suite]
    if project.suite(new.suite).definition != locked.definition:
        raise ResultsError(
            f"{project.suite_path(new.suite)}: its settings changed since {project.lock_path.name} was "
            "written; restore it, or lock it and run the candidate again"
        )
    if judged.lock != locked.digest:
        changes = lock_changes(new.evidence, locked) or (f"lock {judged.lock!r} and {locked.digest!r}",)
        raise ResultsError(
            f"{project.lock_path}: {new.suite} has changed since the run: {'; '.join(changes)}; run it again"
        )


def _check_beaten_baseline(
    project: Project, judged: SuiteVerdict, new: NewBaseline, ledger: ProjectLedger
) -> None:
    used = judged.baseline
    assert used is not None
    old = None if used.path is None else project.root / used.path
    if old is not None and not old.exists():
        raise ResultsError(f"{old}: the baseline that the run beat is gone; restore it, or run it again")
    if old is not None and old.is_file() and is_evidence(content := decode(old)):
        evidence = parse_evidence(content, old)
        if old == project.baseline_path(new.suite, used.name):
            check_baseline(ledger.entries, new.suite, used.name, old, evidence)
        if (found := evidence_digest(evidence)) != used.digest:
            raise ResultsError(
                f"{old}: the baseline has changed since the run: it was {used.digest} and is {found}; "
                "run it again"
            )
    if new.path.exists() and new.path != old:
        raise ResultsError(
            f"{new.path}: exists, and is not the baseline that the run beat ({used.name}); "
            "give another --name"
        )


MAX_LOSS = 0.05
"""The mean reward that an adapter may lose in another capability."""

_STATES = {
    Decision.PROMOTE: AdapterState.PROMOTED,
    Decision.DISCARD: AdapterState.DISCARDED,
    Decision.INCONCLUSIVE: AdapterState.INCONCLUSIVE,
    None: AdapterState.INCONCLUSIVE,
}


def gate_decision(record: RunVerdict) -> Decision | None:
    """The gate's decision; a promotion is inconclusive if the run is partial or its goal claims nothing."""
    claims_nothing = record.partial or record.goal is Goal.NO_REGRESSION
    return Decision.INCONCLUSIVE if claims_nothing and record.verdict is Decision.PROMOTE else record.verdict


def state_by_gate(decision: Decision | None) -> AdapterState:
    """The state of an adapter by the gate alone; a missing verdict counts as inconclusive."""
    return _STATES[decision]


def adapter_state(decision: Decision | None, manifest: AdapterManifest) -> tuple[AdapterState, str]:
    """The state of an adapter by the gate and by its losses, and the reasons other than the gate.

    A loss of more than `MAX_LOSS` in another capability discards the adapter if its interval excludes 0.
    Otherwise such a loss only prevents a promotion. A lack of measurements in other capabilities prevents a
    promotion too.
    """
    lost = {
        name: cost
        for name, cost in manifest.heldout.items()
        if name not in manifest.environments and cost.change < -MAX_LOSS
    }
    shown = {name: cost for name, cost in lost.items() if cost.high is not None and cost.high < 0}
    possible = {name: cost for name, cost in lost.items() if name not in shown}
    reasons = [f"forgot {_changes(shown)}"] if shown else []
    reasons += [f"perhaps forgot {_changes(possible)}"] if possible else []
    reasons += ["was measured in no other environment"] if lacks_other_environments(manifest) else []
    state = state_by_gate(decision)
    if shown:
        state = AdapterState.DISCARDED
    elif reasons and state is AdapterState.PROMOTED:
        state = AdapterState.INCONCLUSIVE
    return state, "; ".join(reasons)


def _changes(lost: Mapping[str, RewardChange]) -> str:
    named = [f"{name} ({100 * cost.change:+.1f} points)" for name, cost in lost.items()]
    return ", ".join(named).replace("-", "−")


def lacks_other_environments(manifest: AdapterManifest) -> bool:
    """Whether an adapter was measured only in the environments that it was trained for, and others exist."""
    others = {capability.name for capability in BUILT_IN_CAPABILITIES} - set(manifest.environments)
    return bool(others) and set(manifest.heldout) <= set(manifest.environments)


def _adapter_name(record: RunVerdict) -> str:
    """The name of the candidate's own adapter; empty if it has none."""
    name = record.candidate.id.partition(WITH)[2]
    return "" if name == ROUTED else name


def check_adapter_losses(project: Project, record: RunVerdict) -> None:
    """Check that a promoted run's adapter lost no other capability, which the gate cannot see.

    Raises:
        AdapterError: the adapter is gone or damaged.
        ConfigError: the adapter lost reward elsewhere, or was measured in no other environment.
    """
    name = _adapter_name(record)
    if not name:
        return
    state, why = adapter_state(gate_decision(record), project.adapters[name].manifest)
    if state is not AdapterState.PROMOTED:
        raise ConfigError(
            f"adapters/{name}: run {record.run} was promoted by the gate, and the adapter {why}: it is "
            f"{state.value}; train one that is measured and keeps what it could do"
        )


def record_adapter_verdict(project: Project, record: RunVerdict) -> Adapter | None:
    """Write a run's verdict into the manifest of its candidate's adapter.

    Returns:
        The adapter with its new state; None if the candidate has no adapter of its own.

    Raises:
        AdapterError: the adapter is gone or damaged.
        CandidateError: the candidate's file is gone or broken.
        ResultsError: the candidate or the adapter has changed since the run.
        OSError: the manifest cannot be written.
    """
    name = _adapter_name(record)
    if not name:
        return None
    adapter = project.adapters[name]
    now = project.candidates[record.candidate.id].digest
    if now != record.candidate.digest:
        raise ResultsError(
            f"{adapter.path}: it, or the candidate's text, has changed since run {record.run}: it was "
            f"{record.candidate.digest} and is {now}; run it again"
        )
    decision = gate_decision(record)
    state, why = adapter_state(decision, adapter.manifest)
    used = {suite.baseline.name for suite in record.suites.values() if suite.baseline is not None}
    verdict = AdapterVerdict(
        decision=decision or Decision.INCONCLUSIVE,
        run=record.run,
        candidate=record.candidate.id,
        baseline=", ".join(sorted(used)),
        policy=record.policy,
        why=why,
        time=record.time,
    )
    manifest = adapter.manifest.model_copy(update={"state": state, "verdict": verdict})
    write_atomic(adapter.path / MANIFEST, manifest.model_dump_json(indent=1) + "\n")
    return project.adapters[name]
