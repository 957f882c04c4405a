"""The registry of worlds: providers by name, each domain opened once, further tasks."""

import subprocess
import sys
from collections.abc import Iterator, Mapping

import pytest

from pytest_trace2evolve.errors import WorldError
from pytest_trace2evolve.records.protocols import World, rules_of
from pytest_trace2evolve.records.task import Task
from pytest_trace2evolve.worlds.registry import Worlds, with_tasks
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


class OnlyNames(Mapping[str, Task]):
    """Tasks that cost something to read."""

    def __getitem__(self, task_id: str) -> Task:
        raise AssertionError(f"task {task_id} was read, and nobody asked for it")

    def __iter__(self) -> Iterator[str]:
        yield from ("own-1", "own-2")

    def __len__(self) -> int:
        return 2


def test_further_tasks_beside_a_worlds_own_read_none_of_those(monkeypatch: pytest.MonkeyPatch) -> None:
    world = FakeWorld("desk")
    monkeypatch.setattr(world, "tasks", OnlyNames)
    further = Task(id="new")
    tasks = with_tasks(world, {"cases:x": [further]}).tasks()
    assert list(tasks) == ["own-1", "own-2", "new"]
    assert len(tasks) == 3
    assert tasks["new"] is further


def test_a_world_with_further_tasks_is_otherwise_the_given_one(worlds: Worlds) -> None:
    retail = worlds.open("inspect_evals", "retail")
    world = with_tasks(retail, {"cases:x": [Task(id="new")]})
    assert (world.provider, world.domain, world.policy()) == ("inspect_evals", "retail", retail.policy())
    assert rules_of(world) is rules_of(retail) is not None
    assert world.splits() == {**retail.splits(), "cases:x": ["new"]}


def test_a_run_without_a_search_loads_no_hypothesis() -> None:
    probe = "import sys, pytest_trace2evolve.plugin.controller; sys.exit('hypothesis' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", probe], check=False).returncode == 0
