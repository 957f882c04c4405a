"""The repository's action and workflow examples as data, and a runner of an action's shell steps."""

import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.patience import HANG_SECONDS

REPOSITORY = Path(__file__).resolve().parents[1]
ACTION = REPOSITORY / "action.yml"
EXAMPLES = sorted((REPOSITORY / "docs" / "examples").glob("*.yml"))
EXPRESSION = re.compile(r"\$\{\{\s*(.*?)\s*\}\}")


def load(path: Path) -> dict[str, Any]:
    """A YAML file; the key `on`, which YAML takes for a truth value, by its name."""
    record = yaml.safe_load(path.read_text(encoding="utf-8"))
    return {"on" if key is True else key: value for key, value in record.items()}


def steps(record: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """All steps of an action or a workflow."""
    if "runs" in record:
        yield from record["runs"]["steps"]
    for job in record.get("jobs", {}).values():
        yield from job["steps"]


@dataclass
class ActionRun:
    """Runs shell steps of the action in a folder, as GitHub's runner would.

    Attributes:
        folder: The checkout.
        temp: RUNNER_TEMP.
        inputs: What the workflow gives; defaults are added.
        event: Values of expressions that begin with `github.`.
        path: A folder of programs that are found before others.
    """

    folder: Path
    temp: Path
    inputs: dict[str, str]
    event: dict[str, str] = field(default_factory=dict)
    path: Path | None = None
    outputs: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        declared = load(ACTION)["inputs"]
        defaults = {name: str(item.get("default", "")) for name, item in declared.items()}
        assert set(self.inputs) <= set(defaults)
        self.inputs = {**defaults, **self.inputs}

    @property
    def step_summary(self) -> Path:
        """The job's summary."""
        return self.temp / "step-summary.md"

    def step(self, name: str) -> subprocess.CompletedProcess[str]:
        """Run one step by its id; its outputs are kept."""
        (step,) = (item for item in steps(load(ACTION)) if item.get("id") == name)
        output = self.temp / "output"
        output.write_text("")
        self.step_summary.touch()
        surroundings = {
            key: value for key, value in os.environ.items() if not key.startswith(("GIT_", "GITHUB_"))
        }
        runner = {
            "RUNNER_TEMP": str(self.temp),
            "GITHUB_OUTPUT": str(output),
            "GITHUB_STEP_SUMMARY": str(self.step_summary),
            "GITHUB_SERVER_URL": "https://github.example",
            "GITHUB_REPOSITORY": "acme/agents",
            "GITHUB_RUN_ID": "42",
            "GITHUB_WORKFLOW": "prompt changes",
            "GITHUB_JOB": "gate",
        }
        given = {key: self._value(value) for key, value in step.get("env", {}).items()}
        path = f"{self.path}{os.pathsep}{os.environ['PATH']}" if self.path else os.environ["PATH"]
        script = self.temp / f"{name}.sh"
        script.write_text(step["run"], encoding="utf-8")
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)],
            cwd=self.folder / self._value(step.get("working-directory", ".")),
            env={**surroundings, **runner, **given, "PATH": path},
            capture_output=True,
            text=True,
            timeout=HANG_SECONDS,
        )
        for line in output.read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition("=")
            self.outputs[f"steps.{name}.outputs.{key}"] = value
        return done

    def _value(self, text: str) -> str:
        return EXPRESSION.sub(lambda found: self._expression(found.group(1)), str(text))

    def _expression(self, text: str) -> str:
        for part in text.split(" || "):
            known = {
                **{f"inputs.{key}": value for key, value in self.inputs.items()},
                **self.outputs,
                **self.event,
            }
            if known.get(part):
                return known[part]
        return ""
