"""Baselines: committed evidence, compact and reviewable, one file for each suite and name."""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, FailFast, Field, ValidationError

from pytest_trace2evolve.errors import ResultsError
from pytest_trace2evolve.evidence.results import decode_results
from pytest_trace2evolve.records.base import Record
from pytest_trace2evolve.records.evidence import EVIDENCE_SCHEMA, Evidence, Provenance, SimulationEvidence
from pytest_trace2evolve.utils.canonical import DIGEST_LENGTH, canonical_json, digest_text
from pytest_trace2evolve.utils.files import write_atomic
from pytest_trace2evolve.utils.reading import (
    MAX_RESULTS_BYTES,
    check_number_of_values,
    first_problem,
    open_regular,
)

RESTORE_REMEDY = "restore it from git, or remove it and save it again"
"""The remedy for evidence that was edited."""

DIGEST_FIELD = "digest"
"""The field of an evidence file that holds the digest of the rest. Older files do not have it."""

_FIRST_LINE = re.compile(
    rb'\{"schema_version": %d(, "%b": "([0-9a-f]+)")?,\n' % (EVIDENCE_SCHEMA, DIGEST_FIELD.encode())
)
"""The first line that `render_evidence` writes. The groups are the digest with its key, and the digest."""


def render_evidence(evidence: Evidence) -> str:
    """Render evidence as JSON, a simulation per line for diffs, with the digest of the rest in the first."""
    return "".join(_parts(evidence, evidence_digest(evidence)))


def evidence_digest(evidence: Evidence) -> str:
    """Return the digest of evidence, which depends only on its content and not on the layout of its file."""
    content = hashlib.sha256()
    for part in _parts(evidence):
        content.update(part.encode("utf-8", "surrogatepass"))
    return content.hexdigest()[:DIGEST_LENGTH]


def _parts(evidence: Evidence, digest: str = "") -> Iterator[str]:
    provenance = evidence.provenance.model_dump(mode="json", exclude_none=True)
    dump = partial(SimulationEvidence.model_dump, mode="json", exclude_defaults=True)
    return _render_parts(evidence.schema_version, provenance, map(dump, evidence.simulations), digest)


def _render_parts(
    version: object, provenance: object, simulations: Iterable[object], digest: str = ""
) -> Iterator[str]:
    """Yield the text of an evidence file in parts, because that of a large run is larger than its records."""
    version = f'{version}, "{DIGEST_FIELD}": "{digest}"' if digest else version
    yield f'{{"schema_version": {version},\n"provenance": {canonical_json(provenance)},\n"simulations": [\n'
    for number, simulation in enumerate(simulations):
        yield (",\n  " if number else "  ") + canonical_json(simulation)
    yield "\n]}\n"


def write_evidence(path: Path, evidence: Evidence, *, exclusive: bool = False) -> str:
    """Write evidence to a file, and return its digest."""
    digest = evidence_digest(evidence)
    write_atomic(path, _parts(evidence, digest), exclusive=exclusive)
    return digest


def is_evidence(json_value: object) -> bool:
    """Whether a decoded JSON value is this project's evidence rather than a results file of tau2."""
    return isinstance(json_value, dict) and "provenance" in json_value and "schema_version" in json_value


def parse_evidence(json_value: object, path: Path) -> Evidence:
    version = json_value.get("schema_version") if isinstance(json_value, dict) else None
    if version != EVIDENCE_SCHEMA:
        raise ResultsError(
            f"{path}: has evidence format {version!r}, but this version reads format {EVIDENCE_SCHEMA}"
        )
    assert isinstance(json_value, dict)
    content = {name: value for name, value in json_value.items() if name != DIGEST_FIELD}
    try:
        evidence = Evidence.model_validate_json(canonical_json(content))
    except ValidationError as error:
        raise ResultsError(f"{path}: damaged at {first_problem(error)}; restore the file") from None
    if DIGEST_FIELD in json_value:
        # Computed from the raw values, because a field added by a later version must not change the digest.
        parts = _render_parts(version, content["provenance"], content["simulations"])
        content_digest = digest_text("".join(parts))
        if content_digest != json_value[DIGEST_FIELD]:
            raise ResultsError(
                f"{path}: was edited: its content has digest {content_digest}, but the file says "
                f"{json_value[DIGEST_FIELD]!r}; "
                f"{RESTORE_REMEDY}"
            )
    return evidence


def read_evidence(path: Path) -> Evidence:
    json_value = decode_results(path)
    if not is_evidence(json_value):
        raise ResultsError(
            f"{path}: is not evidence of trace2evolve; save a baseline with pytest --t2e-save-baseline NAME"
        )
    return parse_evidence(json_value, path)


_PASS_ON = AfterValidator(lambda simulation, info: info.context(simulation))


class _StreamedEvidence(Record):
    """An evidence file whose simulations are passed on one by one and not kept."""

    schema_version: Annotated[int, Field(ge=EVIDENCE_SCHEMA, le=EVIDENCE_SCHEMA)]
    digest: str | None = None
    provenance: Provenance
    simulations: Annotated[list[Annotated[SimulationEvidence, _PASS_ON]], FailFast()]


def stream_evidence(path: Path, add: Callable[[SimulationEvidence], None]) -> Provenance | None:
    """Validate an evidence file and pass its simulations to `add`, so that not all records are kept.

    Returns the provenance; None if the file has another layout than `render_evidence` writes, is damaged or
    was edited: then the simulations passed so far do not count, and `read_evidence` reports the problem.
    """
    trials: dict[str, set[int]] = {}

    def add_once(simulation: SimulationEvidence) -> None:
        known_trials = trials.setdefault(simulation.task_id, set())
        if simulation.trial in known_trials:
            raise ValueError(f"two simulations of trial {simulation.trial}")
        known_trials.add(simulation.trial)
        add(simulation)

    try:
        with open_regular(path, MAX_RESULTS_BYTES) as file:
            data = file.read(MAX_RESULTS_BYTES)
        if (first_line := _FIRST_LINE.match(data)) is None or not _has_digest(data, first_line):
            return None
        check_number_of_values(data)
        provenance = _StreamedEvidence.model_validate_json(data, context=add_once).provenance
        canonical_json(provenance.model_dump())  # raises ValueError if a number is not finite
    except (OSError, ValueError, MemoryError):
        return None
    return provenance


def _has_digest(data: bytes, first_line: re.Match[bytes]) -> bool:
    """Whether the bytes of a file have the digest in its first line; true if there is none."""
    if first_line[2] is None:
        return True
    content = hashlib.sha256(data[: first_line.start(1)])
    content.update(memoryview(data)[first_line.end(1) :])
    return content.hexdigest()[:DIGEST_LENGTH].encode() == first_line[2]
