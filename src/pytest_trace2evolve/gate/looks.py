"""Which clean claim on a sealed split this is, and at which level it is tested.

Every claim of an improvement on the same sealed tasks is one more chance to be wrong. The k-th claim is
tested at α·6/(π²k²), so that all claims together, however many, are wrong with at most α (Bonferroni's
inequality with the weights of the Basel series, which add up to 1).
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from pytest_trace2evolve.records.ledger import Dated, Evaluation


@dataclass(frozen=True)
class Claim:
    """A claim to be better, on clean evidence.

    Attributes:
        suite, split, lock: The sealed split, under its suite's lock.
        candidate: Digest of the candidate.
        agent: Digest of the agent's settings: the same text on another model is another claim.
        baseline: Digest of the baseline's evidence.
        policy: The gate's policy.
        trials: The candidate's trials a task.
        most: Those at the last stage of its run; 0 where it has no stages.
    """

    suite: str
    split: str
    lock: str
    candidate: str
    agent: str
    baseline: str
    policy: str
    trials: int
    most: int = 0


@dataclass(frozen=True)
class Look:
    """The number k of a claim, and the entry of the same claim where it was judged before."""

    number: int
    recorded: Evaluation | None = None


def share(number: int) -> float:
    """The share of α that the `number`-th claim is tested at: 6/(π²k²)."""
    return 6.0 / (math.pi * number) ** 2


def look_of(entries: Iterable[Dated], claim: Claim) -> Look:
    """The look that a claim is.

    Args:
        entries: All that the ledger holds; their order does not matter.
        claim: What is claimed now.

    Returns:
        The recorded look where the same claim was judged with as many trials, or at a later stage of its
        own schedule. Else the next number: every other candidate that claimed counts once, and so does every
        test of a candidate that spent α and that this one does not repeat (another agent, baseline, policy
        or number of trials).
    """
    made = claims_on(entries, claim.suite, claim.split, claim.lock)
    same = [entry for entry in made if _test(entry) == (claim.agent, claim.baseline, claim.policy)]
    same = [entry for entry in same if entry.candidate.digest == claim.candidate]
    # A staged run that ended at a later stage was judged at this one too.
    again = [entry for entry in same if claim.trials <= entry.trials <= max(claim.trials, claim.most)]
    if again:
        # One that spent no α decided nothing that could be repeated.
        entry = next((entry for entry in again if entry.alpha is not None), again[0])
        return Look(_number(entry), entry)
    tests: dict[str, set[tuple[object, ...]]] = {}
    for entry in made:
        spent = tests.setdefault(entry.candidate.digest, set())
        if entry.alpha is not None:
            spent.add((*_test(entry), entry.trials))
    own = len(tests.pop(claim.candidate, ()))
    return Look(1 + own + sum(max(1, len(spent)) for spent in tests.values()))


def claims_on(entries: Iterable[Dated], suite: str, split: str, lock: str) -> list[Evaluation]:
    """The clean claims on a sealed split, oldest first."""
    found = [
        entry
        for entry in entries
        if isinstance(entry, Evaluation)
        and entry.claims_clean
        and (entry.suite, entry.split, entry.lock) == (suite, split, lock)
    ]
    return sorted(found, key=lambda entry: (entry.at, entry.name))


def _test(entry: Evaluation) -> tuple[str, str, str]:
    return entry.agent, entry.baseline.digest, entry.policy


def _number(entry: Evaluation) -> int:
    assert entry.look is not None, "a clean claim has a number"
    return entry.look
