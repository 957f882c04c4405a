"""Identifies the code of an agent, a user, a world or a check by digests of files.

An agent is each file in the folder of its package, and in the packages of the project that it imports. A
user, a world or a check is the modules that its module imports, directly or not, and the files that these
name. Installed distributions that they import count by name and version. An object may declare a
`fingerprint` instead: a text, or a callable that returns a text.

Files are read, not run, so a file under a computed name is found in the folder of an agent only.
"""

import functools
import importlib.metadata
import inspect
import sys
import types
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import NamedTuple

from pytest_trace2evolve.errors import Trace2EvolveError
from pytest_trace2evolve.evidence.python_modules import (
    HARNESS_PACKAGES,
    INSTALLED_FOLDERS,
    PACKAGE_FOLDER,
    STDLIB_FOLDERS,
    Module,
    files_below,
    is_standard,
    locate_module,
)
from pytest_trace2evolve.records.evidence import FILE_IDENTITY, Code
from pytest_trace2evolve.utils.canonical import digest_text

MAX_FILES = 2_000
"""The maximum number of files. With more, a project should declare a fingerprint."""


class UnknownCodeError(Exception):
    """Code cannot be identified; the message says why."""


def agent_code(root: object, folders: Mapping[str, Path]) -> Code:
    """Identify the code of an agent.

    Args:
        root: The factory of the agent, or the name of the module that defines it.
        folders: Further folders whose files count, by their paths in the project.

    Returns:
        The code. If a source cannot be read or a fingerprint raises, `unknown` holds the reason.

    Raises:
        Trace2EvolveError: a fingerprint raised this error.
    """
    return _identify(_Files(has_packages=True), [root], None, folders)


def code_of(
    *roots: object,
    owner: object = None,
    shared: Collection[Path] = (),
    has_docstrings: bool = True,
    policy: str = "",
) -> Code:
    """Identify the code of a user, a world or a check.

    Args:
        roots: Functions, classes, instances or names of modules. The first root may declare a `fingerprint`.
        owner: The object that the roots produce. Its `fingerprint` takes precedence.
        shared: Files that also define an agent, as each `conftest.py` may. They count by the source of the
            roots, with the imports that it uses.
        has_docstrings: Whether docstrings count.
        policy: The policy of the world, which belongs to the candidate. A file that holds it does not count.

    Returns, Raises: As `agent_code`.
    """
    files = _Files(shared=frozenset(shared), has_docstrings=has_docstrings, policy=policy)
    return _identify(files, roots, owner, {})


def _identify(files: "_Files", roots: Collection[object], owner: object, folders: Mapping[str, Path]) -> Code:
    try:
        fingerprint = _declared_fingerprint(owner) or next(map(_declared_fingerprint, roots), "")
    except Trace2EvolveError:
        raise
    except Exception as error:
        return Code(unknown=" ".join(f"its fingerprint raises {type(error).__name__}: {error}".split()))
    if fingerprint:
        return Code(fingerprint=fingerprint)
    try:
        for root in roots:
            files.add_object(root)
        for key, folder in folders.items():
            files.add_folder(folder, key)
        return Code(files=files.by_key(), distributions=files.distributions, identity=FILE_IDENTITY)
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
    value = value() if callable(value) else value
    return value if isinstance(value, str) else ""


class _Definition(NamedTuple):
    """The module, the file and the top-level name of a function or a class; None for the whole module."""

    module: str
    path: Path | None
    name: str | None


def file_of(root: object) -> Path | None:
    """Return the file that defines a function, a class or an instance; None if there is none."""
    parts = _parts(root, {})
    return next((part.path.resolve() for part in parts if isinstance(part, _Definition) and part.path), None)


def _parts(value: object, seen: dict[int, object]) -> Iterator[_Definition | str]:
    """Yield the definitions behind an object and what it wraps or holds, and the plain values that it has."""
    if value is None or isinstance(value, str | int | float | bytes | PurePath):
        is_path = isinstance(value, PurePath) or (isinstance(value, str) and Path(value).is_absolute())
        yield PurePath(str(value)).name if is_path else repr(value)  # the same in every folder
        return
    if id(value) in seen:
        return
    seen[id(value)] = value  # kept alive, so that no other object gets this id
    held: Iterable[object] = ()
    if isinstance(value, functools.partial):
        held = (value.func, *value.args, *value.keywords.items())
    elif isinstance(value, types.MethodType):
        held = (value.__self__, value.__func__)
    elif isinstance(value, types.FunctionType):
        # Bytecode has the path at which it was compiled, and a wrapper the name of the wrapped function.
        file = value.__globals__.get("__file__") or value.__code__.co_filename
        name = value.__code__.co_qualname.partition(".")[0]
        module = value.__globals__.get("__name__") or value.__module__
        yield _Definition(module, Path(file), None if name.startswith("<") else name)
        cells = [cell.cell_contents for cell in value.__closure__ or () if cell != types.CellType()]
        held = (*cells, *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).items())
    elif inspect.isclass(value):
        for base in value.__mro__:
            yield _Definition(base.__module__, _file_of_class(base), base.__qualname__.partition(".")[0])
        return
    elif isinstance(value, list | tuple | dict):
        yield str(len(value))
        held = value.items() if isinstance(value, dict) else value
    else:
        # Containers do not count, since they may be caches.
        kinds = (type, str, int, float, types.FunctionType, types.MethodType, functools.partial, PurePath)
        attributes = sorted(getattr(value, "__dict__", {}).items())
        held = (type(value), *(item for item in attributes if isinstance(item[1], kinds)))
    wrapped = getattr(value, "__wrapped__", None)
    for part in (*([] if wrapped is None else [wrapped]), *held):
        yield from _parts(part, seen)


def _file_of_class(cls: type) -> Path | None:
    """Return the file of a class by its methods, because another module may have taken its module's name."""
    for member in vars(cls).values():
        function = inspect.unwrap(member) if isinstance(member, types.FunctionType) else None
        if isinstance(function, types.FunctionType) and function.__module__ == cls.__module__:
            file = function.__globals__.get("__file__") or function.__code__.co_filename
            if not file.startswith("<"):
                return Path(file)
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    return None if file is None else Path(file)


@dataclass
class _Files:
    """The digests of the files found so far, by key, path and definition.

    Attributes:
        has_packages: Whether a module counts with all files in the folder of its package.
        shared, has_docstrings, policy: See `code_of`.
        distributions: Versions of installed distributions by name.
    """

    has_packages: bool = False
    shared: frozenset[Path] = frozenset()
    has_docstrings: bool = True
    policy: str = ""
    distributions: dict[str, str] = field(default_factory=dict)
    _digests: dict[tuple[str, Path, str | None], str] = field(default_factory=dict)
    _folders: set[Path] = field(default_factory=set)
    _values: list[str] = field(default_factory=list)

    def by_key(self) -> dict[str, str]:
        """Return digests by key; `(factory)` stands for values that the roots hold.

        Files may share a key, such as the `conftest.py` files of two folders.
        """
        groups = {"(factory)": [digest_text("\n".join(self._values))]} if self._values else {}
        for (key, *_), digest in self._digests.items():
            groups.setdefault(key, []).append(digest)
        return {
            key: digests[0] if len(digests) == 1 else digest_text("\n".join(sorted(digests)))
            for key, digests in sorted(groups.items())
        }

    def add_object(self, root: object) -> None:
        """Add the files of an object, or of a module by its name."""
        if isinstance(root, str):
            if (path := locate_module(root)) is None:
                raise UnknownCodeError(f"module {root!r} is not found")
            self.add_module(root, path)
            return
        for part in _parts(root, {}):
            if isinstance(part, str):
                self._values.append(part)
            elif not is_standard(part.module, part.path):
                if part.path is None:
                    raise UnknownCodeError(
                        f"module {part.module!r} has no source file; declare a fingerprint"
                    )
                if self.has_packages and part.name is not None:  # files do not tell its factories apart
                    self._values.append(f"{part.path.name}:{part.name}")
                self.add_module(part.module, part.path, part.name)

    def add_module(self, name: str, path: Path, definition: str | None = None) -> None:
        """Add a module of the project with all that it imports, or the distribution of an installed one."""
        path, package = path.resolve(), name.partition(".")[0]
        if package in HARNESS_PACKAGES or path.is_relative_to(PACKAGE_FOLDER):
            return
        if INSTALLED_FOLDERS & set(path.parts):
            self._add_distribution(package)
            return
        if any(path.is_relative_to(folder) for folder in STDLIB_FOLDERS):
            return
        if path.suffix != ".py":
            raise UnknownCodeError(
                f"{path.name}: module {name!r} is not Python source; declare a fingerprint"
            )
        is_conftest = path.name == "conftest.py"
        if self.has_packages or not (is_conftest or path in self.shared):
            definition = None
        root = path.parents[name.count(".") + (path.name == "__init__.py")]
        # The name of a conftest depends on pytest's import mode.
        key = path.name if is_conftest or path.parent == root else path.relative_to(root).as_posix()
        if {(key, path, None), (key, path, definition)} & self._digests.keys():
            return
        module = Module(name, path, root, definition)
        text = module.source(has_docstrings=self.has_docstrings)
        self._digests[key, path, definition] = digest_text(text)
        for folder in path.parents[: len(path.relative_to(root).parts) - 1]:
            if (init := folder / "__init__.py") != path and init.is_file():
                self.add_module(folder.relative_to(root).as_posix().replace("/", "."), init)
        for imported in module.imports():
            if (found := locate_module(imported)) is not None:
                self.add_module(imported, found)
        if self.has_packages and not is_conftest and path.parent != root:
            self.add_folder(root / package, package)
            return
        for named in module.named_paths():
            if named.suffix == ".py":
                relative = named.relative_to(root) if named.is_relative_to(root) else Path(named.name)
                self.add_module(".".join(relative.with_suffix("").parts), named)
            else:
                self._add_data(named, module.key_of(named))

    def add_folder(self, folder: Path, key: str) -> None:
        """Add all files of a folder, except hidden ones and bytecode."""
        if folder in self._folders:
            return
        self._folders.add(folder)
        for path in files_below(folder):
            relative = path.relative_to(folder)
            if path.suffix == ".py":
                parts = [key.replace("/", "."), *relative.with_suffix("").parts]
                self.add_module(".".join(parts[:-1] if parts[-1] == "__init__" else parts), path)
            else:
                self._add_data(path, f"{key}/{relative.as_posix()}")

    def _add_data(self, path: Path, key: str) -> None:
        content = path.read_bytes()
        if not self.policy or content != self.policy.encode():
            self._digests[key, path.resolve(), None] = digest_text(content.hex())
        if len(self._digests) > MAX_FILES:
            raise UnknownCodeError(f"it has over {MAX_FILES} files, such as {key}; declare a fingerprint")

    def _add_distribution(self, package: str) -> None:
        names = _distributions().get(package, ())
        if not names:
            raise UnknownCodeError(
                f"package {package!r} has no installed distribution; declare a fingerprint"
            )
        self.distributions |= {name: importlib.metadata.version(name) for name in names}


@functools.cache
def _distributions() -> dict[str, list[str]]:
    return {top: sorted(set(names)) for top, names in importlib.metadata.packages_distributions().items()}
