"""Makes text safe to print, because terminals and CI logs obey characters that they do not show.

Texts come from models, endpoints, file names and strangers' pull requests. Streams are wrapped once
(`SanitizedStream`), so every print is sanitized. Texts in a line or a table are sanitized before layout
(`sanitize`, `sanitize_line`), so columns stay aligned.
"""

import re
import unicodedata
from collections.abc import Iterable
from typing import Any, TextIO

from pytest_trace2evolve.errors import shorten

_CONTROL_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode categories of control, invisible, private and unassigned characters, and of line separators."""

_PLAIN_TEXT = re.compile(r"[\n\t\x20-\x7e]*")

_TERMINAL_SEQUENCE = re.compile(r"\x1b\[[0-7;9]*m|\x1b\]9;4;\d(?:;\d+)?;?\x1b\\")
"""Matches colours, except concealed text (8), and the progress that pytest reports to a terminal."""

_LINE_START = re.compile(r"(?:\x1b\[[0-7;9]*m)*\r(?!\n)")
"""Matches a return to the start of the line, with the colours that pytest puts before the return."""

_COMMAND_START = re.compile(r"""(?m)((?:^|[>"']|&#10;)(?:[^\S\n]|&#9;)*)::""")
"""Matches `::` at the start of a line, of a quoted text, or of an element or a line of an XML file."""

_COMMAND = re.compile(
    r"(?<!\w)::(?=(?:error|warning|notice|debug|group|endgroup|echo|set-output|set-env|save-state"
    r"|add-path|add-mask|stop-commands|add-matcher|remove-matcher)\b)"
)
"""Matches the start of a command to the runner of a GitHub job, but not a part of a test's node id."""


def sanitize(text: str) -> str:
    """Escape every character of a text that controls a terminal or is invisible.

    Line breaks and tabs stay; a carriage return before a line break is dropped. `##[` begins a command to the
    runner of a GitHub job anywhere in a line, so its bracket is escaped.
    """
    text = text.replace("\r\n", "\n").replace("##[", "##\\x5b")
    return text if _PLAIN_TEXT.fullmatch(text) else "".join(map(_escape_character, text))


def sanitize_file(text: str) -> str:
    """Sanitize the text of a file that a job may print: no line of it is a command to the job's runner."""
    return _COMMAND.sub(r"\\x3a:", _COMMAND_START.sub(r"\1\\x3a:", sanitize(text)))


def sanitize_line(text: str, max_length: int | None = None) -> str:
    """Sanitize a text and put it on one line, shortened to at most `max_length` characters."""
    if max_length is None:
        return " ".join(sanitize(text).split())
    # Shortened before and after, because escapes lengthen a text and escaping a whole huge text is wasteful.
    return shorten(" ".join(sanitize(shorten(text, max_length)).split()), max_length)


def _escape_character(character: str) -> str:
    if character in "\n\t" or unicodedata.category(character) not in _CONTROL_CATEGORIES:
        return character
    code = ord(character)
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


class SanitizedStream:
    """A text stream that sanitizes all text that is written to it.

    A line that begins with `::` is a command to the runner of a GitHub job, so its first colon is escaped.
    The bracket of `##[` is escaped too. Both are recognized even if they are split over several writes.

    Args:
        stream: The stream that gets the sanitized text.
        is_terminal: Whether to keep colours, and a carriage return that starts a write or follows its first
            colours.

    Attributes:
        raw: The wrapped stream, for code that draws on a terminal.
    """

    def __init__(self, stream: TextIO, *, is_terminal: bool) -> None:
        self.raw = stream
        self._is_terminal = is_terminal
        self._line_is_blank = True
        self._line_end = ""  # the last two characters of the current line

    def write(self, text: str) -> int:
        """Write a text, and return its length, as streams do."""
        sanitized = (
            self._sanitize_for_terminal(text)
            if self._is_terminal
            else self._escape_runner_commands(sanitize(text))
        )
        try:
            self.raw.write(sanitized)
        except UnicodeEncodeError:  # a terminal or a log that is not UTF-8
            encoding = self.raw.encoding or "ascii"
            self.raw.write(sanitized.encode(encoding, "backslashreplace").decode(encoding))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)

    def _sanitize_for_terminal(self, text: str) -> str:
        parts = []
        if start := _LINE_START.match(text):
            parts.append(start.group())
            text, self._line_is_blank, self._line_end = text[start.end() :], True, ""
        position = 0
        for match in _TERMINAL_SEQUENCE.finditer(text):
            parts += [self._escape_runner_commands(sanitize(text[position : match.start()])), match.group()]
            position = match.end()
        return "".join([*parts, self._escape_runner_commands(sanitize(text[position:]))])

    def _escape_runner_commands(self, text: str) -> str:
        """Escape the commands to GitHub's runner in a text."""
        lines = []
        for index, line in enumerate(text.split("\n")):
            if index:
                self._line_is_blank, self._line_end = True, ""
            lines.append(self._escape_runner_commands_in_line(line))
        return "\n".join(lines)

    def _escape_runner_commands_in_line(self, line: str) -> str:
        stripped = line.lstrip()
        if stripped and self._line_is_blank:
            self._line_is_blank = False
            # A colon at the end of a write may become two colons with the next write.
            if stripped == ":" or stripped.startswith("::"):
                line = line.replace(":", "\\x3a", 1)
        extended_line = self._line_end + line
        if "##[" in extended_line:
            line = extended_line.replace("##[", "##\\x5b")[len(self._line_end) :]
        self._line_end = extended_line[-2:]
        return line
