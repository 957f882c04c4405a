"""What the trainer asks of rooms beside it: level 4 hands in what fits by its methods."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pytest_trace2evolve.records.message import Message


class Played(Protocol):
    """An environment as `rollout_class` makes it; its public methods are the tools."""

    _done: bool

    def reset(self, seed: int, **columns: object) -> None:
        """Begin the scenario of a seed from nothing."""

    def _history(self) -> Sequence[Message]:
        """Everything said so far."""

    def _step(self, message: Message) -> Sequence[Message]:
        """Take the agent's next message: the tools' results, or what the customer said."""

    def _reward(self) -> float:
        """What was done is worth this."""


class Talk(Protocol):
    """Conversations as the model's tokens, and its answers as messages: exactly as the server has them."""

    def prompt(self, environment: str, history: Sequence[Message]) -> list[int]:
        """The prompt of a conversation in which it is the agent's turn."""

    def said(self, prompt: Sequence[int], answer: Sequence[int], environment: str) -> Message | None:
        """What an answer says; None where it says nothing."""

    def following(self, said: Message, messages: Sequence[Message], *, ended: bool) -> list[int]:
        """Tokens from the end of an answer to where the next begins.

        Args:
            said: The answer.
            messages: What came back on it.
            ended: Whether the answer's own last token ended it; else that is written too.
        """


@dataclass(frozen=True)
class Wish:
    """One answer that is to be drawn.

    Attributes:
        prompt: Its tokens.
        seed: From which it is drawn.
        most: Tokens at most.
    """

    prompt: Sequence[int]
    seed: int
    most: int


Then = Callable[[int, list[int]], "Wish | None"]
"""Hears whose answer came and its tokens, and says what is to be drawn next for them; None: nothing more."""


class Sampler(Protocol):
    """Draws answers of the model that is trained, as it is now."""

    def play(
        self, model: Any, wishes: Sequence[Wish], then: Then, *, temperature: float, fresh: bool
    ) -> None:
        """Draw answers until nobody wishes any more; whoever has one need not wait for the others.

        Args:
            model: The model as it is trained, a `PeftModel`.
            wishes: The first of each rollout.
            then: What follows an answer, by the rollout's place; called one at a time.
            temperature: At which all are drawn.
            fresh: Whether the weights have changed since it was asked last.
        """

    def close(self) -> None:
        """Give back what it holds: nothing is asked of it any more."""
