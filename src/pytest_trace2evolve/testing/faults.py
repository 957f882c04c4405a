"""How the test server misbehaves, and when."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Fault(StrEnum):
    """One way in which an API fails a caller."""

    RATE_LIMIT = "rate_limit"
    """429, with `Retry-After`."""
    SERVER_ERROR = "server_error"
    """500 with an error body."""
    OVERLOADED = "overloaded"
    """503 without a body."""
    BROKEN_BODY = "broken_body"
    """200 whose body is cut in the middle of its JSON."""
    NOT_JSON = "not_json"
    """200 with a page of HTML."""
    HANG_UP = "hang_up"
    """The connection closes without an answer."""
    HANG_UP_HALFWAY = "hang_up_halfway"
    """The connection closes in the middle of the body."""
    SLOW = "slow"
    """The body comes in drops, slower than any patience."""


@dataclass(frozen=True)
class Misbehaviour:
    """One fault, with what a caller is told of it."""

    fault: Fault
    retry_after: float | None = None


@dataclass
class FaultPlan:
    """Draws a misbehaviour for each request, from a seed.

    Attributes:
        rates: The chance of each fault, a request; their sum is at most 1.
        seed: Equal seeds give equal draws in the order of requests.
        retry_after: Seconds that a rate limit asks for.
    """

    rates: Mapping[Fault, float]
    seed: int = 0
    retry_after: float = 0.01
    _random: random.Random = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if sum(self.rates.values()) > 1.0 + 1e-9:
            raise ValueError(f"the rates of faults sum to {sum(self.rates.values()):.2f}, more than 1")
        self._random = random.Random(self.seed)

    def draw(self) -> Misbehaviour | None:
        """The next request's misbehaviour; None where it is served well."""
        chance = self._random.random()
        for fault, rate in self.rates.items():
            chance -= rate
            if chance < 0:
                return Misbehaviour(fault, self.retry_after if fault is Fault.RATE_LIMIT else None)
        return None
