"""Plans the pytest sessions that gate everything that differs from a commit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.evidence.baselines import read_evidence
from pytest_trace2evolve.project.candidates import Candidates
from pytest_trace2evolve.project.own_scaffold import is_below_pytest_settings
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.records.verdict import Goal
from pytest_trace2evolve.session.inventory import SHARED, changed_names, read_inventory
from pytest_trace2evolve.utils.git import checked_out, git_text

SavedCandidates = Mapping[str, Mapping[str, str]]
"""The candidates that have a saved baseline, with the times of their measurements, by suite."""


@dataclass(frozen=True)
class GatePlan:
    """The sessions that gate a change.

    Attributes:
        commit: The commit that the change starts from.
        reasons: The files and parts that differ, by the candidate that is gated for them.
        commands: The command of each candidate's session.
        notes: Notes for the user, a line each.
    """

    commit: str
    reasons: Mapping[str, Sequence[str]]
    commands: Mapping[str, Sequence[str]]
    notes: Sequence[str]


def plan_gate(project: Project, base: str, options: Sequence[str]) -> GatePlan:
    """Plan the sessions that gate everything that differs from a commit.

    Args:
        base: The commit or branch into which the change is merged. The commit at which the change left it is
            compared with the files as they are now.
        options: Further options of pytest.

    Raises:
        ConfigError: git cannot find the commit, or a file of the project is invalid.
        CandidateError, SuiteError: a candidate or a suite is invalid.
    """
    commit = (git_text(project.root, "merge-base", "--", base, "HEAD") or "").strip()
    if not commit:
        raise ConfigError(
            f"--against {base!r}: git finds no common commit of it and HEAD in {project.root}; fetch it with "
            "its history (in a workflow: fetch-depth: 0), or name a different one"
        )
    base_root, _ = checked_out(project.root, commit)
    old, new = read_inventory(base_root), read_inventory(project.root)
    for name in project.suite_names:
        project.suite(name)  # read here for its errors, like the candidates below
    saved = _saved_candidates(project, base_root)
    shared = changed_names(old, new, SHARED)
    reasons: dict[str, list[str]] = {}
    suites: dict[str, list[str]] = {}
    for name in project.candidates:
        key = f"candidate {name}"
        if names := changed_names(old, new, key) if key in old else ["new"]:
            reasons[name] = names
    for suite, name in _promoted_candidates(saved, project.candidates).items():
        if names := [*shared, *changed_names(old, new, f"suite {suite}")]:
            # A changed candidate or agent is gated on all suites.
            if not shared and (name in suites or name not in reasons):
                suites.setdefault(name, []).append(suite)
            reasons[name] = list(dict.fromkeys([*reasons.get(name, ()), *names]))
    notes = [f"{key} was removed" for key in old if key not in new]
    if not saved:
        notes.append(f"commit {commit[:12]} has no saved baseline, so only changed candidates are gated")
    commands = {}
    for name in reasons:
        suite_options = [f"--t2e-suite={suite}" for suite in suites.get(name, ())]
        commands[name] = _command(project, name, saved, commit, [*suite_options, *options])
    return GatePlan(commit, reasons, commands, notes)


def _command(
    project: Project, name: str, saved: SavedCandidates, commit: str, options: Sequence[str]
) -> list[str]:
    """Return the command that gates a candidate. Its claim holds until it has a baseline of its own."""
    has_baseline = any(name in candidates for candidates in saved.values())
    goal = Goal.NO_REGRESSION if has_baseline else project.candidates[name].claim or Goal.NO_REGRESSION
    rootdir = ["--rootdir", "."] if is_below_pytest_settings(project.root) else []
    against = ["--t2e-against", commit] if saved else []
    return ["pytest", *rootdir, "--candidate", name, "--t2e-goal", goal.value, *against, *options]


def _saved_candidates(project: Project, root: Path) -> dict[str, dict[str, str]]:
    """Return the candidates of the project whose baselines a folder holds."""
    saved: dict[str, dict[str, str]] = {}
    for suite in project.suite_names:
        for path in sorted((root / "baselines" / suite).glob("*.json")):
            origin = read_evidence(path).provenance
            if origin.candidate is not None and origin.candidate.id in project.candidates:
                saved.setdefault(suite, {})[origin.candidate.id] = origin.created_at or ""
    return saved


def _promoted_candidates(saved: SavedCandidates, candidates: Candidates) -> dict[str, str]:
    """Return the promoted candidate of each suite: the newest one from which no other saved one descends."""
    promoted = {}
    for suite, times in saved.items():
        ancestors = {ancestor.id for name in times for ancestor in candidates.lineage(name)[1:]}
        promoted[suite] = max(times.keys() - ancestors, key=lambda name: (times[name], name))
    return promoted
