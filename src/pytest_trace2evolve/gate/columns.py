"""The simulations of one side as columns: one array per field that the gate reads.

Half a million simulations fit into memory as columns, but not as records.
"""

import math
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from pytest_trace2evolve.records.evidence import SimulationEvidence
from pytest_trace2evolve.records.rules import Invariant
from pytest_trace2evolve.records.score import NO_JUDGE_NOTE, ToolType
from pytest_trace2evolve.records.trace import TerminationReason
from pytest_trace2evolve.records.trace_check import CheckOutcome

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_KeyT = TypeVar("_KeyT")

ACTION_METRICS: Mapping[str, tuple[str, ...]] = {
    "action_match": (),
    "read_action_match": (ToolType.READ,),
    "write_action_match": (ToolType.WRITE,),
}
"""The names of the shares of gold actions matched, with the tool types that count (empty for all types)."""

INVARIANTS = "invariants"
"""The name of the share of a task's trials that broke no invariant. The name is not in `ACTION_METRICS`."""

INVARIANT_METRICS: Mapping[str, Invariant] = {f"{INVARIANTS}.{kind.value}": kind for kind in Invariant}
"""The invariants by the name of the share of a task's trials that kept the invariant. A side has a share
only if at least one of its simulations broke the invariant."""

MINEFIELD = f"{INVARIANTS}.{Invariant.MINEFIELD}"
"""The share of trials without a hit minefield; only worlds with minefields have it."""

COLLATERAL = f"{INVARIANTS}.{Invariant.COLLATERAL_CHANGE}"
"""The share of trials without a collateral change; a side of an older version lacks it."""

AGENT_ERRORS = "agent_errors"
"""The name of the share of a task's trials that the agent did not end by an error. A side has the share only
if at least one of its simulations ended in an agent error."""

COST, TOKENS, TURNS, LATENCY = "cost", "tokens", "turns", "latency"
USAGE_METRICS = (COST, TOKENS, TURNS, LATENCY)
"""What the agent used in a simulation: US dollars, tokens, messages, and seconds that its model took."""

CHECK_PREFIX = "checks."
"""The beginning of the names of shares of the project's own checks."""

APPLIES_PREFIX = "applies."
"""The beginning of the names of shares of trials to which one of the project's own checks applies."""

_CHECK_SHARES: Mapping[str, tuple[float, float]] = {
    CheckOutcome.KEPT: (1.0, 1.0),
    CheckOutcome.NOT_APPLICABLE: (1.0, 0.0),
    CheckOutcome.BROKEN: (0.0, 1.0),
    CheckOutcome.ERROR: (np.nan, np.nan),
}
"""By outcome, whether a simulation kept a check and whether the check applied to the simulation (1 or 0). A
simulation that a check does not apply to cannot break the check, so it counts as kept."""


@dataclass(frozen=True)
class Columns:
    """The simulations of one side; every array has one entry per simulation (n of them).

    Attributes:
        tasks, digests: Ids of the tasks, and digests of their contents, in order of first occurrence.
        task_index, digest_index: Indices into `tasks` and `digests`.
        trial: The numbers of the simulations' trials.
        measured: Whether the simulation has a reward.
        reward: The reward; 0 if nothing was measured.
        shares: By kind, the share of gold actions matched; NaN if the task has none or the share is unknown.
            The key `INVARIANTS` exists only if any simulation was checked for invariants; its value is 1 for
            a simulation that broke none. A key of `INVARIANT_METRICS` exists only if any simulation broke
            that invariant; its value is 1 for a simulation that kept it. The key `AGENT_ERRORS` exists only
            if any simulation ended in an agent error; its value is 0 for such a simulation, else 1. One of
            the project's own checks has two keys if any simulation was measured by the check. The key with
            `CHECK_PREFIX` has the value 0 for a simulation that broke the check, else 1. The key with
            `APPLIES_PREFIX` has the value 1 for a simulation that the check applied to, else 0. Both values
            are NaN for a simulation without a result of the check.
        has_actions: By kind, whether the task is known to name such actions.
        max_steps: Whether the step budget ended the simulation.
        ids: The simulations' ids.
        cost, tokens: US dollars and tokens of the agent's and the user's models; NaN if not known.
        usage: By name of `USAGE_METRICS`, what the agent alone used; NaN if not known.
        models: The models that a project's own agent called.
        unjudged: The tasks with a simulation that only a judge could have measured.
        critical: The tasks with the tag `critical`.
    """

    tasks: tuple[str, ...]
    digests: tuple[str, ...]
    task_index: Counts
    digest_index: Counts
    trial: Counts
    measured: Flags
    reward: Floats
    shares: Mapping[str, Floats]
    has_actions: Mapping[str, Flags]
    max_steps: Flags
    ids: tuple[str, ...]
    cost: Floats
    tokens: Floats
    usage: Mapping[str, Floats] = field(default_factory=dict)
    models: frozenset[str] = frozenset()
    unjudged: frozenset[str] = frozenset()
    critical: frozenset[str] = frozenset()

    @property
    def size(self) -> int:
        """The number of simulations."""
        return len(self.ids)

    def select_tasks(self, tasks: Iterable[str]) -> "Columns":
        """Return the columns with only the simulations of these tasks, in the order of `tasks`."""
        known_tasks = {*self.tasks}
        numbers = {name: number for number, name in enumerate(name for name in tasks if name in known_tasks)}
        new_index = np.array([numbers.get(name, -1) for name in self.tasks], dtype=np.int64)[self.task_index]
        rows = new_index >= 0
        if rows.all():
            return replace(self, tasks=tuple(numbers), task_index=new_index)
        plain_fields = ("digest_index", "trial", "measured", "reward", "max_steps", "cost", "tokens")
        return replace(
            self,
            tasks=tuple(numbers),
            task_index=new_index[rows],
            shares={kind: share[rows] for kind, share in self.shares.items()},
            has_actions={kind: flags[rows] for kind, flags in self.has_actions.items()},
            usage={metric: values[rows] for metric, values in self.usage.items()},
            ids=tuple(np.array(self.ids, dtype=object)[rows]),
            **{name: getattr(self, name)[rows] for name in plain_fields},
        )

    def content_digests(self) -> dict[str, str]:
        """Return the digest of each task's content; empty if the task id was run with different contents."""
        digests: dict[str, str] = {}
        width = max(1, len(self.digests))
        for key in np.unique(self.task_index * width + self.digest_index).tolist():
            task_number, digest_number = divmod(key, width)
            name = self.tasks[task_number]
            digests[name] = "" if name in digests else self.digests[digest_number]
        return digests


_ActionTotals = tuple[tuple[str, int, int | None], ...]
"""Gold actions of a simulation: for each tool type the total and the matched number (None if unknown)."""

_CheckOutcomes = tuple[tuple[str, str], ...]
"""The outcomes of the project's own checks on a simulation, with the checks' ids."""

_INVARIANT_BITS: Mapping[str, int] = {name: 1 << bit for bit, name in enumerate(INVARIANT_METRICS)}
_CHECKED = len(INVARIANT_METRICS)
"""The distance from the bit of a broken invariant to the bit of one that the record names, broken or not."""


class ColumnsBuilder:
    """Builds columns from simulations, without keeping their records."""

    def __init__(self) -> None:
        self._ids: list[str] = []
        self._tasks: dict[str, int] = {}
        self._digests: dict[str, int] = {}
        self._action_totals: dict[_ActionTotals, int] = {}
        self._check_outcomes: dict[_CheckOutcomes, int] = {}
        self._task, self._digest, self._trial, self._action_totals_index = (array("q") for _ in range(4))
        self._check_outcomes_index = array("q")
        self._reward, self._cost, self._tokens = (array("d") for _ in range(3))
        self._usage = {metric: array("d") for metric in USAGE_METRICS}
        self._termination_reasons: list[str] = []
        self._breaches = array("q")
        self._models: set[str] = set()
        self._unjudged: set[str] = set()
        self._critical: set[str] = set()

    def add(self, record: SimulationEvidence) -> None:
        """Add one simulation."""
        self._ids.append(record.id)
        self._task.append(_number_of(record.task_id, self._tasks))
        self._digest.append(_number_of(record.task_digest, self._digests))
        self._trial.append(record.trial)
        self._reward.append(math.nan if record.reward is None else record.reward)
        self._termination_reasons.append(record.termination_reason)
        # Simulations share a few patterns of gold actions, so `build` computes the shares once per pattern.
        totals = tuple([(kind, count.total, count.matched) for kind, count in record.actions.items()])
        self._action_totals_index.append(_number_of(totals, self._action_totals))
        self._check_outcomes_index.append(_number_of(tuple(record.checks.items()), self._check_outcomes))
        cost, tokens = _cost_and_tokens(record)
        self._cost.append(cost)
        self._tokens.append(tokens)
        for values, value in zip(self._usage.values(), _usage_of_agent(record), strict=True):
            values.append(math.nan if value is None else value)
        self._breaches.append(_breach_bits(record.invariants))
        self._models.update(record.models)
        if record.note == NO_JUDGE_NOTE:
            self._unjudged.add(record.task_id)
        if record.critical:
            self._critical.add(record.task_id)

    def build(self) -> Columns:
        """Return the columns of all simulations so far."""
        reward = np.array(self._reward, dtype=np.float64)
        measured = ~np.isnan(reward)
        action_totals_index = np.array(self._action_totals_index, dtype=np.int64)
        shares, has_actions = {}, {}
        for name, types in ACTION_METRICS.items():
            shares_and_flags = [_matched_share(totals, types) for totals in self._action_totals]
            share = np.array([matched for matched, _ in shares_and_flags], dtype=np.float64)
            shares[name] = np.where(measured, share[action_totals_index], np.nan)
            has_actions[name] = np.array([has_any for _, has_any in shares_and_flags], dtype=np.bool_)[
                action_totals_index
            ]
        breaches = np.array(self._breaches, dtype=np.int64)
        if (is_watched := measured & (breaches >= 0)).any():
            broken_bits = np.where(is_watched, breaches, 0)
            for name, mask in {INVARIANTS: (1 << _CHECKED) - 1, **_INVARIANT_BITS}.items():
                if name == INVARIANTS or (broken_bits & (mask | mask << _CHECKED)).any():
                    shares[name] = np.where(
                        is_watched, ((broken_bits & mask) == 0).astype(np.float64), np.nan
                    )
        agent_errors = self._ended_by(TerminationReason.AGENT_ERROR) & measured
        if agent_errors.any():
            shares[AGENT_ERRORS] = np.where(measured, (~agent_errors).astype(np.float64), np.nan)
        shares |= self._check_shares(measured)
        return Columns(
            tasks=tuple(self._tasks),
            digests=tuple(self._digests),
            task_index=np.array(self._task, dtype=np.int64),
            digest_index=np.array(self._digest, dtype=np.int64),
            trial=np.array(self._trial, dtype=np.int64),
            measured=measured,
            reward=np.where(measured, reward, 0.0),
            shares=shares,
            has_actions=has_actions,
            max_steps=self._ended_by(TerminationReason.MAX_STEPS),
            ids=tuple(self._ids),
            cost=np.array(self._cost, dtype=np.float64),
            tokens=np.array(self._tokens, dtype=np.float64),
            usage={metric: np.array(values, dtype=np.float64) for metric, values in self._usage.items()},
            models=frozenset(self._models),
            unjudged=frozenset(self._unjudged),
            critical=frozenset(self._critical),
        )

    def _ended_by(self, reason: TerminationReason) -> Flags:
        return np.array([text == reason.value for text in self._termination_reasons], dtype=np.bool_)

    def _check_shares(self, measured: Flags) -> dict[str, Floats]:
        """Return the shares of the project's own checks, by the prefix with the check's id."""
        patterns = [dict(outcomes) for outcomes in self._check_outcomes]
        indices = np.array(self._check_outcomes_index, dtype=np.int64)
        shares: dict[str, Floats] = {}
        for name in sorted({name for pattern in patterns for name in pattern}):
            pairs = [_CHECK_SHARES[pattern.get(name, CheckOutcome.ERROR)] for pattern in patterns]
            for prefix, values in zip((CHECK_PREFIX, APPLIES_PREFIX), zip(*pairs, strict=True), strict=True):
                shares_by_pattern = np.array(values, dtype=np.float64)
                shares[prefix + name] = np.where(measured, shares_by_pattern[indices], np.nan)
        return shares


def build_columns(records: Iterable[SimulationEvidence]) -> Columns:
    """Build the columns of these records."""
    builder = ColumnsBuilder()
    for record in records:
        builder.add(record)
    return builder.build()


def _number_of(key: _KeyT, numbers: dict[_KeyT, int]) -> int:
    """Return the number of a key, which is the next free one at its first occurrence."""
    return numbers.setdefault(key, len(numbers))


def _breach_bits(invariants: Mapping[Invariant, int] | None) -> int:
    """Return the invariants that a simulation broke and names, as a bit set; -1 if it was not checked."""
    if invariants is None:
        return -1
    counts = {bit: invariants.get(INVARIANT_METRICS[name]) for name, bit in _INVARIANT_BITS.items()}
    return sum(bool(count) * bit + (bit << _CHECKED) for bit, count in counts.items() if count is not None)


def _cost_and_tokens(record: SimulationEvidence) -> tuple[float, float]:
    recorded_cost = math.nan if record.cost is None else record.cost
    if not record.usage:
        return recorded_cost, math.nan
    usages = record.usage.values()
    costs = [usage.cost for usage in usages if usage.cost is not None]
    cost = sum(costs) if len(costs) == len(usages) else recorded_cost
    return cost, float(sum([usage.tokens for usage in usages]))


def _usage_of_agent(record: SimulationEvidence) -> tuple[float | None, ...]:
    """Return the figures of `USAGE_METRICS`; None if a figure is not known.

    An endpoint without usage reports no tokens, and a model without a price has no cost.
    """
    usage = record.usage.get("assistant")
    if usage is None or not usage.tokens:
        return None, None, record.turns, record.seconds
    return usage.cost, usage.tokens, record.turns, record.seconds


def _matched_share(action_totals: _ActionTotals, types: tuple[str, ...]) -> tuple[float, bool]:
    """Return the share of gold actions matched (NaN if none or unknown), and whether the task names any."""
    counts = [(total, matched) for kind, total, matched in action_totals if not types or kind in types]
    total = sum(count for count, _ in counts)
    if not total:
        return np.nan, False
    if any(matched is None for _, matched in counts):
        return np.nan, True
    return sum(matched or 0 for _, matched in counts) / total, True
