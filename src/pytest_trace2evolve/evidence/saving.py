"""Saves baselines in one of four modes: create, replace, add new tasks, or add trials.

A run writes a baseline only if an option requests it. An existing baseline must be unchanged when the run
ends, and the new baseline names the digest of the baseline that it replaces.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from pytest_trace2evolve.errors import ConfigError, ResultsError
from pytest_trace2evolve.evidence.baselines import evidence_digest, read_evidence, write_evidence
from pytest_trace2evolve.gate.comparable import provenance_differences
from pytest_trace2evolve.gate.tallies import MIN_MEASURED
from pytest_trace2evolve.records.evidence import Evidence, Provenance, SimulationEvidence, code_differences
from pytest_trace2evolve.records.score import Status
from pytest_trace2evolve.records.task import natural_sort_key
from pytest_trace2evolve.utils.files import folder_lock

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")


class SaveMode(StrEnum):
    """The treatment of a baseline that exists already."""

    SAVE = "save"
    UPDATE = "update"
    NEW_ONLY = "new-only"
    MORE_TRIALS = "more-trials"


@dataclass(frozen=True)
class SavePlan:
    """The baselines that a run saves.

    Attributes:
        digests_before: The digests of existing baselines by suite.
        kept_tasks: In mode `new-only`, the ids of the tasks that the existing baselines hold, by suite.
        kept_trials: In mode `more-trials`, the numbers of the trials that they hold, by suite and task.
    """

    name: str
    mode: SaveMode = SaveMode.SAVE
    digests_before: Mapping[str, str] = field(default_factory=dict)
    kept_tasks: Mapping[str, Collection[str]] = field(default_factory=dict)
    kept_trials: Mapping[str, Mapping[str, Collection[int]]] = field(default_factory=dict)

    def tasks_with(self, suite: str, trials: int) -> Collection[str]:
        """Return the ids of the tasks of a suite that a run of so many trials need not run."""
        kept_trials = self.kept_trials.get(suite, {})
        complete = {task for task, numbers in kept_trials.items() if set(range(trials)) <= set(numbers)}
        return complete | set(self.kept_tasks.get(suite, ()))


class SaveResult(NamedTuple):
    """The result of a save: a text for a message, and the file's new content (None if unchanged)."""

    text: str
    new_evidence: Evidence | None = None


def validate_name(name: str, option: str) -> str:
    """Check that the value of an option can be the name of a baseline's file, and return it."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{option} {name!r}: a name must be up to 100 letters, digits, '.', '_', '-' and '+', and "
            "start with a letter or digit"
        )
    return name


def plan_save(name: str, mode: SaveMode, paths: Mapping[str, Path]) -> SavePlan:
    """Plan the save of a run, and check existing baselines. `paths` holds the file of each suite.

    Raises:
        ConfigError: a baseline exists and the mode is `save`, or lacks and the mode is `more-trials`.
        ResultsError: an existing baseline is damaged.
    """
    existing_paths = {suite: path for suite, path in paths.items() if path.exists()}
    if existing_paths and mode is SaveMode.SAVE:
        raise ConfigError(
            f"{next(iter(existing_paths.values()))} already exists; "
            "choose a different name, or give --t2e-baseline-mode update or new-only"
        )
    if mode is SaveMode.MORE_TRIALS and len(existing_paths) < len(paths):
        missing_path = next(path for suite, path in paths.items() if suite not in existing_paths)
        raise ConfigError(
            f"{missing_path} does not exist, so no trials can be added to it; name the suite with a baseline "
            f"{name!r} by --t2e-suite"
        )
    existing = {suite: read_evidence(path) for suite, path in existing_paths.items()}
    digests = {suite: evidence_digest(evidence) for suite, evidence in existing.items()}
    kept_tasks, kept_trials = {}, {}
    if mode is SaveMode.NEW_ONLY:
        kept_tasks = {suite: _tasks_of(evidence.simulations) for suite, evidence in existing.items()}
    if mode is SaveMode.MORE_TRIALS:
        kept_trials = {suite: _trials_by_task(evidence.simulations) for suite, evidence in existing.items()}
    return SavePlan(name, mode, digests, kept_tasks, kept_trials)


def save_baseline(
    path: Path,
    evidence: Evidence,
    mode: SaveMode,
    *,
    digest_before: str | None,
    tasks: Collection[str],
    root: Path,
) -> SaveResult:
    """Write one suite's baseline.

    Args:
        path: The baseline's file.
        evidence: The evidence of a whole run.
        mode: The treatment of an existing baseline.
        digest_before: Digest of the baseline that existed when the run started; None if there was none.
        tasks: The suite's tasks as locked.
        root: The project's folder, in which only one process saves at a time.

    Raises:
        ResultsError: the baseline must not be written; the message gives the reason. Nothing has changed.
        OSError: the baseline could not be written. Nothing has changed.
    """
    with folder_lock(root):
        current = read_evidence(path) if path.exists() else None
        current_digest = None if current is None else evidence_digest(current)
        if current_digest is not None and (digest_before is None or mode is SaveMode.SAVE):
            raise ResultsError("another run saved it first")
        if current_digest != digest_before:
            change = "no longer exists" if current_digest is None else f"is now {current_digest}"
            raise ResultsError(f"it changed during the run: it was {digest_before} but {change}")
        action = "saved"
        if current is not None and mode is SaveMode.UPDATE:
            evidence, action = _replacement_evidence(current, evidence, tasks), "updated"
        elif current is not None and mode is SaveMode.MORE_TRIALS:
            evidence, action = _add_trials(current, evidence)
        elif current is not None:
            evidence, action = _add_new_tasks(current, evidence)
        if evidence is current:
            return SaveResult(action)
        write_evidence(path, evidence, exclusive=current is None)
        return SaveResult(action, evidence)


def _replacement_evidence(old: Evidence, new: Evidence, tasks: Collection[str]) -> Evidence:
    """Return the evidence that replaces a baseline. Raises a ResultsError if too much is missing."""
    measured_count = sum(record.status is Status.MEASURED for record in new.simulations)
    if measured_count < MIN_MEASURED * len(new.simulations) or not measured_count:
        raise ResultsError(
            f"only {measured_count} of {len(new.simulations)} simulations were measured, "
            f"but a baseline is replaced only if at least {MIN_MEASURED:.0%} were"
        )
    missing_tasks = _tasks_of(old.simulations) & set(tasks) - _tasks_of(new.simulations)
    if missing_tasks:
        raise ResultsError(
            f"this run did not measure {_format_tasks(missing_tasks)}, which the baseline contains; "
            "run the whole suite, or add to it with --t2e-baseline-mode new-only"
        )
    return _with_lineage(new, new.provenance, old)


def _add_new_tasks(old: Evidence, new: Evidence) -> tuple[Evidence, str]:
    """Add the tasks that a baseline lacks; return the evidence and a text about the added tasks.

    Without new tasks, `old` itself is returned. The baseline's own records stay. A task with a lost trial is
    not added, because nothing could complete it later.

    Raises:
        ResultsError: the run is not comparable with the baseline, or ran a different number of trials.
    """
    obstacles = list(
        merge_obstacles(
            old, new.provenance, {record.task_id: record.task_digest for record in new.simulations}
        )
    )
    if obstacles:
        raise ResultsError(f"no task can be added to it: {'; '.join(obstacles)}")
    old_tasks = _tasks_of(old.simulations)
    incomplete_tasks = (
        _tasks_of(record for record in new.simulations if record.status is not Status.MEASURED) - old_tasks
    )
    new_records = tuple(
        record for record in new.simulations if record.task_id not in old_tasks | incomplete_tasks
    )
    incomplete_note = (
        f" ({_format_tasks(incomplete_tasks)} not added: not all trials were measured)"
        if incomplete_tasks
        else ""
    )
    if not new_records:
        return old, f"unchanged, no task added{incomplete_note}"
    if difference := trials_difference(old, _max_trials(new_records)):
        raise ResultsError(f"no task can be added to it: {difference}")
    merged_records = sorted(
        (*old.simulations, *new_records), key=lambda record: (natural_sort_key(record.task_id), record.trial)
    )
    origin, run = old.provenance, new.provenance
    # The merged evidence has the lock of this run. Its date stays that of the first run.
    lock = {name: getattr(run, name) for name in ("lock", "lock_parts", "provider_version", "task_revision")}
    sources = tuple(dict.fromkeys((*origin.sources, *run.sources)))
    provenance = origin.model_copy(update={**lock, "sources": sources})
    count = len(_tasks_of(new_records))
    action = f"grown, {count} {'task' if count == 1 else 'tasks'} added{incomplete_note}"
    return _with_lineage(
        old.model_copy(update={"simulations": tuple(merged_records)}), provenance, old
    ), action


def _add_trials(old: Evidence, new: Evidence) -> tuple[Evidence, str]:
    """Add the measured trials that a baseline lacks; return the evidence and a text about them.

    Without any, `old` itself is returned. A lost trial is not added, so that a later run can make it again.

    Raises:
        ResultsError: the run is not one of the baseline's own identity, or a task's content has changed.
    """
    digests = {record.task_id: record.task_digest for record in new.simulations}
    if obstacles := list(merge_obstacles(old, new.provenance, digests)):
        raise ResultsError(f"no trial can be added to it: {'; '.join(obstacles)}")
    kept = _trials_by_task(old.simulations)
    records = [record for record in new.simulations if record.trial not in kept.get(record.task_id, ())]
    measured = [record for record in records if record.status is Status.MEASURED]
    lost_note = f" ({len(records) - len(measured)} lost)" if len(measured) < len(records) else ""
    if not measured:
        return old, f"unchanged, no trial added{lost_note}"
    merged_records = sorted(
        (*old.simulations, *measured), key=lambda record: (natural_sort_key(record.task_id), record.trial)
    )
    provenance = old.provenance.model_copy(update={"extended_at": new.provenance.created_at})
    evidence = old.model_copy(update={"simulations": tuple(merged_records)})
    return _with_lineage(evidence, provenance, old), f"extended, {len(measured)} trials added{lost_note}"


def _with_lineage(evidence: Evidence, provenance: Provenance, old: Evidence) -> Evidence:
    lineage = provenance.model_copy(update={"replaces": evidence_digest(old)})
    return evidence.model_copy(update={"provenance": lineage})


def merge_obstacles(old: Evidence, run: Provenance, tasks: Mapping[str, str]) -> Iterator[str]:
    """Yield the differences that forbid adding the tasks of a run to a baseline, one phrase each.

    The suite may have gained or lost tasks in between. Everything else must agree, including the candidate
    and its agent. `tasks` holds digests of the run's tasks by id.
    """
    origin = old.provenance
    for name, label in (("id", "candidate"), ("digest", "candidate's text")):
        yield from _describe_difference(
            label, *(getattr(side.candidate, name, None) for side in (origin, run))
        )
    for name in ("implementation", "model", "arguments"):
        yield from _describe_difference(
            f"agent {name}", getattr(origin.agent, name), getattr(run.agent, name)
        )
    if changed_names := list(code_differences(origin.agent.code, run.agent.code)):
        yield f"code of the agent ({', '.join(changed_names)})"
    for part, codes in (
        ("agent", (origin.agent.code, run.agent.code)),
        ("user", (origin.user.code, run.user.code)),
        ("world", (origin.world, run.world)),
    ):
        if unknown_reason := next((code.unknown for code in codes if code is not None and code.unknown), ""):
            yield f"code of the {part} cannot be identified ({unknown_reason})"
    digests = {record.task_id: record.task_digest for record in old.simulations}
    yield from provenance_differences(
        origin, run, baseline_tasks=digests, candidate_tasks=tasks, same_tasks=False
    )
    if new_checks := [name for name in run.checks or {} if name not in (origin.checks or {})]:
        yield f"checks that the baseline was not measured by ({', '.join(new_checks)})"
    if None in (origin.lock, run.lock):
        yield f"lock {_format_value(origin.lock)} and {_format_value(run.lock)}"
    elif origin.lock != run.lock:
        # The lock covers these settings too, but unequal locks do not show whether they agree.
        for name in ("max_steps", "max_errors", "timeout"):
            before, after = getattr(origin, name), getattr(run, name)
            if None in (before, after):
                yield from _describe_difference(name.replace("_", " "), before, after)


def _describe_difference(label: str, before: object, after: object) -> Iterator[str]:
    if before != after:
        yield f"{label} {_format_value(before)} and {_format_value(after)}"


def _format_value(value: object) -> str:
    return "not recorded" if value is None else repr(value)


def trials_difference(old: Evidence, trials: int) -> str:
    """Describe how a number of trials differs from that of a baseline; empty if it does not differ."""
    old_trials = _max_trials(old.simulations)
    if old_trials in (0, trials):
        return ""
    return f"trials {old_trials} and {trials} (use --t2e-trials {old_trials})"


def _max_trials(records: Iterable[SimulationEvidence]) -> int:
    return max(Counter(record.task_id for record in records).values(), default=0)


def _trials_by_task(records: Iterable[SimulationEvidence]) -> dict[str, set[int]]:
    trials: dict[str, set[int]] = {}
    for record in records:
        trials.setdefault(record.task_id, set()).add(record.trial)
    return trials


def _tasks_of(records: Iterable[SimulationEvidence]) -> set[str]:
    return {record.task_id for record in records}


def _format_tasks(tasks: Collection[str]) -> str:
    names = sorted(tasks, key=natural_sort_key)
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{'task' if len(names) == 1 else 'tasks'} {', '.join(names[:3])}{more}"
