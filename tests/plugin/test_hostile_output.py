"""Hostile texts from everywhere in one project: no output steers a terminal or a job."""

import json
import re
import unicodedata
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from pytest_trace2evolve.cli.main import main
from tests.plugin.conftest import CONFTEST, DeskProject

EVIL = (
    "\x1b[2J\x1b]0;x\x07\r::error::a\n::error file=x::b\n##[error]c \x9b8m\u202e\u2066\u200b\u2028::d\x85::e"
)

RAISING = f"""
EVIL = {EVIL!r}


def raising(task, world, candidate, trial):
    if task.id == "close":
        raise ConnectionError(EVIL)
    if task.id == "note":
        raise ValueError(EVIL)
    return listed(task, world, candidate, trial)


def pytest_t2e_agents(config):
    return {{"listed": raising}}


def pytest_report_header(config):
    return EVIL


def pytest_terminal_summary(terminalreporter):
    terminalreporter.write_line(EVIL)
    terminalreporter.write(":")
    terminalreporter.write(":error::two writes\\n")
"""


def forbidden(text: str) -> list[str]:
    steer = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}
    found = [item for item in text if item not in "\n\t" and unicodedata.category(item) in steer]
    return found + re.findall(r"(?m)^\s*::|##\[", text)


def test_a_session_tells_hostile_texts_harmlessly(
    project: DeskProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write("conftest.py", CONFTEST + RAISING)
    project.baseline("v0")
    step = project.root / "step.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(step))
    arguments = (
        "--candidate=v1",
        "--junitxml=junit.xml",
        "-rA",
        "-vv",
        "--t2e-summary=s.md",
        "--t2e-summary=s.json",
    )
    done = project.spawn(*arguments, "-p", "no:xdist")
    assert "\\x1b[2J" in done.stdout.str()
    texts = {
        "stdout": done.stdout.str(),
        "stderr": done.stderr.str(),
        **{
            name: (project.root / name).read_text(encoding="utf-8")
            for name in ("junit.xml", "s.md", "s.json")
        },
        "step": step.read_text(encoding="utf-8"),
    }
    assert {name: found for name, text in texts.items() if (found := forbidden(text))} == {}


SAYING = """
COMMANDS = "::error::a\\n\\u2003::set-output name=x::y\\n\\t::stop-commands::z\\n##[group]b and ::error::c"


def test_says(record_property):
    print(COMMANDS)
    record_property("said", COMMANDS)
    raise ValueError(COMMANDS)
"""


def test_junit_holds_no_command_to_a_runner(project: DeskProject) -> None:
    """Neither in the file nor in a text of it, which other tools print: an output, a message, a property."""
    project.write("test_own.py", SAYING)
    options = ("--junitxml=junit.xml", "-o", "junit_logging=all", "-o", "junit_family=xunit1")
    project.run("--candidate=v1", "suites", "test_own.py", *options)
    text = (project.root / "junit.xml").read_text(encoding="utf-8")
    assert forbidden(text) == []
    elements = list(ET.fromstring(text).iter())
    texts = [
        value for item in elements for value in (item.text or "", item.tail or "", *item.attrib.values())
    ]
    assert sum("set-output" in item for item in texts) >= 3
    assert [item for item in texts if forbidden(item) or "::error::" in item] == []


@pytest.mark.parametrize(
    "arguments",
    [
        [f"--candidate={EVIL}"],
        ["--candidate=v1", f"--t2e-baseline={EVIL}"],
        ["--candidate=v1", f"--t2e-suite={EVIL}"],
        ["--candidate=v1", f"--t2e-agent={EVIL}"],
        ["--candidate=v1", f"--t2e-results={EVIL}"],
        ["--candidate=v1", f"--t2e-gate={EVIL}"],
    ],
    ids=["candidate", "baseline", "suite", "agent", "replay", "gate"],
)
def test_a_usage_error_is_one_harmless_line(project: DeskProject, arguments: list[str]) -> None:
    done = project.spawn(*[item.replace("\x00", "") for item in arguments])
    assert done.ret == 4
    assert forbidden(done.stdout.str() + done.stderr.str()) == []
    [line] = [line for line in done.stderr.lines if line.strip()]
    assert line.startswith("ERROR: ")


@pytest.mark.parametrize(
    "command",
    [
        ["show", EVIL, "x"],
        ["score", EVIL],
        ["compare", EVIL, EVIL],
        ["baseline", "promote", EVIL],
        ["check", "--root", EVIL],
        ["serve", EVIL],
        [EVIL],
        ["power", "--tasks", EVIL],
        ["cases", "show", EVIL],
        ["environment", "check", EVIL],
    ],
    ids=lambda command: ascii(command[0])[:12],
)
def test_no_command_prints_what_steers(
    command: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        status = main(command)
    except SystemExit as error:  # argparse
        status = int(str(error.code))
    assert status == 2
    out, err = capsys.readouterr()
    assert forbidden(out + err) == []


def test_names_within_a_results_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "runs.json"
    path.write_text(json.dumps({"info": {}, "tasks": [{"id": EVIL}], "simulations": [{"id": EVIL}]}))
    assert main(["score", str(path)]) == 2
    out, err = capsys.readouterr()
    assert forbidden(out + err) == []
    assert len(err.splitlines()) == 1
