"""The file that holds a folder's pytest settings, and how the ini key `t2e_suites` gets into it.

A user's file is changed by one line, or by one table at its end, and only where reading the result gives what
was there before and that key. Where that cannot be had, the user is told the lines.
"""

import configparser
import copy
import posixpath
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.utils.reading import SETTINGS, open_regular, parse_toml

KEY = "t2e_suites"
FOLDER = "suites"

ALWAYS = ("pytest.toml", ".pytest.toml", "pytest.ini", ".pytest.ini")
"""Files that pytest takes its settings from even where they hold none, the first one that there is."""

WITH_SECTION = ("pyproject.toml", "tox.ini", "setup.cfg")
"""Files that it asks afterwards, which count where they hold a table or section of pytest's."""

NEW_FILE = "pytest.ini"
NEW_TABLE = ("tool", "pytest", "ini_options")
"""What is added to a project without any: the table that every version of pytest reads."""


@dataclass(frozen=True)
class PytestIni:
    """A folder's pytest settings.

    Attributes:
        path: The file that holds them, or is to.
        there: Whether the key stands in it already.
        text: The file's whole new text; None where nothing is written.
        advice: Where the key is neither there nor can be added: why, and what to add by hand.
        has_testpaths: Whether the settings say where tests lie.
    """

    path: Path
    there: bool = False
    text: str | None = None
    advice: str = ""
    has_testpaths: bool = False


def pytest_ini(root: Path) -> PytestIni:
    """The settings of a folder with the key added.

    Raises:
        ConfigError: the key is there and names another folder; names the file and the value.
        OSError: a file cannot be read.
    """
    for path in _files(root):
        try:
            file = _read(path)
        except (ValueError, configparser.Error) as error:
            problem = " ".join(str(error).split())
            return PytestIni(
                path, advice=f"{path.name} cannot be read ({problem}): mend it, and run this again"
            )
        if _counts(file):
            return _with_key(file)
    pyproject = root / "pyproject.toml"
    if pyproject.is_file():
        return _with_key(_Toml(pyproject, _raw(pyproject)))
    return PytestIni(root / NEW_FILE, text=f"[pytest]\n{KEY} = {FOLDER}\n")


def ini_value(root: Path, key: str) -> str | None:
    """The text that a key has in a folder's pytest settings; None where it has none there.

    A file that cannot be read gives none: pytest refuses it, and says why.
    """
    found = _value(root, key)
    return found.strip() if isinstance(found, str) else None


def ini_words(root: Path, key: str) -> list[str]:
    """The words that a key has in a folder's pytest settings, as pytest parts them."""
    found = _value(root, key)
    try:
        return shlex.split(found) if isinstance(found, str) else [str(one) for one in found or ()]
    except ValueError:  # a quotation without an end, which pytest refuses
        return []


def _value(root: Path, key: str) -> Any:
    try:
        for path in _files(root):
            if _counts(file := _read(path)):
                return _settings(file).get(key)
    except (OSError, ValueError, configparser.Error):
        pass
    return None


def _files(root: Path) -> Iterator[Path]:
    """The files of a folder that may hold pytest settings, in the order in which pytest asks them."""
    return (path for name in (*ALWAYS, *WITH_SECTION) if (path := root / name).is_file())


class _Toml:
    """A TOML file.

    Attributes:
        section: Names of the table that pytest reads, outermost first; None where there is none.
        line: The key as it is written here.
        data: What the whole file says.

    Raises:
        ValueError: it is not valid.
    """

    line = f'{KEY} = "{FOLDER}"'

    def __init__(self, path: Path, text: str) -> None:
        self.path, self.text = path, text
        self.data = parse_toml(text)
        own = path.name != "pyproject.toml"
        self.new: Sequence[str] = ("pytest",) if own else NEW_TABLE
        self.section = next(self._sections(own), None)

    def _sections(self, own: bool) -> Iterator[Sequence[str]]:
        table = self.data if own else self.data.get("tool", {})
        settings = table.get("pytest") if isinstance(table, dict) else None
        if not isinstance(settings, dict):
            return
        if own:
            yield ("pytest",)
        elif settings.keys() - {"ini_options"}:
            yield ("tool", "pytest")
        elif "ini_options" in settings:
            yield NEW_TABLE

    @property
    def header(self) -> str:
        """A pattern of the line that opens the section."""
        names = r"[ \t]*\.[ \t]*".join(self.section or ())
        return rf"[ \t]*\[[ \t]*{names}[ \t]*\][ \t]*(?:#[^\r\n]*)?"

    @staticmethod
    def titled(section: Sequence[str]) -> str:
        """The line that opens a section."""
        return f"[{'.'.join(section)}]"

    @staticmethod
    def read(text: str) -> dict[str, Any]:
        """What a text says."""
        return parse_toml(text)


class _Ini:
    """The same of an ini file, whose sections have one name.

    Raises:
        configparser.Error: it is not valid.
    """

    line = f"{KEY} = {FOLDER}"

    def __init__(self, path: Path, text: str) -> None:
        self.path, self.text = path, text
        self.data = self.read(text)
        self.new: Sequence[str] = ("tool:pytest" if path.name == "setup.cfg" else "pytest",)
        self.section = self.new if self.new[0] in self.data else None

    @property
    def header(self) -> str:
        return rf"\[{self.new[0]}\][ \t]*(?:[#;][^\r\n]*)?"

    @staticmethod
    def titled(section: Sequence[str]) -> str:
        return f"[{section[0]}]"

    @staticmethod
    def read(text: str) -> dict[str, Any]:
        parser = configparser.ConfigParser(interpolation=None)
        parser.read_string(text)
        return {name: dict(section) for name, section in parser.items()}


def _read(path: Path) -> _Toml | _Ini:
    kind = _Toml if path.suffix == ".toml" else _Ini
    return kind(path, _raw(path))


def _raw(path: Path) -> str:
    """The text of a file with its own ends of lines: it is written back."""
    with open_regular(path, SETTINGS) as file:
        return file.read(SETTINGS).decode("utf-8")


def _counts(file: _Toml | _Ini) -> bool:
    """Whether pytest takes its settings from a file and asks no further."""
    return file.section is not None or file.path.name in ALWAYS


def _settings(file: _Toml | _Ini) -> dict[str, Any]:
    """What stands in the section that pytest reads; nothing where there is none."""
    settings: Any = file.data
    for name in file.section or file.new:
        settings = settings.get(name, {}) if isinstance(settings, dict) else None
    return settings if isinstance(settings, dict) else {}


def _with_key(file: _Toml | _Ini) -> PytestIni:
    """A file with the key: as it is, in the section that it has, or in a new one at its end."""
    section, settings = file.section or file.new, _settings(file)
    testpaths = "testpaths" in settings
    if KEY in settings:
        _refuse_other(file.path, settings[KEY])
        return PytestIni(file.path, there=True, has_testpaths=testpaths)
    text = None if file.path.is_symlink() else _added(file, section)
    if text is None:
        advice = f"{file.path.name} was left alone; add under {file.titled(section)}: {file.line}"
        return PytestIni(file.path, advice=advice, has_testpaths=testpaths)
    return PytestIni(file.path, text=text, has_testpaths=testpaths)


def _refuse_other(path: Path, value: object) -> None:
    if not isinstance(value, str) or posixpath.normpath(value.strip()) != FOLDER:
        raise ConfigError(
            f"{path}: {KEY} is {value!r}, and suites are laid out in {FOLDER!r}; set it to that, or lay out "
            "another folder"
        )


def _added(file: _Toml | _Ini, section: Sequence[str]) -> str | None:
    """The file's text with the key; None where it does not say what it should then."""
    text = file.text
    end = "\r\n" if "\r\n" in text else "\n"
    if file.section is None:
        gap = "" if not text else end if text.endswith("\n") else end * 2
        new = f"{text}{gap}{file.titled(section)}{end}{file.line}{end}"
    else:
        opened = re.search(rf"^{file.header}\r?$", text, re.MULTILINE)
        if opened is None:
            return None
        head, rest = text[: opened.end()].removesuffix("\r"), text[opened.end() :].removeprefix("\n")
        new = f"{head}{end}{file.line}{end}{rest}"
    wanted = copy.deepcopy(file.data)
    settings: Any = wanted
    for name in section:
        settings = settings.setdefault(name, {})
        if not isinstance(settings, dict):
            return None
    settings[KEY] = FOLDER
    try:
        return new if file.read(new) == wanted else None
    except (ValueError, configparser.Error):
        return None
