"""What a router chooses from, what it chose, and how often it was right."""

from typing import Annotated

from pydantic import Field

from pytest_trace2evolve.records.base import Record
from pytest_trace2evolve.records.capability import CapabilityName
from pytest_trace2evolve.records.score import Unit

NONE = "none"
"""The label of a task that calls for no capability: the base model gets it."""


class Skill(Record):
    """One line of a router's table.

    Attributes:
        name: A capability, or the adapter that a routed candidate talks with.
        description: What the capability is, as the labelling of traces has it.
        example: How a task opens that calls for it.
    """

    name: CapabilityName
    description: str
    example: str


class Routing(Record):
    """What a router decided of one task.

    Attributes:
        chosen: The name of a line of the table, or `NONE`.
        shares: The mean probability of each label over all orders, `NONE` among them.
        silent: In how many orders none of the letters was among the tokens that were told.
    """

    chosen: str
    shares: dict[str, Unit]
    silent: Annotated[int, Field(ge=0)] = 0


class Confusion(Record):
    """Oracle labels against a router's, over tasks.

    Attributes:
        labels: Names of the table's lines, `NONE` last; rows and columns stand in this order.
        counts: (labels, labels) tasks; a row is what the oracle says, a column what the router chose.
    """

    labels: tuple[str, ...]
    counts: tuple[tuple[Annotated[int, Field(ge=0)], ...], ...]

    @property
    def total(self) -> int:
        """All tasks."""
        return sum(map(sum, self.counts))

    @property
    def right(self) -> int:
        """Tasks whose choice is the oracle's."""
        return sum(self.counts[place][place] for place in range(len(self.labels)))
