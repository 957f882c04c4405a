"""Reads the source of Python modules without running it: statements, names, imports and data files."""

import ast
import functools
import importlib.machinery
import itertools
import re
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE_FOLDER = Path(__file__).resolve().parents[1]
"""This package's folder."""

INSTALLED_FOLDERS = frozenset({"site-packages", "dist-packages"})
"""Names of folders of installed distributions."""

HARNESS_PACKAGES = frozenset({"pytest", "_pytest", "pluggy", "pytest_trace2evolve"})
"""Packages that run simulations but do not affect them."""

STDLIB_FOLDERS = tuple(
    Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib") if sysconfig.get_path(name)
)

_DYNAMIC_CALLS = frozenset(
    ["globals", "vars", "eval", "exec", "__import__", "import_module", "setattr", "__subclasses__"]
)
"""Calls through which code may reach any definition of its module."""

_PURE_PACKAGES = frozenset(
    {*sys.stdlib_module_names, *HARNESS_PACKAGES, "attr", "attrs", "pydantic", "typing_extensions"}
)
"""Packages whose decorators register nothing that a simulation reads."""

_PATH_CALLS = frozenset(
    [
        "Path",
        "PurePath",
        "open",
        "join",
        "joinpath",
        "glob",
        "iglob",
        "rglob",
        "with_name",
        "listdir",
        "scandir",
        "FileSystemLoader",
    ]
)
"""Calls whose arguments are parts of a path."""

_LISTING_CALLS = frozenset({"glob", "iglob", "rglob", "iterdir", "listdir", "scandir"})
"""Calls that list the files of a folder."""

_RESOURCE_CALLS = frozenset({"files", "PackageLoader", "get_data", "read_binary", "resource_filename"})
"""Calls that name a package and a file or folder in the package."""

_PROJECT_FILES = ("pyproject.toml", "setup.py", "setup.cfg", "pytest.ini", "tox.ini")
"""Files that only the root folder of a project has."""

_FILE_NAME = re.compile(r"^[^/\n\0][^\n\0]*\.\w{1,12}$")
_FOLDER_NAME = re.compile(r"^[\w.][\w ./-]*$")
_PLACEHOLDER = re.compile(r"\{|%[(srd]|[*?]")
_UNKNOWN_FOLDER = re.compile(r"^(\{[^{}]*\}|%(\(\w+\))?s)(?=/)")
"""A placeholder that stands for the folder of a path."""


@dataclass(frozen=True)
class Module:
    """A source file of the project: its dotted name, its path, its text and its syntax tree."""

    name: str
    path: Path
    text: str
    tree: ast.Module

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    @property
    def key(self) -> str:
        """The path of the module below its import root."""
        is_top = "." not in self.name and not self.is_package
        if is_top or strip_conftest_package(self.name) == "conftest":
            return self.path.name
        module_path = self.name.replace(".", "/")
        return f"{module_path}/__init__.py" if self.is_package else f"{module_path}.py"

    @property
    def package(self) -> str:
        """The package at which the module's relative imports start."""
        return self.name if self.is_package else self.name.rpartition(".")[0]

    @property
    def import_root(self) -> Path:
        """The folder from which the module is imported."""
        return self.path.parents[self.name.count(".") + self.is_package]

    @functools.cached_property
    def data_roots(self) -> list[Path]:
        """The folders that may hold data: the module's folder and its parents up to the project's root."""
        folders = (self.import_root, *self.import_root.parents)
        project_root = next(filter(is_project_root, folders), self.import_root)
        return [folder for folder in self.path.parents if folder.is_relative_to(project_root)]

    @functools.cached_property
    def bindings(self) -> dict[str, list[int]]:
        indexes: dict[str, list[int]] = {}
        for index, node in enumerate(self.tree.body):
            for name in bound_names(node):
                indexes.setdefault(name, []).append(index)
        return indexes

    @functools.cached_property
    def used_names(self) -> frozenset[str]:
        """The names that the module reads or exports."""
        names = {node.id for node in ast.walk(self.tree) if isinstance(node, ast.Name)}
        for index in self.bindings.get("__all__", ()):
            for node in ast.walk(self.tree.body[index]):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    names.add(node.value)
        return frozenset(names)

    @functools.cached_property
    def text_constants(self) -> dict[str, str]:
        """The string constants of names that the module binds exactly once, keyed by name."""
        constants = {}
        for name, indexes in self.bindings.items():
            node = self.tree.body[indexes[0]]
            if len(indexes) == 1 and isinstance(node, ast.Assign | ast.AnnAssign):
                value = node.value
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    constants[name] = value.value
        return constants

    @functools.cached_property
    def is_dynamic(self) -> bool:
        """Whether the module may reach its definitions by other means than their names."""
        return any(
            (isinstance(node, ast.Call) and called_name(node) in _DYNAMIC_CALLS)
            or (isinstance(node, ast.Attribute) and ast.unparse(node) == "sys.modules")
            or (isinstance(node, ast.FunctionDef) and node.name == "__init_subclass__")
            or (isinstance(node, ast.Name) and node.id == "__doc__")
            for node in ast.walk(self.tree)
        )

    def imported_module(self, node: ast.ImportFrom) -> str:
        """The dotted name of the module that a `from` import reads."""
        if not node.level:
            return node.module or ""
        package = self.package.split(".")
        base = package[: len(package) - node.level + 1]
        return ".".join([*base, *([node.module] if node.module else [])])

    def may_register(self, node: ast.stmt) -> bool:
        """Whether a decorator or a base class may register a definition.

        Decorators and base classes of the project or of an installed package may do so, except those of
        `_PURE_PACKAGES` packages.
        """
        bases = node.bases if isinstance(node, ast.ClassDef) else ()
        for decorator in (*getattr(node, "decorator_list", ()), *bases):
            root = decorator
            while isinstance(root, ast.Call | ast.Attribute):
                root = root.func if isinstance(root, ast.Call) else root.value
            for index in self.bindings.get(root.id, ()) if isinstance(root, ast.Name) else ():
                origin = self.tree.body[index]
                if isinstance(origin, ast.ImportFrom):
                    sources = [self.imported_module(origin)]
                else:
                    sources = (
                        [alias.name for alias in origin.names] if isinstance(origin, ast.Import) else [""]
                    )
                if any(source.partition(".")[0] not in _PURE_PACKAGES for source in sources):
                    return True
        return False

    def source_of(self, node: ast.stmt, *, with_docstrings: bool = True) -> str:
        """Return the lines of a statement with its decorators; docstrings can be left blank."""
        decorators = getattr(node, "decorator_list", ())
        first = min([node.lineno, *(decorator.lineno for decorator in decorators)])
        # `splitlines` would split at form feeds too, which Python does not count as lines.
        lines = self.text.split("\n")[first - 1 : node.end_lineno]
        if not with_docstrings:
            for start, end in _docstring_lines(node):
                lines[start - first : end - first + 1] = [""] * (end - start + 1)
        return "\n".join(lines)


def _docstring_lines(node: ast.stmt) -> Iterator[tuple[int, int]]:
    """Yield the first and the last line of each docstring in a statement, if no code shares these lines."""
    for definition in ast.walk(node):
        if isinstance(definition, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = definition.body[0]
            is_docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
            if is_docstring and first.lineno > definition.lineno and first.end_lineno is not None:
                yield first.lineno, first.end_lineno


def is_project_root(folder: Path) -> bool:
    return any((folder / name).is_file() for name in _PROJECT_FILES)


def strip_conftest_package(module: str) -> str:
    """A module's name, without the package of a `conftest`, which depends on pytest's import mode."""
    return "conftest" if f".{module}".endswith(".conftest") else module


def called_name(node: ast.Call) -> str:
    function = node.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def bound_names(node: ast.stmt) -> list[str]:
    """The names that a definition, a simple assignment or an import binds; empty for other statements."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Import):
        return [alias.asname or alias.name.partition(".")[0] for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [alias.asname or alias.name for alias in node.names]
    if not isinstance(node, ast.Assign | ast.AnnAssign):
        return []
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    parts = [part for target in targets for part in ast.walk(target)]
    if any(isinstance(part, ast.Attribute | ast.Subscript) for part in parts):
        return []  # the assignment changes an object defined elsewhere
    return [part.id for part in parts if isinstance(part, ast.Name)]


def is_inert(node: ast.stmt, *, reject_else: bool = False) -> bool:
    """Whether a statement does nothing on import: a docstring, `pass`, or code for type checkers or scripts.

    The statement may have an `else` branch that does run, unless `reject_else` is set.
    """
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True
    if not isinstance(node, ast.If):
        return isinstance(node, ast.Pass)
    if reject_else and node.orelse:
        return False
    test = ast.unparse(node.test)
    return test in ("TYPE_CHECKING", "typing.TYPE_CHECKING", "__name__ == '__main__'")


def modules_run_by(node: ast.AST) -> Iterator[str]:
    """Yield the modules that a node runs with a command line such as `python -m name`."""
    words = node.elts if isinstance(node, ast.List | ast.Tuple) else getattr(node, "args", ())
    for flag, name in itertools.pairwise(words) if isinstance(words, list) else ():
        if isinstance(flag, ast.Constant) and flag.value == "-m" and isinstance(name, ast.Constant):
            yield str(name.value)


def enclosing_packages(package: str) -> Iterator[str]:
    """A package and its enclosing packages, the innermost first."""
    while package:
        yield package
        package = package.rpartition(".")[0]


def is_foreign(path: Path) -> bool:
    """Whether a file belongs to Python, an installed distribution or this package."""
    path = path.resolve()
    return bool(INSTALLED_FOLDERS & set(path.parts)) or any(
        path.is_relative_to(folder) for folder in (*STDLIB_FOLDERS, PACKAGE_FOLDER)
    )


def is_standard(name: str, path: Path | None) -> bool:
    """Whether a module belongs to the standard library. A project may have a module of the same name."""
    if name.partition(".")[0] not in sys.stdlib_module_names or name == "__main__":
        return False
    return path is None or not path.is_file() or is_foreign(path)


def locate_module(name: str) -> Path | None:
    """The file of a module, found without importing anything; None for built-in and missing modules."""
    if not name or name.partition(".")[0] in HARNESS_PACKAGES:
        return None
    file = getattr(sys.modules.get(name), "__file__", None)
    path = Path(file) if file else _locate_unloaded(name)
    return None if is_standard(name, path) else path


def _locate_unloaded(name: str) -> Path | None:
    folders: list[str] | None = None
    spec = None
    for dotted_name in reversed([*enclosing_packages(name)]):
        module = sys.modules.get(dotted_name)
        if module is not None and dotted_name != name and hasattr(module, "__path__"):
            folders = list(module.__path__)
            continue
        spec = _find_spec(dotted_name, folders)
        if spec is None:
            return None
        folders = list(spec.submodule_search_locations or [])
    return Path(spec.origin) if spec is not None and spec.origin and spec.has_location else None


def _find_spec(name: str, folders: list[str] | None) -> importlib.machinery.ModuleSpec | None:
    """The spec of a module on the path, or in the source folder of an editable installation."""
    # Uses the last part only, because a namespace package with a dotted name needs its parent loaded.
    if spec := importlib.machinery.PathFinder.find_spec(name.rpartition(".")[2], folders):
        return spec
    for finder in sys.meta_path:
        finder_module = getattr(finder, "__module__", None) or type(finder).__module__
        if finder_module.startswith(("__editable__", "_editable")):
            module_spec: importlib.machinery.ModuleSpec | None = finder.find_spec(name, folders)
            if module_spec is not None:
                return module_spec
    return None


def passes_test(path: Path, test: Callable[[Path], bool]) -> bool:
    """Whether a path passes a test such as `Path.is_file`; false if the path is invalid, e.g. too long."""
    try:
        return test(path)
    except OSError:
        return False


def paths_named_by(module: Module, node: ast.AST) -> Iterator[Path]:
    """The existing files and folders that a node names, relative to any of the module's data roots."""
    yield from _listed_files(module, node)
    for text, is_path in _named_texts(module, node):
        text = text.lstrip("/")  # the text may follow an unknown folder
        if not text:
            continue
        for folder in module.data_roots:
            path = folder / text
            if passes_test(path, Path.is_file):
                if is_path or _FILE_NAME.match(text):
                    yield path
            elif (
                is_path
                and _FOLDER_NAME.match(text)
                and passes_test(path, Path.is_dir)
                and path.resolve() not in (folder, *folder.parents)
            ):
                yield path


def _listed_files(module: Module, node: ast.AST) -> Iterator[Path]:
    """The files of the module's folder that a call lists, such as `Path(__file__).parent.glob("*.md")`."""
    if not isinstance(node, ast.Call) or (name := called_name(node)) not in _LISTING_CALLS:
        return
    argument = node.args[0] if node.args else None
    if (
        isinstance(argument, ast.Call) and called_name(argument) == "join"
    ):  # glob.glob(os.path.join(…, "*.md"))
        operands = argument.args
    else:
        operands = [*([node.func.value] if isinstance(node.func, ast.Attribute) else []), *node.args]
    folders = [operand for operand in operands if _is_own_folder(module, operand)]
    patterns = [part.value for part in operands if isinstance(part, ast.Constant)] or ["*"]
    if not folders or len(patterns) > 1 or not isinstance(patterns[0], str) or "/" in patterns[0]:
        return
    find = module.path.parent.rglob if name == "rglob" else module.path.parent.glob
    yield from (path for path in find(patterns[0] or "*") if path.is_file())


def _is_own_folder(module: Module, node: ast.AST) -> bool:
    """Whether an expression, or the value of a name of the module, is the folder of the module's file."""
    if isinstance(node, ast.Name):
        indexes = module.bindings.get(node.id, ())
        values = [getattr(module.tree.body[index], "value", None) for index in indexes]
        if len(values) != 1 or values[0] is None:
            return False
        node = values[0]
    parts = list(ast.walk(node))
    names_file = any(isinstance(part, ast.Name) and part.id == "__file__" for part in parts)
    return names_file and not any(isinstance(part, ast.Constant) for part in parts)


def path_operands(node: ast.expr) -> list[ast.expr]:
    """The operands of a chain of divisions, or the arguments of a call that makes a path."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        return [*path_operands(node.left), node.right]
    if not isinstance(node, ast.Call) or called_name(node) not in _PATH_CALLS | _RESOURCE_CALLS:
        return [node]
    first, rest = node.args[:1], node.args[1:]
    if called_name(node) in _RESOURCE_CALLS and first and isinstance(first[0], ast.Constant):
        first = [ast.Constant(str(first[0].value).replace(".", "/"))]
    if called_name(node) == "PackageLoader" and not rest:
        rest = [ast.Constant("templates")]
    return [*first, *rest]


def _named_texts(module: Module, node: ast.AST) -> Iterator[tuple[str, bool]]:
    """Yield the strings of a node that may name a file, each with whether the code treats it as a path."""
    if isinstance(node, ast.Constant | ast.JoinedStr):
        text, is_whole = _known_text(module, node)
        if text and len(text) <= 200:
            yield text, not is_whole
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        yield from _join_known_texts(module, path_operands(node))
    elif isinstance(node, ast.Call) and called_name(node) == "with_suffix":
        yield from ((f"{module.path.stem}{_known_text(module, part)[0]}", True) for part in node.args)
    elif isinstance(node, ast.Call) and called_name(node) in _PATH_CALLS | _RESOURCE_CALLS:
        yield from _join_known_texts(module, path_operands(node))


def _join_known_texts(module: Module, parts: Iterable[ast.expr]) -> Iterator[tuple[str, bool]]:
    """The longest path that the constants of an expression name."""
    names: list[str] = []
    for part in parts:
        text, is_whole = _known_text(module, part)
        if text:
            names.append(text)
        if (text or names) and not is_whole:
            break
    if names:
        yield "/".join(names), True


def _known_text(module: Module, node: ast.AST) -> tuple[str, bool]:
    """The known text, and whether it is complete. An incomplete text is cut to its leading folder."""
    start, is_whole = _known_start(module, node)
    return (start, True) if is_whole else (start.rpartition("/")[0], False)


def _known_start(module: Module, node: ast.AST) -> tuple[str, bool]:
    """The constant start of a text, and whether the constant start is the whole text."""
    if isinstance(node, ast.Name) and node.id in module.text_constants:
        return module.text_constants[node.id], True
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        text = _UNKNOWN_FOLDER.sub("", node.value)
        constant_start = _PLACEHOLDER.split(text, maxsplit=1)[0]
        return constant_start, constant_start == text
    if isinstance(node, ast.FormattedValue):
        return _known_start(module, node.value)
    if isinstance(node, ast.Call) and called_name(node) == "format" and isinstance(node.func, ast.Attribute):
        return _known_start(module, node.func.value)[0], False
    parts: list[ast.expr] = []
    if isinstance(node, ast.JoinedStr):
        parts = node.values
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Mod):
        parts = [node.left, node.right]
    if len(parts) > 1 and _known_start(module, parts[0]) == ("", False):
        if not _known_start(module, parts[1])[0].startswith("/"):
            return "", False
        parts = parts[1:]  # the first part is an unknown folder
    start = ""
    for part in parts:
        text, is_whole = _known_start(module, part)
        start += text
        if not is_whole:
            return start, False
    return start, bool(parts)
