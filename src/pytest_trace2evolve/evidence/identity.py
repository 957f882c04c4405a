"""Identity of code: what an agent, a user or a world runs, as digests that change if its behaviour may.

Code of a project counts by content: the module that defines an object, the project modules that it imports,
directly or through others, and the data files that they name. Installed distributions count by name and
version. An object may declare a `fingerprint` instead: a text, or a callable that returns one.

The code is read, not run, so three things stay unseen: modules imported under a computed name, files opened
under a computed name outside a named folder, and anything outside the project (a service, the environment).
"""

import ast
import contextlib
import enum
import functools
import importlib.machinery
import importlib.metadata
import importlib.util
import inspect
import itertools
import re
import sys
import sysconfig
import tokenize
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from pytest_trace2evolve.errors import Trace2EvolveError
from pytest_trace2evolve.records.evidence import Code
from pytest_trace2evolve.utils.canonical import canonical_json, digest_text

MAX_DATA_FILES = 2_000
"""Files of a named folder of data beyond which a project should declare a fingerprint."""

_PACKAGE = Path(__file__).resolve().parents[1]
_STDLIB = tuple(
    Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib") if sysconfig.get_path(name)
)
_INSTALLED = frozenset({"site-packages", "dist-packages"})
_HARNESS = frozenset({"pytest", "_pytest", "pluggy", "pytest_trace2evolve"})
"""Packages that run simulations and do not take part in them."""

_OUTPUTS = frozenset({"baselines", "ledger", "results", "__pycache__"})
"""Folders that runs write, which are no input of the code."""

_DYNAMIC = frozenset(
    {"globals", "vars", "eval", "exec", "__import__", "import_module", "setattr", "__subclasses__"}
)
"""Calls after which a name in a module may refer to anything in it."""

_OPENERS = frozenset(
    {
        "Path",
        "PurePath",
        "open",
        "join",
        "joinpath",
        "glob",
        "rglob",
        "listdir",
        "scandir",
        "FileSystemLoader",
    }
)
_RESOURCES = frozenset({"files", "PackageLoader", "get_data", "read_binary", "resource_filename"})
"""Calls that name a package and a file or folder in it."""

_MARKS = ("pyproject.toml", "setup.py", "setup.cfg", "pytest.ini", "tox.ini")
"""Files that only the root folder of a project has."""

_PURE = frozenset({*sys.stdlib_module_names, *_HARNESS, "attr", "attrs", "pydantic", "typing_extensions"})
"""Packages whose decorators register nothing that a simulation reads."""

_FILE_NAME = re.compile(r"^[^/\n\0][^\n\0]*\.\w{1,12}$")
_PLACEHOLDER = re.compile(r"\{|%[(srd]")
_FOLDER_NAME = re.compile(r"^[\w.][\w ./-]*$")


class _UnknownError(Exception):
    """Why code cannot be identified."""


@dataclass(frozen=True)
class _Module:
    """A source file of the project: its dotted name, its path and its top-level statements."""

    name: str
    path: Path
    text: str
    tree: ast.Module

    @property
    def key(self) -> str:
        """Its path below the folder that it is imported from."""
        if _known_as(self.name) == "conftest":
            return self.path.name
        if "." not in self.name and self.path.name != "__init__.py":
            return self.path.name
        place = self.name.replace(".", "/")
        return f"{place}/__init__.py" if self.path.name == "__init__.py" else f"{place}.py"

    @functools.cached_property
    def bindings(self) -> dict[str, list[int]]:
        """The places of the top-level statements that bind each name."""
        found: dict[str, list[int]] = {}
        for place, node in enumerate(self.tree.body):
            for name in _binds(node):
                found.setdefault(name, []).append(place)
        return found

    @functools.cached_property
    def used(self) -> frozenset[str]:
        """The names that it reads or exports."""
        exported = (
            one.value
            for place in self.bindings.get("__all__", ())
            for one in ast.walk(self.tree.body[place])
            if isinstance(one, ast.Constant) and isinstance(one.value, str)
        )
        return frozenset({*(one.id for one in ast.walk(self.tree) if isinstance(one, ast.Name)), *exported})

    @functools.cached_property
    def texts(self) -> dict[str, str]:
        """The names that it binds to one text."""
        nodes = {
            name: self.tree.body[places[0]] for name, places in self.bindings.items() if len(places) == 1
        }
        return {
            name: node.value.value
            for name, node in nodes.items()
            if isinstance(node, ast.Assign | ast.AnnAssign)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        }

    @property
    def package(self) -> str:
        """The package that its relative imports start from."""
        return self.name if self.path.name == "__init__.py" else self.name.rpartition(".")[0]


def code_of(*roots: object, parts: bool = False, owner: object = None) -> Code:
    """Identify the code behind some objects.

    Args:
        roots: Functions, classes, modules or instances; None is left out. The first one may declare a
            `fingerprint`, which then stands for all of them.
        parts: Whether to count, of a module, only the definitions that the objects refer to, so that code
            which merely shares a file with them does not count. Statements that are not definitions always
            count.
        owner: What the objects make, such as a world; its `fingerprint` counts before that of the first root.

    Returns:
        The code; its `unknown` says why if a source cannot be read, or if a fingerprint raises.

    Raises:
        Trace2EvolveError: raised by a fingerprint of this package.
    """
    try:
        declared = _declared_fingerprint(owner) or _declared_fingerprint(roots[0])
    except Trace2EvolveError:
        raise
    except Exception as error:
        return Code(unknown=" ".join(f"its fingerprint raises {type(error).__name__}: {error}".split()))
    if declared:
        return Code(fingerprint=declared)
    collected = _Collected(parts)
    try:
        for root in roots:
            if root is not None:
                collected.add_object(root)
        return Code(files=collected.files(), distributions=collected.distributions)
    except _UnknownError as error:
        return Code(unknown=" ".join(f"{error}".split()))
    except Exception as error:  # objects of anybody: an attribute, a `repr` or a finder may raise anything
        return Code(unknown=" ".join(f"{type(error).__name__}: {error}".split()))


def _declared_fingerprint(root: object) -> str:
    """The fingerprint that an object or its own class declares; empty if neither does.

    A base class cannot speak for code that it does not know, so an inherited fingerprint does not count.
    """
    owners = [root] if inspect.isclass(root) else [root, type(root)]
    if not any("fingerprint" in getattr(owner, "__dict__", ()) for owner in owners):
        return ""
    value = getattr(root, "fingerprint", None)
    if callable(value):
        value = value()
    return value if isinstance(value, str) else ""


@dataclass
class _Collected:
    """Everything found so far: of each module either all of it or some of its top-level statements."""

    parts: bool
    distributions: dict[str, str] = field(default_factory=dict)
    _modules: dict[Path, _Module] = field(default_factory=dict)
    _whole: set[Path] = field(default_factory=set)
    _slices: dict[Path, set[int]] = field(default_factory=dict)
    _symbols: set[tuple[Path, str]] = field(default_factory=set)
    _data: dict[Path, str] = field(default_factory=dict)
    _values: list[str] = field(default_factory=list)
    _objects: dict[int, object] = field(default_factory=dict)

    def files(self) -> dict[str, str]:
        """Digests by path."""
        found: dict[str, list[str]] = {}
        for path, key in self._data.items():
            found.setdefault(key, []).append(digest_text(path.read_bytes().hex()))
        for path, module in self._modules.items():
            if path in self._whole:
                found.setdefault(module.key, []).append(digest_text(module.text))
            elif path in self._slices:
                chosen = [module.tree.body[place] for place in sorted(self._slices[path])]
                text = "\n".join(_source(module, node) for node in chosen)
                found.setdefault(module.key, []).append(digest_text(text))
        if self._values:
            found["(factory)"] = [digest_text("\n".join(self._values))]
        # Two files may have one key, such as the `conftest.py` of two folders.
        return {
            key: digests[0] if len(digests) == 1 else digest_text("\n".join(sorted(digests)))
            for key, digests in sorted(found.items())
        }

    def add_object(self, value: object) -> None:
        """Take in the code of an object and of the objects that it holds."""
        if isinstance(value, enum.Enum):
            self._add_class(type(value))
            self._values.append(value.name)
        elif isinstance(value, PurePath) or (isinstance(value, str) and _is_place(value)):
            self._add_place(Path(value))
        elif value is None or isinstance(value, str | int | float | bool | bytes):
            self._values.append(repr(value))
        elif id(value) not in self._objects:
            self._objects[id(value)] = value  # kept alive, so that its id stays its own
            self._add_compound(value)

    def _add_compound(self, value: object) -> None:
        if isinstance(value, functools.partial):
            for part in (value.func, *value.args, *value.keywords.items()):
                self.add_object(part)
        elif isinstance(value, types.MethodType):
            self.add_object(value.__self__)
            self.add_object(value.__func__)
        elif isinstance(value, types.FunctionType):
            self._add_function(value)
        elif isinstance(value, types.ModuleType):
            self._add_named(value.__name__, getattr(value, "__file__", None), None)
        elif inspect.isclass(value):
            self._add_class(value)
        elif isinstance(value, list | tuple | set | frozenset):
            self._values.append(str(len(value)))
            for part in sorted(value, key=_order) if isinstance(value, set | frozenset) else value:
                self.add_object(part)
        elif isinstance(value, dict):
            self._values.append(str(len(value)))
            for item in value.items():
                self.add_object(item)
        elif isinstance(value, types.BuiltinFunctionType):
            self.add_object(value.__self__)  # the module of a function, the owner of a method
        else:
            self._add_class(type(value))
            self._add_state(value)

    def _add_state(self, value: object) -> None:
        """The attributes of an instance. One that is no data counts if it is code or the project's.

        A container of instances may be a cache, so it does not count; a fingerprint can say more.
        """
        held = dict(getattr(value, "__dict__", {}))
        if "__wrapped__" in held:
            self.add_object(held["__wrapped__"])
        if not self._is_own(type(value)):
            with contextlib.suppress(TypeError, ValueError):
                self._values.append(canonical_json(held))
            return
        slots = (name for one in type(value).__mro__ for name in _slots(one))
        held |= {name: getattr(value, name) for name in slots if hasattr(value, name)}
        for name, part in sorted(held.items()):
            if isinstance(part, PurePath | enum.Enum) or _is_code(part) or self._is_own(type(part)):
                self._values.append(name)
                self.add_object(part)
                continue
            with contextlib.suppress(TypeError, ValueError):
                self._values.append(canonical_json({name: part}))

    def _add_place(self, path: Path) -> None:
        """A path that an object holds: its file counts by content, and no folder of this machine does."""
        if path.is_file():
            self._data[path.resolve()] = path.name
        if not path.is_absolute():
            self._values.append(path.as_posix())

    @staticmethod
    def _is_own(cls: type) -> bool:
        """Whether a class is the project's."""
        file = getattr(sys.modules.get(cls.__module__), "__file__", None)
        path = Path(file or _file_of_methods(cls) or "").resolve()
        return path.is_file() and not _is_foreign(path)

    def _add_function(self, function: types.FunctionType) -> None:
        # A decorator's function bears the name of what it wraps, and bytecode the path that it was made at.
        space, code = function.__globals__, function.__code__
        self._values.append(f"{_known_as(function.__module__)}.{function.__qualname__}")
        top = code.co_qualname.partition(".")[0]
        symbol = None if top.startswith("<") else top
        name = space.get("__name__") or function.__module__
        self._add_named(name, space.get("__file__") or code.co_filename, symbol)
        cells = [cell for cell in function.__closure__ or () if cell is not None]
        for cell in cells:
            try:
                self.add_object(cell.cell_contents)
            except ValueError:  # not filled yet
                continue
        for default in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self.add_object(default)
        wrapped = getattr(function, "__wrapped__", None)
        if wrapped is not None:
            self.add_object(wrapped)

    def _add_class(self, cls: type) -> None:
        self._values.append(f"{_known_as(cls.__module__)}.{cls.__qualname__}")
        for one in cls.__mro__:
            module = sys.modules.get(one.__module__)
            path = _file_of_methods(one) or getattr(module, "__file__", None)
            self._add_named(one.__module__, path, one.__qualname__.partition(".")[0])

    def _add_named(self, name: str, path: str | None, symbol: str | None) -> None:
        if _is_standard(name, None if path is None else Path(path)):
            return
        if path is None:
            raise _UnknownError(f"module {name!r} has no source file; declare a fingerprint")
        self._add_file(name, Path(path), symbol)

    def _add_file(self, name: str, path: Path, symbol: str | None) -> None:
        """Take in a module's file: a symbol of it, or all of it if the symbol is None or unknown."""
        path = path.resolve()
        top = name.partition(".")[0]
        if path.is_relative_to(_PACKAGE) or top in _HARNESS:
            return
        if _INSTALLED & set(path.parts):
            self._add_distribution(top)
            return
        if any(path.is_relative_to(folder) for folder in _STDLIB):
            return
        if path.suffix != ".py":
            raise _UnknownError(f"{path.name}: module {name!r} is not Python source; declare a fingerprint")
        module = self._read(name, path)
        self._add_packages(name, path)
        if self.parts and symbol is not None:
            self._add_symbol(module, symbol)
        else:
            self._add_whole(module)

    def _read(self, name: str, path: Path) -> _Module:
        if path not in self._modules:
            with tokenize.open(path) as file:  # decodes it as Python does
                text = file.read()
            self._modules[path] = _Module(name, path, text, ast.parse(text, filename=path.name))
        return self._modules[path]

    def _add_packages(self, name: str, path: Path) -> None:
        """The packages around a module run when it is imported."""
        inner = path.parent if path.name != "__init__.py" else path.parent.parent
        for package in _outwards(name.rpartition(".")[0]):
            init = inner / "__init__.py"
            if init.is_file():
                module = self._read(package, init)
                if self.parts:
                    self._add_statements(module, imports=False)
                else:
                    self._add_whole(module)
            inner = inner.parent

    def _add_whole(self, module: _Module) -> None:
        if module.path in self._whole:
            return
        self._whole.add(module.path)
        for node in _running(module.tree):
            self._add_node(module, node)

    def _add_node(self, module: _Module, node: ast.AST) -> None:
        """Imports and data files of one node, wherever it stands."""
        if isinstance(node, ast.Import):
            for alias in node.names:
                self._import(alias.name, None)
        elif isinstance(node, ast.ImportFrom):
            source = _absolute(node, module)
            for alias in node.names:
                self._import(source, alias.name)
        elif isinstance(node, ast.Call) and _called(node) in ("import_module", "__import__"):
            for first in node.args[:1]:
                if isinstance(first, ast.Constant) and isinstance(first.value, str):
                    package = module.package if first.value.startswith(".") else None
                    with contextlib.suppress(ImportError):
                        self._import(importlib.util.resolve_name(first.value, package), None)
        for name in _run_modules(node):
            for one in (name, f"{name}.__main__"):
                self._import(one, None)
        self._add_data(module, node)

    def _import(self, name: str, symbol: str | None) -> None:
        """Take in what an import statement names; a symbol may be a module too."""
        if symbol is not None and symbol != "*":
            inner = _located(f"{name}.{symbol}")
            if inner is not None:
                self._add_file(f"{name}.{symbol}", inner, None)
                return
        path = _located(name)
        if path is not None:
            self._add_file(name, path, None if symbol == "*" else symbol)

    def _add_symbol(self, module: _Module, symbol: str) -> None:
        """A definition of a module with what it refers to, and the statements that are no definitions."""
        if (module.path, symbol) in self._symbols or module.path in self._whole:
            return
        self._symbols.add((module.path, symbol))
        if symbol not in module.bindings or _is_dynamic(module.tree):
            self._add_whole(module)
            return
        self._add_name(module, symbol)
        # A package re-exports: what it imports runs for others, unless it defines the symbol itself.
        own = (module.tree.body[place] for place in module.bindings[symbol])
        is_export = module.path.name == "__init__.py" and all(_is_import(node) for node in own)
        self._add_statements(module, imports=not is_export)

    def _add_statements(self, module: _Module, *, imports: bool) -> None:
        """What runs when a module is imported and may change what is defined elsewhere.

        Args:
            module: The module.
            imports: Whether to follow imports of modules that nothing in this one refers to: they are there
                for what they register.
        """
        for place, node in enumerate(module.tree.body):
            if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
                self._add_node(module, node)
            elif isinstance(node, ast.Import | ast.ImportFrom):
                if imports:
                    self._add_unused(module, node)
            elif _registers(module, node) or not (_binds(node) or _is_inert(node, whole=True)):
                self._add_statement(module, place)

    def _add_unused(self, module: _Module, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            if (alias.asname or alias.name.partition(".")[0]) in module.used:
                continue
            source = "" if isinstance(node, ast.Import) else f"{_absolute(node, module)}."
            path = _located(f"{source}{alias.name}")
            if path is not None:
                self._add_file(f"{source}{alias.name}", path, None)

    def _add_statement(self, module: _Module, place: int) -> None:
        chosen = self._slices.setdefault(module.path, set())
        if place in chosen:
            return
        chosen.add(place)
        for node in _running(module.tree.body[place]):
            if isinstance(node, ast.Name) and node.id in module.bindings:
                self._add_name(module, node.id)
            else:
                self._add_node(module, node)

    def _add_name(self, module: _Module, name: str) -> None:
        """What a name of a module stands for: a definition in it, or an import, which is followed."""
        for place in module.bindings[name]:
            statement = module.tree.body[place]
            if isinstance(statement, ast.Import):
                for alias in statement.names:
                    if (alias.asname or alias.name.partition(".")[0]) == name:
                        self._import(alias.name, None)
            elif isinstance(statement, ast.ImportFrom):
                source = _absolute(statement, module)
                for alias in statement.names:
                    if (alias.asname or alias.name) == name:
                        self._import(source, alias.name)
            else:
                self._add_statement(module, place)

    def _add_data(self, module: _Module, node: ast.AST) -> None:
        """Data files and folders that a node names: next to the module, below its root, or in both."""
        for text, is_path in _named_files(module, node):
            if PurePath(text).is_absolute():
                continue
            for folder in _data_roots(module):
                path = folder / text
                if _is_kind(path, Path.is_file) and (is_path or _FILE_NAME.match(text)):
                    if path.suffix == ".py":
                        self._add_script(module, path.resolve())
                    elif path.suffix != ".pyc":
                        self._add_data_file(module, path)
                elif (
                    is_path
                    and _FOLDER_NAME.match(text)
                    and _is_kind(path, Path.is_dir)
                    and path.resolve() not in (folder, *folder.parents)
                ):
                    self._add_data_folder(module, path)

    def _add_script(self, module: _Module, path: Path) -> None:
        """A source file that the code names: it runs it, or imports it by its path."""
        root = _import_root(module)
        place = path.relative_to(root) if path.is_relative_to(root) else Path(path.name)
        known = self._modules.get(path)
        self._add_file(known.name if known else ".".join(place.with_suffix("").parts), path, None)

    def _add_data_folder(self, module: _Module, folder: Path) -> None:
        if folder.name in _OUTPUTS or folder.name.startswith(".") or _INSTALLED & set(folder.parts):
            return
        found = [
            path
            for path in sorted(folder.rglob("*"))
            if path.is_file()
            and path.suffix not in (".py", ".pyc")
            and not any(part.startswith(".") or part in _OUTPUTS for part in path.relative_to(folder).parts)
        ]
        if len(found) > MAX_DATA_FILES:
            raise _UnknownError(
                f"{folder.name}/ holds {len(found)} files, more than {MAX_DATA_FILES}; declare a fingerprint"
            )
        for path in found:
            self._add_data_file(module, path)

    def _add_data_file(self, module: _Module, path: Path) -> None:
        path = path.resolve()
        roots = _import_root(module), _data_roots(module)[-1]
        names = (path.relative_to(root).as_posix() for root in roots if path.is_relative_to(root))
        self._data[path] = next(names, path.name)

    def _add_distribution(self, top: str) -> None:
        names = _distributions().get(top, ())
        for name in names:
            self.distributions[name] = importlib.metadata.version(name)
        if not names:
            raise _UnknownError(f"package {top!r} has no installed distribution; declare a fingerprint")


@functools.cache
def _distributions() -> dict[str, list[str]]:
    return {top: sorted(set(names)) for top, names in importlib.metadata.packages_distributions().items()}


def _known_as(module: str) -> str:
    """A module's name, for a `conftest` without its package: pytest's import modes name it differently."""
    return "conftest" if f".{module}".endswith(".conftest") else module


def _outwards(package: str) -> Iterator[str]:
    """A package and those around it, the innermost first."""
    while package:
        yield package
        package = package.rpartition(".")[0]


def _file_of_methods(cls: type) -> str | None:
    """The file that defines a class, by a method of its own: another module may have taken its name."""
    for value in vars(cls).values():
        function = inspect.unwrap(value) if isinstance(value, types.FunctionType) else None
        if isinstance(function, types.FunctionType) and function.__module__ == cls.__module__:
            file = function.__globals__.get("__file__") or function.__code__.co_filename
            if isinstance(file, str) and not file.startswith("<"):
                return file
    return None


def _slots(cls: type) -> tuple[str, ...]:
    slots = vars(cls).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _is_code(value: object) -> bool:
    return isinstance(value, types.FunctionType | types.MethodType | functools.partial) or inspect.isclass(
        value
    )


def _is_place(text: str) -> bool:
    """Whether a text is the absolute path of something on this machine."""
    return Path(text).is_absolute() and len(text) < 1_000 and _is_kind(Path(text), Path.exists)


def _is_standard(name: str, path: Path | None) -> bool:
    """Whether a module is Python's own; a project may have one of the same name."""
    if name.partition(".")[0] not in sys.stdlib_module_names or name == "__main__":
        return False
    return path is None or not path.is_file() or _is_foreign(path)


def _order(value: object) -> str:
    """Sorts a set in one order in every process: the `repr` of a function holds its address."""
    return str(getattr(value, "__qualname__", None) or repr(value))


def _is_foreign(path: Path) -> bool:
    """Whether a file belongs to Python, an installed distribution or this package."""
    path = path.resolve()
    if _INSTALLED & set(path.parts):
        return True
    return any(path.is_relative_to(folder) for folder in (*_STDLIB, _PACKAGE))


def _source(module: _Module, node: ast.stmt) -> str:
    """A statement's source with its decorators."""
    first = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", ()))])
    # `splitlines` would split at form feeds too, which Python does not count as lines.
    return "\n".join(module.text.split("\n")[first - 1 : node.end_lineno])


def _running(root: ast.AST) -> Iterator[ast.AST]:
    """A node and all below it, without code that only type checkers and scripts run."""
    waiting: list[ast.AST] = [root]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, ast.If) and _is_inert(node):
            waiting += node.orelse
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            waiting += _operands(node)  # one path, not one for each of its parts
        else:
            waiting += ast.iter_child_nodes(node)


def _is_inert(node: ast.stmt, *, whole: bool = False) -> bool:
    """Whether a statement does nothing on import: a docstring, or code for type checkers and scripts.

    Args:
        node: The statement.
        whole: Whether an `else` branch, which does run, must be absent.
    """
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True
    if not isinstance(node, ast.If):
        return isinstance(node, ast.Pass)
    if whole and node.orelse:
        return False
    test = ast.unparse(node.test)
    return test in ("TYPE_CHECKING", "typing.TYPE_CHECKING") or test.startswith("__name__ ==")


def _binds(node: ast.stmt) -> list[str]:
    """The names that a definition, a simple assignment or an import binds; empty for other statements."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Import):
        return [alias.asname or alias.name.partition(".")[0] for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [alias.asname or alias.name for alias in node.names]
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign):
        targets = [node.target]
    else:
        return []
    if any(isinstance(one, ast.Attribute | ast.Subscript) for target in targets for one in ast.walk(target)):
        return []  # changes something that is defined elsewhere
    return [one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)]


def _is_dynamic(tree: ast.Module) -> bool:
    """Whether a module may reach its definitions other than by name."""
    return any(
        (isinstance(node, ast.Call) and _called(node) in _DYNAMIC)
        or (isinstance(node, ast.Attribute) and ast.unparse(node) == "sys.modules")
        or (isinstance(node, ast.FunctionDef) and node.name == "__init_subclass__")
        for node in ast.walk(tree)
    )


def _run_modules(node: ast.AST) -> Iterator[str]:
    """The modules that a command line `python -m name` runs."""
    words = node.elts if isinstance(node, ast.List | ast.Tuple) else getattr(node, "args", ())
    for flag, name in itertools.pairwise(words) if isinstance(words, list) else ():
        if isinstance(flag, ast.Constant) and flag.value == "-m" and isinstance(name, ast.Constant):
            yield str(name.value)


def _is_import(node: ast.stmt) -> bool:
    return isinstance(node, ast.Import | ast.ImportFrom)


def _registers(module: _Module, node: ast.stmt) -> bool:
    """Whether a decorator of the project or of an installed package may enter a definition somewhere."""
    for decorator in getattr(node, "decorator_list", ()):
        root = decorator
        while isinstance(root, ast.Call | ast.Attribute):
            root = root.func if isinstance(root, ast.Call) else root.value
        for place in module.bindings.get(root.id, ()) if isinstance(root, ast.Name) else ():
            origin = module.tree.body[place]
            if isinstance(origin, ast.ImportFrom):
                sources = [_absolute(origin, module)]
            else:
                sources = [alias.name for alias in origin.names] if isinstance(origin, ast.Import) else [""]
            if any(source.partition(".")[0] not in _PURE for source in sources):
                return True
    return False


def _called(node: ast.Call) -> str:
    function = node.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _absolute(node: ast.ImportFrom, module: _Module) -> str:
    """The dotted name of the module that a `from` import reads."""
    if not node.level:
        return node.module or ""
    package = module.package.split(".")
    base = package[: len(package) - node.level + 1]
    return ".".join([*base, *([node.module] if node.module else [])])


def _located(name: str) -> Path | None:
    """The file of a module, found without importing anything; None for built-in and missing modules."""
    if not name or name.partition(".")[0] in _HARNESS:
        return None
    file = getattr(sys.modules.get(name), "__file__", None)
    path = Path(file) if file else _searched(name)
    return None if _is_standard(name, path) else path


def _searched(name: str) -> Path | None:
    """The file of a module that is not imported yet."""
    folders: list[str] | None = None
    spec = None
    for dotted in reversed([*_outwards(name)]):
        loaded = sys.modules.get(dotted)
        if loaded is not None and dotted != name and hasattr(loaded, "__path__"):
            folders = list(loaded.__path__)
            continue
        spec = _spec(dotted, folders)
        if spec is None:
            return None
        folders = list(spec.submodule_search_locations or [])
    return Path(spec.origin) if spec is not None and spec.origin and spec.has_location else None


def _spec(name: str, folders: list[str] | None) -> importlib.machinery.ModuleSpec | None:
    """Where a module lies: on the path, or in the source folder of an editable installation."""
    # The last part alone: under a dotted name, a namespace package looks up its parent in `sys.modules`.
    if spec := importlib.machinery.PathFinder.find_spec(name.rpartition(".")[2], folders):
        return spec
    for finder in sys.meta_path:
        place = getattr(finder, "__module__", None) or type(finder).__module__
        if place.startswith(("__editable__", "_editable")):
            found: importlib.machinery.ModuleSpec | None = finder.find_spec(name, folders)
            if found is not None:
                return found
    return None


def _import_root(module: _Module) -> Path:
    """The folder that a module is imported from."""
    return module.path.parents[module.name.count(".") + (module.path.name == "__init__.py")]


def _data_roots(module: _Module) -> list[Path]:
    """Where a module's data may lie: its folder, and those around it up to the root of its project."""
    root = _import_root(module)
    marked = (one for one in (root, *root.parents) if any((one / name).is_file() for name in _MARKS))
    last = next(marked, root)
    return [one for one in module.path.parents if one.is_relative_to(last)]


def _is_kind(path: Path, test: Callable[[Path], bool]) -> bool:
    with contextlib.suppress(OSError):  # a text that is too long for a name
        return test(path)
    return False


def _named_files(module: _Module, node: ast.AST) -> Iterator[tuple[str, bool]]:
    """Texts of a node that may name a file, each with whether the code treats it as a path."""
    if isinstance(node, ast.Constant | ast.JoinedStr):
        text, is_whole = _text(module, node)
        if text and len(text) <= 200:
            yield text, not is_whole
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        yield from _joined(module, _operands(node))
    elif isinstance(node, ast.Call) and _called(node) == "with_suffix":
        yield from ((f"{module.path.stem}{_text(module, one)[0]}", True) for one in node.args)
    elif isinstance(node, ast.Call) and _called(node) in _OPENERS | _RESOURCES:
        yield from _joined(module, _operands(node))


def _operands(node: ast.expr) -> list[ast.expr]:
    """The operands of a chain of divisions, or the arguments of a call that makes a path."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        return [*_operands(node.left), node.right]
    if not isinstance(node, ast.Call) or _called(node) not in _OPENERS | _RESOURCES:
        return [node]
    first, rest = node.args[:1], node.args[1:]
    if _called(node) in _RESOURCES and first and isinstance(first[0], ast.Constant):
        first = [ast.Constant(str(first[0].value).replace(".", "/"))]
    if _called(node) == "PackageLoader" and not rest:
        rest = [ast.Constant("templates")]
    return [*first, *rest]


def _joined(module: _Module, parts: Iterable[ast.expr]) -> Iterator[tuple[str, bool]]:
    """The longest path that the constants of an expression name."""
    names: list[str] = []
    for part in parts:
        text, is_whole = _text(module, part)
        if text:
            names.append(text)
        if (text or names) and not is_whole:
            break
    if names:
        yield "/".join(names), True


def _text(module: _Module, node: ast.AST) -> tuple[str, bool]:
    """A text and whether all of it is known; if not, only the folder that it starts with."""
    known, is_whole = _start(module, node)
    return (known, True) if is_whole else (known.rpartition("/")[0], False)


def _start(module: _Module, node: ast.AST) -> tuple[str, bool]:
    """The constant start of a text, and whether that is all of it."""
    if isinstance(node, ast.Name) and node.id in module.texts:
        return module.texts[node.id], True
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        head = _PLACEHOLDER.split(node.value, maxsplit=1)[0]
        return head, head == node.value
    if isinstance(node, ast.FormattedValue):
        return _start(module, node.value)
    if isinstance(node, ast.Call) and _called(node) == "format" and isinstance(node.func, ast.Attribute):
        return _start(module, node.func.value)[0], False
    parts: list[ast.expr] = []
    if isinstance(node, ast.JoinedStr):
        parts = node.values
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Mod):
        parts = [node.left, node.right]
    known = ""
    for part in parts:
        text, is_whole = _start(module, part)
        known += text
        if not is_whole:
            return known, False
    return known, bool(parts)
