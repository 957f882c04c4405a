"""What the checks of `lint` share: what they look at, and what they report."""

import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.worlds.registry import Worlds


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong: `path: what; mend`. A warning fails nothing."""

    path: Path
    text: str
    warning: bool = False


@dataclass(frozen=True)
class Linted:
    """What the checks look at.

    Attributes:
        project: Where things lie.
        against: The commit that frozen candidates are held against.
        worlds: Opens the project's own worlds.
    """

    project: Project
    against: str = "HEAD"
    worlds: Worlds = field(default_factory=Worlds)


def found_in(path: Path, error: Exception) -> Finding:
    """An error as a finding: of the file that it names itself, where it names one."""
    text = " ".join(str(error).split())
    named, colon, rest = text.partition(": ")
    return Finding(Path(named), rest) if colon and Path(named).is_absolute() else Finding(path, text)


def git(root: Path, *arguments: str) -> str | None:
    """What git answers; None where it refuses or is not there."""
    try:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else None
