"""The one sanitiser: whatever is printed passes it, for a terminal and a job's log obey more than they show.

Texts come from models, endpoints, file names and strangers' pull requests. Streams are wrapped once
(`SanitizedStream`), so that a new print cannot forget it; texts that are laid out in a line or a table are
sanitised before (`sanitize`, `sanitize_line`), so that the layout holds.
"""

import re
import unicodedata
from collections.abc import Iterable
from typing import Any, TextIO

from pytest_trace2evolve.errors import shortened

_SHOWN = frozenset("\n\t")
_COMMANDS = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode categories of characters that steer instead of being read, or that nobody knows."""

_PLAIN = re.compile(r"[\n\t\x20-\x7e]*")

_TERMINAL = re.compile(r"\x1b\[[0-7;9]*m|\x1b\]9;4;\d(?:;\d+)?;?\x1b\\")
"""Colours, concealed text (8) not among them; and the progress that pytest tells a terminal."""


def sanitize(text: str) -> str:
    """The text with every character that steers a terminal, or that cannot be seen, written out as an escape.

    New lines and tabs stay; a carriage return before a new line is dropped. `##[` begins a command to the
    runner of a job on GitHub, wherever it stands in a line: its bracket is written as an escape.
    """
    text = text.replace("\r\n", "\n").replace("##[", "##\\x5b")
    if _PLAIN.fullmatch(text):
        return text
    return "".join(map(_escaped, text))


def sanitize_line(text: str, longest: int | None = None) -> str:
    """The same on one line, of at most `longest` characters: of a longer one the start and the end."""
    if longest is None:
        return " ".join(sanitize(text).split())
    # Twice: escapes make a text longer, and a huge one is not worth escaping whole.
    return shortened(" ".join(sanitize(shortened(text, longest)).split()), longest)


def _escaped(character: str) -> str:
    if character in _SHOWN or unicodedata.category(character) not in _COMMANDS:
        return character
    code = ord(character)
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


class SanitizedStream:
    """A text stream that sanitises what is written to it.

    A line that begins with `::` is a command to the runner of a job on GitHub: its first colon is written as
    an escape. So is the bracket of `##[` if several writes make it.

    Args:
        stream: Where the text goes.
        terminal: Whether colours pass, and a carriage return at the beginning of a write.

    Attributes:
        raw: The stream that is wrapped, for what draws on a terminal.
    """

    def __init__(self, stream: TextIO, *, terminal: bool) -> None:
        self.raw = stream
        self._terminal = terminal
        self._blank = True  # whether the line has nothing but blanks so far
        self._end = ""  # its last two characters

    def write(self, text: str) -> int:
        """Write a text; returns how many characters were taken, as streams do."""
        safe = self._sanitized(text)
        try:
            self.raw.write(safe)
        except UnicodeEncodeError:  # a terminal or a log that is not UTF-8
            encoding = self.raw.encoding or "ascii"
            self.raw.write(safe.encode(encoding, "backslashreplace").decode(encoding))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write texts one by one."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)

    def _sanitized(self, text: str) -> str:
        if not self._terminal:
            return self._without_commands(sanitize(text))
        start = ""
        if text.startswith("\r") and not text.startswith("\r\n"):
            start, text, self._blank, self._end = "\r", text[1:], True, ""
        parts, place = [start], 0
        for match in _TERMINAL.finditer(text):
            parts += [self._without_commands(sanitize(text[place : match.start()])), match.group()]
            place = match.end()
        return "".join([*parts, self._without_commands(sanitize(text[place:]))])

    def _without_commands(self, text: str) -> str:
        """The text with the commands of GitHub's runner taken apart, also those that several writes make."""
        lines = text.split("\n")
        for place, line in enumerate(lines):
            if place:
                self._blank, self._end = True, ""
            lines[place] = self._line(line)
        return "\n".join(lines)

    def _line(self, line: str) -> str:
        said = line.lstrip()
        if said and self._blank:
            self._blank = False
            # A colon that ends a write may become two with the next.
            if said == ":" or said.startswith("::"):
                line = line.replace(":", "\\x3a", 1)
        whole = self._end + line
        if "##[" in whole:
            line = whole.replace("##[", "##\\x5b")[len(self._end) :]
        self._end = whole[-2:]
        return line


def storable_text(text: str) -> str:
    """The text with each half of a surrogate pair written out as its escape, such as `\\ud83d`."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
