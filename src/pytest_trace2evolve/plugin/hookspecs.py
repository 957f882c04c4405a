"""The hooks that third parties can implement.

Pytest loads this module in every run, so it imports only the standard library and pytest.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_trace2evolve.gate.protocols import Check
    from pytest_trace2evolve.project.candidates import AgentFactory
    from pytest_trace2evolve.records.protocols import Offer, World
    from pytest_trace2evolve.worlds.registry import WorldFactory


@pytest.hookspec
def pytest_t2e_worlds(config: pytest.Config) -> "Mapping[str, WorldFactory | World]":  # type: ignore[empty-body]  # a hook's specification has no body
    """Return worlds, or factories, by provider name. A factory opens the world of a domain."""


@pytest.hookspec
def pytest_t2e_agents(config: pytest.Config) -> "Mapping[str, AgentFactory]":  # type: ignore[empty-body]  # as above
    """Return agent factories by name. A factory makes the agent and the user of one simulation."""


@pytest.hookspec
def pytest_t2e_checks(config: pytest.Config) -> "Mapping[str, Check]":  # type: ignore[empty-body]  # as above
    """Return gate checks by id. A policy file names the checks that it uses."""


@pytest.hookspec
def pytest_t2e_environments(config: pytest.Config) -> "Mapping[str, Offer]":  # type: ignore[empty-body]  # as above
    """Return capability environments by the name of the capability, for the `environments` fixture."""
