"""Baselines: committed evidence, compact and reviewable, one file for each suite and name."""

from collections.abc import Iterable
from pathlib import Path

from pydantic import ValidationError

from pytest_trace2evolve.errors import ResultsError
from pytest_trace2evolve.evidence.results import decode
from pytest_trace2evolve.records.evidence import SCHEMA, Evidence
from pytest_trace2evolve.utils.canonical import canonical_json, digest_text
from pytest_trace2evolve.utils.files import write_atomic
from pytest_trace2evolve.utils.reading import problem_in

RESTORE = "restore it from git, or remove it and save it anew"
"""The remedy for evidence that was edited."""

DIGEST = "digest"
"""The field of an evidence file that holds the digest of the rest. Older files do not have it."""


def render_evidence(evidence: Evidence) -> str:
    """Evidence as JSON with one simulation per line, so that a diff shows which simulation changed.

    The first line holds the digest of the rest. Reading the file compares this digest to detect edits.
    """
    content = _content_of(evidence)
    return content.replace(",", f', "{DIGEST}": "{digest_text(content)}",', 1)


def evidence_digest(evidence: Evidence) -> str:
    """The digest of evidence, which depends on its content alone and not on the layout of its file."""
    return digest_text(_content_of(evidence))


def _content_of(evidence: Evidence) -> str:
    return _content(
        evidence.schema_version,
        evidence.provenance.model_dump(mode="json", exclude_none=True),
        (record.model_dump(mode="json", exclude_defaults=True) for record in evidence.simulations),
    )


def _content(version: object, provenance: object, simulations: Iterable[object]) -> str:
    """The text of an evidence file without its digest."""
    body = ",\n".join(f"  {canonical_json(record)}" for record in simulations)
    return (
        f'{{"schema_version": {version},\n'
        f'"provenance": {canonical_json(provenance)},\n'
        f'"simulations": [\n{body}\n]}}\n'
    )


def write_evidence(path: Path, evidence: Evidence, *, exclusive: bool = False) -> None:
    write_atomic(path, render_evidence(evidence), exclusive=exclusive)


def is_evidence(record: object) -> bool:
    """Whether a decoded JSON value is this project's evidence rather than a results file of tau2."""
    return isinstance(record, dict) and "provenance" in record and "schema_version" in record


def parse_evidence(record: object, path: Path) -> Evidence:
    version = record.get("schema_version") if isinstance(record, dict) else None
    if version != SCHEMA:
        raise ResultsError(f"{path}: evidence format {version!r} is not {SCHEMA}, the one this version reads")
    assert isinstance(record, dict)
    content = {name: value for name, value in record.items() if name != DIGEST}
    try:
        evidence = Evidence.model_validate_json(canonical_json(content))
    except ValidationError as error:
        raise ResultsError(f"{path}: damaged at {problem_in(error)}; restore the file") from None
    if DIGEST in record:
        # Computed from the raw values, because a field added by a later version must not change the digest.
        found = digest_text(_content(version, content["provenance"], content["simulations"]))
        if found != record[DIGEST]:
            raise ResultsError(
                f"{path}: was edited: its content has digest {found}, and the file says {record[DIGEST]!r}; "
                f"{RESTORE}"
            )
    return evidence


def read_evidence(path: Path) -> Evidence:
    record = decode(path)
    if not is_evidence(record):
        raise ResultsError(
            f"{path}: is not evidence of trace2evolve; save one with pytest --t2e-save-baseline NAME"
        )
    return parse_evidence(record, path)
