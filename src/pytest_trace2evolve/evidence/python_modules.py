"""Reads the source of Python modules without running it: definitions, imports and the files they name."""

import ast
import functools
import importlib.machinery
import importlib.util
import os
import re
import sys
import sysconfig
from collections.abc import Iterator
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

_IMPORTING_CALLS = frozenset({"import_module", "__import__", "run_module"})

_LISTING_CALLS = frozenset({"glob", "iglob", "rglob", "iterdir", "listdir", "scandir"})
_PATH_CALLS = _LISTING_CALLS | {"Path", "PurePath", "open", "join", "joinpath", "with_name", "files"}
"""Calls whose arguments are parts of a path."""

_PROJECT_FILES = ("pyproject.toml", "setup.py", "setup.cfg", "pytest.ini", "tox.ini")
"""Files that only the root folder of a project has."""

_OUTPUT_FOLDERS = frozenset({"baselines", "ledger", "results"})
"""Folders at the root of a project that runs write to. They are not inputs of the code."""

_FILE_NAME = re.compile(r"^[^\n\0]+\.\w{1,12}$")
_PLACEHOLDER = re.compile(r"\{[^{}]*\}|%(\(\w+\))?[srd]|[*?].*")


@dataclass(frozen=True)
class Module:
    """A source file of the project.

    Attributes:
        name: The dotted name of the module.
        path: The file.
        root: The folder from which the module is imported.
        definition: The definition that counts; None for the whole module.
    """

    name: str
    path: Path
    root: Path
    definition: str | None = None

    @functools.cached_property
    def _text(self) -> str:
        return importlib.util.decode_source(self.path.read_bytes())

    @functools.cached_property
    def _tree(self) -> ast.Module:
        return ast.parse(self._text, filename=self.path.name)

    @functools.cached_property
    def _body(self) -> list[ast.stmt]:
        """The statements that count: those of the definition, or all if the module has no such definition."""
        body = [node for node in self._tree.body if getattr(node, "name", None) == self.definition]
        return body if self.definition and body else self._tree.body

    def source(self, *, has_docstrings: bool) -> str:
        """Return the source that counts; without docstrings, also without empty lines."""
        # `splitlines` would split at form feeds too, which Python does not count as lines.
        lines = self._text.split("\n")
        if not has_docstrings:
            for first, last in _docstrings(self._tree):
                lines[first - 1 : last] = [""] * (last - first + 1)
        if self._body is not self._tree.body:
            spans = [(_first_line(node) - 1, node.end_lineno) for node in self._body]
            lines = [line for first, last in spans for line in lines[first:last]]
        return "\n".join(lines if has_docstrings else filter(str.strip, lines))

    def imports(self) -> Iterator[str]:
        """Yield the names of modules that the source may import, at any depth."""
        package = self.name if self.path.name == "__init__.py" else self.name.rpartition(".")[0]
        nodes = list(_runtime_nodes(self._body))
        if self._body is not self._tree.body:  # and the imports of the file that the definition uses
            used = {node.id for node in nodes if isinstance(node, ast.Name)}
            for statement in self._tree.body:
                if isinstance(statement, ast.Import | ast.ImportFrom):
                    bound = {(alias.asname or alias.name).partition(".")[0] for alias in statement.names}
                    nodes += [statement] if bound & (used | {"*"}) else []
        for node in nodes:
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                parts = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
                base = ".".join([*parts, *([node.module] if node.module else [])])
                yield base
                yield from (f"{base}.{alias.name}" for alias in node.names)
            elif isinstance(node, ast.Call) and _called_name(node) in _IMPORTING_CALLS and node.args:
                name = getattr(node.args[0], "value", None)
                if isinstance(name, str) and name:
                    yield importlib.util.resolve_name(name, package or None) if package else name

    def named_paths(self) -> Iterator[Path]:
        """Yield the files that string constants name, relative to the module's folder or one above it.

        A folder counts with its files if it is part of a path, such as `Path(__file__).parent / "texts"`.
        """
        parts: set[int] = set()  # nodes that belong to a larger path
        for node in _runtime_nodes(self._body):
            is_path = isinstance(node, ast.Call) and _called_name(node) in _PATH_CALLS
            is_path = is_path or (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div))
            if is_path or isinstance(node, ast.Constant | ast.JoinedStr):
                text = self._path_text(node).lstrip("*/")
                if id(node) not in parts and len(text) < 200:
                    yield from self._existing(text, is_path=is_path)
                if not text and isinstance(node, ast.Call) and _called_name(node) in _LISTING_CALLS:
                    yield from (path for path in sorted(self.path.parent.iterdir()) if _is_data(path))
                parts |= {id(part) for part in ast.walk(node)} if is_path else set()

    def _path_text(self, node: ast.AST | None) -> str:
        """Return the text of an expression, with an asterisk for each unknown part."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return _PLACEHOLDER.sub("*", node.value)
        if isinstance(node, ast.Name):
            return self._constants.get(node.id, "*")
        if isinstance(node, ast.JoinedStr):
            return "".join(map(self._path_text, node.values))
        if isinstance(node, ast.FormattedValue):
            return self._path_text(node.value)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            return f"{self._path_text(node.left)}/{self._path_text(node.right)}"
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return self._path_text(node.left) + self._path_text(node.right)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
            return self._path_text(node.left)
        if isinstance(node, ast.Call) and _called_name(node) in _PATH_CALLS | {"format"}:
            owner = getattr(node.func, "value", None)
            if _called_name(node) == "format":
                return self._path_text(owner)
            arguments = list(map(self._path_text, node.args))
            if _called_name(node) == "files":
                arguments = [name.replace(".", "/") for name in arguments]
            return "/".join([self._path_text(owner), *arguments] if owner is not None else arguments)
        return "*"

    @functools.cached_property
    def _constants(self) -> dict[str, str]:
        """The texts of names that the module assigns once."""
        assigned: dict[str, list[str]] = {}
        for node in self._tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                value = node.value.value if isinstance(node.value, ast.Constant) else None
                assigned.setdefault(node.targets[0].id, []).append(value if isinstance(value, str) else "*")
        return {name: texts[0] for name, texts in assigned.items() if len(texts) == 1}

    @functools.cached_property
    def _data_roots(self) -> list[Path]:
        """The folders that may hold data: the module's folder and its parents up to the project's root."""
        folders = (self.root, *self.root.parents)
        project = next((path for path in folders if is_project_root(path)), self.root)
        return [folder for folder in self.path.parents if folder.is_relative_to(project)]

    def _existing(self, text: str, *, is_path: bool) -> Iterator[Path]:
        known, star, _ = text.partition("*")
        if star:
            known = known.rpartition("/")[0]
        for folder in self._data_roots:
            path = folder / known
            try:
                if path.is_file() and known and (is_path or _FILE_NAME.match(known)):
                    yield path
                elif is_path and known and path.is_dir() and path.resolve() not in (folder, *folder.parents):
                    yield from filter(_is_data, files_below(path))
            except OSError:  # the text is too long for a name
                continue

    def key_of(self, path: Path) -> str:
        """Return a data file's path below the import root or the project's root; else its name."""
        path = path.resolve()
        roots = (root for root in (self.root, self._data_roots[-1]) if path.is_relative_to(root))
        root = next(roots, path.parent)
        return path.relative_to(root).as_posix()


def _is_data(path: Path) -> bool:
    return path.suffix not in (".py", ".pyc") and path.is_file()


def _runtime_nodes(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """Yield all nodes from the outside in, except code that only type checkers run."""
    queue: list[ast.AST] = list(body)
    for node in queue:
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            queue += node.orelse
            continue
        yield node
        queue += ast.iter_child_nodes(node)


def _first_line(node: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def _docstrings(tree: ast.AST) -> Iterator[tuple[int, int]]:
    """Yield the first and the last line of each docstring, if no code shares these lines."""
    for definition in ast.walk(tree):
        if isinstance(definition, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = definition.body[0]
            is_docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
            if is_docstring and first.lineno > definition.lineno and first.end_lineno is not None:
                yield first.lineno, first.end_lineno


def _called_name(node: ast.Call) -> str:
    name: str = getattr(node.func, "attr", getattr(node.func, "id", ""))
    return name


def is_project_root(folder: Path) -> bool:
    """Whether a folder is the root of a project."""
    return any((folder / name).is_file() for name in _PROJECT_FILES)


_NO_CODE = frozenset({".pyc", ".old", ".bak", ".orig", ".rej", ".py~"})
"""The suffixes of bytecode, and of copies that `sed -i`, editors and merges leave behind."""


def files_below(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder, except hidden and installed ones, bytecode, backups and outputs."""
    seen = set()
    for name, folders, files in os.walk(folder, followlinks=True):
        current = Path(name)
        if current.resolve() in seen or _is_excluded(current):  # a link to an enclosing folder
            folders.clear()
            continue
        seen.add(current.resolve())
        folders.sort()
        paths = (current / file for file in sorted(files) if not file.startswith("."))
        yield from (path for path in paths if path.suffix not in _NO_CODE and path.is_file())


def _is_excluded(folder: Path) -> bool:
    if folder.name.startswith(".") or folder.name == "__pycache__" or INSTALLED_FOLDERS & set(folder.parts):
        return True
    return folder.name in _OUTPUT_FOLDERS and is_project_root(folder.parent)


def is_standard(name: str, path: Path | None) -> bool:
    """Whether a module belongs to the standard library. A project may have a module of the same name."""
    if name.partition(".")[0] not in sys.stdlib_module_names or name == "__main__":
        return False
    if path is None or not path.is_file():
        return True
    path = path.resolve()
    folders = (*STDLIB_FOLDERS, PACKAGE_FOLDER)
    return bool(INSTALLED_FOLDERS & set(path.parts)) or any(map(path.is_relative_to, folders))


def locate_module(name: str) -> Path | None:
    """The file of a module, found without importing anything; None for built-in and missing modules."""
    if not name or name.partition(".")[0] in HARNESS_PACKAGES:
        return None
    file = getattr(sys.modules.get(name), "__file__", None)
    path = Path(file) if file else _locate_unloaded(name)
    return None if is_standard(name, path) else path


def _locate_unloaded(name: str) -> Path | None:
    parts = name.split(".")
    folders: list[str] | None = None
    spec = None
    for dotted_name in (".".join(parts[:count]) for count in range(1, len(parts) + 1)):
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
