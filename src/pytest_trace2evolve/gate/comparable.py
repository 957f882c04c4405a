"""Whether two sides may be compared: what was recorded of both must agree, candidate and agent apart.

Field by field: provider, domain, suite and solo mode (`user implementation`); tasks, criteria, policy, tool
schemas and data by the digest of the suite's lock, which is taken apart where both sides recorded its parts;
the scorer's version; the judge; the user simulator with its settings and guidelines; the budgets of steps,
tool errors and time. Versions of packages are recorded and never compared.
"""

from collections.abc import Iterator, Mapping

from pytest_trace2evolve.gate.pairs import natural_order
from pytest_trace2evolve.records.evidence import REFERENCE_AGENTS, Code, Provenance, code_differences

_FIELDS = ("domain", "provider", "suite", "scorer_version", "judge", "max_steps", "max_errors", "timeout")
_USER_FIELDS = ("implementation", "model", "guidelines")
_SHOWN_TASKS = 3


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
    field that one side did not record is no difference; `unrecorded` tells it.

    Args:
        baseline, candidate: Where the two sides come from.
        baseline_tasks, candidate_tasks: Digests of their tasks by id, to name what differs between two locks.
        same_tasks: Whether two locks must hold the same tasks; else those that both hold must agree, and the
            locks' parts must be known.
    """
    for name in (*_FIELDS, "policy"):
        yield from _told(name.replace("_", " "), getattr(baseline, name), getattr(candidate, name))
    tasks = baseline_tasks or {}, candidate_tasks or {}
    yield from lock_differences(baseline, candidate, *tasks, same_tasks=same_tasks)
    for name, (old, new) in _user(baseline, candidate):
        yield from _told(name, old, new)
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


def agent_differences(one: Provenance, other: Provenance) -> Iterator[str]:
    """What was recorded of both candidates and agents and differs: trials of one agent must agree in it."""
    candidates = [None if side.candidate is None else side.candidate.id for side in (one, other)]
    yield from _told("candidate", *candidates)
    if one.candidate and other.candidate and one.candidate.id == other.candidate.id:
        yield from _told("candidate's text", one.candidate.digest, other.candidate.digest)
    for name in (*_USER_FIELDS[:2], "arguments"):
        yield from _told(f"agent {name}", getattr(one.agent, name), getattr(other.agent, name))
    if changed := list(code_differences(one.agent.code, other.agent.code)):
        yield f"code of the agent ({', '.join(changed)})"


def agent_changes(baseline: Provenance, candidate: Provenance) -> dict[str, list[str]]:
    """What was recorded of both agents and differs, a phrase each: by `agent`, `model` and `parameters`.

    Where a model is asked and which seed it was given are not compared: they change no distribution. A
    reference agent on one side differs from an agent that was not recorded on the other.
    """
    found: dict[str, list[str]] = {"agent": [], "model": [], "parameters": []}
    old, new = baseline.agent, candidate.agent
    names = old.implementation, new.implementation
    if None in names and not REFERENCE_AGENTS.isdisjoint(names):
        shown = ["not recorded" if name is None else repr(name) for name in names]
        found["agent"].append(f"agent {' and '.join(shown)}")
    found["agent"] += _told("agent", *names)
    found["model"] += _told("model", old.model, new.model)
    if old.arguments is not None and new.arguments is not None:
        for name in sorted((old.arguments.keys() | new.arguments.keys()) - _NO_CHANGE):
            before, after = old.arguments.get(name), new.arguments.get(name)
            if before != after:
                kind = "model" if name in _OF_THE_MODEL else "parameters"
                found[kind].append(f"{name.replace('_', ' ')} {_or_not_set(before)} and {_or_not_set(after)}")
    return {kind: phrases for kind, phrases in found.items() if phrases}


_NO_CHANGE = frozenset({"endpoint", "seed"})
_OF_THE_MODEL = frozenset({"weights", "routed"})
"""Recorded arguments that say which model it is, rather than how it is asked."""


def _or_not_set(value: object) -> str:
    return "not set" if value is None else repr(value)


def lock_differences(
    baseline: Provenance,
    candidate: Provenance,
    baseline_tasks: Mapping[str, str],
    candidate_tasks: Mapping[str, str],
    *,
    same_tasks: bool = True,
) -> Iterator[str]:
    """What differs between two locks; their digests where one side did not record its lock's parts.

    Nothing where the locks agree or one side recorded none.
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
    named = [text for name in type(old).model_fields for text in _told(name, *_both(old, new, name))]
    yield from named
    yield from changed
    if same_tasks and not named and not changed:
        yield (
            f"lock {baseline.lock!r} and {candidate.lock!r} (policy, tools, data and common tasks agree: "
            "the suite got or lost tasks, or has other settings)"
        )


def unrecorded(baseline: Provenance, candidate: Provenance) -> str:
    """One line naming what one side recorded and the other did not; empty where there is nothing."""
    pairs = {name.replace("_", " "): _both(baseline, candidate, name) for name in (*_FIELDS, "lock")}
    del pairs["suite"]  # a name alone: what the suite holds is told by the lock
    pairs |= dict(_user(baseline, candidate))
    if not (baseline.lock and candidate.lock):
        # A lock holds the policy; without one, a file's own record of it is all there is.
        old, new = baseline.policy or baseline.lock, candidate.policy or candidate.lock
        pairs["policy"] = (old, new)
    pairs |= {
        f"code of the {part}": (old, new)
        for part, old, new in (
            ("world", baseline.world, candidate.world),
            ("agent", baseline.agent.code, candidate.agent.code),
            ("user", baseline.user.code, candidate.user.code),
        )
        if any(code is not None and code.files for code in (old, new))
    }
    missing = {
        "baseline": [name for name, (old, new) in pairs.items() if old is None and new is not None],
        "candidate": [name for name, (old, new) in pairs.items() if new is None and old is not None],
    }
    told = [f"not recorded on the {side}: {', '.join(names)}" for side, names in missing.items() if names]
    return "; ".join(told)


def unequal_trials(baseline: Mapping[str, int], candidate: Mapping[str, int]) -> str:
    """One line where the sides ran a common task in unequal numbers of trials; else empty.

    Args:
        baseline, candidate: Trials by task. One that was lost counts: it was begun, and `measured` and
            `worst_case` answer for it. A task without trials is not common.
    """
    old, new = (({name: count for name, count in side.items() if count}) for side in (baseline, candidate))
    common = sorted(old.keys() & new.keys(), key=natural_order)
    unequal = [name for name in common if old[name] != new[name]]
    if not unequal:
        return ""
    first, more = unequal[0], len(unequal) - 1
    others = f" ({more} more {'task differs' if more == 1 else 'tasks differ'})" if more else ""
    trials = "trial" if old[first] == 1 else "trials"
    # One number mends it only where the baseline has one; else it is measured again with the larger.
    wanted = {old[name] for name in common}
    number = wanted.pop() if len(wanted) == 1 else max(max(old[name], new[name]) for name in common)
    return (
        f"the baseline has {old[first]} {trials} of task {first!r}, the candidate {new[first]}{others}; "
        f"run the same number on both (--t2e-trials {number})"
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


def _told(name: str, old: object, new: object) -> Iterator[str]:
    if old is not None and new is not None and old != new:
        yield f"{name} {old!r} and {new!r}"
