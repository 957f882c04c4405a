"""The help: how to start, commands in groups, examples that parse, and names that mean one thing."""

import argparse
import shlex
from collections.abc import Iterator
from itertools import chain

import pytest

from pytest_trace2evolve.cli.commands import COMMANDS
from pytest_trace2evolve.cli.main import main
from pytest_trace2evolve.cli.parser import Command, build_parser

PARSER = build_parser(COMMANDS)


def helped(*words: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines of a help."""
    with pytest.raises(SystemExit) as ended:
        main([*words, "--help"])
    assert ended.value.code == 0
    return capsys.readouterr().out.splitlines()


def named(
    commands: tuple[Command, ...] = tuple(chain.from_iterable(COMMANDS.values())),
    *above: str,
) -> Iterator[tuple[tuple[str, ...], Command]]:
    """All commands with their words, groups of actions included."""
    for command in commands:
        words = (*above, command.name)
        yield words, command
        yield from named(command.actions, *words)


def test_the_help_says_how_to_start_and_lists_commands_in_groups(capsys: pytest.CaptureFixture[str]) -> None:
    lines = helped(capsys=capsys)
    start = lines.index("start:")
    assert [line.split("  ")[1] for line in lines[start + 1 : start + 4]] == [
        "trace2evolve init --for own",
        "pytest --candidate v0 --t2e-save-baseline v0",
        "pytest --candidate v1",
    ]
    places = [lines.index(f"{group}:") for group in ("evaluate", "evidence", "improve", "serve")]
    assert start < places[0]
    assert places == sorted(places)
    for group, place in zip(COMMANDS.values(), places, strict=True):
        listed = [line.split()[0] for line in lines[place + 1 : place + 1 + len(group)]]
        assert listed == [command.name for command in group]
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(("words", "command"), list(named()), ids=[" ".join(words) for words, _ in named()])
def test_each_help_ends_with_examples_that_parse(
    words: tuple[str, ...], command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    assert 1 <= len(command.examples) <= 2
    ours = ("trace2evolve", *words)
    lines = helped(*words, capsys=capsys)
    assert lines[-1 - len(command.examples) :] == [
        "examples:",
        *(f"  {example}" for example in command.examples),
    ]
    for example in command.examples:
        program, *arguments = shlex.split(example)
        assert (program, *arguments)[: len(ours)] == ours
        PARSER.parse_args(arguments)


def helps(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    """The options of a parser and of those below it, each with its help."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in dict.fromkeys(action.choices.values()):
                yield from helps(below)
        for option in action.option_strings:
            yield option, str(action.help)


@pytest.mark.parametrize("option", ["--suite", "--split", "--difficulty", "--base", "--candidate"])
def test_an_option_of_one_name_has_one_meaning(option: str) -> None:
    first, *others = {text.split("(")[0].strip() for name, text in helps(PARSER) if name == option}
    if option != "--candidate":  # `improve` learns from its failures
        assert others == [], first
    assert len(others) <= 1


def test_abbreviations_of_options_are_not_accepted(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["show", "run", "--ful"])
    assert ended.value.code == 2
    assert "unrecognized arguments: --ful" in capsys.readouterr().err
