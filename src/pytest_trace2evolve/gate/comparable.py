"""Whether two sides may be compared: what was recorded of both must agree, candidate and agent excepted.

Field by field: provider, domain, suite and solo mode (`user implementation`); tasks, criteria, policy, tool
schemas and data by the digest of the suite's lock, or by its parts if both sides recorded them; the scorer's
version; the judge; the user simulator with its settings and guidelines; the budgets of steps, tool errors and
time. Versions of packages are recorded and never compared.
"""

from collections.abc import Iterator, Mapping

from pytest_trace2evolve.records.evidence import REFERENCE_AGENTS, Code, Provenance, code_differences
from pytest_trace2evolve.records.task import natural_order

_FIELDS = ("domain", "provider", "suite", "scorer_version", "judge", "max_steps", "max_errors", "timeout")
_USER_FIELDS = ("implementation", "model", "guidelines")
_SHOWN_TASKS = 3

_IGNORED_ARGUMENTS = frozenset({"endpoint", "seed"})
"""Recorded arguments of an agent that change no distribution."""

_MODEL_ARGUMENTS = frozenset({"weights", "routed"})
"""Recorded arguments that say which model it is, rather than how it is called."""


def differences(
    baseline: Provenance,
    candidate: Provenance,
    *,
    baseline_tasks: Mapping[str, str] | None = None,
    candidate_tasks: Mapping[str, str] | None = None,
    same_tasks: bool = True,
) -> Iterator[str]:
    """What was recorded of both sides and differs, a phrase each with both values.

    The candidate may differ: it is what is compared. Differences of the agent are those of `agent_changes`. A
    field that one side did not record is no difference; `unrecorded` reports it.

    Args:
        baseline, candidate: Where the two sides come from.
        baseline_tasks, candidate_tasks: Digests of their tasks by id, to name what differs between two locks.
        same_tasks: Whether two locks must hold the same tasks; else those that both hold must agree, and the
            locks' parts must be known.
    """
    for name in (*_FIELDS, "policy"):
        yield from _difference(name.replace("_", " "), *_both(baseline, candidate, name))
    tasks = baseline_tasks or {}, candidate_tasks or {}
    yield from lock_differences(baseline, candidate, *tasks, same_tasks=same_tasks)
    for name, (old, new) in _user(baseline, candidate):
        yield from _difference(name, old, new)
    for part, old_code, new_code in (
        ("world", baseline.world, candidate.world),
        ("user", baseline.user.code, candidate.user.code),
    ):
        if not same_tasks:
            old_code, new_code = _without_data(old_code), _without_data(new_code)
        if changed := [*code_differences(old_code, new_code), *_identified_once(old_code, new_code)]:
            yield f"code of the {part} ({', '.join(changed)}): measure the baseline again"


def _identified_once(old: Code | None, new: Code | None) -> Iterator[str]:
    """A phrase if the code was identified on one side and could not be on the other: it has changed."""
    if old is not None and new is not None and bool(old.unknown) != bool(new.unknown):
        side = "baseline" if old.unknown else "candidate"
        yield f"cannot be identified on the {side}: {old.unknown or new.unknown}"


def _without_data(code: Code | None) -> Code | None:
    """The code without its data files: tasks that were added are among them, and locks name the rest."""
    if code is None:
        return None
    files = {name: digest for name, digest in code.files.items() if name.endswith(".py")}
    return code.model_copy(update={"files": files})


def agent_differences(first: Provenance, second: Provenance) -> Iterator[str]:
    """What was recorded of both candidates and agents and differs: trials of one agent must agree in it."""
    old, new = first.candidate, second.candidate
    yield from _difference("candidate", old and old.id, new and new.id)
    if old and new and old.id == new.id:
        yield from _difference("candidate's text", old.digest, new.digest)
    for name in ("implementation", "model", "arguments"):
        yield from _difference(f"agent {name}", *_both(first.agent, second.agent, name))
    if changed := list(code_differences(first.agent.code, second.agent.code)):
        yield f"code of the agent ({', '.join(changed)})"


def agent_changes(baseline: Provenance, candidate: Provenance) -> dict[str, list[str]]:
    """What was recorded of both agents and differs, a phrase each: by `agent`, `model` and `parameters`.

    The endpoint of a model and its seed are not compared: they change no distribution. A reference agent on
    one side differs from an agent that was not recorded on the other.
    """
    found: dict[str, list[str]] = {"agent": [], "model": [], "parameters": []}
    old, new = baseline.agent, candidate.agent
    names = old.implementation, new.implementation
    if None in names and not REFERENCE_AGENTS.isdisjoint(names):
        shown = ["not recorded" if name is None else repr(name) for name in names]
        found["agent"].append(f"agent {' and '.join(shown)}")
    found["agent"] += _difference("agent", *names)
    found["model"] += _difference("model", old.model, new.model)
    if old.arguments is not None and new.arguments is not None:
        for name in sorted((old.arguments.keys() | new.arguments.keys()) - _IGNORED_ARGUMENTS):
            values = old.arguments.get(name), new.arguments.get(name)
            if values[0] != values[1]:
                kind = "model" if name in _MODEL_ARGUMENTS else "parameters"
                before, after = ("not set" if value is None else repr(value) for value in values)
                found[kind].append(f"{name.replace('_', ' ')} {before} and {after}")
    return {kind: phrases for kind, phrases in found.items() if phrases}


def lock_differences(
    baseline: Provenance,
    candidate: Provenance,
    baseline_tasks: Mapping[str, str],
    candidate_tasks: Mapping[str, str],
    *,
    same_tasks: bool = True,
) -> Iterator[str]:
    """What differs between two locks; their digests if one side did not record its lock's parts.

    Nothing if the locks agree or one side recorded none.
    """
    if None in (baseline.lock, candidate.lock) or baseline.lock == candidate.lock:
        return
    old, new = baseline.lock_parts, candidate.lock_parts
    changed = [
        f"content of task {name!r} {baseline_tasks[name]!r} and {candidate_tasks[name]!r}"
        for name in sorted(baseline_tasks.keys() & candidate_tasks.keys(), key=natural_order)
        if baseline_tasks[name] != candidate_tasks[name]
    ]
    if len(changed) > _SHOWN_TASKS:
        changed[_SHOWN_TASKS:] = [f"content of {len(changed) - _SHOWN_TASKS} further tasks"]
    if old is None or new is None:
        yield f"lock {baseline.lock!r} and {candidate.lock!r}"
        yield from changed
        return
    parts = [text for name in type(old).model_fields for text in _difference(name, *_both(old, new, name))]
    yield from parts
    yield from changed
    if same_tasks and not parts and not changed:
        yield (
            f"lock {baseline.lock!r} and {candidate.lock!r} (policy, tools, data and common tasks agree: "
            "the suite got or lost tasks, or has other settings)"
        )


def unrecorded(baseline: Provenance, candidate: Provenance) -> str:
    """One line naming what one side recorded and the other did not; empty if there is nothing."""
    pairs = {name.replace("_", " "): _both(baseline, candidate, name) for name in (*_FIELDS, "lock")}
    del pairs["suite"]  # only a name: the lock identifies what the suite holds
    pairs |= dict(_user(baseline, candidate))
    if not (baseline.lock and candidate.lock):
        # A lock holds the policy; without one, a file's own record of it is all there is.
        pairs["policy"] = baseline.policy or baseline.lock, candidate.policy or candidate.lock
    codes = {
        "world": (baseline.world, candidate.world),
        "agent": (baseline.agent.code, candidate.agent.code),
        "user": (baseline.user.code, candidate.user.code),
    }
    for part, sides in codes.items():
        if any(code is not None and code.files for code in sides):
            pairs[f"code of the {part}"] = sides
    missing = {
        "baseline": [name for name, (old, new) in pairs.items() if old is None and new is not None],
        "candidate": [name for name, (old, new) in pairs.items() if new is None and old is not None],
    }
    return "; ".join(
        f"not recorded on the {side}: {', '.join(names)}" for side, names in missing.items() if names
    )


def unequal_trials(baseline: Mapping[str, int], candidate: Mapping[str, int]) -> str:
    """One line if the sides ran a common task in unequal numbers of trials; else empty.

    Args:
        baseline, candidate: Trials by task. One that was lost counts: it was begun, and `measured` and
            `worst_case` answer for it. A task without trials is not common.
    """
    common = sorted(
        (name for name, count in baseline.items() if count and candidate.get(name)), key=natural_order
    )
    unequal = [name for name in common if baseline[name] != candidate[name]]
    if not unequal:
        return ""
    first, more = unequal[0], len(unequal) - 1
    others = f" ({more} more {'task differs' if more == 1 else 'tasks differ'})" if more else ""
    trials = "trial" if baseline[first] == 1 else "trials"
    # The candidate alone can be run again only if the baseline has one number; else both, with the largest.
    numbers = {baseline[name] for name in common}
    if len(numbers) > 1:
        numbers |= {candidate[name] for name in common}
    return (
        f"the baseline has {baseline[first]} {trials} of task {first!r}, the candidate {candidate[first]}"
        f"{others}; run the same number on both (--t2e-trials {max(numbers)})"
    )


def _user(baseline: Provenance, candidate: Provenance) -> Iterator[tuple[str, tuple[object, object]]]:
    """What was recorded of the user simulators, by name."""
    if baseline.mode.solo and candidate.mode.solo:
        return  # nobody plays the user: which model was set for one changes nothing
    for name in _USER_FIELDS:
        yield f"user {name}", _both(baseline.user, candidate.user, name)
    old, new = baseline.user.arguments, candidate.user.arguments
    if old is None or new is None:
        yield "user arguments", (old, new)
        return
    for name in sorted(old.keys() | new.keys()):
        yield f"user {name}", (old.get(name), new.get(name))


def _both(old: object, new: object, name: str) -> tuple[object, object]:
    return getattr(old, name), getattr(new, name)


def _difference(name: str, old: object, new: object) -> Iterator[str]:
    if old is not None and new is not None and old != new:
        yield f"{name} {old!r} and {new!r}"
