"""A run in stages: which options go with it, what its baseline must hold, and what a stage takes of it.

What comes of a stage: whether the next one follows, and what the run says of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.gate.alpha_spending import Stage, stage_alpha
from pytest_trace2evolve.gate.checks import Policy
from pytest_trace2evolve.gate.decide import worst
from pytest_trace2evolve.gate.pairs import natural_order
from pytest_trace2evolve.project.project import LockedSuite
from pytest_trace2evolve.records.evidence import Evidence, SimulationEvidence
from pytest_trace2evolve.records.verdict import Decision, Goal
from pytest_trace2evolve.session.baselines import Baseline
from pytest_trace2evolve.session.verdicts import SuiteOutcome

if TYPE_CHECKING:
    from pytest_trace2evolve.session.plan import Options


def refuse_unstaged(options: "Options") -> None:
    """Refuse options that do not go with stages.

    Raises:
        ConfigError: one was given, or one that is needed was not.
    """
    live = options.live
    if live is not None and live.cassette is not None:
        raise ConfigError("--t2e-stages does not go with --t2e-playback: a cassette holds one run")
    if options.replays:
        raise ConfigError(
            "--t2e-stages does not go with --t2e-replay, which has the trials that the files hold"
        )
    if live is None:
        raise ConfigError("--t2e-stages adds trials of a live run: give --t2e-model")
    if options.trials is not None:
        raise ConfigError(
            "--t2e-stages does not go with --t2e-trials: it says how many trials each stage has"
        )
    if live.record is not None:
        raise ConfigError("--t2e-stages does not go with --t2e-record: a cassette holds one run")
    if options.save_baseline is not None:
        raise ConfigError(
            "--t2e-stages does not go with --t2e-save-baseline: a run that may stop early is no baseline; "
            f"give --t2e-trials {options.stages[-1]} instead"
        )
    if options.goal is Goal.NO_REGRESSION:
        raise ConfigError(
            "--t2e-stages does not go with --t2e-goal no-regression, which decides at the first stage; "
            f"give --t2e-trials {options.stages[-1]} instead"
        )
    if options.gate == "off":
        raise ConfigError("--t2e-stages stops where the gate decides, and the gate is off")


def stage_of(number: int, schedule: Sequence[int], policy: Policy) -> Stage:
    """A stage of a schedule, by its number from 1."""
    level = stage_alpha(policy.alpha, schedule)
    return Stage(number, len(schedule), schedule[number - 1], level, schedule[-1], tuple(schedule))


def refuse_short_baselines(
    baselines: Mapping[str, Baseline], suites: Sequence[LockedSuite], schedule: Sequence[int]
) -> None:
    """See that every stage has as many trials of the baseline as of the candidate.

    Raises:
        ConfigError: a suite has no baseline, or it holds fewer trials of a task than the last stage.
    """
    told, most = ",".join(map(str, schedule)), schedule[-1]
    mend = f"save one with --t2e-trials {most} --t2e-save-baseline NAME"
    for one in suites:
        baseline = baselines.get(one.name)
        if baseline is None:
            raise ConfigError(f"--t2e-stages {told}: suite {one.name!r} has no baseline; {mend}")
        held = {task_id: len(records) for task_id, records in _by_task(baseline.evidence).items()}
        short = sorted((task_id for task_id, count in held.items() if count < most), key=natural_order)
        if short:
            raise ConfigError(
                f"--t2e-stages {told}: baseline {baseline.name!r} of {one.name!r} holds {held[short[0]]} "
                f"of the {most} trials of task {short[0]!r}; {mend}"
            )


def first_trials(baseline: Baseline, trials: int) -> Baseline:
    """The first trials of each task, by their numbers, of a baseline."""
    kept = {
        id(record)
        for records in _by_task(baseline.evidence).values()
        for record in sorted(records, key=lambda record: record.trial)[:trials]
    }
    simulations = tuple(record for record in baseline.evidence.simulations if id(record) in kept)
    return replace(baseline, evidence=baseline.evidence.model_copy(update={"simulations": simulations}))


def _by_task(evidence: Evidence) -> dict[str, list[SimulationEvidence]]:
    groups: dict[str, list[SimulationEvidence]] = {}
    for record in evidence.simulations:
        groups.setdefault(record.task_id, []).append(record)
    return groups


def goes_on(stage: Stage, outcomes: Sequence[SuiteOutcome]) -> bool:
    """Whether the next stage follows one that came to its end: it may still decide what this one did not."""
    undecided = worst(one.decision for one in outcomes) is Decision.INCONCLUSIVE
    partial = any(verdict.partial for one in outcomes for verdict in one.verdicts)
    return undecided and not partial and not stage.last


def stage_note(stage: Stage, *, goes_on: bool) -> str:
    """What a run's notes say of its stage."""
    follows = "it decides nothing, and the next one follows" if goes_on else "the last one of this run"
    return f"{stage}, tested at {stage.alpha:.4f}: {follows}"
