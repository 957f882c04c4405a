"""The registry of worlds: providers by name, each domain opened once, further tasks."""

import subprocess
import sys

import pytest

from pytest_trace2evolve.errors import WorldError
from pytest_trace2evolve.records.protocols import World
from pytest_trace2evolve.worlds.registry import Worlds
from tests.fake_world import FakeWorld


@pytest.mark.parametrize(
    ("name", "mend"),
    [
        ("inspect_eval", "did you mean 'inspect_evals'?"),
        ("zzz", "known are inspect_evals, mine, tau2, toolsandbox, trace2evolve"),
    ],
)
def test_an_unknown_provider_gets_the_nearest_or_all_names(name: str, mend: str) -> None:
    with pytest.raises(WorldError) as caught:
        Worlds({"mine": FakeWorld}).open(name, "retail")
    assert str(caught.value) == f"unknown provider {name!r}; {mend}"


def test_a_further_provider_opens_each_domain_once() -> None:
    opened: list[str] = []

    def factory(domain: str) -> World:
        opened.append(domain)
        return FakeWorld(domain)

    registry = Worlds({"mine": factory})
    assert registry.open("mine", "desk") is registry.open("mine", "desk")
    assert opened == ["desk"]
    assert "mine" in registry.providers()


def test_a_run_without_a_search_loads_no_hypothesis() -> None:
    probe = "import sys, pytest_trace2evolve.plugin.controller; sys.exit('hypothesis' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", probe], check=False).returncode == 0
