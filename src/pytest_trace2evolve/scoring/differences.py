"""Finds the places where two databases differ.

By default, two values differ if and only if their tau2 database hashes differ (`copy_on_write.fingerprint`).
Values are then equal if their JSON is equal: 1 differs from 1.0, but a tuple equals a list.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from pytest_trace2evolve.records.failure import ABSENT, DatabasePath, Difference


def has_same_json(expected: object, actual: object) -> bool:
    """Whether two values have the same JSON."""
    return _to_json(expected) == _to_json(actual)


def find_differences(
    expected: object,
    actual: object,
    side: str = "",
    path: DatabasePath = (),
    *,
    is_same: Callable[[object, object], bool] = has_same_json,
) -> Iterator[Difference]:
    """Yield each place where two databases differ, in the order of the expected database.

    Objects that both databases share are skipped, so that overlays of a large database are cheap to compare.

    Args:
        expected, actual: The databases: models, mappings, lists and other values.
        side: The side that owns the databases.
        path: The place of both values in their databases.
        is_same: Whether two values that are not both mappings or both lists are equal; one may be `ABSENT`.
    """
    if expected is actual:
        return
    expected, actual = _to_container(expected), _to_container(actual)
    if isinstance(expected, dict) and isinstance(actual, dict):
        for key in [*expected, *(key for key in actual if key not in expected)]:
            expected_value, actual_value = expected.get(key, ABSENT), actual.get(key, ABSENT)
            if expected_value is not actual_value:
                yield from find_differences(expected_value, actual_value, side, (*path, key), is_same=is_same)
    elif isinstance(expected, list | tuple) and isinstance(actual, list | tuple):
        yield from _find_list_differences(expected, actual, side, path, is_same)
    elif not is_same(expected, actual):
        yield Difference(path, expected, actual, side)


def _find_list_differences(
    expected: Sequence[Any],
    actual: Sequence[Any],
    side: str,
    path: DatabasePath,
    is_same: Callable[[object, object], bool],
) -> Iterator[Difference]:
    """Compare lists by position. If their lengths differ, their common beginning and end are skipped."""

    def is_equal(expected_item: object, actual_item: object) -> bool:
        return next(find_differences(expected_item, actual_item, is_same=is_same), None) is None

    start, end = 0, 0
    if len(expected) != len(actual):
        shorter_length = min(len(expected), len(actual))
        while start < shorter_length and is_equal(expected[start], actual[start]):
            start += 1
        while end < shorter_length - start and is_equal(expected[-1 - end], actual[-1 - end]):
            end += 1
    expected_end, actual_end = len(expected) - end, len(actual) - end
    for position in range(start, max(expected_end, actual_end)):
        yield from find_differences(
            expected[position] if position < expected_end else ABSENT,
            actual[position] if position < actual_end else ABSENT,
            side,
            (*path, position),
            is_same=is_same,
        )


def _to_container(value: object) -> object:
    """Return a model or a mapping as a dictionary with text keys, and any other value unchanged."""
    if isinstance(value, BaseModel):
        # A tool may have assigned a value of an undeclared type.
        value = value.model_dump(warnings=False)
    if isinstance(value, Mapping):
        return {_key_text(key): item for key, item in value.items()}
    return value


def _key_text(key: object) -> str:
    """Return a key as JSON writes it."""
    return str.__str__(key) if isinstance(key, str) else json.dumps(key, default=str)


def _to_json(value: object) -> str:
    # `ABSENT` has to differ from every text.
    return "" if value is ABSENT else json.dumps(value, default=str, sort_keys=True)
