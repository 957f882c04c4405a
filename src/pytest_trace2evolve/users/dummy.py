"""The user of a solo simulation: there, and never asked."""

from collections.abc import Sequence

from pytest_trace2evolve.errors import ParticipantError
from pytest_trace2evolve.records.message import Message


class DummyUser:
    """Stands where a user is wanted and none takes part."""

    async def respond(self, history: Sequence[Message]) -> Message:
        """Never a message.

        Raises:
            ParticipantError: always: in solo mode nobody speaks to the user.
        """
        raise ParticipantError("the user of a solo simulation was asked to speak")
