"""Two sides' evidence, paired by task."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from pytest_trace2evolve.gate.columns import (
    INVARIANTS,
    KINDS,
    SUCCESS,
    Columns,
    Counts,
    Flags,
    Floats,
    columns,
)
from pytest_trace2evolve.gate.confirm import FreshResult
from pytest_trace2evolve.gate.tally import Tally, tally
from pytest_trace2evolve.records.evidence import SimulationEvidence


@dataclass(frozen=True)
class Pairs:
    """Tasks that both sides ran, in order of their ids.

    Attributes:
        names: The tasks' ids (N of them).
        baseline, candidate: What either side did, arrays of shape (N,).
        asks: By kind, whether a task names such gold actions, or may: of one that neither side ran nobody
            knows. Under `INVARIANTS`, whether it is held against them on both sides.
        left_out: Why each task that was left out was, by its id.
        identical: Whether both sides hold the same simulations.
        cost, tokens: Means of one simulation; None where no simulation says.
        fresh: p of each task's fresh trials, NaN where it has none, shape (N,); None where nothing could be
            confirmed.
        fresh_worst: The same with every lost fresh trial counted as a sign of a fall.
    """

    names: tuple[str, ...]
    baseline: Tally
    candidate: Tally
    asks: Mapping[str, Flags]
    left_out: Mapping[str, str] = field(default_factory=dict)
    identical: bool = False
    cost: float | None = None
    tokens: float | None = None
    fresh: Floats | None = None
    fresh_worst: Floats | None = None

    @property
    def both(self) -> Flags:
        """Tasks with a measured trial on both sides."""
        return (self.baseline.measured > 0) & (self.candidate.measured > 0)

    @property
    def binary(self) -> bool:
        """Whether every reward is a success or 0."""
        return all(bool(np.all(np.abs(side.reward - side.passed) < 1 - SUCCESS)) for side in self.sides)

    @property
    def sides(self) -> tuple[Tally, Tally]:
        """The baseline and the candidate."""
        return self.baseline, self.candidate

    def fixed(self) -> list[str]:
        """Tasks that fail on the baseline and pass on the candidate."""
        return self.named(self.both & ~self.baseline.passes & self.candidate.passes)

    def broken(self) -> list[str]:
        """Tasks that pass on the baseline and fail on the candidate."""
        return self.named(self.both & self.baseline.passes & ~self.candidate.passes)

    def named(self, flags: Flags) -> list[str]:
        """The names of some tasks."""
        return [self.names[place] for place in np.flatnonzero(flags)]

    def leaving_out(self, reasons: Mapping[str, str]) -> "Pairs":
        """The same pairs, with tasks that were left out before pairing; their reasons come before ours."""
        return replace(self, left_out={**self.left_out, **reasons})

    def tried_again(self, fresh: Mapping[str, FreshResult]) -> "Pairs":
        """The same pairs with what fresh trials say, by task id."""
        nothing = FreshResult(np.nan, np.nan)
        found = [fresh.get(name, nothing) for name in self.names]
        return replace(
            self,
            fresh=np.array([one.p for one in found], dtype=np.float64),
            fresh_worst=np.array([one.worst for one in found], dtype=np.float64),
        )

    def best_case(self) -> "Pairs":
        """Every simulation without a reward filled in, as well for the candidate as it could have been.

        This is a bound that a discard must survive, never a score. `fresh` counts lost trials against a fall
        already.
        """
        return replace(
            self,
            baseline=self.baseline.filled(self.asks, in_favour=False),
            candidate=self.candidate.filled(self.asks, in_favour=True),
        )

    def worst_case(self) -> "Pairs":
        """Every simulation without a reward filled in, as badly for the candidate as it could have been.

        This is a bound that a promotion must survive, never a score.
        """
        return replace(
            self,
            baseline=self.baseline.filled(self.asks, in_favour=True),
            candidate=self.candidate.filled(self.asks, in_favour=False),
            fresh=self.fresh_worst,
        )


def natural_order(name: str) -> tuple[int, int, str]:
    """Sort key of task ids: numbers by value, before other names."""
    return (0, int(name), name) if name.isascii() and name.isdigit() else (1, 0, name)


def told(left_out: Mapping[str, str]) -> tuple[str, ...]:
    """Tasks left out with their reasons, as text, in order of their ids."""
    return tuple(f"{name}: {left_out[name]}" for name in sorted(left_out, key=natural_order))


Simulations = Columns | Iterable[SimulationEvidence]
"""One side's simulations, as records or as columns."""


def pair(baseline: Simulations, candidate: Simulations) -> Pairs:
    """Pair two sides by task.

    A task is left out, by name, where only one side ran it or where the two sides ran different content
    under one id.
    """
    old = baseline if isinstance(baseline, Columns) else columns(baseline)
    new = candidate if isinstance(candidate, Columns) else columns(candidate)
    content = old.contents(), new.contents()
    names, left_out = [], {}
    for name in sorted({*old.tasks, *new.tasks}, key=natural_order):
        seen = [one.get(name) for one in content]
        if None in seen:
            left_out[name] = f"only the {'baseline' if seen[1] is None else 'candidate'} ran it"
        elif seen[0] != seen[1] or seen[0] == "":
            left_out[name] = "the two sides ran different content under this id"
        else:
            names.append(name)
    place = {name: number for number, name in enumerate(names)}
    places = [np.array([place.get(name, -1) for name in side.tasks], dtype=np.int64) for side in (old, new)]
    sums = [tally(side, where, len(names)) for side, where in zip((old, new), places, strict=True)]
    cost, tokens = (_mean(np.concatenate([getattr(side, what) for side in (old, new)]))
                    for what in ("cost", "tokens"))  # fmt: skip
    return Pairs(
        names=tuple(names),
        baseline=sums[0],
        candidate=sums[1],
        asks=_asks((old, new), places, sums),
        left_out=left_out,
        identical=_identical(old, new, places),
        cost=cost,
        tokens=tokens,
    )


def _asks(sides: tuple[Columns, Columns], places: list[Counts], sums: list[Tally]) -> dict[str, Flags]:
    size = len(sums[0].trials)
    unknown = (sums[0].measured == 0) & (sums[1].measured == 0)
    told = np.zeros(size, dtype=np.bool_)
    asks = {kind: np.zeros(size, dtype=np.bool_) for kind in KINDS}
    for side, where in zip(sides, places, strict=True):
        for kind in KINDS:
            here = where[side.task[side.asks[kind]]] if side.size else np.empty(0, dtype=np.int64)
            asks[kind][here[here >= 0]] = True
            told |= asks[kind]
    found = {kind: flags | (unknown & ~told) for kind, flags in asks.items()}
    return {**found, INVARIANTS: _held(sums[0]) & _held(sums[1])}


def _held(side: Tally) -> Flags:
    """Tasks that are held against invariants on a side; of one that was lost whole its other tasks tell."""
    return np.asarray(side.watched | ((side.measured == 0) & side.watched.any()))


def _identical(old: Columns, new: Columns, places: list[Counts]) -> bool:
    """Whether both sides hold the same simulations of the tasks that are compared, with the same rewards."""
    kept = [np.flatnonzero(where[side.task] >= 0) for side, where in zip((old, new), places, strict=True)]
    if len(kept[0]) != len(kept[1]) or not len(kept[0]) or old.ids[kept[0][0]] not in set(new.ids):
        return False  # the usual case, told without a set of half a million records
    held = [
        {(side.ids[one], bool(side.measured[one]), float(side.reward[one])) for one in rows}
        for side, rows in zip((old, new), kept, strict=True)
    ]
    return held[0] == held[1]


def _mean(values: Floats) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else None
