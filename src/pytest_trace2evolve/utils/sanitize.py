"""Makes text safe to print, because terminals and CI logs obey characters that they do not show.

Texts come from models, endpoints, file names and strangers' pull requests. Streams are wrapped once
(`SanitizedStream`), so every print is sanitized. Texts in a line or a table are sanitized before layout
(`sanitize`, `sanitize_line`), so columns stay aligned.
"""

import re
import unicodedata
from collections.abc import Iterable
from typing import Any, TextIO

from pytest_trace2evolve.errors import shortened

_STEERING = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode categories of control, invisible, private and unassigned characters, and of line separators."""

_PLAIN = re.compile(r"[\n\t\x20-\x7e]*")

_TERMINAL = re.compile(r"\x1b\[[0-7;9]*m|\x1b\]9;4;\d(?:;\d+)?;?\x1b\\")
"""Matches colours, except concealed text (8), and the progress that pytest reports to a terminal."""

_LINE_START = re.compile(r"(?:\x1b\[[0-7;9]*m)*\r(?!\n)")
"""Matches a return to the start of the line, with the colours that pytest puts before the return."""


def sanitize(text: str) -> str:
    """Escape every character of a text that controls a terminal or is invisible.

    Line breaks and tabs stay; a carriage return before a line break is dropped. `##[` begins a command to the
    runner of a GitHub job anywhere in a line, so its bracket is escaped.
    """
    text = text.replace("\r\n", "\n").replace("##[", "##\\x5b")
    return text if _PLAIN.fullmatch(text) else "".join(map(_escaped, text))


def sanitize_line(text: str, longest: int | None = None) -> str:
    """Sanitize a text and put it on one line, shortened to at most `longest` characters."""
    if longest is None:
        return " ".join(sanitize(text).split())
    # Shortened before and after, because escapes lengthen a text and escaping a whole huge text is wasteful.
    return shortened(" ".join(sanitize(shortened(text, longest)).split()), longest)


def _escaped(character: str) -> str:
    if character in "\n\t" or unicodedata.category(character) not in _STEERING:
        return character
    code = ord(character)
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


class SanitizedStream:
    """A text stream that sanitizes what is written to it.

    A line that begins with `::` is a command to the runner of a GitHub job, so its first colon is escaped.
    The bracket of `##[` is escaped too. Both are recognized even if they are split over several writes.

    Args:
        stream: The stream that gets the sanitized text.
        terminal: Whether to keep colours, and a carriage return that starts a write or follows its first
            colours.

    Attributes:
        raw: The wrapped stream, for code that draws on a terminal.
    """

    def __init__(self, stream: TextIO, *, terminal: bool) -> None:
        self.raw = stream
        self._terminal = terminal
        self._line_is_blank = True
        self._line_end = ""  # the last two characters of the current line

    def write(self, text: str) -> int:
        """Write a text; returns its length, as streams do."""
        safe = self._sanitized(text) if self._terminal else self._defused(sanitize(text))
        try:
            self.raw.write(safe)
        except UnicodeEncodeError:  # a terminal or a log that is not UTF-8
            encoding = self.raw.encoding or "ascii"
            self.raw.write(safe.encode(encoding, "backslashreplace").decode(encoding))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)

    def _sanitized(self, text: str) -> str:
        parts = []
        if start := _LINE_START.match(text):
            parts.append(start.group())
            text, self._line_is_blank, self._line_end = text[start.end() :], True, ""
        place = 0
        for match in _TERMINAL.finditer(text):
            parts += [self._defused(sanitize(text[place : match.start()])), match.group()]
            place = match.end()
        return "".join([*parts, self._defused(sanitize(text[place:]))])

    def _defused(self, text: str) -> str:
        """Escape the commands to GitHub's runner in a text."""
        lines = []
        for place, line in enumerate(text.split("\n")):
            if place:
                self._line_is_blank, self._line_end = True, ""
            lines.append(self._defused_line(line))
        return "\n".join(lines)

    def _defused_line(self, line: str) -> str:
        visible = line.lstrip()
        if visible and self._line_is_blank:
            self._line_is_blank = False
            # A colon at the end of a write may become two colons with the next write.
            if visible == ":" or visible.startswith("::"):
                line = line.replace(":", "\\x3a", 1)
        whole = self._line_end + line
        if "##[" in whole:
            line = whole.replace("##[", "##\\x5b")[len(self._line_end) :]
        self._line_end = whole[-2:]
        return line
