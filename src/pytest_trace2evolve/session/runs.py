"""Lists a project's runs, with their candidates, suites, times and decisions."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pytest_trace2evolve.errors import ResultsError
from pytest_trace2evolve.evidence.integrity import VERDICT_NAME
from pytest_trace2evolve.evidence.results import ResultsFile, decode_results
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.session.evidence_sources import expand_run_folders, file_provenance
from pytest_trace2evolve.session.run_verdict import read_verdict


@dataclass(frozen=True)
class RunFacts:
    """Facts about one run, as `trace2evolve runs` reports them.

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

    def to_json(self) -> dict[str, Any]:
        """Return the documented JSON form."""
        return {**asdict(self), "suites": list(self.suites), "labels": list(self.labels)}


def list_runs(project: Project) -> list[RunFacts]:
    """Return all runs of a project, the latest first; a damaged run is listed with its error."""
    folder = project.runs_folder
    folders = [path for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []
    return [_run_facts(path) for path in sorted(folders, key=lambda path: path.name, reverse=True)]


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
