"""Keeps the figures of scored results in the user's cache, so that nothing is scored twice on a machine.

The cache lies outside of projects, so that no commit can bring figures. They count only for the content of
the results, the code of the scorer and the own checks from which they were computed.
"""

import contextlib
import functools
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_trace2evolve.errors import ResultsError
from pytest_trace2evolve.evidence.results import traces_digest
from pytest_trace2evolve.records.base import Record
from pytest_trace2evolve.records.evidence import Evidence
from pytest_trace2evolve.utils.canonical import digest, digest_text
from pytest_trace2evolve.utils.files import write_atomic
from pytest_trace2evolve.utils.optional import installed_version
from pytest_trace2evolve.utils.reading import MAX_RESULTS_BYTES, read_text

if TYPE_CHECKING:
    from pytest_trace2evolve.records.protocols import Judge
    from pytest_trace2evolve.session.trace_checks import TraceChecks
    from pytest_trace2evolve.worlds.registry import Worlds

_SCORING = ("evidence", "records", "scoring", "session", "utils", "worlds")
"""The subpackages that can change figures."""

_PROVIDERS = {"inspect_evals": "inspect_evals", "trace2evolve": "pytest-trace2evolve"}
"""Providers whose worlds change only with the version of a distribution, which is the value."""

_KEPT_SECONDS = 30 * 86_400


class LoadedEvidence(Record):
    """One candidate's evidence, with one `Evidence` for each domain and mode.

    Attributes:
        notes: Notes on renumbered trials and on simulations without a reward.
        files: The results files from which the evidence was scored, each with the run that the file names
            (empty if none).
        providers: The providers of the worlds that scored them.
    """

    sides: tuple[Evidence, ...]
    notes: tuple[str, ...]
    files: tuple[tuple[Path, str], ...]
    providers: tuple[str, ...]


def figures_key(
    paths: Sequence[Path], rules: Sequence[object], judge: "Judge | None", trace_checks: "TraceChecks | None"
) -> str:
    """Return the key of the figures of results; empty if what scores them cannot be identified.

    `rules` are further facts on which the figures depend. Raises `ResultsError` if a file cannot be read.
    """
    origins = {} if trace_checks is None else trace_checks.origins
    if judge is not None or any(origin.code and origin.code.unknown for origin in origins.values()):
        return ""
    checks = {name: origin.model_dump(mode="json") for name, origin in origins.items()}
    return digest([[[path.name, traces_digest(path)] for path in paths], rules, checks, _scorer_digest()])


@functools.cache
def _scorer_digest() -> str:
    """The digest of all other code that can change figures."""
    package = Path(__file__).resolve().parents[1]
    files = {
        path.relative_to(package).as_posix(): digest_text(path.read_bytes().decode("latin-1"))
        for name in _SCORING
        for path in (package / name).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    return digest([files, [installed_version(name) for name in _PROVIDERS.values()]])


def read_figures(key: str, paths: Sequence[Path], worlds: "Worlds") -> LoadedEvidence | None:
    """Return the stored figures of the results at some paths; None if there are none, or they are damaged."""
    try:
        head, _, text = read_text(_folder() / key, ResultsError, max_bytes=MAX_RESULTS_BYTES).partition("\n")
        stored = LoadedEvidence.model_validate_json(text) if head == digest_text(key + text) else None
    except (ResultsError, ValueError, RuntimeError):
        return None
    if stored is None or not all(map(worlds.is_built_in, stored.providers)):
        return None
    files = zip(paths, (run for _, run in stored.files), strict=True)
    return stored.model_copy(update={"files": tuple(files)})


def store_figures(key: str, loaded: LoadedEvidence, worlds: "Worlds") -> None:
    """Store the figures of results from built-in worlds, whose version is known, and delete old figures."""
    is_built_in = all(name in _PROVIDERS and worlds.is_built_in(name) for name in loaded.providers)
    if not (key and is_built_in):
        return
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        text = loaded.model_dump_json(exclude_defaults=True)
        write_atomic(_folder() / key, f"{digest_text(key + text)}\n{text}")
        for old in _folder().iterdir():
            if old.stat().st_mtime < time.time() - _KEPT_SECONDS:
                old.unlink()


def forget_figures() -> None:
    """Delete all stored figures."""
    with contextlib.suppress(RuntimeError):
        shutil.rmtree(_folder(), ignore_errors=True)


def _folder() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "trace2evolve" / "figures"
