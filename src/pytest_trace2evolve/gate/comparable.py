"""Checks that two sides may be compared. All recorded facts must agree, except candidate and agent.

The compared fields are provider, domain, suite and solo mode (`user implementation`); tasks, criteria,
policy, tool schemas and data by the digest of the suite's lock, or by its parts if both sides recorded them;
the scorer's version; the judge; the user simulator with its settings and guidelines; the budgets of steps,
tool errors and time, and the time of one step of a project's own function; the code or rubrics of the
project's own checks. Versions of packages are recorded but never compared.
"""

from collections.abc import Iterator, Mapping

from pytest_trace2evolve.records.evidence import (
    REFERENCE_AGENTS,
    CheckOrigin,
    Code,
    Provenance,
    code_differences,
)
from pytest_trace2evolve.records.task import natural_sort_key
from pytest_trace2evolve.records.task_revision import revision_difference

_COMPARED_FIELDS = (
    "domain",
    "provider",
    "suite",
    "scorer_version",
    "judge",
    "max_steps",
    "max_errors",
    "timeout",
    "call_timeout",
)
_USER_FIELDS = ("implementation", "model", "guidelines")
_MAX_LISTED_TASKS = 3

_IGNORED_ARGUMENTS = frozenset({"endpoint", "seed"})
"""Recorded arguments of an agent that do not change the distribution of its answers."""

_MODEL_ARGUMENTS = frozenset({"weights", "routed"})
"""Recorded arguments that identify the model, rather than the parameters of its calls."""


def provenance_differences(
    baseline: Provenance,
    candidate: Provenance,
    *,
    baseline_tasks: Mapping[str, str] | None = None,
    candidate_tasks: Mapping[str, str] | None = None,
    same_tasks: bool = True,
) -> Iterator[str]:
    """Yield a phrase for each field that both sides recorded with different values, with both values.

    The candidates may differ, because the comparison is between candidates. `agent_changes` reports
    differences of the agent. A field that one side did not record is not a difference; `unrecorded_fields`
    reports it.

    Args:
        baseline, candidate: The provenance of the two sides.
        baseline_tasks, candidate_tasks: Digests of their tasks by id, to name differences between two locks.
        same_tasks: Whether two locks must hold the same tasks. Otherwise the tasks that both hold must agree,
            and the locks' parts must be known.
    """
    for name in (*_COMPARED_FIELDS, "policy"):
        yield from _difference(name.replace("_", " "), *_values_of_both(baseline, candidate, name))
    tasks = baseline_tasks or {}, candidate_tasks or {}
    yield from lock_differences(baseline, candidate, *tasks, same_tasks=same_tasks)
    for name, (old, new) in _user_settings(baseline, candidate):
        yield from _difference(name, old, new)
    for part, old_code, new_code in (
        ("world", baseline.world, candidate.world),
        ("user", baseline.user.code, candidate.user.code),
    ):
        if not same_tasks:
            old_code, new_code = _without_data_files(old_code), _without_data_files(new_code)
        if changes := [
            *code_differences(old_code, new_code),
            *_identification_difference(old_code, new_code),
        ]:
            yield f"code of the {part} ({', '.join(changes)}): measure the baseline again"
    yield from _check_differences(baseline.checks or {}, candidate.checks or {})


def _check_differences(
    baseline: Mapping[str, CheckOrigin], candidate: Mapping[str, CheckOrigin]
) -> Iterator[str]:
    """Yield a phrase for each check of one's own that the baseline has and the candidate lacks or changed.

    Such a comparison is rejected, because a candidate could loosen a check that it would otherwise break. A
    check that only the candidate has loosens nothing. The gate leaves such a check out and names it.
    """
    for name, old in baseline.items():
        new = candidate.get(name)
        if new is None:
            remedy = "give the judge with --t2e-judge" if old.rubric else "restore the check"
            yield f"check {name!r} (on the baseline only): {remedy}, or measure the baseline again"
        elif old.rubric != new.rubric or (old.code is None) != (new.code is None):
            yield f"rubric of check {name!r}: measure the baseline again"
        elif changes := [
            *code_differences(old.code, new.code),
            *_identification_difference(old.code, new.code),
        ]:
            yield f"code of check {name!r} ({', '.join(changes)}): measure the baseline again"


def _identification_difference(old: Code | None, new: Code | None) -> Iterator[str]:
    """Yield a phrase if the code could be identified on one side only, which counts as a change."""
    if old is not None and new is not None and bool(old.unknown) != bool(new.unknown):
        side = "baseline" if old.unknown else "candidate"
        yield f"cannot be identified on the {side}: {old.unknown or new.unknown}"


def _without_data_files(code: Code | None) -> Code | None:
    """The code without its data files, which include added tasks. The locks identify all other data."""
    if code is None:
        return None
    files = {name: digest for name, digest in code.files.items() if name.endswith(".py")}
    return code.model_copy(update={"files": files})


def agent_differences(first: Provenance, second: Provenance) -> Iterator[str]:
    """Yield the differences between two candidates and their agents; nothing for trials of the same agent."""
    old, new = first.candidate, second.candidate
    yield from _difference("candidate", old and old.id, new and new.id)
    if old and new and old.id == new.id:
        yield from _difference("candidate's text", old.digest, new.digest)
    for name in ("implementation", "model", "arguments"):
        yield from _difference(f"agent {name}", *_values_of_both(first.agent, second.agent, name))
    if changes := list(code_differences(first.agent.code, second.agent.code)):
        yield f"code of the agent ({', '.join(changes)})"


def agent_changes(baseline: Provenance, candidate: Provenance) -> dict[str, list[str]]:
    """The differences between two agents as phrases, under the keys `agent`, `model` and `parameters`.

    A model's endpoint and seed are not compared, since they do not change the distribution of answers. A
    reference agent on one side differs from an unrecorded agent on the other side.
    """
    changes: dict[str, list[str]] = {"agent": [], "model": [], "parameters": []}
    old, new = baseline.agent, candidate.agent
    names = old.implementation, new.implementation
    if None in names and not REFERENCE_AGENTS.isdisjoint(names):
        agent_texts = ["not recorded" if name is None else repr(name) for name in names]
        changes["agent"].append(f"agent {' and '.join(agent_texts)}")
    changes["agent"] += _difference("agent", *names)
    changes["model"] += _difference("model", old.model, new.model)
    if old.arguments is not None and new.arguments is not None:
        for name in sorted((old.arguments.keys() | new.arguments.keys()) - _IGNORED_ARGUMENTS):
            values = old.arguments.get(name), new.arguments.get(name)
            if values[0] != values[1]:
                group = "model" if name in _MODEL_ARGUMENTS else "parameters"
                old_text, new_text = ("not set" if value is None else repr(value) for value in values)
                changes[group].append(f"{name.replace('_', ' ')} {old_text} and {new_text}")
    return {group: phrases for group, phrases in changes.items() if phrases}


def lock_differences(
    baseline: Provenance,
    candidate: Provenance,
    baseline_tasks: Mapping[str, str],
    candidate_tasks: Mapping[str, str],
    *,
    same_tasks: bool = True,
) -> Iterator[str]:
    """Yield the differences between two locks; only digests if a side did not record its lock's parts.

    Apart from the revision of the tasks, there are no differences if the locks agree or one side did not
    record a lock.
    """
    if text := revision_difference(baseline.task_revision, candidate.task_revision):
        yield text
    if None in (baseline.lock, candidate.lock) or baseline.lock == candidate.lock:
        return
    old, new = baseline.lock_parts, candidate.lock_parts
    task_changes = [
        f"content of task {name!r} {baseline_tasks[name]!r} and {candidate_tasks[name]!r}"
        for name in sorted(baseline_tasks.keys() & candidate_tasks.keys(), key=natural_sort_key)
        if baseline_tasks[name] != candidate_tasks[name]
    ]
    if len(task_changes) > _MAX_LISTED_TASKS:
        task_changes[_MAX_LISTED_TASKS:] = [
            f"content of {len(task_changes) - _MAX_LISTED_TASKS} further tasks"
        ]
    if old is None or new is None:
        yield f"lock {baseline.lock!r} and {candidate.lock!r}"
        yield from task_changes
        return
    part_changes = [
        text
        for name in type(old).model_fields
        for text in _difference(name, *_values_of_both(old, new, name))
    ]
    yield from part_changes
    yield from task_changes
    if same_tasks and not part_changes and not task_changes:
        yield (
            f"lock {baseline.lock!r} and {candidate.lock!r} (policy, tools, data and common tasks agree: "
            "tasks were added or removed, or the suite has different settings)"
        )


def unrecorded_fields(baseline: Provenance, candidate: Provenance) -> str:
    """One line that names the fields recorded on one side only; empty if there are none."""
    values_by_field = {
        name.replace("_", " "): _values_of_both(baseline, candidate, name)
        for name in (*_COMPARED_FIELDS, "lock")
    }
    del values_by_field["suite"]  # only a name: the lock identifies the suite's content
    del values_by_field["call timeout"]  # most agents have none
    values_by_field |= dict(_user_settings(baseline, candidate))
    if not (baseline.lock and candidate.lock):
        # A lock covers the policy. Without a lock, only the policy recorded in the file can be compared.
        values_by_field["policy"] = baseline.policy or baseline.lock, candidate.policy or candidate.lock
    codes = {
        "world": (baseline.world, candidate.world),
        "agent": (baseline.agent.code, candidate.agent.code),
        "user": (baseline.user.code, candidate.user.code),
    }
    for part, sides in codes.items():
        if any(code is not None and code.files for code in sides):
            values_by_field[f"code of the {part}"] = sides
    missing_fields = {
        "baseline": [name for name, (old, new) in values_by_field.items() if old is None and new is not None],
        "candidate": [
            name for name, (old, new) in values_by_field.items() if new is None and old is not None
        ],
    }
    return "; ".join(
        f"not recorded on the {side}: {', '.join(names)}" for side, names in missing_fields.items() if names
    )


def _user_settings(
    baseline: Provenance, candidate: Provenance
) -> Iterator[tuple[str, tuple[object, object]]]:
    """The recorded settings of both user simulators, by name."""
    if baseline.mode.solo and candidate.mode.solo:
        return  # no user is simulated, so the settings of a user simulator do not matter
    for name in _USER_FIELDS:
        yield f"user {name}", _values_of_both(baseline.user, candidate.user, name)
    old, new = baseline.user.arguments, candidate.user.arguments
    if old is None or new is None:
        yield "user arguments", (old, new)
        return
    for name in sorted(old.keys() | new.keys()):
        yield f"user {name}", (old.get(name), new.get(name))


def _values_of_both(old: object, new: object, name: str) -> tuple[object, object]:
    return getattr(old, name), getattr(new, name)


def _difference(name: str, old: object, new: object) -> Iterator[str]:
    if old is not None and new is not None and old != new:
        yield f"{name} {old!r} and {new!r}"
