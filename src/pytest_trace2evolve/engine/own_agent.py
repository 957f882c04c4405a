"""The agent of one simulation that runs a project's own code, elsewhere than in this process."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from pytest_trace2evolve.agents.chat import is_visible
from pytest_trace2evolve.engine.proxy import Exchange
from pytest_trace2evolve.errors import InfrastructureError
from pytest_trace2evolve.records.completion import to_wire
from pytest_trace2evolve.records.message import Message, ToolCall
from pytest_trace2evolve.utils.canonical import storable_text


class OwnAgent(ABC):
    """An agent that keeps the conversation itself, so it gets only what is new since its last message.

    Args:
        name: The name of the agent.
        exchange: The requests that the agent sends to its model.
    """

    def __init__(self, name: str, exchange: Exchange) -> None:
        self.name = name
        self._exchange = exchange
        self._n_calls = 0

    @abstractmethod
    async def respond(self, history: Sequence[Message]) -> Message:
        """The agent's next message."""

    @abstractmethod
    async def close(self) -> None:
        """End the simulation."""

    async def _reply(self, text: str) -> Message:
        """A message with a text to the user."""
        fields = await self._fields()
        return Message.model_validate({**fields, "content": storable_text(text)})

    async def _calls(self, calls: Sequence[tuple[str | None, str, Mapping[str, Any]]]) -> Message:
        """A message with calls of tools, each an id or None, a name and arguments of any type."""
        made = []
        for call_id, name, arguments in calls:
            self._n_calls += 1
            made.append(
                ToolCall.model_construct(
                    id=storable_text(call_id or f"call_{self._n_calls}"),
                    name=storable_text(name),
                    arguments=dict(arguments),
                    requestor="assistant",
                )
            )
        return Message.model_construct(**await self._fields(), content=None, tool_calls=made)

    async def _fields(self) -> dict[str, Any]:
        """The fields of every message: the usage of the agent's models since its last message."""
        # The agent has used answers of models, so the draw must be known before anything else happens.
        await self._exchange.before_use()
        usage, seconds, is_cached = self._exchange.take_usage()
        fields: dict[str, Any] = {"role": "assistant"}
        if usage.calls:
            fields |= {
                "cost": usage.cost,
                "usage": {
                    "calls": usage.calls,
                    "prompt_tokens": usage.prompt_tokens,
                    "completion_tokens": usage.completion_tokens,
                    "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
                },
                "generation_time_seconds": seconds,
            }
        if is_cached:
            fields["cached"] = True
        return fields

    def _earlier(self, history: Sequence[Message]) -> list[dict[str, Any]]:
        """The conversation before the last message of the user, as the API writes it; empty if it is new.

        Raises:
            InfrastructureError: the task starts in the middle of the agent's turn.
        """
        if history[-1].role != "user":
            raise InfrastructureError(
                f"the task starts in the middle of the agent's turn, but {self.name} can only begin with a "
                "message of the user; leave the task out of the suite"
            )
        if not any(message.role == "user" for message in history[:-1]):
            return []
        return [to_wire(message) for message in history[:-1] if is_visible(message)]
