"""Evaluate tool-using agents as a pytest suite and gate every change to them."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_trace2evolve.api import Comparison, Event, Project, Run, compare, evaluate
    from pytest_trace2evolve.worlds.plain import World

__version__ = "0.1.0"

__all__ = ["Comparison", "Event", "Project", "Run", "World", "__version__", "compare", "evaluate"]

_MODULES = {"World": "pytest_trace2evolve.worlds.plain"}
"""Modules of public names that are not in `api`."""


def __getattr__(name: str) -> object:
    """Load the API on first use, because pytest imports this package in every session."""
    if name in __all__:
        module = import_module(_MODULES.get(name, "pytest_trace2evolve.api"))
        value: object = getattr(module, name)
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
