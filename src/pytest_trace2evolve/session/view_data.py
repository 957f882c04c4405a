"""Gathers what `trace2evolve view` shows of a project: verdicts, candidates and running sessions."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pytest_trace2evolve.errors import ResultsError, Trace2EvolveError
from pytest_trace2evolve.evidence.baselines import read_evidence
from pytest_trace2evolve.evidence.integrity import VERDICT_NAME, evidence_file_path
from pytest_trace2evolve.evidence.results import SIMULATIONS_KEY, decode_results
from pytest_trace2evolve.project.candidates import Candidate
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.records.evidence import Evidence
from pytest_trace2evolve.records.task import natural_sort_key
from pytest_trace2evolve.records.verdict import CheckResult, Interval
from pytest_trace2evolve.scoring.metrics import Trials, is_success
from pytest_trace2evolve.session.run_verdict import read_verdict

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
        columns[name] = CandidateColumn(name, run, _trials_by_task(evidence))


def _trials_by_task(evidence: Evidence) -> dict[str, Trials]:
    records: dict[str, list[Any]] = {}
    for record in evidence.simulations:
        records.setdefault(record.task_id, []).append(record)
    return {task: Trials(tuple(records[task])) for task in sorted(records, key=natural_sort_key)}


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
