"""`verdict.json` and the compact evidence beside it: all that CI and `promote` need of a gated run.

Baselines that a run was asked to save: what can be refused before it, and what is written at its end.
"""

import json
from collections.abc import Iterable
from pathlib import Path

from pydantic import ValidationError

from pytest_trace2evolve.errors import ResultsError
from pytest_trace2evolve.evidence.baselines import evidence_digest, read_evidence, write_evidence
from pytest_trace2evolve.evidence.integrity import VERDICT_NAME, edited_baseline, evidence_place
from pytest_trace2evolve.evidence.results import decode
from pytest_trace2evolve.evidence.saving import SaveMode, other_trials, save, unmergeable
from pytest_trace2evolve.gate.decide import worst
from pytest_trace2evolve.records.verdict import (
    RUN_VERDICT_SCHEMA,
    BaselineUsed,
    Decision,
    EvidenceKept,
    RunVerdict,
    SuiteVerdict,
)
from pytest_trace2evolve.session.access_log import Looks
from pytest_trace2evolve.session.baselines import Baseline
from pytest_trace2evolve.session.plan import Plan
from pytest_trace2evolve.session.provenance import provenance_of
from pytest_trace2evolve.session.verdicts import SuiteOutcome, SuiteRun, compared, evidence
from pytest_trace2evolve.utils.files import write_atomic
from pytest_trace2evolve.utils.reading import problem_in


def keep_evidence(
    plan: Plan,
    runs: Iterable[SuiteRun],
    outcomes: Iterable[SuiteOutcome],
    *,
    stopped: str,
    others_failed: bool,
) -> RunVerdict | None:
    """Write a gated run's evidence into its folder, and make the verdict that speaks of it.

    Args:
        plan: The run's plan; nothing is written where its gate is off.
        runs: What came in, a suite each.
        outcomes: What came of it, in the same order.
        stopped: Why the session ended before its time; empty where it did not.
        others_failed: Whether an item that is no task of a suite failed.

    Returns:
        The verdict, for `write_verdict`; None if the gate is off.

    Raises:
        OSError: something could not be written; then there is no verdict.
    """
    if plan.policy is None:
        return None
    suites = {
        run.planned.name: _suite(plan, run, outcome) for run, outcome in zip(runs, outcomes, strict=True)
    }
    decision = worst(suite.verdict for suite in suites.values())
    return RunVerdict(
        run=plan.run_id,
        time=plan.started,
        verdict=Decision.INCONCLUSIVE if decision is None and stopped else decision,
        partial=bool(stopped) or not all(suite.whole for suite in suites.values()),
        stopped=stopped,
        others_failed=others_failed,
        policy=plan.policy.name,
        goal=plan.goal,
        candidate=plan.candidate.ref(),
        suites=suites,
    )


def write_verdict(folder: Path, record: RunVerdict) -> None:
    """Write a run's verdict into its folder.

    Raises:
        OSError: it could not be written; then there is no verdict.
    """
    text = json.dumps(record.model_dump(mode="json"), indent=1, ensure_ascii=False, allow_nan=False)
    write_atomic(folder / VERDICT_NAME, text + "\n")


def read_verdict(folder: Path) -> RunVerdict:
    """Read a run's verdict.

    Raises:
        ResultsError: there is none, or it is damaged, of another version, or at odds with itself.
    """
    path = folder / VERDICT_NAME
    if not path.exists():
        raise ResultsError(
            f"{folder}: holds no {VERDICT_NAME}: it is no gated run, or its verdict does not count"
        )
    record = decode(path)
    version = record.get("schema_version") if isinstance(record, dict) else None
    if version != RUN_VERDICT_SCHEMA:
        raise ResultsError(
            f"{path}: format {version!r} is not {RUN_VERDICT_SCHEMA}, the one this version reads"
        )
    try:
        verdict = RunVerdict.model_validate_json(json.dumps(record))
    except ValidationError as error:
        raise ResultsError(f"{path}: damaged at {problem_in(error)}; run it again") from None
    _refuse_contradictions(path, verdict)
    return verdict


def _refuse_contradictions(path: Path, record: RunVerdict) -> None:
    """A verdict that its own parts do not bear out was edited."""
    for name, suite in record.suites.items():
        try:
            parts = [Decision(one["verdict"]) for one in suite.verdicts if one["verdict"] is not None]
        except (KeyError, ValueError) as error:
            raise ResultsError(f"{path}: damaged at suites.{name}.verdicts: {error}; run it again") from None
        if worst(parts) != suite.verdict:
            raise _edited(path, f"suite {name!r} says {_word(suite.verdict)}", worst(parts))
    whole = worst(suite.verdict for suite in record.suites.values())
    if whole != record.verdict and not (whole is None and record.stopped):
        raise _edited(path, f"the run says {_word(record.verdict)}", whole)


def _edited(path: Path, says: str, parts: Decision | None) -> ResultsError:
    return ResultsError(f"{path}: {says}, and its parts {_word(parts)}: it was edited; run it again")


def _word(decision: Decision | None) -> str:
    return decision.value if decision else "nothing"


def _suite(plan: Plan, run: SuiteRun, outcome: SuiteOutcome) -> SuiteVerdict:
    planned = run.planned
    measured = evidence(plan, run)
    place = evidence_place(planned.name)
    write_evidence(plan.run_folder / place, measured)
    return SuiteVerdict(
        verdict=outcome.decision,
        reason=outcome.reason,
        whole=outcome.whole and not any(verdict.partial for verdict in outcome.verdicts),
        lock=planned.lock.digest,
        baseline=None if planned.baseline is None else _used(planned.baseline, plan.project.root),
        evidence=EvidenceKept(path=place, digest=evidence_digest(measured)),
        verdicts=tuple(verdict.to_json() for verdict in outcome.verdicts),
        compared=compared(plan, planned),
    )


def _used(baseline: Baseline, root: Path) -> BaselineUsed:
    place = None
    if baseline.path is not None and baseline.path.is_relative_to(root):
        place = baseline.path.relative_to(root).as_posix()
    return BaselineUsed(name=baseline.name, digest=baseline.digest, path=place)


def refuse_unmergeable(plan: Plan, looks: Looks) -> None:
    """Refuse before a run to add to baselines that were edited or are not comparable with it.

    Raises:
        ResultsError: a baseline was edited, or something differs; names the file, the field and both values.
    """
    if plan.saving is None or plan.saving.mode is not SaveMode.NEW_ONLY:
        return
    for name in plan.saving.before:
        planned = plan.suites[name]
        path = plan.project.baseline_path(name, plan.saving.name)
        old = read_evidence(path)
        if edited := edited_baseline(looks.entries, name, plan.saving.name, path, old):
            raise ResultsError(str(edited))
        found = list(unmergeable(old, provenance_of(plan, planned), planned.lock.tasks))
        lacking = planned.lock.tasks.keys() - {record.task_id for record in old.simulations}
        if lacking and (unequal := other_trials(old, max(planned.trials_of(one) for one in lacking))):
            found.append(unequal)
        if found:
            raise ResultsError(f"{path}: this run cannot be added to it: {'; '.join(found)}")


def save_baseline(plan: Plan, run: SuiteRun, outcome: SuiteOutcome, looks: Looks) -> str:
    """Save one suite's baseline and record it in the ledger; returns what was done, or why not, for the user.

    Raises:
        OSError: the file or the ledger's entry could not be written.
    """
    assert plan.saving is not None
    saving = plan.saving
    path = plan.project.baseline_path(outcome.name, saving.name)
    if not outcome.whole or not run.records:
        return f"baseline {saving.name!r} of {outcome.name} was not saved: the run is partial"
    try:
        done = save(
            path,
            evidence(plan, run),
            saving.mode,
            before=saving.before.get(outcome.name),
            tasks=run.planned.lock.tasks,
            root=plan.project.root,
        )
    except ResultsError as error:
        return f"baseline {saving.name!r} of {outcome.name} was not saved: {error}"
    if done.written is not None:
        looks.record_saved(outcome.name, saving.name, done.written, saving.before.get(outcome.name))
    return f"baseline {done.text}: {path.relative_to(plan.project.root)}"
