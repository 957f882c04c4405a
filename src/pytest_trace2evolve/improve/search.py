"""Searches for better candidates: screens proposals on tasks that may be read, and gates the survivors.

The search makes no simulation itself. An `Arena` measures and gates candidates: sessions of a project, or
simulated agents of known ability in `benchmarks/improve.py`.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from pytest_trace2evolve.errors import ProposalError
from pytest_trace2evolve.records.verdict import Decision
from pytest_trace2evolve.utils.canonical import digest_text

Rewards = Mapping[str, float]
"""The mean reward over a task's trials, by task; tasks without a measured trial are absent."""


class Status(StrEnum):
    """What became of a proposal."""

    KEEP = "keep"
    DISCARD = "discard"
    CRASH = "crash"


@dataclass(frozen=True)
class Row:
    """The outcome of one proposal.

    Attributes:
        gain: The mean difference of rewards from the parent over the screened discovery tasks; None if none
            was measured.
        error: The standard error of the gain.
        tasks: The number of discovery tasks behind the gain.
        verdict: The gate's decision, or why the gate was not asked.
        decision: The gate's decision; None if the gate was not asked.
        reason: Why the gate did not promote the proposal; empty if it did, or was not asked.
    """

    candidate: str
    parent: str
    gain: float | None
    error: float | None
    tasks: int
    verdict: str
    status: Status
    decision: Decision | None = None
    reason: str = ""


class Arena(Protocol):
    """Measures and gates the candidates of a search.

    Each method raises `BudgetError`, which ends the search, before it does anything that a budget forbids.
    """

    def propose(self, parent: str, count: int) -> Sequence[str]:
        """Return the ids of up to `count` new candidates made from a parent; none if nothing is left."""

    def screen(self, candidate: str, tasks: Sequence[str]) -> Rewards:
        """Measure a candidate on discovery tasks.

        Raises:
            ProposalError: the proposal was rejected, or cannot be run.
        """

    def gate(self, candidate: str, parent: str) -> Decision:
        """Compare a candidate with its parent on the tasks that decide and on the guards.

        Raises:
            ProposalError: the candidate cannot be run.
        """


@dataclass(frozen=True)
class Rules:
    """The rules of the screening. They affect costs and power, but no error rate: only the gate promotes.

    Attributes:
        width: The number of proposals that are screened against each other.
        shares: The share of the discovery tasks after each round. After each round but the last, the better
            half of the proposals continues.
        futile_z: The gain, in standard errors, that a proposal must exceed after each round but the last.
        min_z: The gain that it must exceed on all discovery tasks.
        plateau: The number of proposals without a promotion that ends the search.
    """

    width: int = 4
    shares: tuple[float, ...] = (1 / 3, 2 / 3, 1.0)
    futile_z: float = 0.0
    min_z: float = 1.8
    plateau: int = 20


DEFAULT_RULES = Rules()
HOLD_RULES = Rules(futile_z=-1.0, min_z=-1.0)
"""The rules for goal `hold`, under which a candidate need not be better than its parent."""


def search(arena: Arena, root: str, tasks: Mapping[str, str], rules: Rules = DEFAULT_RULES) -> Iterator[Row]:
    """Yield the outcome of each proposal, until no proposal is left or none was promoted for too long.

    Each promoted candidate becomes the parent of the next proposals. If the arena has no proposal left, those
    that only lost against better ones of their batch get a second chance.

    Args:
        arena: Measures and gates the candidates.
        root: The id of the first parent.
        tasks: The discovery tasks, with the group of each.
        rules: The rules of the screening.

    Raises:
        BudgetError: a budget is spent. Proposals without an outcome are undecided.
    """
    parent, unpromoted = root, 0
    screening = _Screening(arena, root, tasks, rules)
    while True:
        count = min(rules.width, rules.plateau - unpromoted)
        batch = arena.propose(parent, count) if count > 0 else ()
        unpromoted += len(batch)
        batch = batch or screening.take_reserve()
        if not batch:
            break
        for row in screening.try_batch(batch):
            yield row
            if row.decision is Decision.PROMOTE:
                parent, unpromoted = row.candidate, 0
        if parent != screening.parent:
            yield from screening.end()
            screening = _Screening(arena, parent, tasks, rules)
    yield from screening.end()


class _Screening:
    """Screens the proposals that are made from one parent."""

    def __init__(self, arena: Arena, parent: str, tasks: Mapping[str, str], rules: Rules) -> None:
        self.parent = parent
        self._arena = arena
        self._rules = rules
        self._base = arena.screen(parent, list(tasks))
        self._order = screening_order(self._base, tasks)
        self._gains: dict[str, PairedGain] = {}
        self._reserve: list[str] = []

    def take_reserve(self) -> list[str]:
        """Return the best proposals that only lost against better ones, and forget them."""
        self._reserve.sort(key=self._z, reverse=True)
        batch, self._reserve = self._reserve[: self._rules.width], self._reserve[self._rules.width :]
        return batch

    def end(self) -> Iterator[Row]:
        """Yield the rows of proposals that got no second chance."""
        for candidate in self.take_reserve():
            yield self._screened_out(candidate)
        if self._reserve:
            yield from self.end()

    def try_batch(self, batch: Sequence[str]) -> Iterator[Row]:
        """Screen a batch, and gate its survivors, the strongest first, until one is promoted."""
        contenders = list(batch)
        for share in self._rules.shares:
            tasks = self._order[: math.ceil(share * len(self._order))]
            is_last = len(tasks) == len(self._order)
            if not is_last and all(self._count(name) >= len(tasks) for name in contenders):
                continue  # a second chance begins after the round that ended the first one
            for candidate in list(contenders):
                try:
                    rewards = self._arena.screen(candidate, tasks)
                except ProposalError as error:
                    contenders.remove(candidate)
                    status = Status.CRASH if error.is_crash else Status.DISCARD
                    yield Row(candidate, self.parent, None, None, 0, str(error), status)
                    continue
                self._gains[candidate] = paired_gain(self._base, rewards)
            contenders.sort(key=self._z, reverse=True)
            min_z = self._rules.min_z if is_last else self._rules.futile_z
            for candidate in [name for name in contenders if self._z(name) <= min_z]:
                contenders.remove(candidate)
                yield self._screened_out(candidate)
            if not is_last:
                half = math.ceil(len(batch) / 2)
                self._reserve += contenders[half:]
                contenders = contenders[:half]
        yield from self._gate(contenders)

    def _gate(self, survivors: Sequence[str]) -> Iterator[Row]:
        decision: Decision | None = None
        for candidate in survivors:
            if decision is Decision.PROMOTE:
                yield self._row(candidate, "not gated: another one was promoted")
            else:
                try:
                    decision = self._arena.gate(candidate, self.parent)
                except ProposalError as error:
                    yield self._row(candidate, str(error), Status.CRASH)
                    continue
                status = Status.KEEP if decision is Decision.PROMOTE else Status.DISCARD
                yield self._row(candidate, decision.value, status, decision)

    def _z(self, candidate: str) -> float:
        return self._gains[candidate].z

    def _count(self, candidate: str) -> int:
        return self._gains[candidate].tasks if candidate in self._gains else 0

    def _screened_out(self, candidate: str) -> Row:
        return self._row(candidate, f"screened out after {self._gains[candidate].tasks} tasks")

    def _row(
        self,
        candidate: str,
        verdict: str,
        status: Status = Status.DISCARD,
        decision: Decision | None = None,
    ) -> Row:
        gain = self._gains[candidate]
        return Row(candidate, self.parent, gain.mean, gain.error, gain.tasks, verdict, status, decision)


@dataclass(frozen=True)
class PairedGain:
    """The mean difference of rewards over tasks, with its standard error."""

    mean: float
    error: float
    tasks: int

    @property
    def z(self) -> float:
        """The gain in standard errors; infinite if every task differs by the same amount."""
        if self.error == 0:
            return math.copysign(math.inf, self.mean) if self.mean else 0.0
        return self.mean / self.error


def paired_gain(parent: Rewards, candidate: Rewards) -> PairedGain:
    """Return the gain over the tasks that both sides measured."""
    differences = [reward - parent[task] for task, reward in candidate.items() if task in parent]
    count = len(differences)
    if not count:
        return PairedGain(0.0, 0.0, 0)
    mean = math.fsum(differences) / count
    variance = math.fsum((difference - mean) ** 2 for difference in differences) / max(count - 1, 1)
    return PairedGain(mean, math.sqrt(variance / count), count)


def screening_order(parent: Rewards, tasks: Mapping[str, str]) -> list[str]:
    """Return the tasks in the order in which proposals are screened.

    Groups with a middling pass rate come first, because a change shows most there. Each group has tasks in
    every round, because a change may raise a group from 0. The order within a group does not depend on
    rewards: tasks selected by their parent's failures would show a gain for an unchanged agent.
    """
    members: dict[str, list[str]] = {}
    for task, group in tasks.items():
        members.setdefault(group, []).append(task)
    keys: dict[str, tuple[float, str]] = {}
    for group_tasks in members.values():
        known = [parent[task] for task in group_tasks if task in parent]
        rate = min(max(math.fsum(known) / len(known), 0.0), 1.0) if known else 0.5
        weight = 0.2 + math.sqrt(rate * (1 - rate))
        for rank, task in enumerate(sorted(group_tasks, key=digest_text)):
            keys[task] = ((rank + 0.5) / (weight * len(group_tasks)), digest_text(task))
    return sorted(tasks, key=keys.__getitem__)
