"""The view of Python that generated code has while it runs: the listed builtins, and views of modules.

The rules only read the source. The views limit access that the rules cannot see, such as access through a
module that is stored in a variable. A view is a separate module that holds only the names that `policy`
lists. Some listed names are replaced here: the dates have no clock, and `random.Random` requires a seed. Two
libraries are restricted, because they evaluate or look up names that they get as text:

- `dataclasses.dataclass` builds source code from the names of fields, and `dataclasses.field` returns an
  object whose name can be changed afterwards. Together they could run any text.
- `enum.Enum("X", {...})` makes a class with any special methods.
"""

import builtins
import dataclasses
import datetime
import enum
import importlib
import inspect
import keyword
import random
import sys
from collections.abc import Callable, Mapping
from types import FunctionType, ModuleType
from typing import Any, NoReturn

from pytest_trace2evolve.environments.sandbox.policy import BUILTINS, MODULES

GENERATED_NAME = "generated"
"""The `__name__` of the generated module."""

_IMPORTED_BY_C = {"_strptime", "time"}
"""Modules that listed C functions import at their first call; imported early, while files can be opened."""

_IMPORTED_LATE = {"heapq", "unicodedata", "warnings"}
"""Modules that listed Python functions (`Counter.most_common`) import with the interpreter's own importer."""


def preload() -> dict[str, ModuleType]:
    """Make the views of all listed modules; must run before the lock, because it imports the modules."""
    for name in _IMPORTED_BY_C | _IMPORTED_LATE:
        importlib.import_module(name)
    _forbid_functional_enums()
    views = {name: _make_view(name, names) for name, names in MODULES.items()}
    _link_submodules(views)
    return views


def _make_view(name: str, names: frozenset[str]) -> ModuleType:
    module = importlib.import_module(name)
    values = {
        listed_name: getattr(module, listed_name) for listed_name in names if hasattr(module, listed_name)
    }
    return _make_module(name, {"__name__": name, **values, **_REPLACEMENTS.get(name, {})})


def _make_module(name: str, attributes: Mapping[str, Any]) -> ModuleType:
    """Make a module that has only the given attributes."""
    module = ModuleType(name)
    vars(module).clear()
    vars(module).update(attributes)
    return module


def _link_submodules(views: Mapping[str, ModuleType]) -> None:
    """Set each submodule as an attribute of its parent."""
    for name, view in views.items():
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(views[parent], child, view)


def make_namespace(views: Mapping[str, ModuleType]) -> dict[str, Any]:
    """Make the globals of a generated module, with its own copies of the views, which no other run sees."""
    copies = {name: _make_module(name, vars(view)) for name, view in views.items()}
    _link_submodules(copies)
    allowed_builtins = {name: getattr(builtins, name) for name in BUILTINS}
    allowed_builtins |= {
        "print": _print,
        "__build_class__": builtins.__build_class__,
        "__import__": _make_importer(copies),
    }
    module = _make_module(GENERATED_NAME, {"__builtins__": allowed_builtins, "__name__": GENERATED_NAME})
    # dataclasses and typing look up the module of a class by name.
    sys.modules[GENERATED_NAME] = module
    return vars(module)


def writable_objects(views: Mapping[str, ModuleType]) -> list[tuple[Any, dict[str, Any]]]:
    """The writable objects in the views and their methods, each with a copy of its attributes."""
    values = [value for view in views.values() for value in vars(view).values()]
    classes = {base for value in values if isinstance(value, type) for base in value.__mro__}
    methods = [getattr(value, "__func__", value) for cls in classes for value in vars(cls).values()]
    functions = [method for method in methods if isinstance(method, FunctionType)]
    objects = {id(value): value for value in (*values, *functions) if hasattr(value, "__dict__")}
    return [(value, dict(vars(value))) for value in objects.values() if not isinstance(value, ModuleType)]


def restore_attributes(saved_objects: list[tuple[Any, dict[str, Any]]]) -> None:
    """Undo changes to the objects of `writable_objects`, which would otherwise last until the next call."""
    for value, saved_attributes in saved_objects:
        current_attributes = vars(value)
        if len(current_attributes) == len(saved_attributes) and all(
            current_attributes.get(name) is saved_value for name, saved_value in saved_attributes.items()
        ):
            continue
        for name in [name for name in current_attributes if name not in saved_attributes]:
            delattr(value, name)
        for name, saved_value in saved_attributes.items():
            if vars(value).get(name) is not saved_value:
                setattr(value, name, saved_value)


def _make_importer(views: Mapping[str, ModuleType]) -> Callable[..., ModuleType]:
    def import_listed(
        name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
    ) -> ModuleType:
        if name in _IMPORTED_BY_C:
            # C code ignores this result, because it takes the module from a different place.
            return ModuleType(name)
        if level or name not in views:
            raise ImportError(f"{name!r} is not available; allowed are {', '.join(sorted(views))}")
        return views[name] if fromlist else views[name.partition(".")[0]]

    return import_listed


def _print(*values: object, **options: object) -> None:
    """Discard the text, because a generated module communicates only through return values."""


def _reject_clock(*arguments: object, **options: object) -> NoReturn:
    raise TypeError("the clock is not available: a scenario must depend only on its seed")


class _DateType(type):
    """Metaclass that accepts the library's own dates as instances, because date methods return them."""

    def __instancecheck__(cls, instance: object) -> bool:
        return issubclass(type(instance), cls)

    def __subclasscheck__(cls, subclass: type) -> bool:
        # A class that the generated module derives accepts only its own subclasses.
        is_derived = cls not in (_Date, _DateTime)
        return type.__subclasscheck__(cls if is_derived else cls.__mro__[1], subclass)


class _Date(datetime.date, metaclass=_DateType):
    """A date type that cannot read the clock."""

    today = _reject_clock


class _DateTime(datetime.datetime, metaclass=_DateType):
    """A type of date and time that cannot read the clock."""

    today = now = utcnow = _reject_clock


class _Random(random.Random):
    """A generator of random numbers that requires a seed."""

    def __init__(self, x: Any = None) -> None:
        super().__init__(x)

    def seed(self, a: Any = None, version: int = 2) -> None:
        if a is None:
            raise TypeError("Random needs a seed: a scenario must depend only on its seed")
        super().seed(a, version)

    def __reduce__(self) -> Any:
        return _Random, (0,), self.getstate()


class _Field(dataclasses.Field):  # type: ignore[type-arg]  # no field of its own
    """A dataclass field whose name must be a plain identifier."""

    __slots__ = ()

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "name" and value is not None:
            _check_name(value)
        super().__setattr__(name, value)


def _field(**options: Any) -> Any:
    field = dataclasses.field(**options)
    field.__class__ = _Field
    return field


def _dataclass(cls: type | None = None, /, **options: Any) -> Any:
    """The library's `dataclass`, for classes whose field names are plain identifiers."""
    if cls is None:
        return lambda target: _dataclass(target, **options)
    for base in cls.__mro__:
        for name in inspect.get_annotations(base):
            _check_name(name)
    return dataclasses.dataclass(**options)(cls)


def _check_name(name: object) -> None:
    if type(name) is not str or not name.isidentifier() or name.startswith("_") or keyword.iskeyword(name):
        raise TypeError("a field's name must be a public identifier")


def _forbid_functional_enums() -> None:
    def create(*arguments: object, **options: object) -> NoReturn:
        raise TypeError("an Enum must be written as a class")

    setattr(enum.EnumType, "_create_", create)  # noqa: B010 - its stub does not know the method


_REPLACEMENTS: dict[str, dict[str, Any]] = {
    "datetime": {"date": _Date, "datetime": _DateTime},
    "random": {"Random": _Random},
    "dataclasses": {"dataclass": _dataclass, "field": _field},
}
