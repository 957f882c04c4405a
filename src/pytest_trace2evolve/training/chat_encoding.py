"""Encodes conversations as tokens for training, with the server's own code for prompts and answers."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pytest_trace2evolve.agents.chat import is_visible
from pytest_trace2evolve.errors import TrainingError
from pytest_trace2evolve.models.api import request_body
from pytest_trace2evolve.models.settings import ModelSettings
from pytest_trace2evolve.records.completion import Completion, RequestedCall, from_completion, to_wire
from pytest_trace2evolve.records.message import Message
from pytest_trace2evolve.records.protocols import ToolSchema
from pytest_trace2evolve.serving.chat_format import ChatFormat, Prompt, call_id
from pytest_trace2evolve.serving.request import ApiError, ChatRequest

_SETTINGS = ModelSettings(model="trained", base_url="", temperature=None)
"""None of these settings changes a prompt."""


class ChatEncoder:
    """Writes prompts and reads answers as the server does for `ChatAgent`.

    Args:
        tokenizer: The base model's tokenizer.
        ends: Tokens that end an answer.
        agents: The system prompt and the tools of the agent in each environment.
    """

    def __init__(
        self, tokenizer: Any, ends: frozenset[int], agents: Mapping[str, tuple[str, Sequence[ToolSchema]]]
    ) -> None:
        self._format = ChatFormat(tokenizer, ends)
        self._tokenizer = tokenizer
        self._agents = agents

    def prompt(self, environment: str, history: Sequence[Message]) -> list[int]:
        """The prompt of a conversation in which it is the agent's turn.

        Raises:
            TrainingError: the template rejects the conversation.
        """
        with _reported(f"a conversation of {environment!r}"):
            return list(self._format.prompt(self._request(environment, history)).tokens)

    def parse(self, prompt: Sequence[int], answer: Sequence[int], environment: str) -> Message | None:
        """The message of an answer; None if it is empty, which ends a rollout."""
        # Only a tokenizer with a parser of its own looks at the prompt.
        has_parser = getattr(self._tokenizer, "response_template", None) is not None
        text = str(self._tokenizer.decode(list(prompt))) if has_parser else ""
        tools = self._request(environment, ()).tools
        parsed = self._format.parse(Prompt(text, prompt, tools=tools), answer)
        calls = tuple(
            RequestedCall(id=call_id(prompt, answer, place), name=call.name, arguments=call.arguments)
            for place, call in enumerate(parsed.calls)
        )
        message = from_completion(Completion(content=parsed.content or None, tool_calls=calls), "assistant")
        return message if calls or message.text is not None else None

    def continuation(self, answer: Message, messages: Sequence[Message], *, ended: bool) -> list[int]:
        """Tokens from the end of an answer, over the messages after it, to the beginning of the next answer.

        Unless `ended` is true, the result begins with the token that ends the answer.

        Raises:
            TrainingError: the template rejects the messages, or does not end answers.
        """
        first, *others = _read(None, [answer, *messages], ()).template_messages
        with _reported("what follows an answer"):
            return self._format.continuation(first, others, ended=ended)

    def _request(self, environment: str, history: Sequence[Message]) -> ChatRequest:
        prompt, tools = self._agents[environment]
        return _read(prompt, history, tools)


@contextmanager
def _reported(what: str) -> Iterator[None]:
    try:
        yield
    except ApiError as error:
        raise TrainingError(
            f"the base's chat template cannot write {what}: {error}; fix the template, or train another base"
        ) from None


def _read(prompt: str | None, history: Sequence[Message], tools: Sequence[ToolSchema]) -> ChatRequest:
    """A request as the server reads it."""
    system = [] if prompt is None else [{"role": "system", "content": prompt}]
    messages = [*system, *(to_wire(message) for message in history if is_visible(message))]
    return ChatRequest.read(json.dumps(request_body(_SETTINGS, messages, tools, 0)).encode())
