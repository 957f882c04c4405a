"""Writes and reads `verdict.json`. CI and promotion need only this file and the evidence next to it."""

import json
from pathlib import Path

from pydantic import ValidationError

from pytest_trace2evolve.errors import ResultsError
from pytest_trace2evolve.evidence.integrity import VERDICT_NAME
from pytest_trace2evolve.evidence.results import decode_results
from pytest_trace2evolve.gate.decide import worst_decision
from pytest_trace2evolve.records.verdict import RUN_VERDICT_SCHEMA, Decision, RunVerdict
from pytest_trace2evolve.utils.files import write_atomic
from pytest_trace2evolve.utils.reading import first_problem


def write_verdict(folder: Path, run_verdict: RunVerdict) -> None:
    """Write a run's verdict into its folder.

    Raises:
        OSError: the file could not be written, so there is no verdict.
    """
    text = json.dumps(run_verdict.model_dump(mode="json"), indent=1, ensure_ascii=False, allow_nan=False)
    write_atomic(folder / VERDICT_NAME, text + "\n")


def read_verdict(folder: Path) -> RunVerdict:
    """Read a run's verdict.

    Raises:
        ResultsError: the verdict is missing, damaged, of a different version, or contradicts its own parts.
    """
    path = folder / VERDICT_NAME
    if not path.exists():
        raise ResultsError(
            f"{folder}: holds no {VERDICT_NAME}: the run was not gated, or its verdict does not count"
        )
    json_value = decode_results(path)
    version = json_value.get("schema_version") if isinstance(json_value, dict) else None
    if version != RUN_VERDICT_SCHEMA:
        raise ResultsError(
            f"{path}: format {version!r} is not {RUN_VERDICT_SCHEMA}, which this version reads"
        )
    try:
        verdict = RunVerdict.model_validate_json(json.dumps(json_value))
    except ValidationError as error:
        raise ResultsError(f"{path}: damaged at {first_problem(error)}; run it again") from None
    _check_parts(path, verdict)
    return verdict


def _check_parts(path: Path, run_verdict: RunVerdict) -> None:
    """Reject an edited verdict, which contradicts its own parts."""
    for name, suite in run_verdict.suites.items():
        try:
            decisions = [Decision(part["verdict"]) for part in suite.verdicts if part["verdict"] is not None]
        except (KeyError, ValueError) as error:
            raise ResultsError(f"{path}: damaged at suites.{name}.verdicts: {error}; run it again") from None
        if worst_decision(decisions) != suite.verdict:
            raise _edited_error(
                path, f"suite {name!r} says {_decision_word(suite.verdict)}", worst_decision(decisions)
            )
    run_decision = worst_decision(suite.verdict for suite in run_verdict.suites.values())
    if run_decision != run_verdict.verdict and not (run_decision is None and run_verdict.stopped):
        raise _edited_error(path, f"the run says {_decision_word(run_verdict.verdict)}", run_decision)


def _edited_error(path: Path, claim: str, worst_part: Decision | None) -> ResultsError:
    return ResultsError(
        f"{path}: {claim}, but its parts say {_decision_word(worst_part)}; it was edited, so run it again"
    )


def _decision_word(decision: Decision | None) -> str:
    return decision.value if decision else "nothing"
