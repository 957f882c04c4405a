"""A terminal's screen, as far as pytest and the progress display use it: what a person would see."""

import codecs
import io
import re
import threading

import pytest

_SEQUENCE = re.compile(
    r"\x1b(?:\[(?P<value>\d*)(?:;(?P<second>\d+))?(?:;\d+)*(?P<move>[A-Za-z])|(?P<short>[D78])|\].*?\x1b\\)"
)
_BEGUN = re.compile(r"\x1b(?:\[[\d;]*|\][^\x1b]*\x1b?)?\Z")


class Screen:
    """Rows of text, the cursor, and what has scrolled away above.

    It wraps as terminals do: a letter in the last column leaves the cursor there, and the next one wraps.
    """

    def __init__(self, rows: int, columns: int) -> None:
        self.rows, self.columns = rows, columns
        self.above: list[str] = []
        self.lines = [[" "] * columns for _ in range(rows)]
        self.row = self.column = 0
        self.wraps = False
        self._saved = (0, 0, False)
        self._bottom = rows - 1
        self._decode = codecs.getincrementaldecoder("utf-8")().decode
        self._rest = ""

    def feed(self, data: bytes) -> None:
        """Take in what a program wrote; it may end in the middle of a sequence.

        Raises:
            ValueError: a sequence that this screen does not know.
        """
        text = self._rest + self._decode(data)
        position = 0
        while position < len(text):
            if text[position] != "\x1b":
                self._letter(text[position])
                position += 1
            elif found := _SEQUENCE.match(text, position):
                self._sequence(found)
                position = found.end()
            elif _BEGUN.match(text, position):
                break
            else:
                raise ValueError(f"unknown sequence {text[position : position + 8]!r}")
        self._rest = text[position:]

    @property
    def shown(self) -> list[str]:
        """The rows on the screen, without trailing blanks."""
        return ["".join(line).rstrip() for line in self.lines]

    @property
    def everything(self) -> list[str]:
        """All rows there ever were, without trailing blanks and the empty rest of the screen."""
        return "\n".join([*self.above, *self.shown]).rstrip("\n").split("\n")

    @property
    def last(self) -> str:
        """The last row if it is set apart, else nothing."""
        return self.shown[-1] if self._bottom < self.rows - 1 else ""

    def _letter(self, letter: str) -> None:
        if letter == "\r":
            self.column, self.wraps = 0, False
        elif letter == "\n":
            self._down()
        elif letter == "\b":
            self.column, self.wraps = max(0, self.column - 1), False
        elif letter != "\a":
            assert letter.isprintable(), repr(letter)
            if self.wraps:
                self.column = 0
                self._down()
            self.lines[self.row][self.column] = letter
            self.wraps = self.column == self.columns - 1
            self.column = min(self.column + 1, self.columns - 1)

    def _down(self) -> None:
        self.wraps = False
        if self.row == self._bottom:
            self.above.append("".join(self.lines.pop(0)).rstrip())
            self.lines.insert(self._bottom, [" "] * self.columns)
        elif self.row + 1 < self.rows:
            self.row += 1

    def _sequence(self, found: re.Match[str]) -> None:
        short, move = found["short"], found["move"]
        if short == "D":
            self._down()
        elif short == "7":
            self._saved = (self.row, self.column, self.wraps)
        elif short == "8":
            self.row, self.column, self.wraps = self._saved
        elif move == "A":
            self.row, self.wraps = max(0, self.row - int(found["value"] or 1)), False
        elif move == "H":
            self.row, self.column, self.wraps = int(found["value"] or 1) - 1, 0, False
        elif move == "K" and found["value"] == "2":
            self.lines[self.row] = [" "] * self.columns
        elif move == "r":
            self._bottom = int(found["second"] or self.rows) - 1
            self.row, self.column, self.wraps = 0, 0, False
        elif move not in (None, "m"):
            raise ValueError(f"unknown sequence {found.group()!r}")


class Painted(io.StringIO):
    """A file in memory that is a terminal: what is written to it is shown on a screen."""

    def __init__(self) -> None:
        super().__init__()
        self.screen = Screen(24, 80)
        self._lock = threading.Lock()  # a terminal takes one write after the other

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        with self._lock:
            self.screen.feed(text.replace("\n", "\r\n").encode())
        return len(text)


@pytest.fixture
def terminal_config(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Config:
    """The settings of a session on a person's terminal."""
    monkeypatch.setenv("TERM", "xterm")
    for name in ("CI", "BUILD_NUMBER", "PYTEST_ADDOPTS"):
        monkeypatch.delenv(name, raising=False)
    return pytester.parseconfig("-p", "no:cacheprovider")
