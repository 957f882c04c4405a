"""Matchers: conditions that a written task sets for a value that it does not know exactly."""

import math
import operator
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pytest_trace2evolve.errors import name_suggestion
from pytest_trace2evolve.records.failure import DatabasePath

Equality = Callable[[Any, Any], bool]
"""A function that says whether two JSON values are equal."""

FORMS = {
    "$any": "{$any: true}",
    "$pattern": "{$pattern: 'R-[0-9]+'}",
    "$near": "{$near: 25, within: 0.5}",
    "$in": "{$in: [a, b]}",
    "$set": "{$set: [a, b]}",
}
"""The form of each matcher: any value except null, a text that a regular expression matches as a whole, a
number, one of several values, and a list of some items in any order."""

_ROUNDING = 1e-9


def matcher_of(value: object) -> str:
    """Return the key of a matcher, such as `$any`; empty for any other value."""
    keys = value if isinstance(value, Mapping) else ()
    return next((key for key in keys if isinstance(key, str) and key.startswith("$")), "")


def _items(value: object) -> Sequence[object]:
    return (
        [*value.values()] if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    )


def contains_matcher(value: object) -> bool:
    """Whether a value is or contains a matcher."""
    return bool(matcher_of(value)) or any(map(contains_matcher, _items(value)))


def check_matchers(value: object) -> None:
    """Check all matchers in a value. Raises `ValueError` if one is invalid; the message names it."""
    if isinstance(value, Mapping) and (key := matcher_of(value)):
        if key not in FORMS:
            raise ValueError(f"unknown matcher {key!r}; {name_suggestion(key, FORMS)}")
        try:
            is_valid = value.keys() == ({key, "within"} if key == "$near" else {key}) and _is_valid(
                key, value
            )
        except re.error as error:
            raise ValueError(f"$pattern: {value[key]!r} is no regular expression: {error}") from None
        if not is_valid:
            raise ValueError(f"{key}: {value[key]!r} has another form than {FORMS[key]}; correct it")
    for item in _items(value):
        check_matchers(item)


def _is_valid(key: str, matcher: Mapping[Any, Any]) -> bool:
    operand = matcher[key]
    if key == "$any":
        return operand is True
    if key == "$pattern":
        return isinstance(operand, str) and bool(re.compile(operand))
    if key == "$near":
        return _is_number(operand) and _is_number(matcher["within"]) and matcher["within"] >= 0
    return isinstance(operand, list | tuple) and bool(operand)


def _is_number(value: object) -> bool:
    """Whether a value is a finite number that a float can hold."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return abs(value) <= sys.float_info.max


def satisfies(expected: Any, actual: Any, is_same: Equality = operator.eq) -> bool:
    """Whether a value is as expected, where the expected value may contain matchers."""
    if matcher_of(expected):
        return _meets(expected, actual, is_same)
    known, values = resolve(expected, actual, is_same)
    return not any(map(matcher_of, values.values())) and is_same(known, actual)


def _meets(matcher: Mapping[str, Any], actual: Any, is_same: Equality) -> bool:
    key = matcher_of(matcher)
    operand = matcher[key]
    if key == "$any":
        return actual is not None
    if key == "$pattern":
        return isinstance(actual, str) and re.fullmatch(operand, actual) is not None
    if key == "$near":
        tolerance = matcher["within"] + _ROUNDING
        return _is_number(actual) and math.isclose(actual, operand, rel_tol=0, abs_tol=tolerance)
    if key == "$in":
        return any(satisfies(item, actual, is_same) for item in operand)
    others = list(enumerate(actual)) if isinstance(actual, list | tuple) else []
    places = [[place for place, other in others if satisfies(item, other, is_same)] for item in operand]
    return len(others) == len(operand) == len(assign(places))


def resolve(expected: Any, actual: Any, is_same: Equality) -> tuple[Any, dict[DatabasePath, Any]]:
    """Replace the matchers of expected data, so that the data can be merged. A missing key equals a null.

    Returns:
        The data with the actual values in place of matchers, and by path the value that a comparison
        expects: the actual value if it is as expected, else the matcher.
    """
    values: dict[DatabasePath, Any] = {}

    def replace(expected: Any, actual: Any, path: DatabasePath) -> Any:
        if matcher_of(expected):
            values[path] = actual if _meets(expected, actual, is_same) else expected
            return actual
        if isinstance(expected, Mapping):
            found = actual if isinstance(actual, Mapping) else {}
            return {key: replace(item, found.get(key), (*path, key)) for key, item in expected.items()}
        if isinstance(expected, list):
            others = actual if isinstance(actual, list) and len(actual) == len(expected) else expected
            return [
                replace(item, None if others is expected else others[index], (*path, index))
                for index, item in enumerate(expected)
            ]
        return expected

    return replace(expected, actual, ()), values


def put(data: Any, path: DatabasePath, value: Any) -> None:
    """Set a value at a place of JSON data, and add missing mappings on the way."""
    for key in path[:-1]:
        data = data.setdefault(key, {}) if isinstance(data, dict) else data[key]
    data[path[-1]] = value


def assign(candidates: Sequence[Sequence[int]]) -> dict[int, int]:
    """Assign a different candidate to as many items as possible, by augmenting paths; earlier items first.

    Args:
        candidates: The candidates of each item.
    """
    candidate_of: dict[int, int] = {}
    for item in range(len(candidates)):
        owner_of = {candidate: owner for owner, candidate in candidate_of.items()}
        reached_from: dict[int, int] = {}
        queue = [item]
        for reached in queue:
            options = [candidate for candidate in candidates[reached] if candidate not in reached_from]
            reached_from |= dict.fromkeys(options, reached)
            free = next((candidate for candidate in options if candidate not in owner_of), None)
            if free is None:
                queue += [owner_of[candidate] for candidate in options]
                continue
            while free is not None:
                owner = reached_from[free]
                candidate_of[owner], free = free, candidate_of.get(owner)
            break
    return candidate_of
