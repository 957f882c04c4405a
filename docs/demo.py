"""Runs the demo of `make demo`: the commands of a new user, and whether each ends as it should.

The template of `trace2evolve init --for own` gets a baseline, a better prompt and a broken agent, in a temporary
folder. Then two pairs of published runs are compared, which need the files of this checkout. No model is called.
"""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent

PROMOTED, DISCARDED, INTERRUPTED = 0, 1, 130


@dataclass(frozen=True)
class Step:
    """A command of the demo.

    Attributes:
        title: What the command shows.
        command: The command as a user types it.
        status: The exit status that it should have.
        expected: A regular expression that its output should match.
        is_in_checkout: Whether it runs in the checkout instead of the project.
    """

    title: str
    command: str
    status: int
    expected: str
    is_in_checkout: bool = False


STEPS = (
    Step(
        "Make a project. Its agent follows rules instead of calling a model, so it needs no key.",
        "trace2evolve init --for own",
        0,
        r"(?m)^next: pytest --candidate v0 ",
    ),
    Step(
        "Measure the agent, and save the run as baseline v0. One of four tasks fails.",
        "pytest --candidate v0 --t2e-save-baseline v0",
        0,
        r"(?m)^note: baseline saved: ",
    ),
    Step(
        "1 of 4: gate a better prompt, prompts/v1.md. It should be promoted.",
        "pytest --candidate v1",
        PROMOTED,
        r"(?m)^PROMOTE: v1 is better",
    ),
    Step(
        "Break the code: the agent says that it renewed a loan, but does not renew it.",
        "sed -i.old 's/Shall I renew/I renewed/' desk/agent.py",
        0,
        "",
    ),
    Step(
        "2 of 4: gate the broken code. It should be discarded.",
        "pytest --candidate v0 --t2e-baseline v0 --t2e-goal no-regression",
        DISCARDED,
        r"(?m)^DISCARD: the working tree",
    ),
    Step(
        "3 of 4: two published runs of gpt-4.1 on tau2 telecom, the second fine-tuned. It should be promoted.",
        "trace2evolve compare published/telecom-solo-gpt-4.1 published/telecom-solo-gpt-4.1-sft",
        PROMOTED,
        r"(?m)^PROMOTE: telecom",
        is_in_checkout=True,
    ),
    Step(
        "4 of 4: a rewritten policy prompt on tau2 retail. Its reward is 6 points higher, but the agent no longer\n"
        "# identifies each customer first. It should be discarded.",
        "trace2evolve compare published/retail-gpt-4.1-mini-base published/retail-gpt-4.1-mini-policy-v2",
        DISCARDED,
        r"(?m)^DISCARD: retail[\s\S]*\bauthentication 0 → 16 of 114",
        is_in_checkout=True,
    ),
)


def run(steps: Sequence[Step] = STEPS) -> int:
    """Run the steps until one ends in an unexpected way. Returns the exit status of the demo."""
    started_at = time.monotonic()
    try:
        project = Path(tempfile.mkdtemp(prefix="trace2evolve-demo-"))
    except OSError as error:
        print(f"make demo: no temporary folder can be made: {error}; set TMPDIR to a folder with free space")
        return 1
    try:
        folder = None
        for step in steps:
            print(f"\n# {step.title}")
            if folder != (folder := CHECKOUT if step.is_in_checkout else project):
                print(f"$ cd {shlex.quote(str(folder))}")
            print(f"$ {step.command}", flush=True)
            status, output = _run_command(step.command, folder)
            if status != step.status or not re.search(step.expected, output):
                print(_unexpected_text(step, status, project))
                return 1
    except KeyboardInterrupt:
        print("\nmake demo: interrupted")
        status = INTERRUPTED
    else:
        print(
            f"\nmake demo: all four verdicts are as expected: two PROMOTE, two DISCARD "
            f"({time.monotonic() - started_at:.0f} s). For your own agent, see docs/own-agent.md."
        )
        status = 0
    shutil.rmtree(project, ignore_errors=True)
    return status


def _run_command(command: str, folder: Path) -> tuple[int, str]:
    """Run a command and print its output as it comes. Returns its exit status and its output.

    Settings of pytest in the environment, such as `PYTEST_ADDOPTS`, do not apply.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment["PATH"] = f"{BIN}{os.pathsep}{environment.get('PATH', os.defpath)}"
    lines = []
    with subprocess.Popen(
        shlex.split(command),
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                print(line, end="", flush=True)
                lines.append(line)
        except KeyboardInterrupt:
            process.terminate()
            raise
    return process.returncode, "".join(lines)


def _unexpected_text(step: Step, status: int, project: Path) -> str:
    found = f"exit status {status}" if status != step.status else "different output"
    return (
        f"make demo: unexpected result of '{step.command}': {found}; expected exit status {step.status} and "
        f"output that matches {step.expected!r}; the project is kept in {project}"
    )


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(run())
