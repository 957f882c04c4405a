"""The findings of `trace2evolve check`."""

from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from pytest_trace2evolve.errors import Trace2EvolveError
from pytest_trace2evolve.utils.reading import first_problem


@dataclass(frozen=True)
class Finding:
    """One problem, in the form `path: problem; remedy`. A warning does not fail the check."""

    path: Path
    text: str
    is_warning: bool = False


def to_finding(path: Path, error: Exception) -> Finding:
    """Convert an error to a finding about the file that its message names, or else about `path`."""
    text = " ".join(str(error).split())
    name, colon, remainder = text.partition(": ")
    return Finding(Path(name), remainder) if colon and Path(name).is_absolute() else Finding(path, text)


def error_line(error: BaseException) -> str:
    """Return an error as one line. For errors from outside this package, the line starts with the type."""
    if isinstance(error, ValidationError):
        return first_problem(error, error.title)
    text = " ".join(str(error).split())
    return text if isinstance(error, Trace2EvolveError) else f"{type(error).__name__}: {text}"
