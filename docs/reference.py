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
        if not option.is_key:
            yield item(f"{option.alias or option.flag}{f' {value}' if value else ''}", option.help)


def ini_keys() -> Iterator[str]:
    """Yield the lines of the list of ini keys that are rarely needed options."""
    for option in OPTIONS:
        if option.is_key:
            yield item(option.destination, option.help)


def shared_items(parser: argparse.ArgumentParser) -> dict[str, str]:
    """The items of the options that mean the same in several commands, by name."""
    items = [item for subparser in leaves(parser) for item in own_items(subparser)]
    return {name: text for name, text in items if items.count((name, text)) > 1 and name.startswith("-")}


def leaves(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield the parsers of the commands that have no further commands."""
    groups = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    for group in groups:
        for subparser in group.choices.values():
            yield from leaves(subparser)
    if not groups:
        yield parser


def own_items(parser: argparse.ArgumentParser) -> list[tuple[str, str]]:
    """The names and items of a command's options and arguments."""
    shown = [option for option in parser._actions if is_shown(option)]
    return [(" ".join(option.option_strings), option_item(option)) for option in shown]


def command_options() -> Iterator[str]:
    """Yield the lines of one section for each command of `trace2evolve`, in the order of the help."""
    parser = build_parser(COMMANDS)
    shared = shared_items(parser)
    yield from ("### Options of several commands", "", *shared.values(), "")
    yield from commands(parser, "trace2evolve", shared)


def commands(parser: argparse.ArgumentParser, name: str, shared: dict[str, str]) -> Iterator[str]:
    """Yield the lines of the sections of all commands of a parser."""
    for action in parser._actions:
        if not isinstance(action, argparse._SubParsersAction):
            continue
        help_texts = {choice.dest: choice.help for choice in action._choices_actions}
        for command, subparser in action.choices.items():
            full_name = f"{name} {command}"
            if not any(isinstance(inner, argparse._SubParsersAction) for inner in subparser._actions):
                yield from (f"### {full_name}", "", f"{help_texts[command]}", "")
                items = own_items(subparser)
                lines = [text for option, text in items if shared.get(option) != text]
                if also := [f"`{option}`" for option, text in items if shared.get(option) == text]:
                    lines.append(f"- also {', '.join(also)}")
                yield from (*lines, "")
            yield from commands(subparser, full_name, shared)


def is_shown(action: argparse.Action) -> bool:
    """Whether the lists show an option; they leave out those of all commands."""
    is_shared = isinstance(action, argparse._SubParsersAction | argparse._HelpAction)
    return not is_shared and action.dest not in ("root", "overrides") and action.help != argparse.SUPPRESS


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
    for name, lines in (
        ("pytest", pytest_options()),
        ("keys", ini_keys()),
        ("commands", command_options()),
    ):
        begin, end = BEGIN.format(name), END.format(name)
        before, _, rest = page.partition(begin)
        _, _, after = rest.partition(end)
        text = "\n".join(lines).strip("\n")
        page = f"{before}{begin}\n{text}\n\n{end}{after}"
    return page


if __name__ == "__main__":
    PAGE.write_text(rendered(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
