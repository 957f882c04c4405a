"""The base of agents that run a project's own code outside this process."""

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
    """An agent that keeps the conversation itself, so it gets only the messages since its own last one.

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
        """Return the agent's next message."""

    @abstractmethod
    async def close(self) -> None:
        """Release the agent's resources after its simulation."""

    async def _reply(self, text: str) -> Message:
        """Return a message with text for the user."""
        fields = await self._fields()
        return Message.model_validate({**fields, "content": storable_text(text)})

    async def _calls(self, calls: Sequence[tuple[str | None, str, Mapping[str, Any]]]) -> Message:
        """Return a message with tool calls. Each call is an id or None, a name, and arguments."""
        tool_calls = []
        for call_id, name, arguments in calls:
            self._n_calls += 1
            tool_calls.append(
                ToolCall.model_construct(
                    id=storable_text(call_id or f"call_{self._n_calls}"),
                    name=storable_text(name),
                    arguments=dict(arguments),
                    requestor="assistant",
                )
            )
        return Message.model_construct(**await self._fields(), content=None, tool_calls=tool_calls)

    async def _fields(self) -> dict[str, Any]:
        """Return the fields of every message, with the usage and names of the models since the last one."""
        # The agent has used answers of models, so the draw must be recorded before anything else happens.
        await self._exchange.before_use()
        usage, seconds, is_cached = self._exchange.take_usage()
        models = self._exchange.take_models()
        fields: dict[str, Any] = {"role": "assistant"}
        if usage.calls:
            fields |= {
                "cost": usage.cost,
                "usage": {
                    "calls": usage.calls,
                    "prompt_tokens": usage.prompt_tokens,
                    "completion_tokens": usage.completion_tokens,
                    "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
                    "models": models,
                },
                "generation_time_seconds": seconds,
            }
        if is_cached:
            fields["cached"] = True
        return fields

    def _earlier(self, history: Sequence[Message]) -> list[dict[str, Any]]:
        """Return the messages before the user's last one, in the API's form; empty if that one is the first.

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
