"""Evaluate tool-using agents as a pytest suite and gate every change to them."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_trace2evolve.api import Comparison, Event, Project, Run, compare, evaluate

__version__ = "0.1.0"

__all__ = ["Comparison", "Event", "Project", "Run", "__version__", "compare", "evaluate"]


def __getattr__(name: str) -> object:
    """Load the API on first use, because pytest imports this package in every session."""
    if name in __all__:
        value: object = getattr(import_module("pytest_trace2evolve.api"), name)
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
