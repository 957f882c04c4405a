"""The lines of progress in real sessions."""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

CONFTEST = """\
import os
import time
from pathlib import Path

import pytest

from pytest_trace2evolve.report.progress import ProgressDisplay
from pytest_trace2evolve.report.progress import Progress

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


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Six items that wait for the display, of which one fails."""
    (tmp_path / "conftest.py").write_text(CONFTEST, encoding="utf-8")
    (tmp_path / "test_slow.py").write_text(TESTS, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    return tmp_path


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
    expected = [line for line in lines if "of 9 done" in line]
    assert len(expected) > 1
    assert all(PLAIN.fullmatch(line) for line in expected)
    untimed = [line.rpartition(" · ")[0] for line in expected]
    assert len(set(untimed)) == len(expected), "an unchanged state is not printed again"
    items = "\n".join(lines).split("6 items")[1].split("FAILURES")[0]
    rest = re.sub(
        "trace2evolve: .*|printed in.*|and|more|without an end|test_slow.py|\\[100%\\]|[]=\\s]", "", items
    )
    assert sorted(rest) == sorted("....F.")
    if "-s" in arguments:
        assert lines.index("test_slow.py printed in the setup") < lines.index(expected[0]), (
            "in order with prints"
        )


def test_plain_lines_do_not_wait_for_a_blocked_item(folder: Path) -> None:
    lines = lines_in_a_pipe(folder, "-v", SHOWN_EVERY="0.2", SHOWS="1")
    first = lines.index("test_slow.py::test_one[0] ")
    assert PLAIN.fullmatch(lines[first + 1])
    assert "PASSED" in lines[first + 2]
    captured = next(number for number, line in enumerate(lines) if "Captured stdout setup" in line)
    assert lines[captured + 1] == "printed in the setup"
    assert not any("trace2evolve" in line for line in lines[captured:])


def test_what_breaks_is_said_once_at_the_end(folder: Path) -> None:
    lines = lines_in_a_pipe(folder, SHOWN_EVERY="0.1", SHOWS="1", BREAKS_AT="3")
    message = "the progress display stopped (RuntimeError: the counts are gone); the run continued without it"
    assert lines.count(message) == 1
    assert not any("Traceback" in line for line in lines)


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
    expected = [line for line in result.outlines if line.startswith("trace2evolve: ")]
    assert expected
    assert all(PLAIN.fullmatch(line) for line in expected)
