"""Identifies the code of an agent, a user or a world by digests that change if its behaviour may change.

Code of a project counts by content: the module that defines an object, the project modules that it imports,
directly or through others, and the data files that these modules name. Installed distributions count by name
and version. An object may declare a `fingerprint` instead: a text, or a callable that returns a text.

The code is read, not run, so four things are not detected: modules imported under a computed name, files
opened under a computed name outside a named folder, functions and values that other code replaces while it
runs (except methods), and anything outside the project (a service, the environment).
"""

import contextlib
import enum
import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from pytest_trace2evolve.errors import Trace2EvolveError
from pytest_trace2evolve.evidence.code_files import CodeFiles, UnknownCodeError
from pytest_trace2evolve.evidence.python_modules import (
    is_foreign,
    locate_module,
    passes_test,
    strip_conftest_package,
)
from pytest_trace2evolve.records.evidence import FACTORY_VALUES, Code
from pytest_trace2evolve.utils.canonical import canonical_json, digest_text


def code_of(
    *roots: object, only_referenced: bool = False, has_docstrings: bool = True, owner: object = None
) -> Code:
    """Identify the code that objects depend on.

    Args:
        roots: Functions, classes, modules or instances; None is skipped. The first root may declare a
            `fingerprint`, which then stands for all roots.
        only_referenced: Whether to count only those definitions of a module that the objects refer to, and
            not other code in the same file. Statements that are not definitions always count.
        has_docstrings: Whether the docstrings of the definitions count.
        owner: The object that the roots produce, such as a world. Its `fingerprint` takes precedence over the
            `fingerprint` of the first root.

    Returns:
        The code. If a source cannot be read or a fingerprint raises, `unknown` holds the reason.

    Raises:
        Trace2EvolveError: a fingerprint raised this error.
    """
    try:
        fingerprint = _declared_fingerprint(owner) or _declared_fingerprint(roots[0])
    except Trace2EvolveError:
        raise
    except Exception as error:
        return Code(unknown=" ".join(f"its fingerprint raises {type(error).__name__}: {error}".split()))
    if fingerprint:
        return Code(fingerprint=fingerprint)
    collector = _CodeCollector(CodeFiles(is_sliced=only_referenced, has_docstrings=has_docstrings))

    def collect() -> None:
        for root in roots:
            if root is not None:
                collector.add(root)

    return _collected_code(collector, collect)


def code_of_module(name: str) -> Code:
    """Identify the code of a module and of all project modules that it imports, without importing it.

    Returns:
        The code. If the module cannot be found or read, `unknown` holds the reason.
    """
    collector = _CodeCollector(CodeFiles(is_sliced=False))

    def collect() -> None:
        path = locate_module(name)
        if path is None:
            raise UnknownCodeError(f"module {name!r} is not found")
        collector.files.add(name, str(path), None)

    return _collected_code(collector, collect)


def _collected_code(collector: "_CodeCollector", collect: Callable[[], None]) -> Code:
    try:
        collect()
        return Code(files=collector.digests(), distributions=collector.files.distributions)
    except UnknownCodeError as error:
        return Code(unknown=" ".join(f"{error}".split()))
    except Exception as error:  # an attribute, a `repr` or a finder of third-party code may raise anything
        return Code(unknown=" ".join(f"{type(error).__name__}: {error}".split()))


def _declared_fingerprint(root: object) -> str:
    """Return the fingerprint that an object or its own class declares; empty if neither does.

    An inherited fingerprint does not count, since a base class cannot identify the code of its subclasses.
    """
    owners = [root] if inspect.isclass(root) else [root, type(root)]
    if not any("fingerprint" in getattr(owner, "__dict__", ()) for owner in owners):
        return ""
    value = getattr(root, "fingerprint", None)
    if callable(value):
        value = value()
    return value if isinstance(value, str) else ""


@dataclass
class _CodeCollector:
    """Collects the files that define live objects, and the values that the objects hold."""

    files: CodeFiles
    _values: list[str] = field(default_factory=list)
    _objects: dict[int, object] = field(default_factory=dict)

    def digests(self) -> dict[str, str]:
        """Return digests by path. The key `FACTORY_VALUES` holds the digest of the values."""
        digests_by_path = self.files.digests()
        if self._values:
            digests_by_path[FACTORY_VALUES] = [digest_text("\n".join(self._values))]
        return {
            key: digests[0] if len(digests) == 1 else digest_text("\n".join(sorted(digests)))
            for key, digests in sorted(digests_by_path.items())
        }

    def add(self, value: object) -> None:
        """Add the code of an object and of the objects that it holds."""
        if isinstance(value, enum.Enum):
            self._add_class(type(value))
            self._values.append(value.name)
        elif isinstance(value, PurePath) or (isinstance(value, str) and _is_existing_path(value)):
            self._add_path(Path(value))
        elif value is None or isinstance(value, str | int | float | bool | bytes):
            self._values.append(repr(value))
        elif id(value) not in self._objects:
            self._objects[id(value)] = value  # kept alive, so that no other object gets this id
            self._add_compound(value)

    def _add_compound(self, value: object) -> None:
        if isinstance(value, functools.partial):
            for part in (value.func, *value.args, *value.keywords.items()):
                self.add(part)
        elif isinstance(value, types.MethodType):
            self.add(value.__self__)
            self.add(value.__func__)
        elif isinstance(value, types.FunctionType):
            self._add_function(value)
        elif isinstance(value, types.ModuleType):
            self.files.add(value.__name__, getattr(value, "__file__", None), None)
        elif inspect.isclass(value):
            self._add_class(value)
        elif isinstance(value, list | tuple | set | frozenset):
            self._values.append(str(len(value)))
            for part in sorted(value, key=_sort_key) if isinstance(value, set | frozenset) else value:
                self.add(part)
        elif isinstance(value, dict):
            self._values.append(str(len(value)))
            for item in value.items():
                self.add(item)
        elif isinstance(value, types.BuiltinFunctionType):
            self.add(value.__self__)  # the module if it is a function, the owner if it is a method
        else:
            self._add_class(type(value))
            self._add_state(value)

    def _add_state(self, value: object) -> None:
        """Add the attributes of an instance that hold data, code or instances of the project's classes.

        Containers of instances do not count, since they may be caches. A fingerprint can cover them.
        """
        attributes = dict(getattr(value, "__dict__", {}))
        if "__wrapped__" in attributes:
            self.add(attributes["__wrapped__"])
        if not _is_project_class(type(value)):
            self._add_json(attributes)
            return
        names = (name for cls in type(value).__mro__ for name in _slots(cls))
        attributes |= {name: getattr(value, name) for name in names if hasattr(value, name)}
        for name, part in sorted(attributes.items()):
            if isinstance(part, PurePath | enum.Enum) or _is_code(part) or _is_project_class(type(part)):
                self._values.append(name)
                self.add(part)
            else:
                self._add_json({name: part})

    def _add_json(self, value: object) -> None:
        with contextlib.suppress(TypeError, ValueError):
            self._values.append(canonical_json(value))

    def _add_path(self, path: Path) -> None:
        """Add a path that an object holds. A file counts by content. The absolute path itself is ignored."""
        if path.is_file():
            self.files.add_data(path, path.name)
        if not path.is_absolute():
            self._values.append(path.as_posix())

    def _add_function(self, function: types.FunctionType) -> None:
        # A wrapper has the name of the wrapped function, and bytecode the path at which it was compiled.
        module_globals, code = function.__globals__, function.__code__
        self._values.append(f"{strip_conftest_package(function.__module__)}.{function.__qualname__}")
        top_level_name = code.co_qualname.partition(".")[0]
        name = module_globals.get("__name__") or function.__module__
        file = module_globals.get("__file__") or code.co_filename
        self.files.add(name, file, None if top_level_name.startswith("<") else top_level_name)
        for cell in function.__closure__ or ():
            with contextlib.suppress(ValueError):  # the cell is still empty
                self.add(cell.cell_contents)
        for default in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self.add(default)
        wrapped_function = getattr(function, "__wrapped__", None)
        if wrapped_function is not None:
            self.add(wrapped_function)

    def _add_class(self, cls: type) -> None:
        self._values.append(f"{strip_conftest_package(cls.__module__)}.{cls.__qualname__}")
        for base in cls.__mro__:
            path = _file_of_methods(base) or getattr(sys.modules.get(base.__module__), "__file__", None)
            self.files.add(base.__module__, path, base.__qualname__.partition(".")[0])
            for method in _replaced_methods(base):
                self.add(method)


def _is_existing_path(text: str) -> bool:
    return Path(text).is_absolute() and len(text) < 1_000 and passes_test(Path(text), Path.exists)


def _is_code(value: object) -> bool:
    return inspect.isclass(value) or isinstance(
        value, types.FunctionType | types.MethodType | functools.partial
    )


def _is_project_class(cls: type) -> bool:
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    path = Path(file or _file_of_methods(cls) or "").resolve()
    return path.is_file() and not is_foreign(path)


def _file_of_methods(cls: type) -> str | None:
    """Return the file of a class by its methods, because another module may have taken its module's name."""
    for member in vars(cls).values():
        function = inspect.unwrap(member) if isinstance(member, types.FunctionType) else None
        if isinstance(function, types.FunctionType) and function.__module__ == cls.__module__:
            file = function.__globals__.get("__file__") or function.__code__.co_filename
            if isinstance(file, str) and not file.startswith("<"):
                return file
    return None


def _replaced_methods(cls: type) -> Iterator[types.FunctionType]:
    """Yield the methods of a class that a different module of the project assigned to it."""
    for member in vars(cls).values():
        functions: list[object] = [member]
        if isinstance(member, staticmethod | classmethod):
            functions = [member.__func__]
        elif isinstance(member, property):
            functions = [member.fget, member.fset]
        for function in functions:
            if isinstance(function, types.FunctionType):
                file = Path(function.__code__.co_filename)
                is_elsewhere = function.__globals__.get("__name__") != cls.__module__
                if is_elsewhere and file.is_file() and not is_foreign(file):
                    yield function


def _slots(cls: type) -> tuple[str, ...]:
    slots = vars(cls).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _sort_key(value: object) -> str:
    """Return a sort key that is the same in every process; the `repr` of a function contains its address."""
    return str(getattr(value, "__qualname__", None) or repr(value))
