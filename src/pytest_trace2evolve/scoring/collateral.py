"""Finds collateral changes: records that the agent changed and the task leaves alone.

The entries of a database are tables, and the entries of a table are records: those of a mapping by key, those
of a list by id. An entry of a table that holds only mappings, or only rows with ids, is a table itself.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from pytest_trace2evolve.records.failure import ABSENT
from pytest_trace2evolve.records.message import ToolCall
from pytest_trace2evolve.records.protocols import SupportsComparedDatabases, SupportsSameValue, WorldSession
from pytest_trace2evolve.records.rules import Finding, Invariant
from pytest_trace2evolve.records.task import DATABASE_EQUALS, Action, EvaluationCriteria, RewardBasis
from pytest_trace2evolve.scoring.differences import find_differences
from pytest_trace2evolve.scoring.matchers import contains_matcher

RecordPath = tuple[Any, ...]
"""The keys from a database to a record: usually its table and its id."""


def fixes_records(criteria: EvaluationCriteria) -> bool:
    """Whether a task says which records may change; texts, or a call by its name only, do not."""
    actions = criteria.actions or []
    return (
        RewardBasis.DB in criteria.basis
        or any(assertion.func_name == DATABASE_EQUALS for assertion in criteria.env_assertions or ())
        or (bool(actions) and all(map(_is_exact, actions)))
    )


def _is_exact(action: Action) -> bool:
    """Whether an action has all its arguments, each with one value."""
    if contains_matcher(action.arguments):
        return False
    return bool(action.arguments) or action.compare_args is None


def agent_database(session: Any, *other: WorldSession) -> Any:
    """The agent's database. A session may leave out the records that it shares with another session."""
    if hasattr(session, "agent_database"):
        return session.agent_database(*other)
    return session.databases()["agent"]


def find_collateral(
    criteria: EvaluationCriteria,
    calls: Sequence[tuple[int, ToolCall]],
    replayed: WorldSession,
    gold: WorldSession,
    initial: object,
) -> tuple[Finding, ...]:
    """Find the records that differ, and that neither the gold actions nor the expected data change.

    The agent's last call that names a record's id has changed it. If none does, its last call has, unless the
    user changed databases too.

    Args:
        criteria: What the task expects.
        calls: Further calls that may change a database, with the positions of their messages.
        replayed, gold: The sessions after the trace and after the gold actions.
        initial: The agent's database before both.
    """
    is_same = replayed.is_same_value if isinstance(replayed, SupportsSameValue) else None
    expected = agent_database(gold, replayed)
    paths = _differing_records(expected, agent_database(replayed, gold), is_same)
    paths = [path for path in paths if _record_at(initial, path) == _record_at(expected, path)]
    for assertion in criteria.env_assertions or ():
        if isinstance(gold, SupportsComparedDatabases) and (compared := gold.compared_databases(assertion)):
            allowed_paths = _differing_records(compared[0], compared[1], is_same)
            paths = [path for path in paths if path not in allowed_paths]
    own_calls = [item for item in calls if item[1].requestor == "assistant"]
    findings = []
    for path in paths:
        named = [item for item in own_calls if str(path[-1]) in str(item[1].arguments)]
        for index, call in (named or (own_calls if len(own_calls) == len(calls) else []))[-1:]:
            why = f"{call.name} changed {'.'.join(map(str, path))}, as no gold action does"
            findings.append(Finding(invariant=Invariant.COLLATERAL_CHANGE, message=index, why=why))
    return tuple(findings)


def _differing_records(
    expected: object, actual: object, is_same: Callable[[object, object], bool] | None
) -> list[RecordPath]:
    before, after = dict(_records(expected)), dict(_records(actual))
    return [
        path
        for path in {**before, **after}
        if (old := before.get(path, ABSENT)) is not (new := after.get(path, ABSENT))
        and old != new
        and (is_same is None or any(find_differences(old, new, is_same=is_same)))
    ]


def _record_at(database: object, path: RecordPath) -> object:
    for index, key in enumerate(path):
        database = (_entries(database, path[:index]) or {}).get(key, ABSENT)
    return database


def _records(value: object, path: RecordPath = ()) -> Iterator[tuple[RecordPath, object]]:
    entries = _entries(value, path)
    is_table = entries and all(_entries(item, (*path, key)) is not None for key, item in entries.items())
    if entries is None or (len(path) >= 2 and not is_table):
        yield path, value
        return
    for key, item in entries.items():
        if isinstance(value, list):
            yield (*path, key), item
        else:
            yield from _records(item, (*path, key))


def _entries(value: object, path: RecordPath) -> Mapping[Any, Any] | None:
    """The entries of a mapping, a model or a list of rows with ids; None for anything else."""
    if not isinstance(value, list):
        value = value.__dict__ if isinstance(value, BaseModel) else value
        return value if isinstance(value, Mapping) else None
    rows = [row.__dict__ if isinstance(row, BaseModel) else row for row in value]
    if not all(isinstance(row, Mapping) for row in rows):
        return None
    names = [name for name in (rows or [{}])[0] if str(name).casefold().endswith("id")]
    # `id`, or the table's own id such as `line_id` of `lines`, comes before ids of other records.
    table = str(path[-1]).casefold() if path else ""
    names.sort(key=lambda name: (name != "id", not table.startswith(name.casefold()[:-2].rstrip("_") or "-")))
    if rows and not names:
        return None
    entries: dict[Any, Any] = {}
    for row, item in zip(rows, value, strict=True):
        key = str(row.get(names[0]))
        entries[key if key not in entries else (key, len(entries))] = item
    return entries
