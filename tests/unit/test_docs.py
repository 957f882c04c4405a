"""The docs say what the code does: hooks, options, errors, commands."""

import argparse
import inspect
import re
from pathlib import Path

import pytest

from pytest_trace2evolve import cli, errors, hookspecs, options

DOCS = Path(__file__).resolve().parents[2] / "docs"
HOOKS = [name for name in vars(hookspecs) if name.startswith("pytest_t2e_")]


@pytest.mark.parametrize("name", HOOKS)
def test_every_hook_is_documented_with_its_signature(name: str) -> None:
    text = (DOCS / "extending.md").read_text(encoding="utf-8")
    signature = inspect.signature(getattr(hookspecs, name))
    arguments = ", ".join(
        f"{one.name}: {one.annotation.__module__.split('.')[0].removeprefix('_')}.{one.annotation.__name__}"
        for one in signature.parameters.values()
    )
    assert f"| `{name}` | `({arguments})` |" in text


@pytest.mark.parametrize("name", HOOKS)
def test_every_hook_says_in_one_line_what_it_is_for(name: str) -> None:
    assert len((getattr(hookspecs, name).__doc__ or "").splitlines()) == 1


def test_every_option_is_in_the_guide() -> None:
    text = (DOCS / "guide.md").read_text(encoding="utf-8")
    for names, _ in options.OPTIONS:
        assert re.search(rf"`{names[0]}[ `]", text), names[0]


def test_every_ini_key_is_in_the_guide() -> None:
    text = (DOCS / "guide.md").read_text(encoding="utf-8")
    for key in re.findall(r'addini\("(\w+)"', inspect.getsource(options)):
        assert f"`{key}`" in text


def test_every_command_is_in_the_docs() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in DOCS.glob("*.md"))
    (commands,) = (
        action for action in cli._parser()._actions if isinstance(action, argparse._SubParsersAction)
    )
    for name in commands.choices:
        assert f"trace2evolve {name}" in text


def test_the_error_tree_is_drawn_as_it_is() -> None:
    tree = errors.__doc__ or ""
    classes = [value for value in vars(errors).values() if inspect.isclass(value)]
    for one in classes:
        if issubclass(one, errors.Trace2EvolveError):
            assert re.search(rf"(?m)^\W*{one.__name__}\b", tree), one.__name__
    drawn = set(re.findall(r"(?m)^[\s│├└─]*(\w+Error)\b", tree))
    assert drawn == {one.__name__ for one in classes if issubclass(one, errors.Trace2EvolveError)}


def test_local_links_lead_somewhere() -> None:
    for page in [*DOCS.rglob("*.md"), DOCS.parent / "README.md"]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
