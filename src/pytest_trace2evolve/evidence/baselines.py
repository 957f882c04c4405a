"""Baselines: committed evidence, compact and reviewable, one file a suite and name."""

from pathlib import Path

from pydantic import ValidationError

from pytest_trace2evolve._canonical import canonical_json, digest_text
from pytest_trace2evolve.errors import ResultsError
from pytest_trace2evolve.evidence.atomic import write_atomic
from pytest_trace2evolve.evidence.results import decode
from pytest_trace2evolve.records.base import complaint
from pytest_trace2evolve.records.evidence import SCHEMA, Evidence


def render_evidence(evidence: Evidence) -> str:
    """Evidence as JSON with one simulation a line, so that a diff shows which simulation changed."""
    provenance = canonical_json(evidence.provenance.model_dump(mode="json", exclude_none=True))
    lines = [
        canonical_json(record.model_dump(mode="json", exclude_defaults=True))
        for record in evidence.simulations
    ]
    body = ",\n".join(f"  {line}" for line in lines)
    return (
        f'{{"schema_version": {evidence.schema_version},\n'
        f'"provenance": {provenance},\n'
        f'"simulations": [\n{body}\n]}}\n'
    )


def evidence_digest(evidence: Evidence) -> str:
    """Identifies evidence by its content, however the file that holds it is written."""
    return digest_text(render_evidence(evidence))


def write_evidence(path: Path, evidence: Evidence, *, exclusive: bool = False) -> None:
    """Write evidence to a file that is whole or absent.

    Raises:
        FileExistsError: `exclusive`, and there is a file already.
        OSError: it could not be written.
    """
    write_atomic(path, render_evidence(evidence), exclusive=exclusive)


def is_evidence(record: object) -> bool:
    """Whether a decoded JSON value is evidence of ours rather than a results file of tau2's."""
    return isinstance(record, dict) and "provenance" in record and "schema_version" in record


def parse_evidence(record: object, path: Path) -> Evidence:
    """Evidence from a decoded JSON value.

    Raises:
        ResultsError: it is damaged or of another format version; names the file and the place.
    """
    version = record.get("schema_version") if isinstance(record, dict) else None
    if version != SCHEMA:
        raise ResultsError(f"{path}: evidence format {version!r} is not {SCHEMA}, the one this version reads")
    try:
        return Evidence.model_validate_json(canonical_json(record))
    except ValidationError as error:
        raise ResultsError(f"{path}: damaged at {complaint(error)}; restore the file") from None


def read_evidence(path: Path) -> Evidence:
    """Read a baseline.

    Raises:
        ResultsError: the file is missing, damaged or not evidence.
    """
    record = decode(path)
    if not is_evidence(record):
        raise ResultsError(
            f"{path}: is not evidence of trace2evolve; save one with pytest --t2e-save-baseline NAME"
        )
    return parse_evidence(record, path)
