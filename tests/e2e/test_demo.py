"""`make demo` and `make demo-model`: what they print and how they end, however a command ends.

The README and the page on published runs show outputs of the demo. A line `…` there stands for omitted lines.
"""

import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from pytest_trace2evolve.cli.commands import COMMANDS
from pytest_trace2evolve.cli.parser import build_parser
from pytest_trace2evolve.project.project import Project
from tests.ci_files import REPOSITORY
from tests.patience import HANG_SECONDS

DEMO = REPOSITORY / "docs/demo.py"
PROMPT = re.compile(r"^\$ (.*)$", re.MULTILINE)
SHOWN = re.compile(
    r"(?ms)^    ((?:trace2evolve|pytest) [^\n]*)\n\n[^\n]*?\n*<!-- (\w+) -->\n(.*?)^<!-- /\2 -->"
)


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("demo", DEMO)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["demo"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def environment(temporary: Path) -> dict[str, str]:
    names = {"COLUMNS", "FORCE_COLOR", "PY_COLORS"}
    kept = {name: value for name, value in os.environ.items() if name not in names}
    return {**kept, "TMPDIR": str(temporary), "PYTEST_ADDOPTS": "--an-option-of-the-user"}


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> "subprocess.CompletedProcess[str]":
    """The demo, run once as `make demo` runs it."""
    temporary = tmp_path_factory.mktemp("demo")
    done = subprocess.run(
        [sys.executable, DEMO],
        cwd=REPOSITORY,
        env=environment(temporary),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=HANG_SECONDS,
    )
    assert list(temporary.iterdir()) == [], done.stdout
    return done


@pytest.fixture(scope="module")
def outputs(ended: "subprocess.CompletedProcess[str]") -> dict[str, str]:
    """What each command of the demo printed."""
    _, *parts = PROMPT.split(ended.stdout)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def test_the_demo_shows_two_promoted_and_two_discarded_changes(
    ended: "subprocess.CompletedProcess[str]", outputs: dict[str, str]
) -> None:
    assert ended.returncode == 0, ended.stdout
    verdicts = re.findall(r"(?m)^(PROMOTE|DISCARD|INCONCLUSIVE): ", ended.stdout)
    assert verdicts == ["PROMOTE", "DISCARD", "PROMOTE", "DISCARD"]
    assert "make demo: all verdicts are as expected" in ended.stdout.splitlines()[-2]
    assert (
        " next: gate its child with 'pytest --candidate v1'"
        in outputs["pytest --candidate v0 --t2e-save-baseline v0"]
    )


@pytest.mark.parametrize(("page", "names"), [("README.md", 3), ("baselines/PUBLISHED.md", 2)])
def test_pages_show_what_the_demo_prints(page: str, names: int, outputs: dict[str, str]) -> None:
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    blocks = SHOWN.findall(text)
    assert len(blocks) == names == text.count("<!-- /") - text.count("<!-- /runs")
    for command, name, block in blocks:
        printed, start = outputs[command], 0
        for part in re.split(r"(?m)^    …\n", block):
            lines = re.sub(r"(?m)^    ", "", part)
            found = printed.find(lines, start)
            assert found >= 0, f"{page}, {name}:\n{lines}\nis not in\n{printed[start:]}"
            start = found + len(lines)


def test_the_readme_is_short_and_its_commands_are_those_of_the_demo(outputs: dict[str, str]) -> None:
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    assert len(text.split()) <= 500
    commands = re.findall(r"(?m)^    ((?:pip|trace2evolve|pytest|sed|make) .*)$", text)
    makes = [command for command in commands if command.startswith("make ")]
    assert makes == ["make demo", "make test"]
    assert commands[0] == "pip install pytest-trace2evolve"
    # The demo also compares two runs that the README leaves out.
    assert {*commands[1:]} - {*makes} <= {*outputs}


@pytest.mark.parametrize(
    ("command", "expected", "problem"),
    [
        ("python -c 'exit(3)'", (), "ended with exit status 3 instead of 0"),
        ("python -c 'print(1)'", ("PROMOTE",), "did not print 'PROMOTE'"),
    ],
)
def test_an_unexpected_result_fails_the_demo_in_one_line(
    command: str,
    expected: tuple[str, ...],
    problem: str,
    script: ModuleType,
    capfd: pytest.CaptureFixture[str],
) -> None:
    steps = [script.Step("A step.", command, 0, expected), script.Step("Another.", "python -V", 0, ())]
    assert script.run(steps) == 1
    printed = capfd.readouterr().out
    *_, last = printed.splitlines()
    before, _, kept = last.partition("; the project is kept in ")
    assert before == f"make demo: '{command}' {problem}"
    assert "Another." not in printed
    assert Path(kept).is_dir()
    shutil.rmtree(kept)


def test_texts_are_found_across_lines_and_colours(script: ModuleType) -> None:
    code = "print('\\x1b[1mDISCARD:\\x1b[0m\\n  v1 fails')"
    step = script.Step("A step.", f'python -c "{code}"', 0, ("DISCARD: v1 fails",))
    assert script.run([step]) == 0


def test_without_a_temporary_folder_or_a_program_the_demo_fails_in_one_line(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert script.run([script.Step("A step.", "no-such-program", 0, ())]) == 1
    assert capsys.readouterr().err == "make demo: [Errno 2] No such file or directory: 'no-such-program'\n"
    monkeypatch.setattr(script.tempfile, "mkdtemp", lambda **_: Path("/dev/null/x").mkdir())
    assert script.run() == 1
    assert capsys.readouterr().err == "make demo: [Errno 20] Not a directory: '/dev/null/x'\n"


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_nothing(number: signal.Signals, tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, DEMO],
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("$ pytest"):
                break
        if number is signal.SIGINT:
            os.killpg(process.pid, number)  # as a terminal does
        else:
            process.send_signal(number)
        rest, _ = process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 130
    assert rest.splitlines()[-1] == "make demo: interrupted"
    assert list(tmp_path.iterdir()) == []


def demo_model(folder: Path, status: int, found: object) -> "subprocess.CompletedProcess[str]":
    """`make demo-model` with a pytest that ends so and leaves that file. Nothing is installed or measured."""
    written = (
        "" if found is None else f"mkdir {folder}/run; echo '{json.dumps(found)}' > {folder}/run/verdict.json"
    )
    for name, text in (
        ("pytest", f'echo "asked: $@"; {written}\nexit {status}'),
        ("python", f'exec {sys.executable} "$@"'),
    ):
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    command = ["make", "--silent", "--old-file=install", f"BIN={folder}", f"DEMO={folder}/run", "demo-model"]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=HANG_SECONDS)


@pytest.mark.parametrize(("status", "verdict"), [(0, "promote"), (1, "discard"), (10, "inconclusive")])
def test_a_verdict_is_a_result_whatever_it_is(tmp_path: Path, status: int, verdict: str) -> None:
    done = demo_model(tmp_path, status, {"verdict": verdict, "stopped": ""})
    assert done.returncode == 0, done.stderr
    first, *_, last = done.stdout.splitlines()
    assert first.startswith("asked: --candidate v6 -n 2 --t2e-suite support --t2e-fresh ")
    assert last == f"pytest's exit status: {status} ({verdict})"


@pytest.mark.parametrize(
    ("status", "found"),
    [
        (2, None),
        (4, None),
        (0, None),
        (0, {"verdict": None, "stopped": ""}),
        (1, {"verdict": None, "stopped": ""}),
        (10, {"verdict": "inconclusive", "stopped": "the local server ended"}),
        (1, {"verdict": "promote", "stopped": ""}),
    ],
)
def test_a_session_that_reached_no_verdict_fails_the_demo(tmp_path: Path, status: int, found: object) -> None:
    """Whether it left no verdict, none that counts, or another than its status says."""
    done = demo_model(tmp_path, status, found)
    assert done.returncode == 2
    assert done.stdout.splitlines()[-1] == (
        f"make demo-model: no verdict was reached: pytest's exit status is {status}"
    )


def advice(text: str) -> list[str]:
    """The lines of a text that advise commands to try next, with single blanks."""
    _, _, rest = text.partition("To try next, with ")
    kept, _, _ = rest.partition("pytest's exit status")
    return [" ".join(line.split()) for line in kept.splitlines()[1:] if line.strip()]


def test_what_the_model_demo_advises_is_what_the_tutorial_shows(tmp_path: Path) -> None:
    done = demo_model(tmp_path, 10, {"verdict": "inconclusive", "stopped": ""})
    shown = (REPOSITORY / "docs/tutorial.md").read_text(encoding="utf-8").partition("<!-- demo -->")[2]
    printed = advice(done.stdout.replace(f"{tmp_path}/run", ".trace2evolve/demo"))
    assert printed == advice(shown)
    assert len(printed) == 6


def test_what_the_model_demo_advises_can_be_run_and_costs_no_clean_evidence(tmp_path: Path) -> None:
    done = demo_model(tmp_path, 10, {"verdict": "inconclusive", "stopped": ""})
    splits = Project(REPOSITORY, REPOSITORY / "suites").lock.suites["support"].splits
    commands = [line.partition(" #")[0].split() for line in advice(done.stdout)[:4]]
    ours = [build_parser(COMMANDS).parse_args(words) for name, *words in commands if name == "trace2evolve"]
    show, power = ours
    assert show.task in splits["discovery"]
    assert (power.tasks, power.trials, power.live) == (len(splits["heldout"]), 3, True)
    told = " ".join(advice(done.stdout)[4:])
    assert "Opening a heldout trace ends clean evidence" in told
