"""Evaluate tool-using agents as a pytest suite and gate every change to them."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_trace2evolve.api import Comparison, Event, Project, Run, compare, evaluate
    from pytest_trace2evolve.records.trace_check import check, judged_check
    from pytest_trace2evolve.scoring.trace_checks import Call, Trace
    from pytest_trace2evolve.worlds.plain import World

__version__ = "0.1.0"

__all__ = [
    "Call",
    "Comparison",
    "Event",
    "Project",
    "Run",
    "Trace",
    "World",
    "__version__",
    "check",
    "compare",
    "evaluate",
    "judged_check",
]

_MODULES = {
    "Call": "scoring.trace_checks",
    "Trace": "scoring.trace_checks",
    "World": "worlds.plain",
    "check": "records.trace_check",
    "judged_check": "records.trace_check",
}
"""The modules of public names that are not in `api`."""


def __getattr__(name: str) -> object:
    """Load public names on first use, because pytest imports this package in every session."""
    if name in __all__:
        module = f"pytest_trace2evolve.{_MODULES.get(name, 'api')}"
        attribute: object = getattr(import_module(module), name)
        return attribute
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
