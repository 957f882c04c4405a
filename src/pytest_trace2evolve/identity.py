"""Identity of code: digests of an agent, a user or a world that change if its behaviour may change.

Code of a project counts by content: the module that defines an object, the project modules that it imports,
directly or through others, and the data files that they name. Installed distributions count by name and
version. An object may declare a `fingerprint` instead: a text, or a callable that returns one.

The code is read, not run, so three things stay unseen: modules imported under a computed name, files opened
under a computed name outside a named folder, and anything outside the project (a service, the environment).
"""

import ast
import functools
import importlib.machinery
import importlib.metadata
import inspect
import re
import sys
import sysconfig
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pytest_trace2evolve._canonical import canonical_json, digest_text
from pytest_trace2evolve.errors import Trace2EvolveError
from pytest_trace2evolve.records.evidence import Code

MAX_DATA_FILES = 2_000
"""Files of a named folder of data beyond which a project should declare a fingerprint."""

_PACKAGE = Path(__file__).resolve().parent
_STDLIB = tuple(
    Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib") if sysconfig.get_path(name)
)
_INSTALLED = frozenset({"site-packages", "dist-packages"})
_HARNESS = frozenset({"pytest", "_pytest", "pluggy", "pytest_trace2evolve"})
"""Packages that run simulations and do not take part in them."""

_OUTPUTS = frozenset({"baselines", "ledger", "results", "__pycache__"})
"""Folders that runs write, which are no input of the code."""

_DYNAMIC = frozenset(
    {
        *("globals", "vars", "locals", "dir", "getmembers", "__subclasses__"),
        *("eval", "exec", "__import__", "import_module", "setattr"),
    }
)
"""Calls after which a name in a module may refer to anything in it."""

_OPENERS = frozenset(
    {"Path", "PurePath", "open", "join", "joinpath", "files", "glob", "rglob", "listdir", "scandir"}
)
_FILE_NAME = re.compile(r"^[\w.][\w ./-]*\.\w{1,12}$")
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
        """The names that its code uses."""
        return frozenset(node.id for node in ast.walk(self.tree) if isinstance(node, ast.Name))

    @property
    def package(self) -> str:
        """The package that its relative imports start from."""
        return self.name if self.path.name == "__init__.py" else self.name.rpartition(".")[0]


def code_of(*roots: object, parts: bool = False, owner: object = None) -> Code:
    """Identify the code behind some objects.

    Args:
        roots: Functions, classes, modules or instances; None is left out. The first one may declare a
            `fingerprint`, which then stands for all of them.
        owner: What the objects make, such as a world; its `fingerprint` counts before that of the first root.
        parts: Whether to count, of a module, only the definitions that the objects refer to, so that code
            which merely shares a file with them does not count. Statements that are not definitions always
            count.

    Returns:
        The code; its `unknown` says why if a source cannot be read, or if a fingerprint raises.
    """
    try:
        declared = _declared_fingerprint(owner) or _declared_fingerprint(roots[0])
    except Trace2EvolveError:
        raise
    except Exception as error:
        return Code(unknown=f"its fingerprint raises {type(error).__name__}: {error}")
    if declared:
        return Code(fingerprint=declared)
    collected = _Collected(parts)
    try:
        for root in roots:
            if root is not None:
                collected.add_object(root)
        return Code(files=collected.files(), distributions=collected.distributions)
    except (_UnknownError, OSError, SyntaxError, UnicodeDecodeError, RecursionError) as error:
        return Code(unknown=" ".join(f"{error}".split()) or type(error).__name__)


def _declared_fingerprint(root: object) -> str:
    """The fingerprint that an object or its own class declares; empty if neither does.

    A base class cannot speak for code that it does not know, so an inherited fingerprint does not count. Nor
    does a method of a class without an instance.
    """
    owners = [root] if inspect.isclass(root) else [root, type(root)]
    if not any("fingerprint" in getattr(owner, "__dict__", ()) for owner in owners):
        return ""
    value = getattr(root, "fingerprint", None)
    if inspect.isclass(root) and value is vars(root)["fingerprint"] and inspect.isfunction(value):
        return ""
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
    _data: dict[str, str] = field(default_factory=dict)
    _values: list[str] = field(default_factory=list)
    _objects: list[object] = field(default_factory=list)

    def files(self) -> dict[str, str]:
        """Digests by path."""
        found = dict(self._data)
        for path, module in self._modules.items():
            if path in self._whole:
                found[module.key] = digest_text(module.text)
            elif path in self._slices:
                chosen = [module.tree.body[place] for place in sorted(self._slices[path])]
                found[module.key] = digest_text("\n".join(_source(module, node) for node in chosen))
        if self._values:
            found["(factory)"] = digest_text("\n".join(self._values))
        return dict(sorted(found.items()))

    def add_object(self, value: object) -> None:
        """Take in the code of an object and of the objects that it holds."""
        if any(value is one for one in self._objects):
            return
        self._objects.append(value)  # kept alive, so that identity stays meaningful
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
        elif value is None or isinstance(value, str | int | float | bool | bytes):
            self._values.append(repr(value))
        elif isinstance(value, list | tuple | set | frozenset):
            for part in sorted(value, key=repr) if isinstance(value, set | frozenset) else value:
                self.add_object(part)
        elif isinstance(value, dict):
            for item in value.items():
                self.add_object(item)
        elif not isinstance(value, types.BuiltinFunctionType):
            self._add_class(type(value))
            self._add_state(value)

    def _add_state(self, value: object) -> None:
        """The attributes of an object: values in their JSON form, others by the code behind them.

        Of an object of the standard library or of an installed package only the function that it wraps
        counts, as `functools.cache` does.
        """
        state = getattr(value, "__dict__", {})
        if not self._is_of_project(type(value)):
            if "__wrapped__" in state:
                self.add_object(state["__wrapped__"])
            return
        slots = [name for one in type(value).__mro__ for name in _slots(one) if hasattr(value, name)]
        for name, part in sorted({**state, **{name: getattr(value, name) for name in slots}}.items()):
            try:
                self._values.append(f"{name}={canonical_json(part)}")
            except (TypeError, ValueError):
                self.add_object(part)

    @staticmethod
    def _is_of_project(cls: type) -> bool:
        path = getattr(sys.modules.get(cls.__module__), "__file__", None) or _file_of_methods(cls)
        if path is None or _is_standard(cls.__module__, path):
            return False
        place = Path(path).resolve()
        return not (place.is_relative_to(_PACKAGE) or _INSTALLED & set(place.parts))

    def _add_function(self, function: types.FunctionType) -> None:
        self._values.append(f"{function.__module__}.{function.__qualname__}")
        top = function.__qualname__.partition(".")[0]
        symbol = None if top.startswith("<") else top
        self._add_named(function.__module__, function.__code__.co_filename, symbol)
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
        self._values.append(f"{cls.__module__}.{cls.__qualname__}")
        for one in cls.__mro__:
            module = sys.modules.get(one.__module__)
            path = getattr(module, "__file__", None) if module is not None else _file_of_methods(one)
            self._add_named(one.__module__, path, one.__qualname__.partition(".")[0])

    def _add_named(self, name: str, path: str | None, symbol: str | None) -> None:
        if _is_standard(name, path):
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
            text = path.read_text(encoding="utf-8")
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
                    self._add_statements(module)
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
                    self._import(first.value, None)
        self._add_data(module, node)

    def _import(self, name: str, symbol: str | None) -> None:
        """Take in the target of an import statement; a symbol may be a module too."""
        if symbol is not None and symbol != "*":
            inner = _located(f"{name}.{symbol}")
            if inner is not None:
                self._add_file(f"{name}.{symbol}", inner, None)
                return
        path = _located(name)
        if path is not None:
            self._add_file(name, path, None if symbol == "*" else symbol)

    def _add_symbol(self, module: _Module, symbol: str) -> None:
        """A definition of a module with all that it refers to, and the statements that are no definitions."""
        if (module.path, symbol) in self._symbols or module.path in self._whole:
            return
        self._symbols.add((module.path, symbol))
        if symbol not in module.bindings or _is_dynamic(module.tree):
            self._add_whole(module)
            return
        self._add_name(module, symbol)
        self._add_statements(module)

    def _add_statements(self, module: _Module) -> None:
        for place, node in enumerate(module.tree.body):
            if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
                self._add_node(module, node)
            elif isinstance(node, ast.Import | ast.ImportFrom):
                self._add_unused(module, node)
            elif self._is_registered(module, node) or (not _binds(node) and not _is_inert(node)):
                self._add_statement(module, place)

    def _add_unused(self, module: _Module, node: ast.Import | ast.ImportFrom) -> None:
        """Take in modules that a module imports and does not use: importing them may register something.

        A package's `__init__.py` imports modules for others to use.
        """
        if module.path.name == "__init__.py":
            return
        source = _absolute(node, module) if isinstance(node, ast.ImportFrom) else ""
        for name, alias in zip(_binds(node), node.names, strict=True):
            inner = f"{source}.{alias.name}" if source else alias.name
            if name not in module.used and (path := _located(inner)) is not None:
                self._add_file(inner, path, None)

    def _is_registered(self, module: _Module, node: ast.stmt) -> bool:
        """Whether a decorator of the project may keep a definition, so that code finds it without its name.

        Decorators of the standard library and of installed packages keep nothing for the project.
        """
        names = [_root_name(one) for one in getattr(node, "decorator_list", ())]
        return any(name in module.bindings and self._is_own(module, name) for name in names)

    @staticmethod
    def _is_own(module: _Module, name: str) -> bool:
        """Whether a module defines a name, or imports it from the project."""
        for place in module.bindings[name]:
            node = module.tree.body[place]
            if not isinstance(node, ast.Import | ast.ImportFrom):
                return True
            source = _absolute(node, module) if isinstance(node, ast.ImportFrom) else node.names[0].name
            path = _located(source)
            if path is not None and not _INSTALLED & set(path.resolve().parts):
                return True
        return False

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
        """Take in the target of a name of a module: a definition in it, or an import, which is followed."""
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
        """Data files and folders that a node names, if they exist next to the module or below its root."""
        for text, is_path in _named_files(node):
            for folder in _data_roots(module):
                path = folder / text
                if path.suffix in (".py", ".pyc"):
                    continue
                if _FILE_NAME.match(text) and path.is_file():
                    self._add_data_file(module, path)
                    break
                if is_path and _FOLDER_NAME.match(text) and path.is_dir() and path != folder:
                    self._add_data_folder(module, path)
                    break

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
        path, root = path.resolve(), _data_roots(module)[-1]
        name = path.relative_to(root).as_posix() if path.is_relative_to(root) else path.name
        self._data[name] = digest_text(path.read_bytes().hex())

    def _add_distribution(self, top: str) -> None:
        names = _distributions().get(top, ())
        for name in names:
            self.distributions[name] = importlib.metadata.version(name)
        if not names:
            raise _UnknownError(f"package {top!r} has no installed distribution; declare a fingerprint")


@functools.cache
def _distributions() -> dict[str, list[str]]:
    return {top: sorted(set(names)) for top, names in importlib.metadata.packages_distributions().items()}


def _outwards(package: str) -> Iterator[str]:
    """A package and those around it, the innermost first."""
    while package:
        yield package
        package = package.rpartition(".")[0]


def _slots(cls: type) -> list[str]:
    slots = vars(cls).get("__slots__", ())
    return [slots] if isinstance(slots, str) else list(slots)


def _root_name(node: ast.expr) -> str:
    """The first name of a dotted name or of a call: `app` of `@app.tool("book")`."""
    while isinstance(node, ast.Call | ast.Attribute):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def _is_standard(name: str, path: str | None) -> bool:
    """Whether a module is of the standard library; a module of the project may have the same name."""
    if name.partition(".")[0] not in sys.stdlib_module_names:
        return False
    if path is None:
        return True
    place = Path(path).resolve()
    if not place.is_file() or _INSTALLED & set(place.parts):  # frozen, or a backport
        return True
    return any(place.is_relative_to(folder) for folder in _STDLIB)


def _file_of_methods(cls: type) -> str | None:
    codes = (getattr(value, "__code__", None) for value in vars(cls).values())
    return next((code.co_filename for code in codes if code is not None), None)


def _source(module: _Module, node: ast.stmt) -> str:
    """A statement's source with its decorators."""
    first = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", ()))])
    return "\n".join(module.text.splitlines()[first - 1 : node.end_lineno])


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


def _is_inert(node: ast.stmt) -> bool:
    """Whether a statement does nothing on import: a docstring, or code for type checkers and scripts."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True
    if not isinstance(node, ast.If):
        return isinstance(node, ast.Pass)
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
    return any(
        (isinstance(node, ast.Call) and _called(node) in _DYNAMIC)
        or (isinstance(node, ast.FunctionDef) and node.name == "__init_subclass__")
        or (isinstance(node, ast.Attribute) and ast.unparse(node) == "sys.modules")
        for node in ast.walk(tree)
    )


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
    top = name.partition(".")[0]
    if not name or top in _HARNESS or _is_standard(top, _file(top)):
        return None
    loaded = sys.modules.get(name)
    file = getattr(loaded, "__file__", None)
    if file:
        return Path(file)
    folders: list[str] | None = None
    done: list[str] = []
    for part in name.split("."):
        done.append(part)
        spec = importlib.machinery.PathFinder.find_spec(".".join(done), folders)
        if spec is None:
            return None
        folders = list(spec.submodule_search_locations or [])
    return Path(spec.origin) if spec is not None and spec.origin else None


def _file(top: str) -> str | None:
    """The file of a top-level module, loaded or not; None if there is none."""
    if top in sys.modules:
        return getattr(sys.modules[top], "__file__", None)
    spec = importlib.machinery.PathFinder.find_spec(top)
    return None if spec is None else spec.origin


def _data_roots(module: _Module) -> list[Path]:
    """Folders that may hold a module's data: its own, and those around it up to its import root."""
    folders = [module.path.parent]
    for _ in range(module.name.count(".") + (module.path.name == "__init__.py")):
        folders.append(folders[-1].parent)
    return folders


def _named_files(node: ast.AST) -> Iterator[tuple[str, bool]]:
    """Texts of a node that may name a file, each with whether the code treats it as a path."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and 0 < len(node.value) <= 200:
        yield node.value, False
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        yield from _joined(_operands(node))
    elif isinstance(node, ast.Call) and _called(node) in _OPENERS:
        yield from _joined(node.args)


def _operands(node: ast.expr) -> list[ast.expr]:
    """The operands of a chain of divisions, or the arguments of a call that makes a path."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        return [*_operands(node.left), node.right]
    return node.args if isinstance(node, ast.Call) and _called(node) in _OPENERS else [node]


def _joined(parts: Iterable[ast.expr]) -> Iterator[tuple[str, bool]]:
    """The longest path that the constants of an expression name."""
    names: list[str] = []
    for part in parts:
        if isinstance(part, ast.Constant) and isinstance(part.value, str) and part.value:
            names.append(part.value)
        elif names:
            break
    if names:
        yield "/".join(names), True
