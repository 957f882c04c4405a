"""Scoring whole files again: what `trace2evolve score` does."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_trace2evolve.evidence.results import ResultsFile, read_results
from pytest_trace2evolve.records.protocols import Judge
from pytest_trace2evolve.scoring.metrics import Metrics, metrics
from pytest_trace2evolve.workflow.recorded.sides import Scored, domain_of, expand, rescore
from pytest_trace2evolve.worlds.registry import Worlds


@dataclass(frozen=True)
class ScoredFile:
    """One results file with every simulation scored again."""

    path: Path
    domain: str
    scored: tuple[Scored, ...]
    metrics: Metrics
    notes: tuple[str, ...]


def rescore_files(
    paths: Sequence[Path], worlds: Worlds, provider: str | None, judge: Judge | None
) -> list[ScoredFile]:
    """Score files one by one; all are read before the first is scored, so that bad input is told at once.

    Raises:
        ResultsError: a file cannot be read or trusted.
        WorldError: a domain or provider is unknown.
    """
    files = [read_results(path) for path in expand(paths)]
    return [_scored(file, worlds, provider, judge) for file in files]


def _scored(file: ResultsFile, worlds: Worlds, provider: str | None, judge: Judge | None) -> ScoredFile:
    scored = rescore(file, worlds, provider, judge)
    unclear = [one.record for one in scored if one.record.note and one.record.reward is None]
    notes = [f"{len(unclear)} not scored, first {unclear[0].id!r}: {unclear[0].note}"] if unclear else []
    return ScoredFile(
        path=file.path,
        domain=domain_of(file),
        scored=tuple(scored),
        metrics=metrics(one.record for one in scored),
        notes=tuple(notes),
    )
