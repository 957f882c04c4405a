"""The do-nothing agent: what it passes, a task does not ask for."""

from collections.abc import Sequence

from pytest_trace2evolve.records.message import STOP, Message


class NopAgent:
    """Lower frame of every agent: says one sentence, calls nothing; in solo mode it stops at once."""

    name = "nop"

    def __init__(self, *, solo: bool = False) -> None:
        self._says = STOP if solo else "I cannot help you with that."

    async def respond(self, history: Sequence[Message]) -> Message:
        """Always the same sentence."""
        return Message(role="assistant", content=self._says)
