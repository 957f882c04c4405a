"""Exports ToolSandbox from a clone: an environment of its own, its scenarios as JSON, and the manifest."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path

from pytest_trace2evolve.errors import WorldError
from pytest_trace2evolve.utils.canonical import digest, digest_text
from pytest_trace2evolve.utils.files import write_atomic
from pytest_trace2evolve.utils.git import git_text
from pytest_trace2evolve.worlds.toolsandbox.dump import (
    MANIFEST,
    SCENARIOS,
    Manifest,
    read_dump,
    read_manifest,
)
from pytest_trace2evolve.worlds.toolsandbox.process import BRIDGE, bridge_environment

CLOCK = 1718193600.0
"""The frozen time: 12 June 2024, 12:00 UTC, a Wednesday."""

SEED = 0
"""The seed with which upstream shuffles the tools of scenarios."""

_UNUSED = re.compile(r"anthropic|huggingface|sentencepiece|transformers|tree-sitter|vertexai")
"""Dependencies of upstream's own agents, which are not used here."""

_UNDECLARED = ("attrs", "tqdm")
"""Packages that upstream imports without a requirement."""

_PYTHONS = ("python3.11", "python3.12", "python3.10")
"""Interpreters for which upstream's pinned packages have wheels."""

SUITES = {"toolsandbox-offline": "offline", "toolsandbox": "all"}
"""The suites, with the domains of their world."""

OnProgress = Callable[..., None]
"""Gets the number of steps that are done, a label and the number of all steps."""


def export(clone: Path, folder: Path, on_progress: OnProgress = lambda *_: None) -> Manifest:
    """Export ToolSandbox to a folder. An environment that is complete is used again.

    Raises:
        WorldError: `clone` is not a clone of ToolSandbox, its packages cannot be installed, or it differs too
            much from the revision that is known.
    """
    clone = clone.expanduser().resolve()
    pins = _read_pins(clone)
    folder.mkdir(parents=True, exist_ok=True)
    steps = len(pins) + 2
    python = _make_environment(folder / "env", pins, lambda done, label: on_progress(done, label, steps))
    on_progress(len(pins) + 1, "scenarios", steps)
    environment = bridge_environment(str(clone))
    scenarios = _run([str(python), "-W", "ignore", str(BRIDGE), "export", str(CLOCK), str(SEED)], environment)
    text = json.dumps(json.loads(scenarios), ensure_ascii=False)
    write_atomic(folder / SCENARIOS, text)
    manifest = Manifest(
        commit=(git_text(clone, "rev-parse", "HEAD") or "").strip(),
        clock=CLOCK,
        seed=SEED,
        scenarios=digest_text(text),
        source=_source_digest(clone),
        clone=str(clone),
        python=str(python),
    )
    write_atomic(folder / MANIFEST, manifest.model_dump_json(indent=2) + "\n")
    read_dump(folder, read_manifest(folder).scenarios)
    on_progress(steps, "done", steps)
    return manifest


def suite_text(domain: str) -> str:
    """The file of a suite."""
    return f"""\
# Made by `trace2evolve import --format toolsandbox`. Transfer holds each of its bases in all eight variants.
description = "ToolSandbox: {domain} scenarios"
provider = "toolsandbox"
domain = "{domain}"
trials = 1
max_steps = 30
max_errors = 1000

[splits]
discovery = {{ benchmark = "discovery" }}
heldout = {{ benchmark = "heldout" }}
transfer = {{ benchmark = "transfer" }}
"""


def _read_pins(clone: Path) -> list[str]:
    """The requirements of upstream's tools, as the clone pins them."""
    path = clone / "pyproject.toml"
    try:
        project = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
        is_toolsandbox = project["name"] == "tool_sandbox" and (clone / "tool_sandbox").is_dir()
    except (OSError, KeyError, ValueError):
        is_toolsandbox = False
    if not is_toolsandbox:
        raise WorldError(
            f"{clone} is not a clone of ToolSandbox; run "
            "`git clone https://github.com/apple/ToolSandbox` and name that folder"
        )
    pins = [name for name in project["dependencies"] if not _UNUSED.match(name)]
    return [*pins, *_UNDECLARED]


def _make_environment(folder: Path, pins: Sequence[str], on_step: Callable[[int, str], None]) -> Path:
    """Make a virtual environment with upstream's packages, and return its interpreter."""
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    marker = folder / "installed"
    if marker.exists() and marker.read_text(encoding="utf-8") == digest(list(pins)):
        return python
    on_step(0, "environment")
    shutil.rmtree(folder, ignore_errors=True)
    _run([_find_python(), "-I", "-m", "venv", str(folder)], dict(os.environ))
    command = [str(python), "-I", "-m", "pip", "install", "--disable-pip-version-check", *pins]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, encoding="utf-8"
    ) as pip:
        lines = []
        done = 0
        for line in pip.stdout or ():
            lines.append(line)
            if line.startswith("Collecting ") and any(line.split()[1].startswith(pin) for pin in pins):
                done += 1
                on_step(done, line.split()[1])
    if pip.returncode:
        cause = next((line for line in reversed(lines) if line.startswith("ERROR")), "".join(lines[-1:]))
        raise WorldError(
            f"ToolSandbox's packages cannot be installed in {folder}: {cause.strip()}; correct that and run "
            "the command again"
        )
    marker.write_text(digest(list(pins)), encoding="utf-8")
    return python


def _find_python() -> str:
    """An interpreter that upstream's packages support: this one, or one on the path that runs."""
    if sys.version_info[:2] <= (3, 12):
        return sys.executable
    for name in _PYTHONS:
        path = shutil.which(name)
        if path and not subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode:
            return path
    raise WorldError(
        f"ToolSandbox's packages of 2024 need Python 3.10 to 3.12, and none of {', '.join(_PYTHONS)} runs; "
        "install one of them"
    )


def _run(command: Sequence[str], environment: dict[str, str]) -> str:
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    if done.returncode:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["no output"]
        raise WorldError(f"`{' '.join(command[:4])}` failed: {lines[-1]}; correct that and export again")
    return done.stdout.decode()


def _source_digest(clone: Path) -> str:
    files = sorted((clone / "tool_sandbox").rglob("*.py"))
    return digest(
        [[file.relative_to(clone).as_posix(), digest_text(file.read_text("utf-8"))] for file in files]
    )
