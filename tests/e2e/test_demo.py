"""`make demo` and `make demo-model`: what they print and how they end, however a command ends.

The README and the page on published runs show outputs of the demo. A line `…` there stands for omitted lines.
"""

import importlib.util
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

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
    assert " next: pytest --candidate v1\n" in outputs["pytest --candidate v0 --t2e-save-baseline v0"]


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
@pytest.mark.parametrize(
    "number",
    [
        signal.SIGINT,
    ],
)
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


def test_the_demo_with_a_model_gates_a_candidate_on_the_splits_that_decide(script: ModuleType) -> None:
    """`make demo-model` takes minutes, so no test runs it. Its commands are the tutorial's."""
    shown = (REPOSITORY / "docs/tutorial.md").read_text(encoding="utf-8")
    _, promoted, _, discarded = script.MODEL_STEPS
    assert (promoted.status, discarded.status) == (script.PROMOTED, script.DISCARDED)
    for gated in (promoted, discarded):
        assert f"    {gated.command.replace(' --t2e-run-folder=runs/v7', '')}\n" in shown
        words = shlex.split(gated.command)
        assert words[words.index("-m") + 1] == "heldout or synthetic"
        assert (REPOSITORY / "candidates" / f"{words[words.index('--candidate') + 1]}.md").is_file()
