"""What comes of a stage: whether the next one follows, and what the run says of it."""

from collections.abc import Sequence

from pytest_trace2evolve.gate.decide import worst
from pytest_trace2evolve.gate.stages import Stage
from pytest_trace2evolve.records.verdict import Decision
from pytest_trace2evolve.workflow.judging.verdicts import SuiteOutcome


def goes_on(stage: Stage, outcomes: Sequence[SuiteOutcome]) -> bool:
    """Whether the next stage follows one that came to its end: it may still decide what this one did not."""
    undecided = worst(one.decision for one in outcomes) is Decision.INCONCLUSIVE
    partial = any(verdict.partial for one in outcomes for verdict in one.verdicts)
    return undecided and not partial and not stage.last


def stage_note(stage: Stage, *, goes_on: bool) -> str:
    """What a run's notes say of its stage."""
    follows = "it decides nothing, and the next one follows" if goes_on else "the last one of this run"
    return f"{stage}, tested at {stage.alpha:.4f}: {follows}"
