"""Copy-on-write views of a benchmark's database.

A world loads its database once, and each session accesses the database through an overlay. The overlay gives
the shared records to tools that only read. It copies a record when a tool that changes state first accesses
that record. The cost of comparing two sessions depends on what they wrote, not on the size of the database.
"""

import contextlib
import functools
import json
from collections import ChainMap, UserDict
from collections.abc import ItemsView, Iterator, Mapping, MutableSequence, ValuesView
from typing import Any, get_args

from pydantic import BaseModel, TypeAdapter, ValidationError

from pytest_trace2evolve.errors import WorldError
from pytest_trace2evolve.utils.reading import first_problem

_ATOMIC_TYPES = frozenset({str, int, float, bool, type(None)})


class WriteMode:
    """A switch that makes the overlays of one session copy the records that are read from them."""

    __slots__ = ("is_on",)

    def __init__(self) -> None:
        self.is_on = False

    @contextlib.contextmanager
    def enable(self) -> Iterator[None]:
        """Copy records when they are read within a `with` block; blocks can be nested."""
        previous, self.is_on = self.is_on, True
        try:
            yield
        finally:
            self.is_on = previous


def clone(value: Any) -> Any:
    """Copy the models, dictionaries and lists of a database value; immutable values are shared."""
    value_type = type(value)
    if value_type in _ATOMIC_TYPES:
        return value
    if value_type is dict:
        return {key: clone(item) for key, item in value.items()}
    if value_type is list:
        return [clone(item) for item in value]
    if isinstance(value, BaseModel):
        copies = {key: clone(item) for key, item in value.__dict__.items() if type(item) not in _ATOMIC_TYPES}
        return value.model_copy(update=copies)
    return value  # enumerations, dates and times are immutable


def fingerprint(value: Any) -> str:
    """Return a text that is equal for two values if and only if their tau2 database hashes are equal.

    tau2 hashes `json.dumps(model_dump(), sort_keys=True, default=str)`, so 1 and 1.0 differ, but the order of
    keys does not matter.
    """
    return json.dumps(to_plain(value), sort_keys=True, default=str)


def to_plain(value: Any) -> Any:
    """Convert models and overlays in a value to dictionaries and lists."""
    if isinstance(value, BaseModel):
        # A tool may have assigned a value of an undeclared type, which tau2 dumps unchanged.
        return value.model_dump(warnings=False)
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | OverlayList):
        return [to_plain(item) for item in value]
    return value


def is_equal(left: Any, right: Any) -> bool:
    """Return whether two values have equal tau2 database hashes; overlays compare only written records."""
    if isinstance(left, OverlayDict | OverlayList | OverlayDatabase):
        return left.equals(right)
    return fingerprint(left) == fingerprint(right)


class OverlayDict(UserDict[str, Any]):
    """A table of records by key, over a shared table that it never changes."""

    def __init__(self, base: dict[str, Any], mode: WriteMode) -> None:
        super().__init__()
        self.data = dict(base)
        self._base = base
        self._mode = mode
        self._written: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        record = self.data[key]
        if self._mode.is_on and key not in self._written:
            record = self[key] = clone(record)
        return record

    def __setitem__(self, key: str, value: Any) -> None:
        self.data[key] = value
        self._written.add(key)

    def __delitem__(self, key: str) -> None:
        del self.data[key]
        self._written.add(key)

    def items(self) -> ItemsView[str, Any]:
        """Return the pairs of key and record; outside write mode, the much faster view of the plain table."""
        return super().items() if self._mode.is_on else self.data.items()

    def values(self) -> ValuesView[Any]:
        """Return the records; see `items`."""
        return super().values() if self._mode.is_on else self.data.values()

    def is_changed(self) -> bool:
        """Whether a record was written or deleted."""
        return bool(self._written)

    def equals(self, other: object) -> bool:
        """Whether both views hold equal records; only records that may differ are compared."""
        if not isinstance(other, OverlayDict):
            return False
        keys = self._written | other._written
        if self._base is not other._base:
            keys |= self.keys() | other.keys()
        return all(self._has_equal_record(key, other) for key in keys)

    def _has_equal_record(self, key: str, other: "OverlayDict") -> bool:
        if key not in self or key not in other:
            return key not in self and key not in other
        own_record, other_record = self.data[key], other.data[key]
        return own_record is other_record or fingerprint(own_record) == fingerprint(other_record)


class OverlayList(MutableSequence[Any]):
    """A list of records over a shared list that it never changes."""

    def __init__(self, base: list[Any], mode: WriteMode) -> None:
        self._mode = mode
        self._items = list(base)
        self._shared = {id(item) for item in base if type(item) not in _ATOMIC_TYPES}

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(len(self._items)))]
        item = self._items[index]
        if self._mode.is_on and id(item) in self._shared:
            item = self._items[index] = clone(item)
        return item

    def __setitem__(self, index: Any, value: Any) -> None:
        self._items[index] = value

    def __delitem__(self, index: Any) -> None:
        del self._items[index]

    def __len__(self) -> int:
        return len(self._items)

    def insert(self, index: int, value: Any) -> None:
        self._items.insert(index, value)

    def equals(self, other: object) -> bool:
        """Whether both views hold equal records in the same order."""
        if not isinstance(other, OverlayList) or len(self._items) != len(other._items):
            return False
        pairs = zip(self._items, other._items, strict=True)
        return all(
            own_item is other_item or fingerprint(own_item) == fingerprint(other_item)
            for own_item, other_item in pairs
        )


class OverlayDatabase:
    """A database model seen through overlays: its tables by attribute, nested tables included.

    Attributes:
        model_class: The class of the database model.
    """

    __slots__ = ("__dict__", "model_class")

    def __init__(self, base: BaseModel, mode: WriteMode) -> None:
        self.model_class = type(base)
        for field, value in base.__dict__.items():
            self.__dict__[field] = _overlay(value, mode)

    def is_changed(self) -> bool:
        """Whether a record of a table was written or deleted."""
        return any(table.is_changed() for table in self.__dict__.values() if isinstance(table, OverlayDict))

    def contents(self) -> dict[str, Any]:
        """Return the tables as plain dictionaries and lists, which must not be changed."""
        return {field: _contents(value) for field, value in self.__dict__.items()}

    def equals(self, other: object) -> bool:
        """Whether both views hold an equal database."""
        if not isinstance(other, OverlayDatabase) or self.__dict__.keys() != other.__dict__.keys():
            return False
        return all(is_equal(value, other.__dict__[field]) for field, value in self.__dict__.items())


def _overlay(value: Any, mode: WriteMode) -> Any:
    if isinstance(value, dict):
        return OverlayDict(value, mode)
    if isinstance(value, list):
        return OverlayList(value, mode)
    if isinstance(value, BaseModel):
        return OverlayDatabase(value, mode)
    return value


def changed_contents(value: Any, other: Any) -> Any:
    """Return the contents of an overlay without the records that two overlays share."""
    if isinstance(value, OverlayDatabase) and isinstance(other, OverlayDatabase):
        return {
            field: changed_contents(item, other.__dict__.get(field)) for field, item in value.__dict__.items()
        }
    if isinstance(value, OverlayDict) and isinstance(other, OverlayDict) and value._base is other._base:
        return {key: value.data[key] for key in value._written | other._written if key in value.data}
    if isinstance(value, OverlayList) and isinstance(other, OverlayList):
        shared_ids = {*map(id, other._items)}
        return [item for item in value._items if id(item) not in shared_ids]
    return _contents(value)


def frozen_contents(value: Any) -> Any:
    """Return the contents of an overlay, which later writes of its session do not change."""
    if isinstance(value, OverlayDatabase):
        return {field: frozen_contents(item) for field, item in value.__dict__.items()}
    if isinstance(value, OverlayDict):
        return ChainMap({key: clone(value.data.get(key)) for key in value._written}, value._base)
    if isinstance(value, OverlayList):
        return [item if id(item) in value._shared else clone(item) for item in value._items]
    return clone(value)


def _contents(value: Any) -> Any:
    if isinstance(value, OverlayDatabase):
        return value.contents()
    if isinstance(value, OverlayDict):
        return value.data
    return list(value) if isinstance(value, OverlayList) else value


Database = OverlayDatabase | BaseModel


def merge(database: Database, update: Mapping[str, Any]) -> None:
    """Merge a task's data into a session's own database; merges records by key and replaces other values.

    The database's own models validate the data. The data are copied, so a session never writes into its task.

    Raises:
        WorldError: the database has no such table, or the data do not fit its models.
    """
    model = database.model_class if isinstance(database, OverlayDatabase) else type(database)
    for name, value in update.items():
        field = model.model_fields.get(name)
        if field is None:
            raise WorldError(f"initialization data name {name!r}, but the database has no such table")
        try:
            _merge_field(database, name, field.annotation, value)
        except ValidationError as error:
            raise WorldError(
                f"initialization data do not fit {name!r}: {first_problem(error, 'it')}"
            ) from None


def _merge_field(database: Database, name: str, annotation: Any, value: Any) -> None:
    current = getattr(database, name)
    if isinstance(value, Mapping) and isinstance(current, OverlayDatabase):
        merge(current, value)
    elif isinstance(value, Mapping) and isinstance(current, OverlayDict):
        record_type = _adapter(get_args(annotation)[1])
        for key, item in value.items():
            current[key] = record_type.validate_python(combine(current.get(key), item))
    else:
        setattr(database, name, _adapter(annotation).validate_python(combine(current, value)))


@functools.lru_cache(maxsize=64)
def _adapter(annotation: Any) -> TypeAdapter[Any]:
    return TypeAdapter(annotation)


def combine(old: Any, new: Any) -> Any:
    """Merge dictionaries key by key, and replace other values by a copy of `new`."""
    old_value = old.model_dump() if isinstance(old, BaseModel) else old
    if not isinstance(old_value, Mapping) or not isinstance(new, Mapping):
        return clone(new)
    return {**old_value, **{key: combine(old_value.get(key), item) for key, item in new.items()}}
