"""Merging a task's initialization data into a session's database, validated by the database's own models."""

from collections.abc import Mapping
from typing import Any, get_args

from pydantic import BaseModel, TypeAdapter, ValidationError

from pytest_trace2evolve.errors import WorldError
from pytest_trace2evolve.records.base import complaint
from pytest_trace2evolve.worlds.overlay import OverlayDatabase, OverlayDict, clone

Database = OverlayDatabase | BaseModel


def merge(database: Database, update: Mapping[str, Any]) -> None:
    """Merge nested dictionaries into a database: records by key, anything else replaced, all of it validated.

    Args:
        database: A session's own database; only it changes.
        update: The task's data. It is copied: a session never writes into the task it came from.

    Raises:
        WorldError: the database has no such table, or the data do not fit its models.
    """
    kind = database.kind if isinstance(database, OverlayDatabase) else type(database)
    for name, value in update.items():
        field = kind.model_fields.get(name)
        if field is None:
            raise WorldError(f"initialization data name {name!r}, which the database does not have")
        try:
            _merge_field(database, name, field.annotation, value)
        except ValidationError as error:
            raise WorldError(f"initialization data do not fit {name!r}: {complaint(error, 'it')}") from None


def _merge_field(database: Database, name: str, annotation: Any, value: Any) -> None:
    current = getattr(database, name)
    if isinstance(value, Mapping) and isinstance(current, OverlayDatabase):
        merge(current, value)
    elif isinstance(value, Mapping) and isinstance(current, OverlayDict):
        record_type = TypeAdapter(get_args(annotation)[1])
        for key, item in value.items():
            old = current.get(key)
            current[key] = record_type.validate_python(combined(old, item))
    else:
        setattr(database, name, TypeAdapter(annotation).validate_python(combined(current, value)))


def combined(old: Any, new: Any) -> Any:
    """`new` over `old`: dictionaries key by key, anything else replaced; nothing is shared with `new`."""
    before = old.model_dump() if isinstance(old, BaseModel) else old
    if not isinstance(before, Mapping) or not isinstance(new, Mapping):
        return clone(new)
    return {**before, **{key: combined(before.get(key), item) for key, item in new.items()}}
