"""Toolkits imported without their framework: equal answers and states, and the fallback."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from pytest_trace2evolve.worlds.inspect_domains import DOMAINS
from pytest_trace2evolve.worlds.inspect_evals import InspectWorld
from pytest_trace2evolve.worlds.light_import import (
    import_toolkits,
    import_with_framework,
    import_without_framework,
)
from pytest_trace2evolve.worlds.toolkit import ToolkitSession
from tests.worlds.states import state_of

EVERY = 12


def play(session: ToolkitSession, world: InspectWorld, task_id: str) -> Iterator[Any]:
    """The answers to a task's gold actions, and to a call of every tool without arguments."""
    task = world.tasks()[task_id]
    session.initialise(task.initial_state)
    for action in task.actions:
        yield session.call(action.name, action.arguments, action.requestor)
    for name in world.tool_types():
        yield session.call(name, {}, "assistant")


@pytest.mark.parametrize("domain", DOMAINS)
def test_both_imports_give_the_same_answers_and_states(domain: str) -> None:
    light = InspectWorld(domain, import_modules=import_without_framework)
    heavy = InspectWorld(domain, import_modules=import_with_framework)
    sessions = [(light.open(), heavy.open())]
    assert type(sessions[0][0].agent) is not type(sessions[0][1].agent)
    with patch("uuid.uuid4", return_value=SimpleNamespace(hex="0" * 32)):
        for task_id in light.splits()["base"][::EVERY]:
            if light.tasks()[task_id].initial_state is not None:  # it expects untouched databases
                sessions.append((light.open(), heavy.open()))
            mine, theirs = sessions[-1]
            assert list(play(mine, light, task_id)) == list(play(theirs, heavy, task_id)), task_id
    assert all(state_of(mine) == state_of(theirs) for mine, theirs in sessions)
    for requestor in ("assistant", "user"):
        assert light.tools(requestor) == heavy.tools(requestor)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package whose `__init__` needs a framework that is not there until `framework` is written."""
    name = f"toolkits_{tmp_path.name.replace('-', '_')}"
    folder = tmp_path / name
    (folder / "shop").mkdir(parents=True)
    (folder / "__init__.py").write_text("LOADED = True\n")
    (folder / "shop" / "__init__.py").write_text("raise RuntimeError('the package was run')\n")
    (folder / "shop" / "data.py").write_text("from enum import Enum\nclass Size(Enum):\n    SMALL = 's'\n")
    (folder / "shop" / "tools.py").write_text(
        "from inspect_ai.tool import ToolError, tool\n"
        "from inspect_ai.util import StoreModel\n"
        f"from {name}.shop.data import Size\n"
        "class Shop(StoreModel):\n    size: Size = Size.SMALL\n"
        "@tool\ndef fail():\n    raise ToolError('closed')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return name


def test_a_module_is_run_once_and_nothing_enters_sys_modules(package: str) -> None:
    names = [f"{package}.shop.tools", f"{package}.shop.data"]
    before = set(sys.modules)
    tools, data = import_toolkits(names)
    assert tools.Shop().size is data.Size.SMALL
    assert tools.Shop.model_fields["size"].annotation is data.Size
    with pytest.raises(Exception, match=r"^closed$"):
        tools.fail()
    assert import_toolkits(names) == [tools, data]
    assert not {name for name in set(sys.modules) - before if name.startswith((package, "inspect_"))}


@pytest.mark.parametrize(
    "line",
    [
        "from inspect_ai.model import get_model",
        "from inspect_ai.agent import Agent",
        "import inspect_ai",
        "import {}.shop.data",
        "from . import data",
    ],
)
def test_what_has_no_stand_in_is_imported_as_usual(tmp_path: Path, package: str, line: str) -> None:
    folder = tmp_path / package / "shop"
    (folder / "__init__.py").write_text("")
    (folder / "more.py").write_text(f"{line.format(package)}\nfrom {package}.shop.data import Size\n")
    with pytest.raises(ImportError):
        import_without_framework([f"{package}.shop.more"])
    data, more = import_toolkits([f"{package}.shop.data", f"{package}.shop.more"])
    assert more.Size is data.Size
    assert sys.modules[f"{package}.shop.more"] is more
