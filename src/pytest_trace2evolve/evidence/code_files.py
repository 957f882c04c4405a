"""Collects the files behind some code: modules, or only the definitions in use, and data files."""

import ast
import contextlib
import functools
import importlib.metadata
import importlib.util
import os
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pytest_trace2evolve.evidence.python_modules import (
    HARNESS,
    INSTALLED,
    PACKAGE,
    STDLIB,
    Module,
    bound_names,
    called_name,
    enclosing_packages,
    is_inert,
    is_project_root,
    is_standard,
    locate,
    named_paths,
    path_operands,
    run_modules,
)
from pytest_trace2evolve.utils.canonical import digest_text

MAX_DATA_FILES = 2_000
"""The most files that a named data folder may hold. With more, a project should declare a fingerprint."""

_OUTPUTS = frozenset({"baselines", "ledger", "results"})
"""Folders at the root of a project that runs write. They are not an input of the code."""


class UnknownCodeError(Exception):
    """Code cannot be identified; the message says why."""


@dataclass
class CodeFiles:
    """The files found so far. Each module counts as a whole or by some of its top-level statements.

    Attributes:
        slices: Whether to include only those definitions of a module that are referred to.
        distributions: Versions of installed distributions by name.
    """

    slices: bool
    distributions: dict[str, str] = field(default_factory=dict)
    _modules: dict[Path, Module] = field(default_factory=dict)
    _whole: set[Path] = field(default_factory=set)
    _statements: dict[Path, set[int]] = field(default_factory=dict)
    _definitions: set[tuple[Path, str]] = field(default_factory=set)
    _data: dict[Path, str] = field(default_factory=dict)

    def digests(self) -> dict[str, list[str]]:
        """Digests by path. Several files may share a path, such as the `conftest.py` of two folders."""
        found: dict[str, list[str]] = {}
        for path, key in self._data.items():
            found.setdefault(key, []).append(digest_text(path.read_bytes().hex()))
        for path, module in self._modules.items():
            if path in self._whole:
                found.setdefault(module.key, []).append(digest_text(module.text))
            elif path in self._statements:
                nodes = [module.tree.body[place] for place in sorted(self._statements[path])]
                text = "\n".join(module.source_of(node) for node in nodes)
                found.setdefault(module.key, []).append(digest_text(text))
        return found

    def add_data(self, path: Path, key: str) -> None:
        self._data[path.resolve()] = key

    def add(self, name: str, path: str | None, definition: str | None) -> None:
        """Add a definition of a module, or the whole module if `definition` is None."""
        if is_standard(name, None if path is None else Path(path)):
            return
        if path is None:
            raise UnknownCodeError(f"module {name!r} has no source file; declare a fingerprint")
        self._add_file(name, Path(path), definition)

    def _add_file(self, name: str, path: Path, definition: str | None) -> None:
        path = path.resolve()
        top = name.partition(".")[0]
        if path.is_relative_to(PACKAGE) or top in HARNESS:
            return
        if INSTALLED & set(path.parts):
            self._add_distribution(top)
            return
        if any(path.is_relative_to(folder) for folder in STDLIB):
            return
        if path.suffix != ".py":
            raise UnknownCodeError(
                f"{path.name}: module {name!r} is not Python source; declare a fingerprint"
            )
        module = self._read(name, path)
        self._add_packages(name, path)
        if self.slices and definition is not None:
            self._add_definition(module, definition)
        else:
            self._add_whole(module)

    def _add_distribution(self, top: str) -> None:
        names = _distributions().get(top, ())
        for name in names:
            self.distributions[name] = importlib.metadata.version(name)
        if not names:
            raise UnknownCodeError(f"package {top!r} has no installed distribution; declare a fingerprint")

    def _read(self, name: str, path: Path) -> Module:
        if path not in self._modules:
            with tokenize.open(path) as file:  # decodes the file like Python does
                text = file.read()
            self._modules[path] = Module(name, path, text, ast.parse(text, filename=path.name))
        return self._modules[path]

    def _add_packages(self, name: str, path: Path) -> None:
        """Add the packages that enclose a module, because they run when the module is imported."""
        inner = path.parent if path.name != "__init__.py" else path.parent.parent
        for package in enclosing_packages(name.rpartition(".")[0]):
            init = inner / "__init__.py"
            if init.is_file():
                module = self._read(package, init)
                if self.slices:
                    self._add_import_effects(module, imports=False)
                else:
                    self._add_whole(module)
            inner = inner.parent

    def _add_whole(self, module: Module) -> None:
        if module.path not in self._whole:
            self._whole.add(module.path)
            for node in _running_nodes(module.tree):
                self._add_node(module, node)

    def _add_definition(self, module: Module, name: str) -> None:
        """Add a definition, the names that it refers to, and the statements that are not definitions."""
        if (module.path, name) in self._definitions or module.path in self._whole:
            return
        self._definitions.add((module.path, name))
        if name not in module.bindings or module.is_dynamic:
            self._add_whole(module)
            return
        self._add_name(module, name)
        # Unless a package defines the name itself, it re-exports the name, and its imports serve other names.
        own = (module.tree.body[place] for place in module.bindings[name])
        is_export = module.is_package and all(isinstance(node, ast.Import | ast.ImportFrom) for node in own)
        self._add_import_effects(module, imports=not is_export)

    def _add_import_effects(self, module: Module, *, imports: bool) -> None:
        """Add the statements that run when a module is imported and may change definitions elsewhere.

        If `imports` is true, imports to which nothing in the module refers are followed too, since they may
        register something.
        """
        for place, node in enumerate(module.tree.body):
            if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
                self._add_node(module, node)
            elif isinstance(node, ast.Import | ast.ImportFrom):
                if imports:
                    self._add_unused_imports(module, node)
            elif module.registers(node) or not (bound_names(node) or is_inert(node, whole=True)):
                self._add_statement(module, place)

    def _add_unused_imports(self, module: Module, node: ast.Import | ast.ImportFrom) -> None:
        source = "" if isinstance(node, ast.Import) else f"{module.imported_module(node)}."
        for alias, bound in zip(node.names, bound_names(node), strict=True):
            name = f"{source}{alias.name}"
            if bound not in module.used and (path := locate(name)) is not None:
                self._add_file(name, path, None)

    def _add_statement(self, module: Module, place: int) -> None:
        chosen = self._statements.setdefault(module.path, set())
        if place in chosen:
            return
        chosen.add(place)
        for node in _running_nodes(module.tree.body[place]):
            if isinstance(node, ast.Name) and node.id in module.bindings:
                self._add_name(module, node.id)
            else:
                self._add_node(module, node)

    def _add_name(self, module: Module, name: str) -> None:
        """Add the definitions that a name of a module is bound to, and follow the imports that bind it."""
        for place in module.bindings[name]:
            statement = module.tree.body[place]
            if isinstance(statement, ast.Import | ast.ImportFrom):
                for alias, bound in zip(statement.names, bound_names(statement), strict=True):
                    if bound == name:
                        self._import_alias(module, statement, alias)
            else:
                self._add_statement(module, place)

    def _add_node(self, module: Module, node: ast.AST) -> None:
        """Add the imports and data files of one node, at any depth of the module."""
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                self._import_alias(module, node, alias)
        elif isinstance(node, ast.Call) and called_name(node) in (
            "import_module",
            "__import__",
            "run_module",
        ):
            for first in node.args[:1]:
                if isinstance(first, ast.Constant) and isinstance(first.value, str):
                    package = module.package if first.value.startswith(".") else None
                    with contextlib.suppress(ImportError):
                        self._import(importlib.util.resolve_name(first.value, package), None)
        for name in run_modules(node):
            self._import(name, None)
            self._import(f"{name}.__main__", None)
        for path in named_paths(module, node):
            self._add_named_path(module, path)

    def _import_alias(self, module: Module, node: ast.Import | ast.ImportFrom, alias: ast.alias) -> None:
        if isinstance(node, ast.Import):
            self._import(alias.name, None)
        else:
            self._import(module.imported_module(node), alias.name)

    def _import(self, name: str, definition: str | None) -> None:
        """Add the module or definition that an import statement names. A definition may be a submodule."""
        if definition is not None and definition != "*":
            inner = locate(f"{name}.{definition}")
            if inner is not None:
                self._add_file(f"{name}.{definition}", inner, None)
                return
        if (path := locate(name)) is not None:
            self._add_file(name, path, None if definition == "*" else definition)

    def _add_named_path(self, module: Module, path: Path) -> None:
        if path.is_dir():
            self._add_data_folder(module, path)
        elif path.suffix == ".py":
            self._add_script(module, path.resolve())
        elif path.suffix != ".pyc":
            self._add_data_file(module, path)

    def _add_script(self, module: Module, path: Path) -> None:
        """Add a source file that the code names by its path, to run or to import it."""
        root = module.import_root
        place = path.relative_to(root) if path.is_relative_to(root) else Path(path.name)
        known = self._modules.get(path)
        self._add_file(known.name if known else ".".join(place.with_suffix("").parts), path, None)

    def _add_data_folder(self, module: Module, folder: Path) -> None:
        if _is_no_input(folder):
            return
        found: list[Path] = []
        seen = set()
        for place, folders, names in os.walk(folder, followlinks=True):
            here = Path(place)
            folders[:] = sorted(name for name in folders if not _is_no_input(here / name))
            if here.resolve() in seen:  # a link to an enclosing folder
                folders.clear()
                continue
            seen.add(here.resolve())
            files = (here / name for name in sorted(names) if not name.startswith("."))
            found += (path for path in files if path.suffix not in (".py", ".pyc") and path.is_file())
        if len(found) > MAX_DATA_FILES:
            raise UnknownCodeError(
                f"{folder.name}/ holds {len(found)} files, more than {MAX_DATA_FILES}; declare a fingerprint"
            )
        for path in found:
            self._add_data_file(module, path)

    def _add_data_file(self, module: Module, path: Path) -> None:
        path = path.resolve()
        roots = module.import_root, module.data_roots[-1]
        names = (path.relative_to(root).as_posix() for root in roots if path.is_relative_to(root))
        self._data[path] = next(names, path.name)


def _is_no_input(folder: Path) -> bool:
    """Whether a folder is hidden, holds installed packages or bytecode, or is written by runs."""
    if folder.name.startswith(".") or folder.name == "__pycache__" or INSTALLED & set(folder.parts):
        return True
    return folder.name in _OUTPUTS and is_project_root(folder.parent)


def _running_nodes(root: ast.AST) -> Iterator[ast.AST]:
    """A node and all nodes below it, except code that only type checkers and scripts run."""
    waiting: list[ast.AST] = [root]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, ast.If) and is_inert(node):
            waiting += node.orelse
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            waiting += path_operands(node)  # one path, not one path per part
        else:
            waiting += ast.iter_child_nodes(node)


@functools.cache
def _distributions() -> dict[str, list[str]]:
    return {top: sorted(set(names)) for top, names in importlib.metadata.packages_distributions().items()}
