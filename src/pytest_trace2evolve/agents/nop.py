"""The do-nothing agent: what it passes, a task does not ask for."""

from collections.abc import Sequence

from pytest_trace2evolve.records.message import Message


class NopAgent:
    """Lower frame of every agent: says one sentence, calls nothing."""

    name = "nop"

    async def respond(self, history: Sequence[Message]) -> Message:
        """Always the same sentence."""
        return Message(role="assistant", content="I cannot help you with that.")
