"""Whether two sides may be compared: what was recorded of both must agree, candidate and agent apart."""

from collections.abc import Iterator

from pytest_trace2evolve.records.evidence import Provenance

_FIELDS = ("domain", "provider", "suite", "lock", "scorer_version", "judge", "max_steps")


def differences(baseline: Provenance, candidate: Provenance) -> Iterator[str]:
    """What was recorded of both sides and differs, a phrase each with both values.

    The candidate and the agent may differ: they are what is compared. A field that one side did not record
    is no difference.
    """
    for name in _FIELDS:
        yield from _told(name.replace("_", " "), getattr(baseline, name), getattr(candidate, name))
    if baseline.mode.solo and candidate.mode.solo:
        return  # nobody plays the user: which model was set for one changes nothing
    for name in ("implementation", "model", "guidelines"):
        old, new = getattr(baseline.user, name), getattr(candidate.user, name)
        yield from _told(f"user {name}", old, new)
    old_arguments, new_arguments = baseline.user.arguments or {}, candidate.user.arguments or {}
    for name in sorted(old_arguments.keys() & new_arguments.keys()):
        yield from _told(f"user {name}", old_arguments[name], new_arguments[name])


def _told(name: str, old: object, new: object) -> Iterator[str]:
    if old is not None and new is not None and old != new:
        yield f"{name} {old!r} and {new!r}"
