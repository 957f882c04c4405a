"""The records that a scenario of the support world brings with it."""

from collections.abc import Mapping
from typing import Any

from pytest_trace2evolve.records.task import Task


def tables_of(task: Task) -> Mapping[str, Mapping[str, Any]]:
    """Tables by name; empty where the scenario brings none."""
    data = task.initial_state.initialization_data if task.initial_state else None
    found: Mapping[str, Mapping[str, Any]] = (data.agent_data if data else None) or {}
    return found
