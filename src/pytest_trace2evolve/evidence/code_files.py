"""Collects the files that code depends on: modules, or only the definitions in use, and data files."""

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
    HARNESS_PACKAGES,
    INSTALLED_FOLDERS,
    PACKAGE_FOLDER,
    STDLIB_FOLDERS,
    Module,
    bound_names,
    called_name,
    enclosing_packages,
    is_inert,
    is_project_root,
    is_standard,
    locate_module,
    modules_run_by,
    path_operands,
    paths_named_by,
)
from pytest_trace2evolve.utils.canonical import digest_text

MAX_DATA_FILES = 2_000
"""The maximum number of files in a named data folder. With more, a project should declare a fingerprint."""

_OUTPUT_FOLDERS = frozenset({"baselines", "ledger", "results"})
"""Folders at the root of a project that runs write to. They are not inputs of the code."""


class UnknownCodeError(Exception):
    """Code cannot be identified; the message says why."""


@dataclass
class CodeFiles:
    """The files found so far. Each module counts as a whole or by some of its top-level statements.

    Attributes:
        is_sliced: Whether to include only those definitions of a module that are referred to.
        has_docstrings: Whether the docstrings of the included definitions count.
        distributions: Versions of installed distributions by name.
    """

    is_sliced: bool
    has_docstrings: bool = True
    distributions: dict[str, str] = field(default_factory=dict)
    _modules: dict[Path, Module] = field(default_factory=dict)
    _whole_modules: set[Path] = field(default_factory=set)
    _statements: dict[Path, set[int]] = field(default_factory=dict)
    _definitions: set[tuple[Path, str]] = field(default_factory=set)
    _data_keys: dict[Path, str] = field(default_factory=dict)

    def digests(self) -> dict[str, list[str]]:
        """Return digests by path. Files may share a path, such as the `conftest.py` files of two folders."""
        digests_by_path: dict[str, list[str]] = {}
        for path, key in self._data_keys.items():
            digests_by_path.setdefault(key, []).append(digest_text(path.read_bytes().hex()))
        for path, module in self._modules.items():
            if path in self._whole_modules:
                digests_by_path.setdefault(module.key, []).append(digest_text(module.text))
            elif path in self._statements:
                nodes = [module.tree.body[index] for index in sorted(self._statements[path])]
                sources = [module.source_of(node, with_docstrings=self.has_docstrings) for node in nodes]
                text = "\n".join(sources if self.has_docstrings else map(_without_empty_lines, sources))
                digests_by_path.setdefault(module.key, []).append(digest_text(text))
        return digests_by_path

    def add_data(self, path: Path, key: str) -> None:
        self._data_keys[path.resolve()] = key

    def add(self, name: str, path: str | None, definition: str | None) -> None:
        """Add a definition of a module, or the whole module if `definition` is None."""
        if is_standard(name, None if path is None else Path(path)):
            return
        if path is None:
            raise UnknownCodeError(f"module {name!r} has no source file; declare a fingerprint")
        self._add_file(name, Path(path), definition)

    def _add_file(self, name: str, path: Path, definition: str | None) -> None:
        path = path.resolve()
        top_level_name = name.partition(".")[0]
        if path.is_relative_to(PACKAGE_FOLDER) or top_level_name in HARNESS_PACKAGES:
            return
        if INSTALLED_FOLDERS & set(path.parts):
            self._add_distribution(top_level_name)
            return
        if any(path.is_relative_to(folder) for folder in STDLIB_FOLDERS):
            return
        if path.suffix != ".py":
            raise UnknownCodeError(
                f"{path.name}: module {name!r} is not Python source; declare a fingerprint"
            )
        module = self._parse_module(name, path)
        self._add_packages(name, path)
        if self.is_sliced and definition is not None:
            self._add_definition(module, definition)
        else:
            self._add_whole(module)

    def _add_distribution(self, package: str) -> None:
        names = _distributions().get(package, ())
        for name in names:
            self.distributions[name] = importlib.metadata.version(name)
        if not names:
            raise UnknownCodeError(
                f"package {package!r} has no installed distribution; declare a fingerprint"
            )

    def _parse_module(self, name: str, path: Path) -> Module:
        if path not in self._modules:
            with tokenize.open(path) as file:  # decodes the file as Python does
                text = file.read()
            self._modules[path] = Module(name, path, text, ast.parse(text, filename=path.name))
        return self._modules[path]

    def _add_packages(self, name: str, path: Path) -> None:
        """Add the packages that enclose a module, because they run when the module is imported."""
        folder = path.parent if path.name != "__init__.py" else path.parent.parent
        for package in enclosing_packages(name.rpartition(".")[0]):
            init_path = folder / "__init__.py"
            if init_path.is_file():
                module = self._parse_module(package, init_path)
                if self.is_sliced:
                    self._add_import_effects(module, follow_imports=False)
                else:
                    self._add_whole(module)
            folder = folder.parent

    def _add_whole(self, module: Module) -> None:
        if module.path not in self._whole_modules:
            self._whole_modules.add(module.path)
            for node in _runtime_nodes(module.tree):
                self._add_node(module, node)

    def _add_definition(self, module: Module, name: str) -> None:
        """Add a definition, the names that it refers to, and the statements that are not definitions."""
        if (module.path, name) in self._definitions or module.path in self._whole_modules:
            return
        self._definitions.add((module.path, name))
        if name not in module.bindings or module.is_dynamic:
            self._add_whole(module)
            return
        self._add_name(module, name)
        # Unless a package defines the name itself, it re-exports the name, and its imports serve other names.
        nodes = (module.tree.body[index] for index in module.bindings[name])
        is_export = module.is_package and all(isinstance(node, ast.Import | ast.ImportFrom) for node in nodes)
        self._add_import_effects(module, follow_imports=not is_export)

    def _add_import_effects(self, module: Module, *, follow_imports: bool) -> None:
        """Add the statements that run when a module is imported and may change definitions elsewhere.

        If `follow_imports` is true, imports that nothing in the module refers to are followed too, since they
        may register something.
        """
        for index, node in enumerate(module.tree.body):
            if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
                self._add_node(module, node)
            elif isinstance(node, ast.Import | ast.ImportFrom):
                if follow_imports:
                    self._add_unused_imports(module, node)
            elif module.may_register(node) or not (bound_names(node) or is_inert(node, reject_else=True)):
                self._add_statement(module, index)

    def _add_unused_imports(self, module: Module, node: ast.Import | ast.ImportFrom) -> None:
        prefix = "" if isinstance(node, ast.Import) else f"{module.imported_module(node)}."
        for alias, bound_name in zip(node.names, bound_names(node), strict=True):
            name = f"{prefix}{alias.name}"
            if bound_name not in module.used_names and (path := locate_module(name)) is not None:
                self._add_file(name, path, None)

    def _add_statement(self, module: Module, index: int) -> None:
        indexes = self._statements.setdefault(module.path, set())
        if index in indexes:
            return
        indexes.add(index)
        for node in _runtime_nodes(module.tree.body[index]):
            if isinstance(node, ast.Name) and node.id in module.bindings:
                self._add_name(module, node.id)
            else:
                self._add_node(module, node)

    def _add_name(self, module: Module, name: str) -> None:
        """Add the definitions that a name of a module is bound to, and follow the imports that bind it."""
        for index in module.bindings[name]:
            statement = module.tree.body[index]
            if isinstance(statement, ast.Import | ast.ImportFrom):
                for alias, bound_name in zip(statement.names, bound_names(statement), strict=True):
                    if bound_name == name:
                        self._follow_alias(module, statement, alias)
            else:
                self._add_statement(module, index)

    def _add_node(self, module: Module, node: ast.AST) -> None:
        """Add the imports and data files of one node, at any depth of the module."""
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                self._follow_alias(module, node, alias)
        elif isinstance(node, ast.Call) and called_name(node) in (
            "import_module",
            "__import__",
            "run_module",
        ):
            for argument in node.args[:1]:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    package = module.package if argument.value.startswith(".") else None
                    with contextlib.suppress(ImportError):
                        self._follow_import(importlib.util.resolve_name(argument.value, package), None)
        for name in modules_run_by(node):
            self._follow_import(name, None)
            self._follow_import(f"{name}.__main__", None)
        for path in paths_named_by(module, node):
            self._add_named_path(module, path)

    def _follow_alias(self, module: Module, node: ast.Import | ast.ImportFrom, alias: ast.alias) -> None:
        if isinstance(node, ast.Import):
            self._follow_import(alias.name, None)
        else:
            self._follow_import(module.imported_module(node), alias.name)

    def _follow_import(self, name: str, definition: str | None) -> None:
        """Add the module or definition that an import statement names. A definition may be a submodule."""
        if definition is not None and definition != "*":
            submodule = locate_module(f"{name}.{definition}")
            if submodule is not None:
                self._add_file(f"{name}.{definition}", submodule, None)
                return
        if (path := locate_module(name)) is not None:
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
        relative_path = path.relative_to(root) if path.is_relative_to(root) else Path(path.name)
        known_module = self._modules.get(path)
        self._add_file(
            known_module.name if known_module else ".".join(relative_path.with_suffix("").parts), path, None
        )

    def _add_data_folder(self, module: Module, folder: Path) -> None:
        if _is_excluded_folder(folder):
            return
        data_files: list[Path] = []
        seen_folders = set()
        for current_name, folders, names in os.walk(folder, followlinks=True):
            current = Path(current_name)
            folders[:] = sorted(name for name in folders if not _is_excluded_folder(current / name))
            if current.resolve() in seen_folders:  # a link to an enclosing folder
                folders.clear()
                continue
            seen_folders.add(current.resolve())
            files = (current / name for name in sorted(names) if not name.startswith("."))
            data_files += (path for path in files if path.suffix not in (".py", ".pyc") and path.is_file())
        if len(data_files) > MAX_DATA_FILES:
            raise UnknownCodeError(
                f"{folder.name}/ contains {len(data_files)} files, more than {MAX_DATA_FILES}; "
                "declare a fingerprint"
            )
        for path in data_files:
            self._add_data_file(module, path)

    def _add_data_file(self, module: Module, path: Path) -> None:
        path = path.resolve()
        roots = module.import_root, module.data_roots[-1]
        names = (path.relative_to(root).as_posix() for root in roots if path.is_relative_to(root))
        self._data_keys[path] = next(names, path.name)


def _without_empty_lines(text: str) -> str:
    return "\n".join(line for line in text.split("\n") if line.strip())


def _is_excluded_folder(folder: Path) -> bool:
    """Whether a folder is hidden, holds installed packages or bytecode, or is written by runs."""
    if folder.name.startswith(".") or folder.name == "__pycache__" or INSTALLED_FOLDERS & set(folder.parts):
        return True
    return folder.name in _OUTPUT_FOLDERS and is_project_root(folder.parent)


def _runtime_nodes(root: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and all nodes below it, except code that only type checkers or scripts run."""
    stack: list[ast.AST] = [root]
    while stack:
        node = stack.pop()
        yield node
        if isinstance(node, ast.If) and is_inert(node):
            stack += node.orelse
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            stack += path_operands(node)  # one path, not one path per part
        else:
            stack += ast.iter_child_nodes(node)


@functools.cache
def _distributions() -> dict[str, list[str]]:
    return {top: sorted(set(names)) for top, names in importlib.metadata.packages_distributions().items()}
