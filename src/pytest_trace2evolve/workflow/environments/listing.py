"""What environments there are, and what is known of them in a project."""

from pathlib import Path

from pytest_trace2evolve.records.script import Content
from pytest_trace2evolve.report.environments import Listed
from pytest_trace2evolve.workflow.environments.generator import EASIEST
from pytest_trace2evolve.workflow.environments.kept import kept_in
from pytest_trace2evolve.workflow.environments.registry import Environments


def listed(environments: Environments, folder: Path) -> list[Listed]:
    """All environments, each with the calibrations that a folder keeps of it.

    Args:
        environments: Those that are known.
        folder: Where calibrations are kept.

    Raises:
        GeneratorError: one cannot be made, or a file of calibrations is damaged.
    """
    found = []
    for name in environments.names:
        kept = kept_in(folder, name)
        stale = any(
            environments.generator(name, one.difficulty, Content(one.content)).digest != one.digest
            for one in kept
        )
        digest = environments.generator(name, EASIEST).digest
        found.append(Listed(name, environments.offer(name).pays, digest, kept, stale))
    return found
