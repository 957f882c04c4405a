"""Write the lists of options.md from the options that the code declares.

    python docs/reference.py

A test fails while the page and the code differ.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

from pytest_trace2evolve.cli.commands import COMMANDS
from pytest_trace2evolve.cli.parser import build_parser
from pytest_trace2evolve.session.option_table import OPTIONS

PAGE = Path(__file__).with_name("options.md")
BEGIN, END = "<!-- {}: written by docs/reference.py -->\n", "<!-- /{} -->\n"


def pytest_options() -> Iterator[str]:
    """Yield the lines of the list of pytest's options."""
    for option in OPTIONS:
        value = option.metavar or "|".join(option.choices or ())
        yield item(f"{option.alias or option.flag}{f' {value}' if value else ''}", option.help)


def command_options() -> Iterator[str]:
    """Yield the lines of one section for each command of `trace2evolve`, in the order of the help."""
    yield from commands(build_parser(COMMANDS), "trace2evolve")


def commands(parser: argparse.ArgumentParser, name: str) -> Iterator[str]:
    """Yield the lines of the sections of all commands subparser a parser."""
    for action in parser._actions:
        if not isinstance(action, argparse._SubParsersAction):
            continue
        help_texts = {choice.dest: choice.help for choice in action._choices_actions}
        for command, subparser in action.choices.items():
            full_name = f"{name} {command}"
            options = [option for option in subparser._actions if is_shown(option)]
            items = [option_item(option) for option in options if not is_of_pytest(option)]
            if shared := [f"`{option.option_strings[0]}`" for option in options if is_of_pytest(option)]:
                items.append(f"- as [for pytest](#options-of-pytest): {', '.join(shared)}")
            if items or not has_actions(subparser):
                yield from (f"### {full_name}", "", f"{help_texts[command]}", "")
            if items:
                yield from (*items, "")
            yield from commands(subparser, full_name)


def has_actions(parser: argparse.ArgumentParser) -> bool:
    """Whether a command has subcommands."""
    return any(isinstance(action, argparse._SubParsersAction) for action in parser._actions)


def is_shown(action: argparse.Action) -> bool:
    """Whether the lists show an option; they leave out `--help` and `--root`, which all commands have."""
    is_shared = isinstance(action, argparse._SubParsersAction | argparse._HelpAction)
    return not is_shared and action.dest != "root" and action.help != argparse.SUPPRESS


def is_of_pytest(action: argparse.Action) -> bool:
    """Whether the list of pytest's options describes an option."""
    return any(name.startswith("--t2e-") for name in action.option_strings)


def option_item(action: argparse.Action) -> str:
    """The item of one option or argument of a command."""
    value = action.metavar or "|".join(map(str, action.choices or ()))
    if not action.option_strings:
        return item(str(value or action.dest), action.help or "")
    takes_value = action.nargs != 0
    names = ", ".join(action.option_strings)
    return item(f"{names} {value or action.dest.upper()}" if takes_value else names, action.help or "")


def item(option: str, meaning: str) -> str:
    """An item of a list."""
    return f"- `{option}`: {meaning}".replace("%%", "%")


def rendered(page: str) -> str:
    """Return the page with new lists."""
    for name, lines in (("pytest", pytest_options()), ("commands", command_options())):
        begin, end = BEGIN.format(name), END.format(name)
        before, _, rest = page.partition(begin)
        _, _, after = rest.partition(end)
        text = "\n".join(lines).strip("\n")
        page = f"{before}{begin}\n{text}\n\n{end}{after}"
    return page


if __name__ == "__main__":
    PAGE.write_text(rendered(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
