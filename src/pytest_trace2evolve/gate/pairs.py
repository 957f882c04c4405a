"""Two sides' evidence, paired by task."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from pytest_trace2evolve.records.evidence import ActionCount, SimulationEvidence
from pytest_trace2evolve.records.score import Status
from pytest_trace2evolve.records.trace import TerminationReason

SUCCESS = 1.0 - 1e-6
"""A reward from here on is a success (tau2's tolerance)."""


@dataclass(frozen=True)
class Trials:
    """The trials of one task on one side."""

    records: tuple[SimulationEvidence, ...]

    @property
    def measured(self) -> list[SimulationEvidence]:
        """The trials that have a reward."""
        return [record for record in self.records if record.status is Status.MEASURED]

    @property
    def reward(self) -> float | None:
        """Mean reward over the measured trials."""
        rewards = [record.reward for record in self.measured if record.reward is not None]
        return fmean(rewards) if rewards else None

    @property
    def passes(self) -> bool | None:
        """Whether more than half of the measured trials succeed."""
        measured = self.measured
        if not measured:
            return None
        return 2 * sum((record.reward or 0.0) >= SUCCESS for record in measured) > len(measured)

    def action_match(self, *kinds: str) -> float | None:
        """Mean share of gold actions matched over the trials in which they were checked."""
        shares = [share for record in self.measured if (share := record.action_share(*kinds)) is not None]
        return fmean(shares) if shares else None

    @property
    def max_steps(self) -> int:
        """How many trials the step budget ended."""
        return sum(record.hit_max_steps for record in self.records)


@dataclass(frozen=True)
class Pairs:
    """Tasks that both sides ran, in order of their ids, and the reason of each task left out, by its id."""

    tasks: Mapping[str, tuple[Trials, Trials]]
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def measured(self) -> dict[str, tuple[Trials, Trials]]:
        """The tasks with a measured trial on both sides."""
        return {name: pair for name, pair in self.tasks.items() if pair[0].measured and pair[1].measured}

    def side(self, index: int) -> list[SimulationEvidence]:
        """All records of the baseline (0) or the candidate (1)."""
        return [record for pair in self.tasks.values() for record in pair[index].records]

    def fixed(self) -> list[str]:
        """Tasks that fail on the baseline and pass on the candidate."""
        return [name for name, (old, new) in self.measured.items() if new.passes and not old.passes]

    def broken(self) -> list[str]:
        """Tasks that pass on the baseline and fail on the candidate."""
        return [name for name, (old, new) in self.measured.items() if old.passes and not new.passes]

    def leaving_out(self, reasons: Mapping[str, str]) -> "Pairs":
        """The same pairs, with tasks that were left out before pairing; their reasons come before ours."""
        return Pairs(self.tasks, {**self.left_out, **reasons})

    def worst_case(self) -> "Pairs":
        """Every simulation without a reward filled in, as badly for the candidate as it could have been.

        This is a bound that a promotion must survive, never a score.
        """
        return Pairs({name: _filled(old, new) for name, (old, new) in self.tasks.items()}, self.left_out)


def natural_order(name: str) -> tuple[int, int, str]:
    """Sort key of task ids: numbers by value, before other names."""
    return (0, int(name), name) if name.isascii() and name.isdigit() else (1, 0, name)


def told(left_out: Mapping[str, str]) -> tuple[str, ...]:
    """Tasks left out with their reasons, as text, in order of their ids."""
    return tuple(f"{name}: {left_out[name]}" for name in sorted(left_out, key=natural_order))


def pair(baseline: Iterable[SimulationEvidence], candidate: Iterable[SimulationEvidence]) -> Pairs:
    """Pair two sides by task.

    A task is left out, by name, where only one side ran it or where the two sides ran different content
    under one id.
    """
    old, new = _by_task(baseline), _by_task(candidate)
    tasks: dict[str, tuple[Trials, Trials]] = {}
    left_out: dict[str, str] = {}
    for name in sorted(old.keys() | new.keys(), key=natural_order):
        if name not in new or name not in old:
            left_out[name] = f"only the {'baseline' if name in old else 'candidate'} ran it"
            continue
        if len({record.task_digest for record in (*old[name], *new[name])}) > 1:
            left_out[name] = "the two sides ran different content under this id"
            continue
        tasks[name] = (Trials(tuple(old[name])), Trials(tuple(new[name])))
    return Pairs(tasks, left_out)


def _by_task(records: Iterable[SimulationEvidence]) -> dict[str, list[SimulationEvidence]]:
    tasks: dict[str, list[SimulationEvidence]] = {}
    for record in records:
        tasks.setdefault(record.task_id, []).append(record)
    for group in tasks.values():
        group.sort(key=lambda record: record.trial)
    return tasks


def _filled(old: Trials, new: Trials) -> tuple[Trials, Trials]:
    # A simulation that was lost before it ran does not know its task's gold actions; another one does.
    totals: Mapping[str, ActionCount] = next(
        (record.actions for record in (*old.records, *new.records) if record.actions), {}
    )
    return (
        Trials(tuple(_fill(record, totals, in_favour=True) for record in old.records)),
        Trials(tuple(_fill(record, totals, in_favour=False) for record in new.records)),
    )


def _fill(
    record: SimulationEvidence, totals: Mapping[str, ActionCount], *, in_favour: bool
) -> SimulationEvidence:
    if record.status is Status.MEASURED:
        return record
    actions = {
        kind: ActionCount(total=count.total, matched=count.total if in_favour else 0)
        for kind, count in totals.items()
    }
    reason = TerminationReason.USER_STOP if in_favour else TerminationReason.MAX_STEPS
    return record.model_copy(
        update={
            "status": Status.MEASURED,
            "reward": 1.0 if in_favour else 0.0,
            "actions": actions,
            "termination_reason": reason.value,
        }
    )


def mean_difference(values: Sequence[tuple[float, float]]) -> float | None:
    """Mean of candidate minus baseline over tasks; None over none."""
    return fmean(new - old for old, new in values) if values else None
