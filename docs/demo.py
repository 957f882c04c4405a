"""Runs `make demo` and `make demo-model`: the commands of a new user, and whether each ends as it should.

In `make demo`, the template of `trace2evolve init --for own` gets a baseline, a better prompt and a broken
agent, in a temporary folder. Then two pairs of published runs are compared, in this checkout. No model is
called.

In `make demo-model` (`--model`), the embedded model plays a candidate live.
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

_COLOR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Step:
    """A command of the demo.

    Attributes:
        title: What the command shows.
        command: The command as a user types it.
        status: The exit status that it should have.
        expected: Texts that its output should contain. Line breaks count as spaces.
        is_in_checkout: Whether it runs in the checkout instead of the project.
    """

    title: str
    command: str
    status: int
    expected: tuple[str, ...]
    is_in_checkout: bool = False


STEPS = (
    Step(
        "Make a project. Its agent follows rules instead of calling a model, so it needs no key.",
        "trace2evolve init --for own",
        0,
        ("next: pytest --candidate v0 --t2e-save-baseline v0",),
    ),
    Step(
        "Measure the agent, and save the run as baseline v0. One of four tasks fails.",
        "pytest --candidate v0 --t2e-save-baseline v0",
        0,
        ("note: baseline saved: baselines/desk/v0.json",),
    ),
    Step(
        "1 of 4: gate a better prompt, prompts/v1.md. It should be promoted.",
        "pytest --candidate v1",
        PROMOTED,
        ("PROMOTE: v1 is better than v0",),
    ),
    Step(
        "Break the code: the agent says that it renewed a loan, but does not renew it.",
        "sed -i.old 's/Shall I renew/I renewed/' desk/agent.py",
        0,
        (),
    ),
    Step(
        "2 of 4: gate the broken code. It should be discarded.",
        "pytest --candidate v0 --t2e-baseline v0 --t2e-goal no-regression",
        DISCARDED,
        ("DISCARD: the working tree",),
    ),
    Step(
        "3 of 4: published runs of gpt-4.1 on tau2 telecom, the second fine-tuned. It should be promoted.",
        "trace2evolve compare published/telecom-solo-gpt-4.1 published/telecom-solo-gpt-4.1-sft",
        PROMOTED,
        ("PROMOTE: telecom-solo-gpt-4.1-sft",),
        is_in_checkout=True,
    ),
    Step(
        "4 of 4: a rewritten policy prompt on tau2 retail. The reward rises by 6 points, but the agent now\n"
        "# reads and changes records of customers that it has not identified. It should be discarded.",
        "trace2evolve compare published/retail-gpt-4.1-mini-base published/retail-gpt-4.1-mini-policy-v2",
        DISCARDED,
        ("DISCARD: retail", "rules: authentication 0 → 16 of 114 simulations"),
        is_in_checkout=True,
    ),
)

MODEL_STEPS = (
    Step(
        "Make a project with synthetic cases. Its baseline v0 is the embedded model under the policy alone.",
        "trace2evolve init --for support",
        0,
        ("next: pytest --candidate v7",),
    ),
    Step(
        "1 of 2: gate v7, which states eleven habits of a careful agent. It should be promoted.",
        'pytest suites --candidate v7 -n 2 -m "heldout or synthetic" --t2e-run-folder=runs/v7',
        PROMOTED,
        ("PROMOTE: v7 is better than v0",),
    ),
    Step(
        "Make this run the baseline of further candidates.",
        "trace2evolve baseline promote runs/v7",
        0,
        (),
    ),
    Step(
        "2 of 2: gate v8, which acts without asking the customer for a yes. It should be discarded.",
        'pytest suites --candidate v8 -n 2 -m "heldout or synthetic"',
        DISCARDED,
        ("DISCARD: v8 fails on", "consent"),
    ),
)


def run(steps: Sequence[Step] = STEPS, name: str = "make demo") -> int:
    """Run the steps until one ends in an unexpected way. Returns the exit status of the demo."""
    started_at = time.monotonic()
    project = None
    try:
        project = Path(tempfile.mkdtemp(prefix="trace2evolve-demo-"))
        if problem := _first_problem(steps, project):
            print(f"\n{name}: {problem}; the project is kept in {project}")
            project = None
            return 1
        seconds = time.monotonic() - started_at
        verdicts = [text.partition(":")[0] for step in steps for text in step.expected]
        counts = [verdicts.count(verdict) for verdict in ("PROMOTE", "DISCARD")]
        found = f"{counts[0]} PROMOTE and {counts[1]} DISCARD"
        print(f"\n{name}: all verdicts are as expected, {found} ({seconds:.0f} s)")
        print("Your own agent: trace2evolve init --for own, and docs/agents.md")
    except KeyboardInterrupt:
        print(f"\n{name}: interrupted")
        return INTERRUPTED
    except OSError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 1
    finally:
        if project is not None:
            shutil.rmtree(project, ignore_errors=True)
    return 0


def _first_problem(steps: Sequence[Step], project: Path) -> str:
    """Run the steps. Returns in which way the first unexpected one ended; empty if all end as they should."""
    folder = None
    for step in steps:
        print(f"\n# {step.title}")
        if folder != (folder := CHECKOUT if step.is_in_checkout else project):
            print(f"$ cd {shlex.quote(str(folder))}")
        print(f"$ {step.command}", flush=True)
        status, output = _run_command(step.command, folder)
        words = " ".join(_COLOR.sub("", output).split())
        if status != step.status:
            return f"'{step.command}' ended with exit status {status} instead of {step.status}"
        for text in step.expected:
            if text not in words:
                return f"'{step.command}' did not print {text!r}"
    return ""


def _run_command(command: str, folder: Path) -> tuple[int, str]:
    """Run a command and print its output as it comes. Returns its exit status and its output.

    Settings of pytest in the environment, such as `PYTEST_ADDOPTS`, do not apply.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    if sys.stdout.isatty():
        environment.setdefault("FORCE_COLOR", "1")
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


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(run(MODEL_STEPS, "make demo-model") if sys.argv[1:] == ["--model"] else run())
