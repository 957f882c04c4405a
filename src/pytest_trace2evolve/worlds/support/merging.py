"""Stores with a task's initialization data in them, made once for all sessions of the task."""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from pytest_trace2evolve.errors import WorldError
from pytest_trace2evolve.records.base import complaint
from pytest_trace2evolve.records.task import InitializationData
from pytest_trace2evolve.worlds.merge import combined
from pytest_trace2evolve.worlds.support.database import TABLES, read_record
from pytest_trace2evolve.worlds.support.store import Row, Store

_KEPT = 256  # stores; one holds references to all records of the store it was made from


class MergedStores:
    """Merges initialization data into one store, and keeps the results of the tasks that came last.

    Data are known again by being the same object, which the record is kept for: their content is not read
    again, so it must not be changed in place.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._kept: OrderedDict[int, tuple[InitializationData, Store]] = OrderedDict()

    def merged(self, store: Store, data: InitializationData) -> Store:
        """`store` with the data merged into it.

        Raises:
            WorldError: the data do not fit the shape of a retail database, or are for the user.
        """
        if store is not self._store:
            return merge_into(store, data)
        kept = self._kept.get(id(data))
        if kept is None:
            kept = self._kept[id(data)] = (data, merge_into(store, data))
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        else:
            self._kept.move_to_end(id(data))
        return kept[1]


def merge_into(store: Store, data: InitializationData) -> Store:
    """A store with further or changed records: nested dictionaries key by key, anything else replaced.

    Raises:
        WorldError: as of `MergedStores.merged`.
    """
    if data.user_data:
        raise WorldError("initialization data for the user, who has no database in domain 'support'")
    changes: dict[str, dict[str, Row]] = {}
    for name, update in (data.agent_data or {}).items():
        if name not in TABLES:
            raise WorldError(f"initialization data name {name!r}, which the database does not have")
        try:
            changes[name] = _merged_rows(store, name, update)
        except ValidationError as error:
            raise WorldError(f"initialization data do not fit {name!r}: {complaint(error, 'it')}") from None
    return store.replaced(changes) if changes else store


def _merged_rows(store: Store, name: str, update: Any) -> dict[str, Row]:
    if not isinstance(update, Mapping):
        kind = type(update).__name__
        raise WorldError(f"initialization data do not fit {name!r}: they are {kind}, not records by key")
    before = store.tables[name]
    rows = {}
    for key, change in update.items():
        old = before[key].data if key in before else None
        rows[key] = Row(read_record(name, combined(old, change)))
    return rows
