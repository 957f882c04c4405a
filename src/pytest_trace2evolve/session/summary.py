"""Sums a run up, and names what the change does to the evidence that judges it."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pytest_trace2evolve.errors import Trace2EvolveError
from pytest_trace2evolve.evidence.baselines import read_evidence
from pytest_trace2evolve.project.lock import lock_differences
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.project.pytest_ini import ini_words
from pytest_trace2evolve.records.verdict import Decision, RunSummary, SuiteSummary
from pytest_trace2evolve.scoring.metrics import trials_by_task
from pytest_trace2evolve.session.plan import Plan
from pytest_trace2evolve.session.verdicts import SuiteOutcome
from pytest_trace2evolve.utils.git import checked_out

MAX_NAMES = 8
"""Maximum number of tasks or files that a line names."""

_REMOVED = " was removed from "


def evidence_changes(project: Project, commit: str) -> tuple[str, ...]:
    """Name the differences from a commit in tasks, locks, baselines, policies and checks, a line each.

    Removed tasks come first in each suite. A saved baseline is named with its old and new reward, and with
    the tasks that are now easier to pass, because the baseline fails them more often or lacks them.
    """
    try:
        root, _ = checked_out(project.root, commit)
        folder = project.suites_folder.relative_to(project.tasks_root)
        old = Project(root=root, suites_folder=root / folder)
        new = Project(root=project.root, suites_folder=project.root / folder)
        return (*_suite_changes(old, new), *_policy_changes(old, new))
    except Trace2EvolveError as error:
        return (f"the tasks and baselines of commit {commit[:12]} cannot be compared: {error}",)


def _suite_changes(old: Project, new: Project) -> Iterator[str]:
    for suite in sorted(old.lock.suites.keys() | new.lock.suites.keys()):
        old_lock, new_lock = (project.lock.suites.get(suite) for project in (old, new))
        if old_lock is None or new_lock is None:
            yield f"suite {suite} {'is new' if old_lock is None else 'was removed'}"
        elif differences := sorted(
            lock_differences(old_lock, new_lock), key=lambda text: _REMOVED not in text
        ):
            yield f"suite {suite}: {_list(differences, '; ')}"
        for name in sorted({*old.baseline_names(suite), *new.baseline_names(suite)}):
            paths = [project.baseline_path(suite, name) for project in (old, new)]
            if text := _baseline_change(*paths):
                yield f"baseline {suite}/{name} {text}"


def _baseline_change(old_path: Path, new_path: Path) -> str:
    """Return how a baseline changed, with its rewards; empty if it did not."""
    if not new_path.exists():
        return "was removed"
    new = _rewards(new_path)
    if not old_path.exists():
        return f"is new: reward {_mean_text(new)} over tasks: {len(new)}"
    if old_path.read_bytes() == new_path.read_bytes():
        return ""
    old = _rewards(old_path)
    text = f"was saved again: reward {_mean_text(old)} → {_mean_text(new)}"
    easier = [
        f"{task} {reward:.3f} → {f'{new[task]:.3f}' if task in new else 'removed'}"
        for task, reward in old.items()
        if new.get(task, -1.0) < reward
    ]
    return text + (f"; easier to pass now: {_list(easier)}" if easier else "")


def _rewards(path: Path) -> dict[str, float]:
    """Return the mean reward of each task of a baseline that has one."""
    trials = trials_by_task(read_evidence(path).simulations)
    return {task: group.reward for task, group in trials.items() if group.reward is not None}


def _mean_text(rewards: Mapping[str, float]) -> str:
    return f"{sum(rewards.values()) / len(rewards):.3f}" if rewards else "not measured"


def _list(names: Sequence[str], separator: str = ", ") -> str:
    rest = f" and {len(names) - MAX_NAMES} more" if names[MAX_NAMES:] else ""
    return separator.join(names[:MAX_NAMES]) + rest


def _policy_changes(old: Project, new: Project) -> Iterator[str]:
    files = [_judging_files(project) for project in (old, new)]
    if names := [name for name in sorted({*files[0], *files[1]}) if files[0].get(name) != files[1].get(name)]:
        yield f"policies or checks differ: {_list(names)}"
    gates = [ini_words(project.root, "t2e_gate") for project in (old, new)]
    if gates[0] != gates[1]:
        yield f"the setting t2e_gate differs: {' '.join(gates[0])!r} → {' '.join(gates[1])!r}"


def _judging_files(project: Project) -> dict[str, bytes]:
    """Return the contents of the policies and of the module of the project's own checks, by path."""
    module = (project.settings.checks or "").partition(":")[0].replace(".", "/")
    paths = [*project.policies_folder.glob("*.toml")]
    paths += [project.root / f"{module}{suffix}" for suffix in (".py", "/__init__.py") if module]
    return {path.relative_to(project.root).as_posix(): path.read_bytes() for path in paths if path.is_file()}


COPY_NOTE = "suites or tasks differ: the tasks of the commit are compared, and new ones only measured"


def summarize_run(
    plan: Plan,
    outcomes: Sequence[SuiteOutcome],
    *,
    notes: Sequence[str],
    decision: Decision | None,
    trouble: str = "",
    used: str = "",
    command: tuple[str, ...] = (),
    against: str | None = None,
) -> RunSummary:
    """Return the summary of a run.

    Args:
        notes: Notes for the user, a line each.
        decision: The verdict over all suites.
        trouble: Why the run decides nothing; empty if it decides.
        used: The usage of the run's models.
        command: The command that started the run.
        against: The commit with which the evidence that judges the run is compared; None for no commit.
    """
    suites = []
    for outcome in outcomes:
        planned = plan.suites[outcome.name]
        baseline, tasks = planned.baseline, 0
        if baseline is not None and baseline.is_saved and planned.recorded_runs is None:
            measured = baseline.evidence.provenance.candidate
            tasks = len(planned.lock.tasks) if measured and measured.id == baseline.name else 0
        suites.append(
            SuiteSummary(
                name=outcome.name,
                baseline=None if baseline is None else baseline.name,
                tasks=tasks,
                reason=outcome.reason,
                verdicts=outcome.verdicts,
                left_out=outcome.left_out,
                compared=outcome.compared,
            )
        )
    root, folder = plan.project.root, plan.run_folder
    return RunSummary(
        candidate=plan.candidate.id,
        decision=decision,
        trouble=trouble,
        suites=tuple(suites),
        changes=() if against is None else evidence_changes(plan.project, against),
        notes=(*notes, COPY_NOTE) if plan.project.tasks_root != plan.project.root else tuple(notes),
        used=used,
        command=command,
        reuses=plan.live is not None and plan.live.function is None and not plan.is_fresh,
        run_id=plan.run_id,
        evidence=str(folder.relative_to(root) if folder.is_relative_to(root) else folder),
    )
