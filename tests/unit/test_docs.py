"""The docs say what the code does: hooks, options, errors, commands."""

import importlib
import importlib.util
import inspect
import re
from pathlib import Path

import pytest

from pytest_trace2evolve.plugin import hookspecs, options
from pytest_trace2evolve.session.option_table import OPTIONS

DOCS = Path(__file__).resolve().parents[2] / "docs"
HOOKS = [name for name in vars(hookspecs) if name.startswith("pytest_t2e_")]


@pytest.mark.parametrize("name", HOOKS)
def test_every_hook_is_documented_with_its_signature(name: str) -> None:
    text = (DOCS / "extending.md").read_text(encoding="utf-8")
    signature = inspect.signature(getattr(hookspecs, name))
    arguments = ", ".join(
        f"{arg.name}: {arg.annotation.__module__.split('.')[0].removeprefix('_')}.{arg.annotation.__name__}"
        for arg in signature.parameters.values()
    )
    assert f"| `{name}` | `({arguments})` |" in text


@pytest.mark.parametrize("name", HOOKS)
def test_every_hook_says_in_one_line_what_it_is_for(name: str) -> None:
    assert len((getattr(hookspecs, name).__doc__ or "").splitlines()) == 1


def test_every_ini_key_is_in_the_reference() -> None:
    text = (DOCS / "options.md").read_text(encoding="utf-8")
    for key in re.findall(r'addini\("(\w+)"', inspect.getsource(options)):
        assert f"`{key}`" in text


PUBLIC = re.findall(
    r"`(pytest_trace2evolve[.\w]*)`",
    "".join(
        line
        for line in (DOCS / "extending.md").read_text("utf-8").splitlines()
        if line.startswith("| `pytest_trace2")
    ),
)
"""The public modules, as the page on extending names them; `records` stands for all its modules."""


def test_docs_and_examples_import_public_names_only() -> None:
    pages = [*DOCS.glob("*.md"), *DOCS.glob("examples/**/*.py"), DOCS.parent / "README.md"]
    found = []
    for page in pages:
        for module, names in re.findall(
            r"from (pytest_trace2evolve[.\w]*) import ([\w, ]+)", page.read_text("utf-8")
        ):
            found.append(module)
            assert module in PUBLIC or module.startswith("pytest_trace2evolve.records."), (
                f"{page.name}: {module}"
            )
            for name in names.replace(" ", "").split(","):
                assert not name.startswith("_")
                assert hasattr(importlib.import_module(module), name), f"{page.name}: {module}.{name}"
    assert len(found) > 5


def test_local_links_lead_somewhere() -> None:
    for page in [*DOCS.rglob("*.md"), *DOCS.parent.glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_options_page_is_written_from_the_options() -> None:
    spec = importlib.util.spec_from_file_location("reference", DOCS / "reference.py")
    assert spec
    assert spec.loader
    reference = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reference)
    page = (DOCS / "options.md").read_text("utf-8")
    assert page == reference.rendered(page), "run python docs/reference.py"
    for option in OPTIONS:
        assert re.search(rf"`{option.alias or option.label}[ `]", page), option.label
