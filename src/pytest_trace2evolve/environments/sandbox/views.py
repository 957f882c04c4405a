"""What generated code sees of Python while it runs: listed builtins, and modules with the listed names.

The rules read the source; these hold what the source can do by other ways, such as keeping a module in a
variable. A view is a module of its own with nothing in it but what `allowed` lists. Some things that it
lists are replaced here. The dates have no clock, and `random.Random` has no seed of its own. Two libraries
evaluate or look up names that they were given as text:

- `dataclasses.dataclass` builds a source from the names of fields, and `dataclasses.field` gives back an
  object whose name can be changed afterwards: together they run any text.
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
from types import ModuleType
from typing import Any, NoReturn

from pytest_trace2evolve.environments.sandbox.allowed import BUILTINS, MODULES

GENERATED = "generated"
"""The name by which the generated module knows itself."""

_LOADED_BY_C = {"_strptime", "time"}
"""What listed functions in C import when they are first called: loaded before, for no file opens later."""


_LOADED_LATE = {"heapq", "unicodedata", "warnings"}
"""The same for functions in Python (`Counter.most_common`), which ask the interpreter's own importer."""


def preload() -> dict[str, ModuleType]:
    """The views of all listed modules. Imports them, so it must come before the lock."""
    for name in _LOADED_BY_C | _LOADED_LATE:
        importlib.import_module(name)
    _mend_enum()
    views = {name: _view(name, names) for name, names in MODULES.items()}
    _link(views)
    return views


def _link(views: Mapping[str, ModuleType]) -> None:
    """Make modules within modules attributes of them."""
    for name, view in views.items():
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(views[parent], child, view)


def _copies(views: Mapping[str, ModuleType]) -> dict[str, ModuleType]:
    copies = {name: ModuleType(name) for name in views}
    for name, copy in copies.items():
        vars(copy).clear()
        vars(copy).update(vars(views[name]))
    _link(copies)
    return copies


def namespace(views: Mapping[str, ModuleType]) -> dict[str, Any]:
    """The globals that a generated module starts with; what it writes into them, it alone sees."""
    listed = {one: getattr(builtins, one) for one in BUILTINS}
    listed |= {"print": _print, "__build_class__": builtins.__build_class__}
    views = _copies(views)
    listed["__import__"] = _importer(views)
    module = ModuleType(GENERATED)
    # dataclasses and typing look a class's module up by its name.
    sys.modules[GENERATED] = module
    vars(module).clear()
    vars(module).update({"__builtins__": listed, "__name__": GENERATED})
    return vars(module)


def attributes(views: Mapping[str, ModuleType]) -> list[tuple[Any, dict[str, Any]]]:
    """What can be written to among the things that views hold, each with its attributes as they are."""
    found = {
        id(one): one for view in views.values() for one in vars(view).values() if hasattr(one, "__dict__")
    }
    return [(one, dict(vars(one))) for one in found.values() if not isinstance(one, ModuleType)]


def restore(kept: list[tuple[Any, dict[str, Any]]]) -> None:
    """Take back what was written to the things of `attributes`: it would last from one call to the next."""
    for one, before in kept:
        now = vars(one)
        if len(now) == len(before) and all(now.get(name) is value for name, value in before.items()):
            continue
        for name in [name for name in now if name not in before]:
            delattr(one, name)
        for name, value in before.items():
            if vars(one).get(name) is not value:
                setattr(one, name, value)


def _view(name: str, names: frozenset[str]) -> ModuleType:
    module = importlib.import_module(name)
    view = ModuleType(name)
    vars(view).clear()
    vars(view).update(
        {"__name__": name} | {one: getattr(module, one) for one in names if hasattr(module, one)}
    )
    vars(view).update(_REPLACED.get(name, {}))
    if name == "dataclasses":
        vars(view).update({"dataclass": _dataclass, "field": _field})
    return view


def _no_clock(*arguments: object, **options: object) -> NoReturn:
    raise TypeError("there is no clock here: a scenario follows from its seed alone")


class _DateType(type):
    """Takes the library's own dates, which its methods return, for instances."""

    def __instancecheck__(cls, instance: object) -> bool:
        return issubclass(type(instance), cls)

    def __subclasscheck__(cls, subclass: type) -> bool:
        # A class of the module's own has only what is derived from it.
        own = cls not in (_Date, _DateTime)
        return type.__subclasscheck__(cls if own else cls.__mro__[1], subclass)


class _Date(datetime.date, metaclass=_DateType):
    """A date without the clock."""

    today = _no_clock


class _DateTime(datetime.datetime, metaclass=_DateType):
    """A time without the clock."""

    today = now = utcnow = _no_clock


class _Random(random.Random):
    """Draws from a seed that it was given."""

    def __init__(self, x: Any = None) -> None:
        super().__init__(x)

    def seed(self, a: Any = None, version: int = 2) -> None:
        _require_seed(a)
        super().seed(a, version)

    def __reduce__(self) -> Any:
        return _Random, (0,), self.getstate()


def _require_seed(seed: object) -> None:
    if seed is None:
        raise TypeError("Random needs a seed: a scenario follows from its seed alone")


_REPLACED: dict[str, dict[str, Any]] = {
    "datetime": {"date": _Date, "datetime": _DateTime},
    "random": {"Random": _Random},
}


def _importer(views: Mapping[str, ModuleType]) -> Callable[..., ModuleType]:
    def import_listed(
        name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
    ) -> ModuleType:
        if name in _LOADED_BY_C:
            # C code asks like this and then takes the module from elsewhere: what is returned is dropped.
            return ModuleType(name)
        if level or name not in views:
            raise ImportError(f"{name!r} is not available; allowed are {', '.join(sorted(views))}")
        return views[name] if fromlist else views[name.partition(".")[0]]

    return import_listed


def _print(*values: object, **options: object) -> None:
    """Nowhere to print to: what a generated module says is what its functions return."""


class _Field(dataclasses.Field):  # type: ignore[type-arg]  # no field of its own
    """A field whose name stays one."""

    __slots__ = ()

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "name" and value is not None:
            _check_name(value)
        super().__setattr__(name, value)


def _field(
    *,
    default: Any = dataclasses.MISSING,
    default_factory: Any = dataclasses.MISSING,
    init: bool = True,
    repr: bool = True,
    hash: bool | None = None,
    compare: bool = True,
    metadata: Any = None,
    kw_only: Any = dataclasses.MISSING,
) -> Any:
    if default is not dataclasses.MISSING and default_factory is not dataclasses.MISSING:
        raise ValueError("cannot specify both default and default_factory")
    given = [default, default_factory, init, repr, hash, compare, metadata, kw_only]
    if sys.version_info >= (3, 14):
        given.append(None)
    return _Field(*given)


def _dataclass(cls: type | None = None, /, **options: Any) -> Any:
    """As in the library, for classes whose annotations are names and nothing else."""
    if cls is None:
        return lambda decorated: _dataclass(decorated, **options)
    for one in cls.__mro__:
        for name in inspect.get_annotations(one):
            _check_name(name)
    return dataclasses.dataclass(**options)(cls)


def _check_name(name: object) -> None:
    if type(name) is not str or not name.isidentifier() or name.startswith("_") or keyword.iskeyword(name):
        raise TypeError("a field's name must be a plain name")


def _mend_enum() -> None:
    def refuse(*arguments: object, **options: object) -> NoReturn:
        raise TypeError("an Enum is written as a class here")

    setattr(enum.EnumType, "_create_", refuse)  # noqa: B010 - its stub does not know the method
