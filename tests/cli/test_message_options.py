"""Messages name only options that exist, and `--root`, which many advise, is accepted by every command."""

import argparse
import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import pytest_trace2evolve
from pytest_trace2evolve.cli.commands import COMMANDS
from pytest_trace2evolve.cli.main import main
from pytest_trace2evolve.cli.parser import build_parser
from pytest_trace2evolve.session.option_table import OPTIONS

PACKAGE = Path(pytest_trace2evolve.__file__).parent
OPTION = re.compile(r"(?<![\w{}-])--[a-z][a-z0-9]*(?:-[a-z0-9]+)*(?![\w{}-])")
OF_PYTEST = {flag for option in OPTIONS for flag in (option.flag, option.alias) if flag}
ELSEWHERE = {
    "--head",  # of ray
    "--maxfail",
    "--lf",
    "--deselect",
    "--ignore",
    "--ignore-glob",
    "--junitxml",
    "--junit-xml",
    "--format",
    "--jinja",
}
"""Options of pytest, git and llama.cpp that messages or the code name."""

PARSER = build_parser(COMMANDS)


def parsers(parser: argparse.ArgumentParser, name: str = "") -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Every command and subcommand with its parser."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, further in action.choices.items():
                yield f"{name} {word}".strip(), further
                yield from parsers(further, f"{name} {word}".strip())


PARSERS = dict(parsers(PARSER))


def accepted(parser: argparse.ArgumentParser) -> set[str]:
    return {word for action in parser._actions for word in action.option_strings}


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """The strings of a module that are no docstrings, each with its line; `{}` stands for a value."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    inner: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            inner.add(node.value)
        elif isinstance(node, ast.JoinedStr):
            inner.update(node.values)
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr) and node not in inner:
            parts = [str(item.value) if isinstance(item, ast.Constant) else "{}" for item in node.values]
            yield node.lineno, "".join(parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in inner:
            yield node.lineno, node.value


def messages() -> Iterator[tuple[str, str, set[str]]]:
    """Every sentence of the package that names options: its place, its text and the options."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for line, text in texts(path):
            named = set(OPTION.findall(text))
            if named and " " in text.strip():
                yield f"{path.relative_to(PACKAGE)}:{line}", text, named


def test_every_option_that_a_message_names_exists() -> None:
    known = OF_PYTEST | ELSEWHERE | accepted(PARSER).union(*map(accepted, PARSERS.values()))
    found = list(messages())
    assert len(found) > 100, "the walk finds the messages"
    assert not {f"{place} {name}" for place, _, named in found for name in named - known}


@pytest.mark.parametrize("name", PARSERS)
def test_every_command_takes_the_project_after_its_name(name: str) -> None:
    assert "--root" in accepted(PARSERS[name])


def test_a_folder_without_suites_is_named_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["lock"]) == 2
    assert capsys.readouterr().err == (
        "trace2evolve: this folder and its parents contain no suites/; name the project's folder with "
        "--root DIR\n"
    )
    assert main(["lock", "--root", "nowhere"]) == 2
    assert capsys.readouterr().err == (
        "trace2evolve: --root nowhere: it contains no suites/; name the project's folder\n"
    )
