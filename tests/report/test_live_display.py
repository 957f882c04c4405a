"""The progress display in real sessions: on a terminal, at a screen of any height, and without one."""

import contextlib
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.forks import Forks
from tests.patience import HANG_SECONDS
from tests.screen import Screen

CONFTEST = """\
import os
import time
from pathlib import Path

import pytest

from pytest_trace2evolve.report import live_display
from pytest_trace2evolve.report.live_display import ProgressDisplay
from pytest_trace2evolve.report.progress import Progress

live_display._UPDATE_INTERVAL_SECONDS = 0.02  # items wait for paintings
COUNTS = Path(os.environ["COUNTS"])


def counted(name):
    path = COUNTS / name
    return path.stat().st_size if path.exists() else 0


def count(name):
    with open(COUNTS / name, "ab") as file:
        file.write(b"x")


def read():
    while not counted("begun"):  # nothing is shown before the first item
        time.sleep(0.005)
    begun = counted("begun")
    if begun >= int(os.environ.get("BREAKS_AT", 99)):
        count("broken")
        raise RuntimeError("the counts\\nare gone")
    return Progress(9, min(9, 1 + begun), 1, 0, 0, 0.5, 0.25, 1234, None, begun / 2)


class Counted(ProgressDisplay):
    def show(self, progress):
        shown = super().show(progress)
        if shown:
            count("shown")
        return shown


@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    if "SHOWN_EVERY" in os.environ and not hasattr(config, "workerinput"):
        every = float(os.environ["SHOWN_EVERY"])
        display = Counted(config.pluginmanager.getplugin("terminalreporter"), read, interval=every)
        config.pluginmanager.register(Shown(display))


class Shown:
    def __init__(self, display):
        self.display = display

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self):
        self.display.start()
        try:
            return (yield)
        finally:
            self.display.stop()

    def pytest_terminal_summary(self, terminalreporter):
        if self.display.trouble:
            terminalreporter.write_line(self.display.trouble)


@pytest.fixture
def slow(pytestconfig):
    for line in ("printed in the setup", "and", "more"):
        print(line)
    print("without an end", end="")
    if pytestconfig.getoption("capture", "no") == "fd":
        os.write(1, b"written past python\\n")
    time.sleep(float(os.environ.get("SLOW", 0)))
    enough = counted("shown") + int(os.environ["SHOWS"])
    count("begun")  # from now on there is something new to show
    while counted("shown") < enough and not counted("broken"):
        time.sleep(0.005)
"""

TESTS = """\
import os

import pytest


@pytest.mark.parametrize("number", range(6))
def test_one(slow, number):
    fails = int(os.environ.get("FAILS", 4))
    assert number != fails
"""

LINE = re.compile(r"\d of 9 done( \(1 from before\))?(, \d waiting)? · reward 0\.500 \(baseline 0\.250\) · ")
AWAY = ("CI", "BUILD_NUMBER", "PYTHONUNBUFFERED", "PYTEST_ADDOPTS")
"""Variables of the machine that a session must not see."""

PLAIN = re.compile(
    r"trace2evolve: \d of 9 done.* · reward 0\.500 \(baseline 0\.250\) · 1\.2 k tokens · 0:0\d \w.*"
)

ARGUMENTS = ("-p", "no:cacheprovider", "--no-header", "--tb=line")


def surroundings(**more: str) -> dict[str, str]:
    """The environment of a session on a person's terminal, without the plugins that it does not need.

    An item lasts until the display has shown `SHOWS` times more, however long that takes.
    """
    kept = {name: value for name, value in os.environ.items() if name not in AWAY}
    fixed = {"TERM": "xterm", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "COUNTS": tempfile.mkdtemp()}
    return kept | fixed | {"SHOWS": "3" if "SHOWN_EVERY" in more else "0"} | more


class Session:
    """A pytest session whose output is a terminal of a given size."""

    def __init__(
        self, forks: Forks, folder: Path, *arguments: str, rows: int, columns: int, **environment: str
    ) -> None:
        self.screen = Screen(rows, columns)
        self.painted: list[str] = []
        self.written = self.unread = b""
        self.terminal, follower = pty.openpty()
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        environment = surroundings(**environment)
        command = [sys.executable, "-m", "pytest", *ARGUMENTS, *arguments]
        self.process = forks.popen(
            command, cwd=folder, env=environment, stdin=follower, stdout=follower, stderr=follower
        )
        os.close(follower)

    def watch(self, seconds: float = HANG_SECONDS, until: str = "(?!)") -> None:
        """Read to the end, for some seconds or until a row begins as told; note what was painted."""
        end = time.monotonic() + seconds
        while self.unread or select.select([self.terminal], [], [], max(0, end - time.monotonic()))[0]:
            with contextlib.suppress(OSError):  # how Linux reports the end of a terminal
                self.unread = self.unread or os.read(self.terminal, 4096)
            if not self.unread:
                os.close(self.terminal)
                self.process.wait()
                return
            while self.unread:
                self.written += self.unread[:1]
                self.screen.feed(self.unread[:1])
                self.unread = self.unread[1:]
                # After each painting, however many were read at once, and where pytest or the debugger waits.
                if self.written.endswith((b"\x1b8", b"\n", b") ")):
                    self.painted.append(self.screen.last)
                    if any(re.match(until, row) for row in self.screen.shown):
                        return


Start = Callable[..., Session]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Six items that wait for the display, of which one fails."""
    (tmp_path / "conftest.py").write_text(CONFTEST, encoding="utf-8")
    (tmp_path / "test_slow.py").write_text(TESTS, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    return tmp_path


@pytest.fixture
def start(folder: Path, session_forks: Forks) -> Iterator[Start]:
    """Starts a session on a terminal."""
    sessions: list[Session] = []

    def begin(*arguments: str, rows: int = 24, columns: int = 80, **environment: str) -> Session:
        sessions.append(Session(session_forks, folder, *arguments, rows=rows, columns=columns, **environment))
        return sessions[-1]

    yield begin
    for session in sessions:
        session.process.kill()
        session.process.wait()


def on_screen(session: Session) -> list[str]:
    """All rows that a session left behind, without how long it took."""
    session.watch()
    text = "\n".join(session.screen.everything)
    return re.sub(r"[=\n ]*(\d failed|\d passed)(.*) in [\d.]+\n?s[=\n ]*\Z", r"\n\1\2", text).split("\n")


@pytest.mark.parametrize(
    ("arguments", "rows"),
    [
        (("--color=yes",), 5),
        (("-s", "-v"), 24),
        (("--capture=tee-sys",), 5),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else f"{value} rows",
)
def test_the_last_row_is_set_apart_and_leaves_no_trace(
    start: Start, arguments: tuple[str, ...], rows: int
) -> None:
    shown = start(*arguments, rows=rows, SHOWN_EVERY="3600")
    bare = start(*arguments, rows=rows)
    assert on_screen(shown) == on_screen(bare)
    painted = [line for line in shown.painted if LINE.match(line)]
    assert len(set(painted)) > 1
    assert not any(LINE.match(line) for line in shown.screen.everything)


def test_the_last_row_stands_below_the_reports_of_workers(start: Start) -> None:
    shown = start("-p", "xdist", "-n2", rows=5, SHOWN_EVERY="3600", FAILS="9")
    assert [row.strip("= ") for row in on_screen(shown)] == [
        "test session starts",
        "2 workers [6 items]",
        "......" + "[100%]".rjust(73),
        "6 passed",
    ]
    assert any(LINE.match(line) for line in shown.painted)


def test_a_narrower_terminal_gets_a_shorter_line(start: Start) -> None:
    session = start(rows=8, SHOWN_EVERY="3600")
    session.watch(until=r"\d of 9 done")
    fcntl.ioctl(session.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 8, 30, 0, 0))
    narrow = r"\d of 9 done · 0:0\d [a-z ]+"
    session.watch(until=rf"{narrow}$")
    session.painted.clear()
    session.watch()
    painted = [line for line in session.painted if "of 9 done" in line]
    assert any(re.fullmatch(narrow, line) for line in painted)
    assert max(map(len, painted)) < 30


def test_quiet_is_quiet(start: Start) -> None:
    shown = start("-q", "-s", "--color=no", SHOWN_EVERY="0.1", SHOWS="0", SLOW="0.3")
    assert on_screen(shown) == on_screen(start("-q", "-s", "--color=no"))
    assert b"\x1b" not in shown.written


def test_what_breaks_is_told_once_at_the_end(start: Start) -> None:
    session = start(SHOWN_EVERY="3600", BREAKS_AT="3")
    rows = on_screen(session)
    assert any(LINE.match(line) for line in session.painted)
    told = "the progress display stopped (RuntimeError: the counts are gone); the run continued without it"
    assert "".join(rows).count(told) == 1
    assert "test_slow.py ....F." in rows[3]
    assert rows[-1] == "1 failed, 5 passed"
    assert not any("Traceback" in row for row in rows)


def test_a_debugger_has_the_terminal_to_itself(start: Start) -> None:
    session = start("--pdb", SHOWN_EVERY="3600", FAILS="3")
    session.watch(until=r"\(Pdb\)")
    assert any(LINE.match(line) for line in session.painted)
    so_far = session.written
    session.watch(seconds=0.6)
    assert session.written.startswith(so_far)
    assert b"\x1b" not in session.written[len(so_far) :]
    session.painted.clear()
    os.write(session.terminal, b"c\n")
    session.watch()
    assert any(LINE.match(line) for line in session.painted)
    assert session.process.returncode == 1


def lines_in_a_pipe(folder: Path, *arguments: str, **environment: str) -> list[str]:
    """What a session prints where its output is no terminal."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *ARGUMENTS, *arguments],
        cwd=folder,
        env=surroundings(**environment),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, "")
    assert "\x1b" not in done.stdout
    return done.stdout.splitlines()


@pytest.mark.parametrize("arguments", [(), ("-s",), ("-p", "xdist", "-n2")], ids=" ".join)
def test_plain_lines_stand_between_the_dots(folder: Path, arguments: tuple[str, ...]) -> None:
    lines = lines_in_a_pipe(folder, *arguments, SHOWN_EVERY="0.25", SHOWS="1")
    told = [line for line in lines if "of 9 done" in line]
    assert len(told) > 1
    assert all(PLAIN.fullmatch(line) for line in told)
    untimed = [line.rpartition(" · ")[0] for line in told]
    assert len(set(untimed)) == len(told), "nothing new is not told again"
    items = "\n".join(lines).split("6 items")[1].split("FAILURES")[0]
    rest = re.sub(
        "trace2evolve: .*|printed in.*|and|more|without an end|test_slow.py|\\[100%\\]|[]=\\s]", "", items
    )
    assert sorted(rest) == sorted("....F.")
    if "-s" in arguments:
        assert lines.index("test_slow.py printed in the setup") < lines.index(told[0]), "in order with prints"


def test_plain_lines_do_not_wait_for_a_blocked_item(folder: Path) -> None:
    lines = lines_in_a_pipe(folder, "-v", SHOWN_EVERY="0.2", SHOWS="1")
    first = lines.index("test_slow.py::test_one[0] ")
    assert PLAIN.fullmatch(lines[first + 1])
    assert "PASSED" in lines[first + 2]
    captured = next(number for number, line in enumerate(lines) if "Captured stdout setup" in line)
    assert lines[captured + 1] == "printed in the setup"
    assert not any("trace2evolve" in line for line in lines[captured:])


def test_a_run_shorter_than_the_interval_has_no_plain_line(folder: Path) -> None:
    assert not any("trace2evolve" in line for line in lines_in_a_pipe(folder, SHOWN_EVERY="3600", SHOWS="0"))


def test_a_terminal_in_ci_gets_plain_lines(start: Start) -> None:
    session = start("--color=no", SHOWN_EVERY="0.25", SHOWS="1", CI="true")
    told = [line for line in on_screen(session) if line.startswith("trace2evolve: ")]
    assert len(told) > 1
    assert max(map(len, told)) < 80
    assert b"\x1b" not in session.written


def test_an_output_in_memory_gets_plain_lines(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SHOWN_EVERY", "0.1")
    monkeypatch.setenv("SHOWS", "1")
    monkeypatch.setenv("COUNTS", str(tmp_path))
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_slow=TESTS)
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=5, failed=1)
    told = [line for line in result.outlines if line.startswith("trace2evolve: ")]
    assert told
    assert all(PLAIN.fullmatch(line) for line in told)
