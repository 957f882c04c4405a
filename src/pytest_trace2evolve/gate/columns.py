"""The simulations of one side as columns: one array per field that the gate reads.

Half a million simulations fit into memory as columns, but not as records.
"""

import math
from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from pytest_trace2evolve.records.evidence import SimulationEvidence
from pytest_trace2evolve.records.rules import Invariant
from pytest_trace2evolve.records.score import ToolType
from pytest_trace2evolve.records.trace import TerminationReason

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

KINDS: Mapping[str, tuple[str, ...]] = {
    "action_match": (),
    "read_action_match": (ToolType.READ,),
    "write_action_match": (ToolType.WRITE,),
}
"""The names of the shares of gold actions matched, with the tool types that count (empty for all types)."""

INVARIANTS = "invariants"
"""The name of the share of a task's trials that broke no invariant. The name is not in `KINDS`."""

BREACHES: Mapping[str, Invariant] = {f"{INVARIANTS}.{kind.value}": kind for kind in Invariant}
"""The invariants by the name of the share of a task's trials that kept the invariant. A side has a share
only if at least one of its simulations broke the invariant."""


@dataclass(frozen=True)
class Columns:
    """The simulations of one side; every array has one entry per simulation (n of them).

    Attributes:
        tasks, digests: Ids of the tasks, and digests of their contents, in order of first occurrence.
        task, digest: Indices into `tasks` and `digests`.
        measured: Whether the simulation has a reward.
        reward: The reward; 0 if nothing was measured.
        shares: By kind, the share of gold actions matched; NaN if the task has none or the share is unknown.
            The key `INVARIANTS` exists only if any simulation was checked for invariants; its value is 1 for
            a simulation that broke none. A key of `BREACHES` exists only if any simulation broke that
            invariant; its value is 1 for a simulation that kept it.
        asks: By kind, whether the task is known to name such actions.
        max_steps: Whether the step budget ended the simulation.
        ids: The simulations' ids.
        cost, tokens: US dollars and tokens; NaN if not known.
    """

    tasks: tuple[str, ...]
    digests: tuple[str, ...]
    task: Counts
    digest: Counts
    measured: Flags
    reward: Floats
    shares: Mapping[str, Floats]
    asks: Mapping[str, Flags]
    max_steps: Flags
    ids: tuple[str, ...]
    cost: Floats
    tokens: Floats

    @property
    def size(self) -> int:
        """The number of simulations."""
        return len(self.ids)

    def of_tasks(self, tasks: Collection[str]) -> "Columns":
        """The simulations of some tasks; the names of the other tasks are dropped."""
        kept = np.array([name in tasks for name in self.tasks], dtype=np.bool_)
        rows = kept[self.task]
        plain = ("digest", "measured", "reward", "max_steps", "cost", "tokens")
        return replace(
            self,
            tasks=tuple(name for name in self.tasks if name in tasks),
            task=(np.cumsum(kept) - 1)[self.task[rows]],
            shares={kind: share[rows] for kind, share in self.shares.items()},
            asks={kind: asked[rows] for kind, asked in self.asks.items()},
            ids=tuple(np.array(self.ids, dtype=object)[rows]),
            **{name: getattr(self, name)[rows] for name in plain},
        )

    def contents(self) -> dict[str, str]:
        """The digest of each task's content; empty if the id was run with several contents."""
        found: dict[str, str] = {}
        width = max(1, len(self.digests))
        for key in np.unique(self.task * width + self.digest).tolist():
            task, digest = divmod(key, width)
            name = self.tasks[task]
            found[name] = "" if name in found else self.digests[digest]
        return found


Pattern = tuple[tuple[str, int, int | None], ...]
"""Gold actions of a simulation: for each tool type the total and the matched number (None if unknown)."""

_BITS: Mapping[str, int] = {name: 1 << bit for bit, name in enumerate(BREACHES)}


class ColumnsBuilder:
    """Gathers columns, a batch of simulations at a time."""

    def __init__(self) -> None:
        self._ids: list[str] = []
        self._tasks: dict[str, int] = {}
        self._digests: dict[str, int] = {}
        self._patterns: dict[Pattern, int] = {}
        self._task, self._digest, self._trial, self._pattern = (array("q") for _ in range(4))
        self._reward, self._cost, self._tokens = (array("d") for _ in range(3))
        self._max_steps = bytearray()
        self._breaches = array("h")

    def extend(
        self,
        *,
        ids: Sequence[str],
        tasks: Sequence[str],
        trials: Sequence[int],
        digests: Sequence[str],
        rewards: Sequence[float],
        ends: Sequence[str],
        patterns: Sequence[Pattern],
        costs: Sequence[float],
        tokens: Sequence[float],
        breaches: Sequence[int],
    ) -> None:
        """Add simulations by their fields, with one entry per simulation. Unknown numbers are NaN.

        `breaches` are results of `breaches_of`.
        """
        self._ids.extend(ids)
        self._task.extend([self._tasks.setdefault(name, len(self._tasks)) for name in tasks])
        self._digest.extend([self._digests.setdefault(digest, len(self._digests)) for digest in digests])
        self._trial.extend(trials)
        self._reward.extend(rewards)
        self._max_steps.extend([end == TerminationReason.MAX_STEPS for end in ends])
        self._cost.extend(costs)
        self._tokens.extend(tokens)
        self._breaches.extend(breaches)
        # Simulations share a few patterns of gold actions, so `build` computes the shares once per pattern.
        self._pattern.extend([self._patterns.setdefault(one, len(self._patterns)) for one in patterns])

    def add(self, records: Sequence[SimulationEvidence]) -> None:
        """Add the simulations of some records."""
        used = [_cost_and_tokens(record) for record in records]
        self.extend(
            ids=[record.id for record in records],
            tasks=[record.task_id for record in records],
            trials=[record.trial for record in records],
            digests=[record.task_digest for record in records],
            rewards=[math.nan if record.reward is None else record.reward for record in records],
            ends=[record.termination_reason for record in records],
            patterns=[
                tuple((kind, count.total, count.matched) for kind, count in record.actions.items())
                for record in records
            ],
            costs=[cost for cost, _ in used],
            tokens=[tokens for _, tokens in used],
            breaches=[breaches_of(record.invariants) for record in records],
        )

    @property
    def size(self) -> int:
        """The number of simulations so far."""
        return len(self._ids)

    @property
    def trials(self) -> Counts:
        """The numbers of the trials."""
        return np.array(self._trial, dtype=np.int64)

    def build(self) -> Columns:
        """The columns of all simulations so far."""
        reward = np.array(self._reward, dtype=np.float64)
        measured = ~np.isnan(reward)
        pattern = np.array(self._pattern, dtype=np.int64)
        shares, asks = {}, {}
        for name, types in KINDS.items():
            known = [_matched_share(one, types) for one in self._patterns]
            share = np.array([matched for matched, _ in known], dtype=np.float64)
            shares[name] = np.where(measured, share[pattern], np.nan)
            asks[name] = np.array([asked for _, asked in known], dtype=np.bool_)[pattern]
        breaches = np.array(self._breaches, dtype=np.int64)
        if (watched := measured & (breaches >= 0)).any():
            broken = np.where(watched, breaches, 0)
            for name, bits in {INVARIANTS: -1, **_BITS}.items():
                if name == INVARIANTS or (broken & bits).any():
                    shares[name] = np.where(watched, ((broken & bits) == 0).astype(np.float64), np.nan)
        return Columns(
            tasks=tuple(self._tasks),
            digests=tuple(self._digests),
            task=np.array(self._task, dtype=np.int64),
            digest=np.array(self._digest, dtype=np.int64),
            measured=measured,
            reward=np.where(measured, reward, 0.0),
            shares=shares,
            asks=asks,
            max_steps=np.frombuffer(bytes(self._max_steps), dtype=np.bool_),
            ids=tuple(self._ids),
            cost=np.array(self._cost, dtype=np.float64),
            tokens=np.array(self._tokens, dtype=np.float64),
        )


def columns(records: Iterable[SimulationEvidence]) -> Columns:
    """The columns of some records."""
    builder = ColumnsBuilder()
    builder.add(list(records))
    return builder.build()


def breaches_of(invariants: Mapping[Invariant, int] | None) -> int:
    """The invariants that a simulation broke, as a bit set; -1 if the simulation was not checked for them."""
    if invariants is None:
        return -1
    return sum(bit for name, bit in _BITS.items() if invariants.get(BREACHES[name]))


def _cost_and_tokens(record: SimulationEvidence) -> tuple[float, float]:
    recorded = math.nan if record.cost is None else record.cost
    if not record.usage:
        return recorded, math.nan
    costs = [usage.cost for usage in record.usage.values()]
    known = [cost for cost in costs if cost is not None]
    cost = sum(known) if len(known) == len(costs) else recorded
    return cost, float(sum(usage.tokens for usage in record.usage.values()))


def _matched_share(pattern: Pattern, types: tuple[str, ...]) -> tuple[float, bool]:
    """The share of gold actions matched (NaN if none or unknown), and whether the task names any."""
    counts = [(total, matched) for kind, total, matched in pattern if not types or kind in types]
    total = sum(count for count, _ in counts)
    if not total:
        return np.nan, False
    if any(matched is None for _, matched in counts):
        return np.nan, True
    return sum(matched or 0 for _, matched in counts) / total, True
