"""Every write below baselines/: what replaces what, what is only added, and what is refused.

A baseline never moves by itself. A run writes one only where it was asked to, in one of three modes; what
was there before the run must be there still when the run ends, and is named in what comes after it.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from pytest_trace2evolve.errors import ConfigError, ResultsError
from pytest_trace2evolve.evidence.baselines import evidence_digest, read_evidence, render_evidence
from pytest_trace2evolve.gate.comparable import differences
from pytest_trace2evolve.gate.decide import MIN_MEASURED
from pytest_trace2evolve.gate.pairs import natural_order
from pytest_trace2evolve.records.evidence import Evidence, Provenance, SimulationEvidence, code_differences
from pytest_trace2evolve.records.score import Status
from pytest_trace2evolve.utils.files import alone_in, write_atomic


class SaveMode(StrEnum):
    """What becomes of a baseline that exists already."""

    SAVE = "save"
    UPDATE = "update"
    NEW_ONLY = "new-only"


@dataclass(frozen=True)
class Saving:
    """What a run is to save.

    Attributes:
        name: The baseline's name.
        mode: What becomes of one that exists.
        before: Digests of those that existed when the run started, by suite.
    """

    name: str
    mode: SaveMode = SaveMode.SAVE
    before: Mapping[str, str] = field(default_factory=dict)


class Done(NamedTuple):
    """What a save came to.

    Attributes:
        text: What was done, for a message: `saved`, `updated`, `grown, 3 tasks added` and the like.
        written: What the file holds now; None if it is unchanged.
    """

    text: str
    written: Evidence | None = None


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")


def require_name(name: str, option: str) -> str:
    """A name that a baseline's file can have.

    Raises:
        ConfigError: it could not; names the option that gave it.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{option} {name!r}: a name is up to 100 letters, digits, '.', '_', '-' and '+'")
    return name


def settle(name: str, mode: SaveMode, paths: Mapping[str, Path]) -> Saving:
    """See before a run what its baselines will replace or grow.

    Args:
        name: The baseline's name.
        mode: What becomes of one that exists.
        paths: Where the baseline of each suite is to lie.

    Raises:
        ConfigError: one exists, and the mode is `save`.
        ResultsError: one that exists is damaged.
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
) -> Done:
    """Write one suite's baseline.

    Args:
        path: Where it lies.
        evidence: What a whole run measured.
        mode: What becomes of one that exists.
        before: Digest of the one that existed when the run started; None where there was none.
        tasks: The suite's tasks as locked.
        root: The project's folder, in which only one process saves at a time.

    Raises:
        ResultsError: it is not to be written; says why. Nothing has changed.
        OSError: it could not be written. Nothing has changed.
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
            evidence, done = updated(current, evidence, tasks), "updated"
        elif current is not None:
            evidence, done = grown(current, evidence)
        if evidence is current:
            return Done(done)
        write_atomic(path, render_evidence(evidence), exclusive=current is None)
        return Done(done, evidence)


def updated(old: Evidence, new: Evidence, tasks: Collection[str]) -> Evidence:
    """The evidence that takes a baseline's place, with its lineage.

    Raises:
        ResultsError: too little of it was measured, or it lacks tasks that the baseline holds and the suite
            still has.
    """
    _refuse_unmeasured(new)
    ran = {record.task_id for record in new.simulations}
    lacking = _ordered(
        {record.task_id for record in old.simulations if record.task_id in tasks} - ran,
    )
    if lacking:
        raise ResultsError(
            f"this run did not measure {_some(lacking)}, which the baseline holds; "
            "run the whole suite, or add to it with --t2e-baseline-mode new-only"
        )
    return _following(new, new.provenance, old)


def grown(old: Evidence, new: Evidence) -> tuple[Evidence, str]:
    """A baseline with the tasks that it lacked; its own records are as they were.

    A task of which a trial was lost is not added: it could never be mended.

    Returns:
        The baseline (the same object where nothing is added), and what was done.

    Raises:
        ResultsError: the run is not comparable with it, or ran other numbers of trials; names both values.
    """
    found = list(unmergeable(old, new.provenance, {one.task_id: one.task_digest for one in new.simulations}))
    if found:
        raise ResultsError(f"it cannot be added to: {'; '.join(found)}")
    held = {record.task_id for record in old.simulations}
    lost = {one.task_id for one in new.simulations if one.status is not Status.MEASURED} - held
    fresh = tuple(one for one in new.simulations if one.task_id not in held | lost)
    unmeasured = f" ({_some(_ordered(lost))} not added: not all trials were measured)" if lost else ""
    if not fresh:
        return old, f"unchanged, no task added{unmeasured}"
    if unequal := other_trials(old, trials_of(fresh)):
        raise ResultsError(f"it cannot be added to: {unequal}")
    merged = sorted((*old.simulations, *fresh), key=lambda one: (natural_order(one.task_id), one.trial))
    origin, run = old.provenance, new.provenance
    # Its records are held against today's lock from here on, and it is as old as the oldest of them.
    lock = {name: getattr(run, name) for name in ("lock", "lock_parts", "provider_version")}
    sources = tuple(dict.fromkeys((*origin.sources, *run.sources)))
    provenance = origin.model_copy(update={**lock, "sources": sources})
    added = len({record.task_id for record in fresh})
    told = f"grown, {added} {'task' if added == 1 else 'tasks'} added{unmeasured}"
    return _following(old.model_copy(update={"simulations": tuple(merged)}), provenance, old), told


def unmergeable(old: Evidence, run: Provenance, tasks: Mapping[str, str]) -> Iterator[str]:
    """What differs between a baseline and a run that may not be put into one file, a phrase each.

    The suite may have got or lost tasks in between; everything else must agree, and so must the candidate and
    its agent.

    Args:
        old: The baseline.
        run: Where the new records come from.
        tasks: Digests of the run's tasks by id.
    """
    origin = old.provenance
    for name in ("id", "digest"):
        pair = [None if side.candidate is None else getattr(side.candidate, name) for side in (origin, run)]
        if pair[0] != pair[1]:
            label = "candidate" if name == "id" else "candidate's text"
            yield f"{label} {_shown(pair[0])} and {_shown(pair[1])}"
    for name in ("implementation", "model", "arguments"):
        before, after = getattr(origin.agent, name), getattr(run.agent, name)
        if before != after:
            yield f"agent {name} {_shown(before)} and {_shown(after)}"
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
        # The lock covers these too, and its digest no longer says that they agree.
        for name in ("max_steps", "max_errors", "timeout"):
            before, after = getattr(origin, name), getattr(run, name)
            if before != after and None in (before, after):
                yield f"{name.replace('_', ' ')} {_shown(before)} and {_shown(after)}"


def trials_of(records: Iterable[SimulationEvidence]) -> int:
    """The largest number of trials of a task; 0 of none."""
    return max(Counter(record.task_id for record in records).values(), default=0)


def other_trials(old: Evidence, trials: int) -> str:
    """One line where a run makes another number of trials than a baseline holds; else empty."""
    held = trials_of(old.simulations)
    if held in (0, trials):
        return ""
    return f"trials {held} and {trials} (--t2e-trials {held} runs as many)"


def _following(evidence: Evidence, provenance: Provenance, old: Evidence) -> Evidence:
    lineage = provenance.model_copy(update={"replaces": evidence_digest(old)})
    return evidence.model_copy(update={"provenance": lineage})


def _refuse_unmeasured(evidence: Evidence) -> None:
    records = evidence.simulations
    measured = sum(record.status is Status.MEASURED for record in records)
    if measured < MIN_MEASURED * len(records) or not measured:
        raise ResultsError(
            f"{measured} of {len(records)} simulations were measured, "
            f"and below {MIN_MEASURED:.0%} nothing takes a baseline's place"
        )


def _ordered(names: Collection[str]) -> list[str]:
    return sorted(names, key=natural_order)


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{'task' if len(names) == 1 else 'tasks'} {', '.join(names[:3])}{more}"


def _shown(value: object) -> str:
    return "not recorded" if value is None else repr(value)
