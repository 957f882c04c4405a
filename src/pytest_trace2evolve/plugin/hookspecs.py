"""Hooks that third parties can implement. Loaded in every pytest run: standard library and pytest only."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_trace2evolve.gate.protocols import Check
    from pytest_trace2evolve.project.candidates import AgentFactory
    from pytest_trace2evolve.records.protocols import Offer
    from pytest_trace2evolve.worlds.registry import WorldFactory


@pytest.hookspec
def pytest_t2e_worlds(config: pytest.Config) -> "Mapping[str, WorldFactory]":  # type: ignore[empty-body]  # a hook's specification has no body
    """Providers of worlds by name; a factory opens a domain's world."""


@pytest.hookspec
def pytest_t2e_agents(config: pytest.Config) -> "Mapping[str, AgentFactory]":  # type: ignore[empty-body]  # as above
    """Agents by name; a factory makes the agent and the user of one simulation."""


@pytest.hookspec
def pytest_t2e_checks(config: pytest.Config) -> "Mapping[str, Check]":  # type: ignore[empty-body]  # as above
    """Checks of the gate by their ids; a policy's file names those that it uses."""


@pytest.hookspec
def pytest_t2e_environments(config: pytest.Config) -> "Mapping[str, Offer]":  # type: ignore[empty-body]  # as above
    """Capability environments by capability; the fixture `environments` holds them with the others."""
