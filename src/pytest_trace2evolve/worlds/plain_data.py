"""The data of plain worlds: copies, conversion to JSON, comparison, and changes that a task describes."""

import contextlib
import copy
import dataclasses
import json
import math
import pickle
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any

import pydantic_core
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError

from pytest_trace2evolve.errors import WorldError
from pytest_trace2evolve.utils.memory import pause_garbage_collection
from pytest_trace2evolve.utils.reading import (
    MAX_RECORD_BYTES,
    convert_failures,
    first_problem,
    parse_json,
    read_text,
)
from pytest_trace2evolve.utils.yaml_text import parse_yaml

TOLERANCE = 1e-9
"""The relative and absolute difference up to which two numbers are equal, because 0.1 + 0.2 is not 0.3."""


class Snapshot:
    """A value that can be copied; the copies share nothing with the value or with each other."""

    def __init__(self, value: Any) -> None:
        try:
            data = pickle.dumps(value, protocol=5)
            pickle.loads(data)
            self._load: Callable[[], Any] = lambda: pickle.loads(data)
        except Exception:  # a class that cannot be pickled, such as one that a function defines
            original = copy.deepcopy(value)
            self._load = lambda: copy.deepcopy(original)

    def copy(self) -> Any:
        """Return a copy. Pausing garbage collection, which would find nothing, makes it four times faster."""
        with pause_garbage_collection():
            return self._load()


class DataType:
    """The type of a database, which validates its data.

    Args:
        hint: A type hint, such as a pydantic model or `dict[str, Booking]`; None for any JSON object.
        name: The name of the database in messages.
    """

    def __init__(self, hint: Any, name: str) -> None:
        self._name = name
        self.hint = hint
        try:
            self._adapter: TypeAdapter[Any] | None = None if hint is None else TypeAdapter(hint)
        except (PydanticUserError, PydanticSchemaGenerationError) as error:
            cause = " ".join(str(error).split())[:200]
            raise WorldError(f"{name}: its type cannot hold data ({cause}); use a pydantic model") from None

    def validate(self, data: Any, source: str) -> Any:
        """Convert plain data to the database's type.

        Raises:
            WorldError: the data do not fit; the message starts with `source`.
        """
        if self._adapter is None:
            return data
        try:
            return self._adapter.validate_python(data)
        except ValidationError as error:
            raise WorldError(f"{source} do not fit {self._name}: {first_problem(error, 'data')}") from None

    def merge(self, database: Any, update: Mapping[str, Any], source: str) -> Any:
        """Return a copy of a database with the changes of a task.

        Mappings are merged, a null removes the key (or is its value, if the type requires the key), and any
        other value replaces the old one. Keys of the changes may be written as text.

        Raises:
            WorldError: the changed data do not fit.
        """
        plain = database if self._adapter is None else to_json(database)
        changed_data = merge_json(copy.deepcopy(plain) if self._adapter is None else plain, update)
        if self._adapter is None:
            return changed_data
        try:
            return self._adapter.validate_python(changed_data)
        except ValidationError as error:
            with contextlib.suppress(ValidationError):
                return self._adapter.validate_python(merge_json(plain, update, keeps_nulls=True))
            raise WorldError(f"{source} do not fit {self._name}: {first_problem(error, 'data')}") from None


def to_json(value: Any) -> Any:
    """Convert a value of a database or of a tool to JSON types.

    Models and dataclasses become objects, sets become sorted lists, enumerations become their values, and
    dates become ISO texts. A value of any other type becomes its text.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Enum):
        return to_json(value.value)
    if isinstance(value, str | int | float):
        return value if type(value) in (str, int, float) else _base_value(value)
    if isinstance(value, Decimal):
        return float(value) if value % 1 else int(value)  # 12.50 equals 12.5
    if isinstance(value, BaseModel):
        # A tool may have assigned a value of an undeclared type, about which pydantic would warn.
        return to_json(value.model_dump(by_alias=True, round_trip=True, warnings=False))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {json_key(key): to_json(item) for key, item in value.items()}
    if isinstance(value, AbstractSet):
        return sorted((to_json(item) for item in value), key=lambda item: json.dumps(item, sort_keys=True))
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    return pydantic_core.to_jsonable_python(value, fallback=str)


def _base_value(value: str | int | float) -> str | int | float:
    """Convert an instance of a subclass of str, int or float to that base class."""
    base = next(base for base in (str, int, float) if isinstance(value, base))
    return base.__str__(value) if base is str else base(value)


def json_key(key: Any) -> str:
    """Convert the key of a mapping to a key of a JSON object."""
    if isinstance(key, str) and not isinstance(key, Enum):
        return key
    plain = to_json(key)
    return plain if isinstance(plain, str) else json.dumps(plain)


def is_same(left: Any, right: Any) -> bool:
    """Whether two JSON values are equal. Numbers have a tolerance, except two integers, which may be ids."""
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(is_same(item, right[key]) for key, item in left.items())
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(is_same, left, right))
    if _is_number(left) and _is_number(right):
        if left == right or (isinstance(left, int) and isinstance(right, int)):
            return bool(left == right)
        with contextlib.suppress(OverflowError):  # an integer beyond the range of floats
            return math.isclose(left, right, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
        return False
    return type(left) is type(right) and bool(left == right)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def without_nulls(value: Any) -> Any:
    """Return a JSON value without the keys whose value is null."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value


def merge_json(old: Any, new: Any, *, keeps_nulls: bool = False) -> Any:
    """Merge mappings; any other new value replaces the old one, and a null removes the key."""
    if not isinstance(new, Mapping):
        return copy.deepcopy(new)
    merged = dict(old) if isinstance(old, Mapping) else {}
    # A key that is text in a task may be another type in the database, such as a number.
    keys = {json_key(key): key for key in merged}
    for name, value in new.items():
        key = keys.get(json_key(name), name)
        if value is None and key in merged and not keeps_nulls:
            del merged[key]
        else:
            merged[key] = merge_json(merged.get(key), value, keeps_nulls=keeps_nulls)
    return merged


def load_data(data: str | Path | Mapping[str, Any] | BaseModel | None, folder: Path) -> Any:
    """Return the content of a data file, or data that are not a path unchanged."""
    if data is None:
        return {}
    if not isinstance(data, str | Path):
        return dict(data) if isinstance(data, Mapping) else data
    path = folder / data
    if path.suffix not in (".json", ".yaml", ".yml"):
        raise WorldError(f"{path}: is neither JSON nor YAML by its name; name it .json, .yaml or .yml")
    text = read_text(path, WorldError, max_bytes=MAX_RECORD_BYTES)
    content = _parse_json_file(text, path) if path.suffix == ".json" else parse_yaml(text, path, WorldError)
    if not isinstance(content, dict):
        raise WorldError(f"{path}: holds a {type(content).__name__}, not a mapping; correct the file")
    return content


def _parse_json_file(text: str, path: Path) -> Any:
    with convert_failures(path, WorldError, "correct the file"):
        return parse_json(text, require_unique=True)
