"""Stored runs: their verdicts, and the list of them."""

import json
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from pytest_trace2evolve.errors import ResultsError
from pytest_trace2evolve.evidence.ledger import VERDICT_NAME
from pytest_trace2evolve.evidence.results import ResultsFile, decode_results
from pytest_trace2evolve.gate.decide import worst_decision
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.records.verdict import (
    RUN_VERDICT_SCHEMA,
    Decision,
    RunVerdict,
)
from pytest_trace2evolve.session.evidence_sources import expand_run_folders, file_provenance
from pytest_trace2evolve.utils.files import write_atomic
from pytest_trace2evolve.utils.reading import first_problem


def write_verdict(folder: Path, run_verdict: RunVerdict) -> None:
    """Write a run's verdict into its folder.

    Raises:
        OSError: the file could not be written, so there is no verdict.
    """
    text = json.dumps(run_verdict.model_dump(mode="json"), indent=1, ensure_ascii=False, allow_nan=False)
    write_atomic(folder / VERDICT_NAME, text + "\n")


def read_verdict(folder: Path) -> RunVerdict:
    """Read a run's verdict.

    Raises:
        ResultsError: the verdict is missing, damaged, of a different version, or contradicts its own parts.
    """
    path = folder / VERDICT_NAME
    if not path.exists():
        raise ResultsError(
            f"{folder}: holds no {VERDICT_NAME}: the run was not gated, or its verdict does not count"
        )
    json_value = decode_results(path)
    version = json_value.get("schema_version") if isinstance(json_value, dict) else None
    if version != RUN_VERDICT_SCHEMA:
        raise ResultsError(
            f"{path}: format {version!r} is not {RUN_VERDICT_SCHEMA}, which this version reads"
        )
    try:
        verdict = RunVerdict.model_validate_json(json.dumps(json_value))
    except ValidationError as error:
        raise ResultsError(f"{path}: damaged at {first_problem(error)}; run it again") from None
    _check_parts(path, verdict)
    return verdict


def _check_parts(path: Path, run_verdict: RunVerdict) -> None:
    """Reject an edited verdict, which contradicts its own parts."""
    for name, suite in run_verdict.suites.items():
        try:
            decisions = [Decision(part["verdict"]) for part in suite.verdicts if part["verdict"] is not None]
        except (KeyError, ValueError) as error:
            raise ResultsError(f"{path}: damaged at suites.{name}.verdicts: {error}; run it again") from None
        if worst_decision(decisions) != suite.verdict:
            raise _edited_error(
                path, f"suite {name!r} says {_decision_word(suite.verdict)}", worst_decision(decisions)
            )
    run_decision = worst_decision(suite.verdict for suite in run_verdict.suites.values())
    if run_decision != run_verdict.verdict and not (run_decision is None and run_verdict.stopped):
        raise _edited_error(path, f"the run says {_decision_word(run_verdict.verdict)}", run_decision)


def _edited_error(path: Path, claim: str, worst_part: Decision | None) -> ResultsError:
    return ResultsError(
        f"{path}: {claim}, but its parts say {_decision_word(worst_part)}; it was edited, so run it again"
    )


def _decision_word(decision: Decision | None) -> str:
    return decision.value if decision else "nothing"


@dataclass(frozen=True)
class RunFacts:
    """Facts about one run, as `trace2evolve show` lists them.

    Attributes:
        time: The start time (ISO 8601); None if it was not recorded.
        decision: The gate's decision; None if there is none, for the reason in `reason`.
        labels: The labels of the evidence on which the decision is based.
        error: Why the run could not be read, so that only `run` is known; empty if it could be read.
    """

    run: str
    time: str | None = None
    candidate: str | None = None
    suites: tuple[str, ...] = ()
    decision: str | None = None
    reason: str = ""
    labels: tuple[str, ...] = ()
    error: str = ""


def list_runs(project: Project) -> list[RunFacts]:
    """Return all runs of a project, the latest first; a damaged run is listed with its error."""
    return [_run_facts(path) for path in reversed(run_folders(project))]


def _run_facts(folder: Path) -> RunFacts:
    try:
        return _gated_run_facts(folder) if (folder / VERDICT_NAME).exists() else _ungated_run_facts(folder)
    except ResultsError as error:
        return RunFacts(folder.name, error=str(error))


def _gated_run_facts(folder: Path) -> RunFacts:
    run_verdict = read_verdict(folder)
    deciding_verdicts = [
        verdict
        for suite in run_verdict.suites.values()
        for verdict in suite.verdicts
        if verdict["verdict"] is not None and verdict.get("guard") is None
    ]
    reasons = dict.fromkeys(suite.reason for suite in run_verdict.suites.values() if suite.reason)
    return RunFacts(
        folder.name,
        run_verdict.time,
        run_verdict.candidate.id,
        tuple(run_verdict.suites),
        None if run_verdict.verdict is None else run_verdict.verdict.value,
        run_verdict.stopped or "; ".join(reasons),
        tuple(dict.fromkeys(str(verdict.get("label")) for verdict in deciding_verdicts)),
    )


def _ungated_run_facts(folder: Path) -> RunFacts:
    """Return the facts of a run from the paths of its results, without reading the simulations."""
    paths = [path / "results.json" for path in expand_run_folders([folder])]
    origins = [
        file_provenance(ResultsFile(path, header if isinstance(header, dict) else {}, {}, ()))
        for path in paths
        if path.exists()
        for header in [decode_results(path)]
    ]
    if not origins:
        return RunFacts(folder.name, reason="not finished")
    first_origin = origins[0]
    return RunFacts(
        folder.name,
        first_origin.created_at,
        first_origin.candidate.id if first_origin.candidate else None,
        tuple(origin.suite for origin in origins if origin.suite is not None),
        reason="not gated",
    )


def run_folders(project: Project) -> list[Path]:
    """Return the folders of the project's runs, the oldest first."""
    folder = project.runs_folder
    paths = [path for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []
    return sorted(paths, key=lambda path: path.name)
