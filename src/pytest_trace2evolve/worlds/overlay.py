"""Copy-on-write views of a benchmark's database.

A world loads its database once. A session sees it through an overlay that copies a record when a tool
that changes state first reaches it, hands out the shared record to tools that only read, and remembers
every record reached. Comparing two sessions then costs as much as they touched, not as much as there is.

Merging a task's initialization data into a session's database, validated by the database's own models.
"""

import json
from collections.abc import ItemsView, Iterator, Mapping, MutableMapping, MutableSequence, ValuesView
from typing import Any, get_args

from pydantic import BaseModel, TypeAdapter, ValidationError

from pytest_trace2evolve.errors import WorldError
from pytest_trace2evolve.utils.reading import complaint

_ATOMS = frozenset({str, int, float, bool, type(None)})


class Access:
    """What a session is doing to its overlays: whether it may write, and which records it reached."""

    __slots__ = ("touched", "writing")

    def __init__(self) -> None:
        self.writing = False
        self.touched: set[str] = set()


def clone(value: Any) -> Any:
    """Deep copy of a database value: models, dictionaries and lists of atoms, enumerations and dates."""
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind is dict:
        return {key: clone(item) for key, item in value.items()}
    if kind is list:
        return [clone(item) for item in value]
    if isinstance(value, BaseModel):
        deep = {key: clone(item) for key, item in value.__dict__.items() if type(item) not in _ATOMS}
        return value.model_copy(update=deep)
    return value  # enumerations, dates and times are immutable


def fingerprint(value: Any) -> str:
    """Text that two records share exactly where tau2's database hash could not tell them apart.

    tau2 hashes `json.dumps(model_dump(), sort_keys=True, default=str)`: 1 and 1.0 differ, key order does not.
    """
    return json.dumps(_plain(value), sort_keys=True, default=str)


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        # A tool may have assigned a value of another type than declared: tau2 dumps it as it stands.
        return value.model_dump(warnings=False)
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | OverlayList):
        return [_plain(item) for item in value]
    return value


class OverlayDict(MutableMapping[str, Any]):
    """A table of records by key, over a shared table that it never changes."""

    def __init__(self, base: dict[str, Any], name: str, access: Access) -> None:
        self._base = base
        self._name = name
        self._access = access
        self._own: dict[str, Any] = {}
        self._deleted: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        if key in self._own:
            record = self._own[key]
        elif key in self._deleted:
            raise KeyError(key)
        else:
            record = self._base[key]
            if self._access.writing:
                record = self._own[key] = clone(record)
        self._access.touched.add(f"{self._name}/{key}")
        return record

    def __setitem__(self, key: str, value: Any) -> None:
        self._own[key] = value
        self._access.touched.add(f"{self._name}/{key}")

    def __delitem__(self, key: str) -> None:
        if key not in self:
            raise KeyError(key)
        self._own.pop(key, None)
        if key in self._base:
            self._deleted.add(key)
        self._access.touched.add(f"{self._name}/{key}")

    def __contains__(self, key: object) -> bool:
        return key in self._own or (key in self._base and key not in self._deleted)

    def __iter__(self) -> Iterator[str]:
        for key in self._base:
            if key not in self._deleted:
                yield key
        for key in list(self._own):
            if key not in self._base or key in self._deleted:  # put back after deletion: it comes last
                yield key

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def items(self) -> ItemsView[str, Any]:
        """Key and record pairs; a tool that only reads scans the shared records and reaches none of them."""
        return _Items(self)

    def values(self) -> ValuesView[Any]:
        """Records; scanned like `items`."""
        return _Values(self)

    def _scanned(self, key: str) -> Any:
        return self[key] if self._access.writing else self._peek(key)

    def same_as(self, other: object) -> bool:
        """Whether both views hold equal records; only records that either may have changed are compared."""
        if not isinstance(other, OverlayDict):
            return False
        for key in self._own.keys() | other._own.keys() | self._deleted | other._deleted:
            if (key in self) != (key in other):
                return False
            if key in self and fingerprint(self._peek(key)) != fingerprint(other._peek(key)):
                return False
        return True

    def _peek(self, key: str) -> Any:
        return self._own[key] if key in self._own else self._base[key]


class _Items(ItemsView[str, Any]):
    _mapping: OverlayDict

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        for key in self._mapping:
            yield key, self._mapping._scanned(key)


class _Values(ValuesView[Any]):
    _mapping: OverlayDict

    def __iter__(self) -> Iterator[Any]:
        for key in self._mapping:
            yield self._mapping._scanned(key)


class OverlayList(MutableSequence[Any]):
    """A list of records over a shared list that it never changes."""

    def __init__(self, base: list[Any], name: str, access: Access) -> None:
        self._name = name
        self._access = access
        self._items = list(base)
        self._shared = {id(item) for item in base if type(item) not in _ATOMS}

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(len(self._items)))]
        position = range(len(self._items))[index]
        item = self._items[position]
        if self._access.writing and id(item) in self._shared:
            item = self._items[position] = clone(item)
        self._access.touched.add(f"{self._name}/{position}")
        return item

    def __setitem__(self, index: Any, value: Any) -> None:
        self._items[index] = value
        self._access.touched.add(f"{self._name}/{index}")

    def __delitem__(self, index: Any) -> None:
        del self._items[index]
        self._access.touched.add(f"{self._name}/{index}")

    def __len__(self) -> int:
        return len(self._items)

    def insert(self, index: int, value: Any) -> None:
        """Insert a record before `index`."""
        self._items.insert(index, value)
        self._access.touched.add(f"{self._name}/{index}")

    def same_as(self, other: object) -> bool:
        """Whether both views hold equal records in the same order."""
        if not isinstance(other, OverlayList) or len(self._items) != len(other._items):
            return False
        return all(
            mine is theirs or fingerprint(mine) == fingerprint(theirs)
            for mine, theirs in zip(self._items, other._items, strict=True)
        )


class OverlayDatabase:
    """A database model seen through overlays: its tables by attribute, nested tables included.

    Attributes:
        kind: The class of the database model.
    """

    __slots__ = ("__dict__", "kind")

    def __init__(self, base: BaseModel, access: Access, name: str = "") -> None:
        self.kind = type(base)
        for field, value in base.__dict__.items():
            path = f"{name}.{field}" if name else field
            self.__dict__[field] = _overlay(value, path, access)

    def same_as(self, other: object) -> bool:
        """Whether both views hold an equal database."""
        if not isinstance(other, OverlayDatabase) or self.__dict__.keys() != other.__dict__.keys():
            return False
        return all(_same(value, other.__dict__[field]) for field, value in self.__dict__.items())


def _overlay(value: Any, path: str, access: Access) -> Any:
    if isinstance(value, dict):
        return OverlayDict(value, path, access)
    if isinstance(value, list):
        return OverlayList(value, path, access)
    if isinstance(value, BaseModel):
        return OverlayDatabase(value, access, path)
    return value


def _same(mine: Any, theirs: Any) -> bool:
    if isinstance(mine, OverlayDict | OverlayList | OverlayDatabase):
        return mine.same_as(theirs)
    return fingerprint(mine) == fingerprint(theirs)


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
