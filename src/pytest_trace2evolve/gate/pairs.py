"""Two sides' evidence, paired by task."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from pytest_trace2evolve.gate.columns import INVARIANTS, KINDS, Columns, Counts, Flags, Floats, columns
from pytest_trace2evolve.gate.confirm import FreshResult
from pytest_trace2evolve.gate.tally import Comparisons, Tally, tally
from pytest_trace2evolve.records.evidence import SimulationEvidence
from pytest_trace2evolve.records.task import natural_order


@dataclass(frozen=True)
class Pairs:
    """Tasks that both sides ran, in order of their ids.

    Attributes:
        names: The tasks' ids (N of them).
        baseline, candidate: What either side did, arrays of shape (N,).
        asks: By kind, whether a task names such gold actions, or may: nobody knows it of a task that neither
            side ran. Under `INVARIANTS`, whether both sides were checked for them.
        left_out: Why each task that was left out was, by its id.
        identical: Whether both sides hold the same simulations.
        cost, tokens: Means of one simulation; None if no simulation has them.
        fresh: p of each task's fresh trials, NaN if it has none, shape (N,); None if nothing could be
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
    def sides(self) -> tuple[Tally, Tally]:
        """The baseline and the candidate."""
        return self.baseline, self.candidate

    @cached_property
    def compared(self) -> Comparisons:
        """The same as one row of comparisons."""
        baseline, candidate = (side.map(lambda array: array[None, :]) for side in self.sides)
        return Comparisons(
            baseline,
            candidate,
            fresh=None if self.fresh is None else self.fresh[None, :],
            binary=bool(self.baseline.binary & self.candidate.binary),
        )

    @property
    def both(self) -> Flags:
        """Tasks with a measured trial on both sides."""
        return np.asarray(self.compared.both[0])

    def fixed(self) -> list[str]:
        """Tasks that fail on the baseline and pass on the candidate."""
        return self.named(self.compared.fixed[0])

    def broken(self) -> list[str]:
        """Tasks that pass on the baseline and fail on the candidate."""
        return self.named(self.compared.broken[0])

    def named(self, flags: Flags) -> list[str]:
        """The names of some tasks."""
        return [self.names[place] for place in np.flatnonzero(flags)]

    def leaving_out(self, reasons: Mapping[str, str]) -> "Pairs":
        """The same pairs, with tasks that were left out before pairing; their reasons come before ours."""
        return replace(self, left_out={**self.left_out, **reasons})

    def tried_again(self, fresh: Mapping[str, FreshResult]) -> "Pairs":
        """The same pairs with the results of fresh trials, by task id."""
        results = [fresh.get(name, FreshResult(np.nan, np.nan)) for name in self.names]
        return replace(
            self,
            fresh=np.array([result.p for result in results], dtype=np.float64),
            fresh_worst=np.array([result.worst for result in results], dtype=np.float64),
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


def left_out_lines(left_out: Mapping[str, str]) -> tuple[str, ...]:
    """Tasks left out with their reasons, as text, in order of their ids."""
    return tuple(f"{name}: {left_out[name]}" for name in sorted(left_out, key=natural_order))


Simulations = Columns | Iterable[SimulationEvidence]
"""One side's simulations, as records or as columns."""


def pair(baseline: Simulations, candidate: Simulations) -> Pairs:
    """Pair two sides by task.

    A task is left out, by name, if only one side ran it or if the two sides ran different content under one
    id.
    """
    old, new = (side if isinstance(side, Columns) else columns(side) for side in (baseline, candidate))
    content = old.contents(), new.contents()
    names, left_out = [], {}
    for name in sorted({*old.tasks, *new.tasks}, key=natural_order):
        digests = [side.get(name) for side in content]
        if None in digests:
            left_out[name] = f"only the {'baseline' if digests[1] is None else 'candidate'} ran it"
        elif digests[0] != digests[1] or digests[0] == "":
            left_out[name] = "the two sides ran different content under this id"
        else:
            names.append(name)
    place = {name: number for number, name in enumerate(names)}
    places = [np.array([place.get(name, -1) for name in side.tasks], dtype=np.int64) for side in (old, new)]
    sums = [tally(side, where, len(names)) for side, where in zip((old, new), places, strict=True)]
    return Pairs(
        names=tuple(names),
        baseline=sums[0],
        candidate=sums[1],
        asks=_asks((old, new), places, sums),
        left_out=left_out,
        identical=_identical(old, new, places),
        cost=_mean(old.cost, new.cost),
        tokens=_mean(old.tokens, new.tokens),
    )


def _asks(sides: tuple[Columns, Columns], places: list[Counts], sums: list[Tally]) -> dict[str, Flags]:
    size = len(sums[0].trials)
    asks = {kind: np.zeros(size, dtype=np.bool_) for kind in KINDS}
    for side, where in zip(sides, places, strict=True):
        for kind in KINDS:
            here = where[side.task[side.asks[kind]]] if side.size else np.empty(0, dtype=np.int64)
            asks[kind][here[here >= 0]] = True
    unknown = (sums[0].measured == 0) & (sums[1].measured == 0) & ~np.any(list(asks.values()), axis=0)
    found: dict[str, Flags] = {kind: flags | unknown for kind, flags in asks.items()}
    return {**found, INVARIANTS: _may_be_watched(sums[0]) & _may_be_watched(sums[1])}


def _may_be_watched(side: Tally) -> Flags:
    """Tasks checked for invariants; a task that was lost whole is taken for watched if any other task was."""
    return np.asarray(side.watched | ((side.measured == 0) & side.watched.any()))


def _identical(old: Columns, new: Columns, places: list[Counts]) -> bool:
    """Whether both sides hold the same simulations of the tasks that are compared, with the same rewards."""
    kept = [np.flatnonzero(where[side.task] >= 0) for side, where in zip((old, new), places, strict=True)]
    if len(kept[0]) != len(kept[1]) or not len(kept[0]) or old.ids[kept[0][0]] not in set(new.ids):
        return False  # the usual case, decided without a set of half a million records
    held = [
        {(side.ids[row], bool(side.measured[row]), float(side.reward[row])) for row in rows}
        for side, rows in zip((old, new), kept, strict=True)
    ]
    return held[0] == held[1]


def _mean(*columns: Floats) -> float | None:
    values = np.concatenate(columns)
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else None
