"""Baselines: committed evidence, compact and reviewable, one file for each suite and name."""

from collections.abc import Iterable
from pathlib import Path

from pydantic import ValidationError

from pytest_trace2evolve.errors import ResultsError
from pytest_trace2evolve.evidence.results import decode_results
from pytest_trace2evolve.records.evidence import EVIDENCE_SCHEMA, Evidence
from pytest_trace2evolve.utils.canonical import canonical_json, digest_text
from pytest_trace2evolve.utils.files import write_atomic
from pytest_trace2evolve.utils.reading import first_problem

RESTORE_REMEDY = "restore it from git, or remove it and save it again"
"""The remedy for evidence that was edited."""

DIGEST_FIELD = "digest"
"""The field of an evidence file that holds the digest of the rest. Older files do not have it."""


def render_evidence(evidence: Evidence) -> str:
    """Render evidence as JSON with one simulation per line, so that a diff shows which simulation changed.

    The first line holds the digest of the rest. Readers compare this digest to detect edits.
    """
    content = _evidence_content(evidence)
    return content.replace(",", f', "{DIGEST_FIELD}": "{digest_text(content)}",', 1)


def evidence_digest(evidence: Evidence) -> str:
    """Return the digest of evidence, which depends only on its content and not on the layout of its file."""
    return digest_text(_evidence_content(evidence))


def _evidence_content(evidence: Evidence) -> str:
    return _render_content(
        evidence.schema_version,
        evidence.provenance.model_dump(mode="json", exclude_none=True),
        (simulation.model_dump(mode="json", exclude_defaults=True) for simulation in evidence.simulations),
    )


def _render_content(version: object, provenance: object, simulations: Iterable[object]) -> str:
    """The text of an evidence file without its digest."""
    body = ",\n".join(f"  {canonical_json(simulation)}" for simulation in simulations)
    return (
        f'{{"schema_version": {version},\n'
        f'"provenance": {canonical_json(provenance)},\n'
        f'"simulations": [\n{body}\n]}}\n'
    )


def write_evidence(path: Path, evidence: Evidence, *, exclusive: bool = False) -> None:
    write_atomic(path, render_evidence(evidence), exclusive=exclusive)


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
        content_digest = digest_text(_render_content(version, content["provenance"], content["simulations"]))
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
