"""Imports τ²'s toolkits from `inspect_evals` without its agent framework.

`import inspect_evals.tau2` imports all of `inspect_ai`, which takes seconds. The toolkits use only a few
names of `inspect_ai`, none of which does anything outside an Inspect run. This module therefore runs the
files of the toolkits as private modules, with stand-ins for those names. In the same way it runs the module
of `inspect_ai` that reads a tool's schema from its signature. Nothing enters `sys.modules`, so the ordinary
import still works as the fallback for a release that needs more names.
"""

import builtins
import functools
import importlib.machinery
import importlib.util
import threading
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from pydantic import BaseModel, ConfigDict

from pytest_trace2evolve.utils.optional import import_quietly


class ToolError(Exception):
    """Stand-in for the framework's class of tool errors."""


class StoreModel(BaseModel):
    """Stand-in for the framework's base class of toolkits; only the declared fields of a toolkit are read."""

    model_config = ConfigDict(arbitrary_types_allowed=True, defer_build=True)


_FRAMEWORK = "inspect_ai"
_STAND_INS: Mapping[str, Any] = {
    "inspect_ai.model": SimpleNamespace(Content=object, ContentText=object),
    "inspect_ai.tool": SimpleNamespace(Tool=object, ToolError=ToolError, tool=lambda function: function),
    "inspect_ai.tool._tool": SimpleNamespace(Tool=object),
    "inspect_ai.util": SimpleNamespace(StoreModel=StoreModel, store_as=None),
}


def import_toolkits(names: Sequence[str]) -> list[ModuleType]:
    """Import modules, all without the framework or, if one of them fails, all with the framework.

    Raises:
        ImportError: a module does not exist, or fails to import in both ways.
    """
    try:
        return import_without_framework(names)
    except Exception:  # a different release may fail in any way
        return import_with_framework(names)


def import_without_framework(names: Sequence[str]) -> list[ModuleType]:
    """Import modules privately.

    Raises:
        ImportError: a module does not exist, or imports a name without a stand-in.
    """
    return [_private_modules(name.partition(".")[0]).load(name) for name in names]


def import_with_framework(names: Sequence[str]) -> list[ModuleType]:
    """Import modules as usual."""
    return [import_quietly(name) for name in names]


@functools.cache
def _private_modules(package: str) -> "_PrivateModules":
    return _PrivateModules(package)


class _PrivateModules:
    """Modules of a package that stay out of `sys.modules`; no `__init__` file of the package runs."""

    def __init__(self, package: str) -> None:
        spec = importlib.util.find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            raise ImportError(f"no package named {package!r}")
        self._package = package
        self._folder = Path(spec.submodule_search_locations[0])
        self._modules: dict[str, ModuleType] = {}
        self._lock = threading.RLock()
        self._builtins = {**vars(builtins), "__import__": self._import}

    def load(self, name: str) -> ModuleType:
        with self._lock, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if name not in self._modules:
                self._modules[name] = self._execute(name)
            return self._modules[name]

    def _execute(self, name: str) -> ModuleType:
        path = self._folder.joinpath(*name.split(".")[1:]).with_suffix(".py")
        try:
            code = importlib.machinery.SourceFileLoader(name, str(path)).get_code(name)
        except FileNotFoundError:
            raise ModuleNotFoundError(f"no module named {name!r}", name=name) from None
        assert code is not None
        module = ModuleType(name)
        module.__file__ = str(path)
        # The import statements of a module call its own `__import__`.
        vars(module)["__builtins__"] = self._builtins
        exec(code, vars(module))
        return module

    def _import(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] | None = None,
        level: int = 0,
    ) -> Any:
        if level:
            importing_package = str((globals or {})["__name__"]).rpartition(".")[0]
            name = importlib.util.resolve_name("." * level + name, importing_package)
        package = name.partition(".")[0]
        if package not in (self._package, _FRAMEWORK):
            return builtins.__import__(name, globals, locals, fromlist or ())
        if not fromlist:
            raise ImportError("only 'from package.module import name' is supported here")
        if name in _STAND_INS:
            return _STAND_INS[name]
        if package == self._package:
            return self.load(name)
        raise ImportError(f"{name!r} has no stand-in here")
