"""`make demo`: what it says and how it ends, for every way in which its session may end."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_trace2evolve.cli.commands import COMMANDS
from pytest_trace2evolve.cli.parser import build_parser
from pytest_trace2evolve.project.project import Project
from tests.ci_files import REPOSITORY
from tests.patience import HANG_SECONDS


def demo(folder: Path, status: int, found: object) -> "subprocess.CompletedProcess[str]":
    """The demo with a pytest that ends so and leaves that file; nothing is installed and nothing measured."""
    written = (
        "" if found is None else f"mkdir {folder}/run; echo '{json.dumps(found)}' > {folder}/run/verdict.json"
    )
    for name, text in (
        ("pytest", f'echo "asked: $@"; {written}\nexit {status}'),
        ("python", f'exec {sys.executable} "$@"'),
    ):
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    command = ["make", "--silent", "--old-file=install", f"BIN={folder}", f"DEMO={folder}/run", "demo"]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=HANG_SECONDS)


@pytest.mark.parametrize(("status", "verdict"), [(0, "promote"), (1, "discard"), (10, "inconclusive")])
def test_a_verdict_is_a_result_whatever_it_is(tmp_path: Path, status: int, verdict: str) -> None:
    done = demo(tmp_path, status, {"verdict": verdict, "stopped": ""})
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
    done = demo(tmp_path, status, found)
    assert done.returncode == 2
    assert done.stdout.splitlines()[-1] == (
        f"make demo: no verdict was reached: pytest's exit status is {status}"
    )


def advice(text: str) -> list[str]:
    """The lines of a text that advise commands to try next, with single blanks."""
    _, _, rest = text.partition("To try next, with ")
    kept, _, _ = rest.partition("pytest's exit status")
    return [" ".join(line.split()) for line in kept.splitlines()[1:] if line.strip()]


def test_what_the_demo_advises_is_what_the_readme_shows(tmp_path: Path) -> None:
    done = demo(tmp_path, 10, {"verdict": "inconclusive", "stopped": ""})
    shown = (REPOSITORY / "README.md").read_text(encoding="utf-8").partition("<!-- demo -->")[2]
    printed = advice(done.stdout.replace(f"{tmp_path}/run", ".trace2evolve/demo"))
    assert printed == advice(shown)
    assert len(printed) == 6


def test_what_the_demo_advises_can_be_run_and_costs_no_clean_evidence(tmp_path: Path) -> None:
    done = demo(tmp_path, 10, {"verdict": "inconclusive", "stopped": ""})
    splits = Project(REPOSITORY, REPOSITORY / "suites").lock.suites["support"].splits
    commands = [line.partition(" #")[0].split() for line in advice(done.stdout)[:4]]
    ours = [build_parser(COMMANDS).parse_args(words) for name, *words in commands if name == "trace2evolve"]
    show, power = ours
    assert show.task in splits["discovery"]
    assert (power.tasks, power.trials, power.live) == (len(splits["heldout"]), 3, True)
    told = " ".join(advice(done.stdout)[4:])
    assert "Opening a heldout trace ends clean evidence" in told
