"""Saves baselines in one of three modes: create, replace, or add new tasks.

A run writes a baseline only if it was asked to. An existing baseline must be unchanged when the run ends, and
the new baseline names the digest of the baseline that it replaces.
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
from pytest_trace2evolve.gate.comparable import differences
from pytest_trace2evolve.gate.decide import MIN_MEASURED
from pytest_trace2evolve.records.evidence import Evidence, Provenance, SimulationEvidence, code_differences
from pytest_trace2evolve.records.score import Status
from pytest_trace2evolve.records.task import natural_order
from pytest_trace2evolve.utils.files import alone_in

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")


class SaveMode(StrEnum):
    """The treatment of a baseline that exists already."""

    SAVE = "save"
    UPDATE = "update"
    NEW_ONLY = "new-only"


@dataclass(frozen=True)
class Saving:
    """The baselines that a run saves. `before` holds the digests of existing baselines by suite."""

    name: str
    mode: SaveMode = SaveMode.SAVE
    before: Mapping[str, str] = field(default_factory=dict)


class SaveResult(NamedTuple):
    """The result of a save: a text for a message, and the file's new content (None if unchanged)."""

    text: str
    written: Evidence | None = None


def require_name(name: str, option: str) -> str:
    """Check that a name, given by an option, can name a baseline's file; return the name."""
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{option} {name!r}: a name is up to 100 letters, digits, '.', '_', '-' and '+'")
    return name


def settle(name: str, mode: SaveMode, paths: Mapping[str, Path]) -> Saving:
    """Check the existing baselines that a run will replace or grow. `paths` holds the file of each suite.

    Raises:
        ConfigError: a baseline exists and the mode is `save`.
        ResultsError: an existing baseline is damaged.
    """
    before = {suite: path for suite, path in paths.items() if path.exists()}
    if before and mode is SaveMode.SAVE:
        raise ConfigError(
            f"{next(iter(before.values()))} exists, and a baseline never moves by itself; "
            "choose another name, or give --t2e-baseline-mode update or new-only"
        )
    return Saving(name, mode, {suite: evidence_digest(read_evidence(path)) for suite, path in before.items()})


def save(
    path: Path, evidence: Evidence, mode: SaveMode, *, before: str | None, tasks: Collection[str], root: Path
) -> SaveResult:
    """Write one suite's baseline.

    Args:
        path: The baseline's file.
        evidence: The evidence of a whole run.
        mode: The treatment of an existing baseline.
        before: Digest of the baseline that existed when the run started; None if there was none.
        tasks: The suite's tasks as locked.
        root: The project's folder, in which only one process saves at a time.

    Raises:
        ResultsError: the baseline must not be written; the message gives the reason. Nothing has changed.
        OSError: the baseline could not be written. Nothing has changed.
    """
    with alone_in(root):
        current = read_evidence(path) if path.exists() else None
        found = None if current is None else evidence_digest(current)
        if found is not None and (before is None or mode is SaveMode.SAVE):
            raise ResultsError("another run saved it first")
        if found != before:
            now = "is gone" if found is None else f"is {found}"
            raise ResultsError(f"it changed during the run: it was {before} and {now}")
        done = "saved"
        if current is not None and mode is SaveMode.UPDATE:
            evidence, done = _updated(current, evidence, tasks), "updated"
        elif current is not None:
            evidence, done = _grown(current, evidence)
        if evidence is current:
            return SaveResult(done)
        write_evidence(path, evidence, exclusive=current is None)
        return SaveResult(done, evidence)


def _updated(old: Evidence, new: Evidence, tasks: Collection[str]) -> Evidence:
    """The evidence that replaces a baseline. Raises a ResultsError if too much is missing."""
    measured = sum(record.status is Status.MEASURED for record in new.simulations)
    if measured < MIN_MEASURED * len(new.simulations) or not measured:
        raise ResultsError(
            f"{measured} of {len(new.simulations)} simulations were measured, "
            f"and below {MIN_MEASURED:.0%} nothing takes a baseline's place"
        )
    lacking = _tasks_of(old.simulations) & set(tasks) - _tasks_of(new.simulations)
    if lacking:
        raise ResultsError(
            f"this run did not measure {_listed(lacking)}, which the baseline holds; "
            "run the whole suite, or add to it with --t2e-baseline-mode new-only"
        )
    return _following(new, new.provenance, old)


def _grown(old: Evidence, new: Evidence) -> tuple[Evidence, str]:
    """Add the tasks that a baseline lacks; return the evidence and a text on the added tasks.

    Without new tasks, `old` itself is returned. The baseline's own records stay. A task with a lost trial is
    not added, because nothing could complete it later.

    Raises:
        ResultsError: the run is not comparable with the baseline, or ran a different number of trials.
    """
    found = list(
        unmergeable(old, new.provenance, {record.task_id: record.task_digest for record in new.simulations})
    )
    if found:
        raise ResultsError(f"it cannot be added to: {'; '.join(found)}")
    held = _tasks_of(old.simulations)
    lost = _tasks_of(record for record in new.simulations if record.status is not Status.MEASURED) - held
    added = tuple(record for record in new.simulations if record.task_id not in held | lost)
    unmeasured = f" ({_listed(lost)} not added: not all trials were measured)" if lost else ""
    if not added:
        return old, f"unchanged, no task added{unmeasured}"
    if unequal := other_trials(old, _most_trials(added)):
        raise ResultsError(f"it cannot be added to: {unequal}")
    merged = sorted(
        (*old.simulations, *added), key=lambda record: (natural_order(record.task_id), record.trial)
    )
    origin, run = old.provenance, new.provenance
    # All records are compared with today's lock from now on. The date stays that of the oldest records.
    lock = {name: getattr(run, name) for name in ("lock", "lock_parts", "provider_version")}
    sources = tuple(dict.fromkeys((*origin.sources, *run.sources)))
    provenance = origin.model_copy(update={**lock, "sources": sources})
    count = len(_tasks_of(added))
    done = f"grown, {count} {'task' if count == 1 else 'tasks'} added{unmeasured}"
    return _following(old.model_copy(update={"simulations": tuple(merged)}), provenance, old), done


def _following(evidence: Evidence, provenance: Provenance, old: Evidence) -> Evidence:
    lineage = provenance.model_copy(update={"replaces": evidence_digest(old)})
    return evidence.model_copy(update={"provenance": lineage})


def unmergeable(old: Evidence, run: Provenance, tasks: Mapping[str, str]) -> Iterator[str]:
    """The differences that forbid putting a baseline and a run into one file, one phrase each.

    The suite may have gained or lost tasks in between. Everything else must agree, including the candidate
    and its agent. `tasks` holds digests of the run's tasks by id.
    """
    origin = old.provenance
    for name, label in (("id", "candidate"), ("digest", "candidate's text")):
        yield from _different(label, *(getattr(side.candidate, name, None) for side in (origin, run)))
    for name in ("implementation", "model", "arguments"):
        yield from _different(f"agent {name}", getattr(origin.agent, name), getattr(run.agent, name))
    if changed := list(code_differences(origin.agent.code, run.agent.code)):
        yield f"code of the agent ({', '.join(changed)})"
    for part, codes in (
        ("agent", (origin.agent.code, run.agent.code)),
        ("user", (origin.user.code, run.user.code)),
        ("world", (origin.world, run.world)),
    ):
        if unknown := next((code.unknown for code in codes if code is not None and code.unknown), ""):
            yield f"code of the {part} cannot be identified ({unknown})"
    digests = {record.task_id: record.task_digest for record in old.simulations}
    yield from differences(origin, run, baseline_tasks=digests, candidate_tasks=tasks, same_tasks=False)
    if None in (origin.lock, run.lock):
        yield f"lock {_shown(origin.lock)} and {_shown(run.lock)}"
    elif origin.lock != run.lock:
        # The lock covers these settings too, but unequal locks do not show whether they agree.
        for name in ("max_steps", "max_errors", "timeout"):
            before, after = getattr(origin, name), getattr(run, name)
            if None in (before, after):
                yield from _different(name.replace("_", " "), before, after)


def _different(label: str, before: object, after: object) -> Iterator[str]:
    if before != after:
        yield f"{label} {_shown(before)} and {_shown(after)}"


def _shown(value: object) -> str:
    return "not recorded" if value is None else repr(value)


def other_trials(old: Evidence, trials: int) -> str:
    """One line if a run makes a different number of trials than a baseline holds; otherwise empty."""
    held = _most_trials(old.simulations)
    if held in (0, trials):
        return ""
    return f"trials {held} and {trials} (--t2e-trials {held} runs as many)"


def _most_trials(records: Iterable[SimulationEvidence]) -> int:
    return max(Counter(record.task_id for record in records).values(), default=0)


def _tasks_of(records: Iterable[SimulationEvidence]) -> set[str]:
    return {record.task_id for record in records}


def _listed(tasks: Collection[str]) -> str:
    names = sorted(tasks, key=natural_order)
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{'task' if len(names) == 1 else 'tasks'} {', '.join(names[:3])}{more}"
