"""The docs say what the code does: hooks, options, errors, commands."""

import argparse
import importlib
import inspect
import re
from pathlib import Path

import pytest

from pytest_trace2evolve.cli import main as cli
from pytest_trace2evolve.cli.commands import COMMANDS
from pytest_trace2evolve.cli.parser import build_parser
from pytest_trace2evolve.plugin import hookspecs, options
from pytest_trace2evolve.session.option_table import OPTIONS

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


def test_every_option_is_in_the_reference() -> None:
    text = (DOCS / "options.md").read_text(encoding="utf-8")
    for option in OPTIONS:
        flag = option.alias or option.flag
        assert re.search(rf"`{flag}[ `]", text), flag


def test_every_ini_key_is_in_the_reference() -> None:
    text = (DOCS / "options.md").read_text(encoding="utf-8")
    for key in re.findall(r'addini\("(\w+)"', inspect.getsource(options)):
        assert f"`{key}`" in text


def test_every_command_is_in_the_docs() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in DOCS.glob("*.md"))
    (commands,) = (
        action for action in build_parser(COMMANDS)._actions if isinstance(action, argparse._SubParsersAction)
    )
    for name in commands.choices:
        assert f"trace2evolve {name}" in text


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


def test_public_modules_exist() -> None:
    assert len(PUBLIC) > 10
    for module in PUBLIC:
        importlib.import_module(module)


def test_local_links_lead_somewhere() -> None:
    for page in [*DOCS.rglob("*.md"), *DOCS.parent.glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def readmes_verdict() -> tuple[str, str]:
    """The README's text before the verdict of recorded runs, and that verdict."""
    text = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    before, _, rest = text.partition("<!-- verdict -->")
    return before.rpartition("## ")[2], rest.partition("<!-- /verdict -->")[0]


def test_the_readmes_verdict_is_of_the_candidate_and_files_that_its_command_names() -> None:
    before, verdict = readmes_verdict()
    (command,) = re.findall(r"(?m)^    pytest (--candidate .*)$", before)
    words = command.split()
    candidate, new, old = (
        words[words.index(f"--{name}") + 1] for name in ("candidate", "t2e-results", "t2e-baseline")
    )
    assert f" trace2evolve: {candidate} vs {old} · tau2-retail " in verdict
    assert new == f"{candidate}.json.gz"
    front = re.search(r"(?ms)^    ---\n(.*?)^    ---$", before)
    assert front, "the candidate's file is shown"
    assert f"    id: {candidate}\n" in front[1]
    assert re.findall(r"candidate (\S+) was informed", verdict) == [candidate]


def test_the_readmes_figures_are_those_of_the_recorded_runs(
    recorded: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(DOCS.parent)
    sides = [str(recorded / f"retail-gpt-4.1-mini-{name}.json.gz") for name in ("base", "policy-v2")]
    assert cli.main(["compare", *sides, "--suite", "tau2-retail", "--split", "heldout"]) == 10
    printed = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    shown = [" ".join(line.split()) for line in readmes_verdict()[1].splitlines()]
    rows = [line for line in shown if re.match(r"heldout \d|✓ regressions|suspected|why: ", line)]
    assert len(rows) == 4
    assert [row for row in rows if row not in printed] == []
    for start in ("? better than ", "INCONCLUSIVE: policy-v2 is not shown to be better than "):
        assert any(line.startswith(start) for line in shown), start
    (claim,) = (line for line in shown if line.startswith("? better than "))
    assert any(line.startswith("? better") and line.endswith(claim[-8:]) for line in printed), claim
