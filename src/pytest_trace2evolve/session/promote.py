"""Promotes a run: its evidence becomes the baselines of all its suites, or of none.

The run's folder holds the evidence and the verdict, and the ledger's entries of the run must confirm them.
Nothing is scored or judged again. Everything that the verdict is based on must be unchanged: the evidence,
the candidate's text, the lock, and the baseline that the run beat.

If a candidate has an adapter, the adapter's manifest records the verdict too. The manifest also holds the
adapter's losses in capabilities that it was not trained for, which the gate cannot see.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from pytest_trace2evolve.errors import ConfigError, ResultsError, name_suggestion
from pytest_trace2evolve.evidence.baselines import (
    evidence_digest,
    is_evidence,
    parse_evidence,
    read_evidence,
    render_evidence,
)
from pytest_trace2evolve.evidence.ledger import VERDICT_NAME, check_promotion
from pytest_trace2evolve.evidence.results import decode_results
from pytest_trace2evolve.evidence.saving import validate_name
from pytest_trace2evolve.project.adapters import Adapter
from pytest_trace2evolve.project.candidates import ADAPTER_SEPARATOR, ROUTED, describe_source
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.records.adapter import (
    MANIFEST_NAME,
    WHOLE_TASKS,
    AdapterManifest,
    AdapterState,
    AdapterVerdict,
    RewardChange,
)
from pytest_trace2evolve.records.capability import BUILT_IN_CAPABILITIES
from pytest_trace2evolve.records.evidence import Evidence
from pytest_trace2evolve.records.verdict import Decision, Goal, RunVerdict, SuiteVerdict
from pytest_trace2evolve.session.baselines import lock_changes
from pytest_trace2evolve.session.evidence_sources import find_run
from pytest_trace2evolve.session.ledger import ProjectLedger
from pytest_trace2evolve.session.runs import read_verdict
from pytest_trace2evolve.utils.files import folder_lock, write_atomic, write_together
from pytest_trace2evolve.utils.git import is_ignored


@dataclass(frozen=True)
class NewBaseline:
    """The new baseline of one suite.

    Attributes:
        path: The baseline's file.
        evidence: The file's content.
        beaten_name: Name of the baseline that the run beat.
        is_saved: Whether the file has this content already.
    """

    suite: str
    path: Path
    evidence: Evidence
    beaten_name: str
    is_saved: bool


@dataclass(frozen=True)
class Promotion:
    """The promotion of a run, made or planned.

    Attributes:
        record: The run's verdict.
        baselines: The new baselines, one for each suite.
        skipped_suites: Suites of the run that get no baseline, each with the reason.
        paths: The files and folders to commit. All of them exist (the baselines do once they are written),
            and git ignores none of them.
    """

    record: RunVerdict
    baselines: tuple[NewBaseline, ...]
    skipped_suites: tuple[tuple[str, str], ...] = ()
    paths: tuple[Path, ...] = ()

    @property
    def is_done(self) -> bool:
        """Whether the run was promoted before."""
        return all(baseline.is_saved for baseline in self.baselines)


def promote(
    project: Project,
    run: str,
    *,
    name: str | None = None,
    suites: Sequence[str] = (),
    base_folder: Path,
    dry_run: bool = False,
) -> Promotion:
    """Make a run's evidence the baselines of all its suites, or of none.

    If the candidate has an adapter, the adapter's manifest records the promotion.

    Args:
        project: The project, with its baselines, candidates and lock.
        run: The run's folder (relative to `base_folder`), its id, or the beginning of its id.
        name: Name of the baselines; the candidate's id unless given.
        suites: The suites to promote; by default, all suites with a verdict.
        base_folder: The folder that a relative `run` is resolved against.
        dry_run: Whether to check everything but write nothing.

    Returns:
        The promotion that was made, or that would be made without `dry_run`.

    Raises:
        ConfigError: the run or suite does not exist, or the run was not promoted. Nothing has changed.
        ResultsError: something that the verdict is based on has changed or is damaged, or the ledger is
            damaged or does not confirm the verdict. Nothing has changed.
        OSError: a baseline or its ledger entry could not be written. No baseline has changed.
    """
    folder = find_run(run, project, base_folder)
    run_verdict = read_verdict(folder)
    name = validate_name(name or run_verdict.candidate.id, "--name")
    _check_promoted(folder, run_verdict)
    selected_suites = _select_suites(project, run_verdict, suites)
    ledger = ProjectLedger(project)
    with folder_lock(project.root):
        make = partial(_new_baseline, project, folder, run_verdict, name)
        baselines = tuple(map(make, selected_suites))
        skipped = [
            (suite, verdict.reason or "not requested")
            for suite, verdict in run_verdict.suites.items()
            if suite not in selected_suites
        ]
        promotion = Promotion(run_verdict, baselines, tuple(skipped))
        if promotion.is_done:
            return promotion
        if ledger.problems:
            raise ResultsError(
                f"{ledger.damage_text}; nothing is promoted until it is restored, or 'trace2evolve ledger "
                "repair' accepts the damage"
            )
        check_promotion(folder, run_verdict, ledger.entries, selected_suites)
        _check_candidate(project, run_verdict)
        check_adapter_losses(project, run_verdict)
        unsaved = [new for new in baselines if not new.is_saved]
        for new in unsaved:
            _check_lock(project, run_verdict.suites[new.suite], new)
            _check_beaten_baseline(project, run_verdict.suites[new.suite], new)
        if not dry_run:
            _write_baselines(unsaved, name, ledger)
            record_adapter_verdict(project, run_verdict)
        return replace(promotion, paths=tuple(_paths_to_commit(project, promotion)))


def _paths_to_commit(project: Project, promotion: Promotion) -> Iterator[Path]:
    candidate_paths = project.candidates.files(promotion.record.candidate.id)
    existing_paths = [path for path in (*candidate_paths, project.ledger_folder) if path.exists()]
    for path in dict.fromkeys([*(baseline.path for baseline in promotion.baselines), *existing_paths]):
        if not is_ignored(project.root, path):
            yield path


def _write_baselines(baselines: Sequence[NewBaseline], name: str, ledger: ProjectLedger) -> None:
    """Write all baselines and their ledger entries, or leave every baseline unchanged."""
    old_texts = {new.path: new.path.read_text(encoding="utf-8") for new in baselines if new.path.exists()}
    write_together({new.path: render_evidence(new.evidence) for new in baselines})
    try:
        for new in baselines:
            ledger.record_baseline_save(new.suite, name, new.evidence, new.evidence.provenance.replaces)
    except OSError:
        for new in baselines:
            if new.path not in old_texts:
                new.path.unlink()
        write_together(old_texts)
        raise


def _check_promoted(folder: Path, run_verdict: RunVerdict) -> None:
    subject = f"{folder / VERDICT_NAME}: run {run_verdict.run} of candidate {run_verdict.candidate.id}"
    if run_verdict.partial:
        reason = f" ({run_verdict.stopped})" if run_verdict.stopped else ""
        raise ConfigError(f"{subject} is partial{reason}; only a whole run can be promoted")
    if run_verdict.verdict is None:
        reasons = "; ".join(f"{name}: {suite.reason}" for name, suite in run_verdict.suites.items())
        raise ConfigError(f"{subject} gave no verdict ({reasons}); nothing is promoted")
    if run_verdict.verdict is not Decision.PROMOTE:
        judged = {name: suite.verdict for name, suite in run_verdict.suites.items() if suite.verdict}
        decisions = ", ".join(f"{name} {decision.value}" for name, decision in judged.items())
        raise ConfigError(
            f"{subject} ended in {run_verdict.verdict.value} ({decisions}); only a promoted run can become "
            "a baseline"
        )
    if run_verdict.goal is Goal.NO_REGRESSION:
        raise ConfigError(
            f"{subject} had goal {run_verdict.goal.value}, which cannot justify a baseline; "
            "run it again with goal improve or hold"
        )


def _select_suites(project: Project, run_verdict: RunVerdict, suites: Sequence[str]) -> list[str]:
    judged_suites = [name for name, suite in run_verdict.suites.items() if suite.verdict is not None]
    for suite in suites:
        if suite not in judged_suites:
            raise ConfigError(
                f"run {run_verdict.run} gave no verdict on suite {suite!r}; it gave one on "
                f"{', '.join(judged_suites)}"
            )
    selected_suites = list(dict.fromkeys(suites)) or judged_suites
    for suite in selected_suites:
        if suite not in project.lock.suites:
            raise ConfigError(
                f"suite {suite!r} of run {run_verdict.run} is not in {project.lock_path}; "
                f"{name_suggestion(suite, project.lock.suites)}"
            )
    return selected_suites


def _new_baseline(
    project: Project, folder: Path, run_verdict: RunVerdict, name: str, suite: str
) -> NewBaseline:
    suite_verdict = run_verdict.suites[suite]
    if suite_verdict.baseline is None:
        raise ResultsError(
            f"{folder / VERDICT_NAME}: damaged at suites.{suite}.baseline: missing; run it again"
        )
    source = folder / suite_verdict.evidence.path
    run_evidence = read_evidence(source)
    if (actual_digest := evidence_digest(run_evidence)) != suite_verdict.evidence.digest:
        raise ResultsError(
            f"{source}: holds evidence {actual_digest}, but the verdict is based on "
            f"{suite_verdict.evidence.digest}; run it again"
        )
    lineage = {"replaces": suite_verdict.baseline.digest, "promoted_from": run_verdict.run}
    origin = run_evidence.provenance.model_copy(update=lineage)
    evidence = run_evidence.model_copy(update={"provenance": origin})
    path = project.baseline_path(suite, name)
    is_saved = path.exists() and evidence_digest(read_evidence(path)) == evidence_digest(evidence)
    return NewBaseline(suite, path, evidence, suite_verdict.baseline.name, is_saved)


def _check_candidate(project: Project, run_verdict: RunVerdict) -> None:
    candidate = run_verdict.candidate
    current_digest = project.candidates[candidate.id].digest
    if current_digest != candidate.digest:
        changed_parts = "text or weights have" if ADAPTER_SEPARATOR in candidate.id else "text has"
        raise ResultsError(
            f"{describe_source(candidate.id)}: its {changed_parts} changed since run {run_verdict.run}: "
            f"it was {candidate.digest} and is {current_digest}; run it again"
        )


def _check_lock(project: Project, suite_verdict: SuiteVerdict, new: NewBaseline) -> None:
    suite_lock = project.lock.suites[new.suite]
    if project.suite(new.suite).definition != suite_lock.definition:
        raise ResultsError(
            f"{project.suite_path(new.suite)}: its settings changed since {project.lock_path.name} "
            "was written; restore it, or lock it and run the candidate again"
        )
    if suite_verdict.lock != suite_lock.digest:
        changes = lock_changes(new.evidence, suite_lock) or (
            f"lock {suite_verdict.lock!r} and {suite_lock.digest!r}",
        )
        raise ResultsError(
            f"{project.lock_path}: {new.suite} has changed since the run: {'; '.join(changes)}; run it again"
        )


def _check_beaten_baseline(project: Project, suite_verdict: SuiteVerdict, new: NewBaseline) -> None:
    beaten_baseline = suite_verdict.baseline
    assert beaten_baseline is not None
    old_path = None if beaten_baseline.path is None else project.root / beaten_baseline.path
    if old_path is not None and not old_path.exists():
        raise ResultsError(f"{old_path}: the baseline that the run beat is gone; restore it, or run it again")
    if old_path is not None and old_path.is_file() and is_evidence(content := decode_results(old_path)):
        evidence = parse_evidence(content, old_path)
        if (actual_digest := evidence_digest(evidence)) != beaten_baseline.digest:
            raise ResultsError(
                f"{old_path}: the baseline has changed since the run: it was {beaten_baseline.digest} and is "
                f"{actual_digest}; run it again"
            )
    if new.path.exists() and new.path != old_path:
        raise ResultsError(
            f"{new.path}: exists, but is not the baseline that the run beat "
            f"({beaten_baseline.name}); give a different --name"
        )


MAX_LOSS = 0.05
"""Maximum mean reward that an adapter may lose in a capability that it was not trained for."""

_STATES = {
    Decision.PROMOTE: AdapterState.PROMOTED,
    Decision.DISCARD: AdapterState.DISCARDED,
    Decision.INCONCLUSIVE: AdapterState.INCONCLUSIVE,
    None: AdapterState.INCONCLUSIVE,
}


def gate_decision(run_verdict: RunVerdict) -> Decision | None:
    """Return the gate's decision; a promotion by a partial run or without a claim becomes inconclusive."""
    claims_nothing = run_verdict.partial or run_verdict.goal is Goal.NO_REGRESSION
    is_void = claims_nothing and run_verdict.verdict is Decision.PROMOTE
    return Decision.INCONCLUSIVE if is_void else run_verdict.verdict


def adapter_state(decision: Decision | None, manifest: AdapterManifest) -> tuple[AdapterState, str]:
    """Return an adapter's state, given the gate's decision and the adapter's losses, and the other reasons.

    A loss of more than `MAX_LOSS` in another capability discards the adapter if its interval excludes 0.
    Otherwise such a loss only prevents a promotion. Missing measurements in other capabilities also
    prevent a promotion.
    """
    others = {name: loss for name, loss in manifest.heldout.items() if name not in manifest.environments}
    losses = {name: loss for name, loss in others.items() if loss.change < -MAX_LOSS}
    certain = {name: loss for name, loss in losses.items() if loss.high is not None and loss.high < 0}
    possible = {name: loss for name, loss in losses.items() if name not in certain}
    reasons = [f"forgot {_format_changes(certain)}"] if certain else []
    reasons += [f"perhaps forgot {_format_changes(possible)}"] if possible else []
    reasons += ["was measured in no other environment"] if lacks_other_environments(manifest) else []
    state = _STATES[decision]
    if certain:
        state = AdapterState.DISCARDED
    elif reasons and state is AdapterState.PROMOTED:
        state = AdapterState.INCONCLUSIVE
    return state, "; ".join(reasons)


def _format_changes(losses: Mapping[str, RewardChange]) -> str:
    texts = [f"{name} ({100 * change.change:+.1f} points)" for name, change in losses.items()]
    return ", ".join(texts).replace("-", "−")


def lacks_other_environments(manifest: AdapterManifest) -> bool:
    """Return whether an adapter was measured only in its training environments, although others exist.

    An adapter that was trained on whole tasks is measured by the gate, whose suites hold all their families.
    """
    if WHOLE_TASKS in manifest.environments:
        return False
    other_names = {capability.name for capability in BUILT_IN_CAPABILITIES} - set(manifest.environments)
    return bool(other_names) and set(manifest.heldout) <= set(manifest.environments)


def _adapter_name(run_verdict: RunVerdict) -> str:
    """Return the name of the candidate's own adapter; empty if it has none."""
    name = run_verdict.candidate.id.partition(ADAPTER_SEPARATOR)[2]
    return "" if name == ROUTED else name


def check_adapter_losses(project: Project, run_verdict: RunVerdict) -> None:
    """Check that a promoted run's adapter lost no other capability, which the gate cannot see.

    Raises:
        AdapterError: the adapter is gone or damaged.
        ConfigError: the adapter lost reward elsewhere, or was measured in no other environment.
    """
    name = _adapter_name(run_verdict)
    if not name:
        return
    state, reason = adapter_state(gate_decision(run_verdict), project.adapters[name].manifest)
    if state is not AdapterState.PROMOTED:
        raise ConfigError(
            f"adapters/{name}: run {run_verdict.run} was promoted by the gate, but the adapter {reason}, "
            f"so it is {state.value}; train an adapter that is measured elsewhere and keeps its other "
            "capabilities"
        )


def record_adapter_verdict(project: Project, run_verdict: RunVerdict) -> Adapter | None:
    """Write a run's verdict into the manifest of its candidate's adapter.

    Returns:
        The adapter with its new state; None if the candidate has no adapter of its own.

    Raises:
        AdapterError: the adapter is gone or damaged.
        CandidateError: the candidate's file is gone or broken.
        ResultsError: the candidate or the adapter has changed since the run.
        OSError: the manifest cannot be written.
    """
    name = _adapter_name(run_verdict)
    if not name:
        return None
    adapter = project.adapters[name]
    current_digest = project.candidates[run_verdict.candidate.id].digest
    if current_digest != run_verdict.candidate.digest:
        raise ResultsError(
            f"{adapter.path}: it, or the candidate's text, has changed since run {run_verdict.run}: it was "
            f"{run_verdict.candidate.digest} and is {current_digest}; run it again"
        )
    decision = gate_decision(run_verdict)
    state, reason = adapter_state(decision, adapter.manifest)
    baselines = [suite.baseline for suite in run_verdict.suites.values() if suite.baseline is not None]
    verdict = AdapterVerdict(
        decision=decision or Decision.INCONCLUSIVE,
        run=run_verdict.run,
        candidate=run_verdict.candidate.id,
        baseline=", ".join(sorted({baseline.name for baseline in baselines})),
        policy=run_verdict.policy,
        why=reason,
        time=run_verdict.time,
    )
    manifest = adapter.manifest.model_copy(update={"state": state, "verdict": verdict})
    write_atomic(adapter.path / MANIFEST_NAME, manifest.model_dump_json(indent=1) + "\n")
    return project.adapters[name]
