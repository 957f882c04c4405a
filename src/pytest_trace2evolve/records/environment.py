"""What a capability's environment gives back: reactions to an agent's messages, and a graded reward."""

from typing import Annotated

from pydantic import AfterValidator

from pytest_trace2evolve.records.base import Record
from pytest_trace2evolve.records.message import Message

GRADES = (0.0, 0.2, 0.5, 0.8, 1.0)
"""The rewards that an environment gives. Between none and all, so that a group of rollouts can differ."""

TOP = GRADES[-1]
"""The reward of a rollout that exercises the capability to its end."""


def _one_of_the_grades(value: float) -> float:
    if value not in GRADES:
        raise ValueError(f"a reward of {value:g}: an environment gives one of {', '.join(map(str, GRADES))}")
    return value


Grade = Annotated[float, AfterValidator(_one_of_the_grades)]
"""A reward of an environment."""


class Reaction(Record):
    """What came back on a message of the agent.

    Attributes:
        messages: The tools' results, or what the customer said; empty where nobody answers any more.
        done: It is over: nothing that the agent says is heard any more, and the reward stands.
    """

    messages: tuple[Message, ...] = ()
    done: bool = False
