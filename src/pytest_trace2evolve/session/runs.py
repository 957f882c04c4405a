"""Stored runs: their verdicts, the list of them, and what `show --serve` shows."""

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pytest_trace2evolve.errors import ResultsError, Trace2EvolveError
from pytest_trace2evolve.evidence.baselines import read_evidence
from pytest_trace2evolve.evidence.ledger import VERDICT_NAME, evidence_file_path
from pytest_trace2evolve.evidence.results import SIMULATIONS_KEY, ResultsFile, decode_results
from pytest_trace2evolve.gate.decide import worst_decision
from pytest_trace2evolve.project.candidates import Candidate
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.records.task import natural_sort_key
from pytest_trace2evolve.records.verdict import (
    RUN_VERDICT_SCHEMA,
    CheckResult,
    Decision,
    Interval,
    RunVerdict,
)
from pytest_trace2evolve.scoring.metrics import Trials, is_success, trials_by_task
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
        _check_worst(path, f"suite {name!r}", suite.verdict, worst_decision(decisions))
    run_decision = worst_decision(suite.verdict for suite in run_verdict.suites.values())
    if run_decision is not None or not run_verdict.stopped:
        _check_worst(path, "the run", run_verdict.verdict, run_decision)


def _check_worst(path: Path, subject: str, claimed: Decision | None, worst_part: Decision | None) -> None:
    if claimed != worst_part:
        words = [decision.value if decision else "nothing" for decision in (claimed, worst_part)]
        raise ResultsError(
            f"{path}: {subject} says {words[0]}, but its parts say {words[1]}; it was edited, so run it again"
        )


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


MAX_COLUMNS = 12
"""Maximum number of candidates in the table of a suite, the latest first."""

MAX_IDLE_SECONDS = 900
"""A session without a result is running if it stored a simulation in this time."""


@dataclass(frozen=True)
class RecordedVerdict:
    """The recorded verdict of a run on a split.

    Attributes:
        rewards: The mean rewards of the baseline and of the candidate.
        change: The check of the reward; None if the policy has none.
        pass_rate: The candidate's pass^1 with its interval; None if it was not measured.
    """

    run: str
    time: str
    candidate: str
    baseline: str
    suite: str
    split: str
    decision: str
    label: str
    rewards: tuple[float | None, float | None]
    change: CheckResult | None
    pass_rate: Interval | None


@dataclass(frozen=True)
class CandidateColumn:
    """The trials of a candidate's latest run of a suite, or of a saved baseline, by task."""

    name: str
    run: str
    trials: Mapping[str, Trials]

    @property
    def reward(self) -> float | None:
        """The mean over tasks of the mean reward of their trials; None if nothing was measured."""
        rewards = [trials.reward for trials in self.trials.values() if trials.reward is not None]
        return sum(rewards) / len(rewards) if rewards else None

    def mean(self, name: str) -> float | None:
        """The mean cost or tokens of a simulation; None if no simulation records it."""
        records = [record for trials in self.trials.values() for record in trials.records]
        values = [
            record.cost if name == "cost" else sum(usage.tokens for usage in record.usage.values()) or None
            for record in records
        ]
        known = [value for value in values if value is not None]
        return sum(known) / len(known) if known else None


def recorded_verdicts(project: Project) -> Iterator[RecordedVerdict]:
    """Yield the recorded verdicts of all runs, the latest run first. Damaged runs are left out."""
    for folder in reversed(run_folders(project)):
        if not (folder / VERDICT_NAME).exists():
            continue
        try:
            run = read_verdict(folder)
            for name, suite in run.suites.items():
                for verdict in suite.verdicts:
                    baseline = suite.baseline.name if suite.baseline else ""
                    yield _recorded_verdict(
                        verdict,
                        {"run": folder.name, "time": run.time, "candidate": run.candidate.id}
                        | {"suite": name, "baseline": baseline},
                    )
        except (ResultsError, ValidationError, KeyError, TypeError, AttributeError):
            continue  # the list of runs names the damage


def _recorded_verdict(verdict: Mapping[str, Any], facts: Mapping[str, Any]) -> RecordedVerdict:
    checks = [CheckResult.model_validate(check) for check in verdict["checks"]]
    rewards = [check for check in checks if check.id.startswith("reward") and check.estimate is not None]
    pass_rate = verdict["candidate"].get("pass_hat", {}).get("1")
    return RecordedVerdict(
        **facts,
        split=verdict.get("split") or "",
        decision=verdict["verdict"] or verdict.get("guard") or "",
        label=str(verdict.get("label")),
        rewards=(verdict["baseline"].get("reward"), verdict["candidate"].get("reward")),
        change=rewards[0] if rewards else None,
        pass_rate=Interval.model_validate(pass_rate) if pass_rate else None,
    )


def run_folders(project: Project) -> list[Path]:
    """Return the folders of the project's runs, the oldest first."""
    folder = project.runs_folder
    paths = [path for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []
    return sorted(paths, key=lambda path: path.name)


def candidate_columns(project: Project, suite: str) -> list[CandidateColumn]:
    """Return each candidate's latest gated run of a suite, and saved baselines of other candidates."""
    columns: dict[str, CandidateColumn] = {}
    for folder in reversed(run_folders(project)):
        path = folder / evidence_file_path(suite)
        if len(columns) < MAX_COLUMNS and path.exists() and _candidate_of(folder) not in columns:
            _add_column(columns, path, folder.name)
    for name in project.baseline_names(suite):
        if len(columns) < MAX_COLUMNS:
            _add_column(columns, project.baseline_path(suite, name), f"baseline {name}")
    return list(columns.values())


def _candidate_of(folder: Path) -> str:
    try:
        return read_verdict(folder).candidate.id
    except ResultsError:
        return ""


def _add_column(columns: dict[str, CandidateColumn], path: Path, run: str) -> None:
    try:
        evidence = read_evidence(path)
    except Trace2EvolveError:
        return  # `trace2evolve check` names the damage
    origin = evidence.provenance
    name = origin.candidate.id if origin.candidate else origin.agent.model or run
    if name not in columns and evidence.simulations:
        trials = trials_by_task(evidence.simulations)
        columns[name] = CandidateColumn(
            name, run, {task: trials[task] for task in sorted(trials, key=natural_sort_key)}
        )


def candidate_tree(project: Project) -> list[tuple[int, Candidate]]:
    """Return the candidates with their depths, each after its parent. Invalid files are left out."""
    found: dict[str, Candidate] = {}
    for name in project.candidates:
        try:
            found[name] = project.candidates[name]
        except (KeyError, Trace2EvolveError):
            continue
    rows: list[tuple[int, Candidate]] = []
    seen: set[str] = set()

    def add(name: str, depth: int) -> None:
        if name not in seen:
            seen.add(name)
            rows.append((depth, found[name]))
            for child in sorted(child for child in found if found[child].parent == name):
                add(child, depth + 1)

    for name, candidate in found.items():
        if candidate.parent not in found:
            add(name, 0)
    for name in found:  # parents that form a cycle
        add(name, 0)
    return rows


@dataclass
class RunningSessions:
    """Counts the stored simulations of sessions without a result. Each simulation's file is read once."""

    project: Project
    _outcomes: dict[Path, str] = field(default_factory=dict)

    def read(self) -> list[dict[str, Any]]:
        """Return each running session's name and its numbers of passed, failed and lost simulations."""
        sessions = []
        for folder in reversed(run_folders(self.project)[-20:]):
            if (folder / VERDICT_NAME).exists() or (folder / "results.json").exists():
                continue
            parts = [folder, *(path for path in folder.iterdir() if path.is_dir())]
            if any((part / "results.json").exists() for part in parts):
                continue
            files = [path for part in parts for path in (part / SIMULATIONS_KEY).glob("*.json")]
            latest = max((path.stat().st_mtime for path in [folder, *files]), default=0.0)
            if time.time() - latest < MAX_IDLE_SECONDS:
                outcomes = [self._outcome(path) for path in files]
                counts = {name: outcomes.count(name) for name in ("passed", "failed", "lost")}
                sessions.append({"run": folder.name, **counts})
        return sessions

    def _outcome(self, path: Path) -> str:
        if path not in self._outcomes:
            try:
                content = decode_results(path)
            except ResultsError:
                return ""
            info = content.get("reward_info") if isinstance(content, dict) else None
            reward = info.get("reward") if isinstance(info, dict) else None
            is_measured = isinstance(reward, int | float)
            is_passed = isinstance(reward, int | float) and is_success(reward)
            self._outcomes[path] = "passed" if is_passed else "failed" if is_measured else "lost"
        return self._outcomes[path]
