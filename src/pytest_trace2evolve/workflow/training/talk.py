"""Conversations as tokens for a training: by the very code by which the server writes and reads them."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pytest_trace2evolve.agents.chat import heard
from pytest_trace2evolve.errors import TrainingError
from pytest_trace2evolve.models.request import request_body
from pytest_trace2evolve.models.settings import ModelSettings
from pytest_trace2evolve.records.completion import Completion, RequestedCall
from pytest_trace2evolve.records.message import Message
from pytest_trace2evolve.records.protocols import ToolSchema
from pytest_trace2evolve.records.wire import from_completion, to_wire
from pytest_trace2evolve.serving.calls import call_id
from pytest_trace2evolve.serving.refusals import ApiError
from pytest_trace2evolve.serving.request import ChatRequest
from pytest_trace2evolve.serving.writer import Prompt, Writer

_SETTINGS = ModelSettings(model="trained", base_url="", temperature=None)
"""Nothing of it changes a prompt."""


class ServerTalk:
    """Writes prompts and reads answers as the server does for `ChatAgent`.

    Args:
        tokenizer: The base's.
        ends: Tokens that end an answer.
        agents: Of each environment the system prompt of its agent, and the tools.
    """

    def __init__(
        self, tokenizer: Any, ends: frozenset[int], agents: Mapping[str, tuple[str, Sequence[ToolSchema]]]
    ) -> None:
        self._writer = Writer(tokenizer, ends)
        self._tokenizer = tokenizer
        self._agents = agents

    def prompt(self, environment: str, history: Sequence[Message]) -> list[int]:
        """The prompt of a conversation in which it is the agent's turn.

        Raises:
            TrainingError: the template refuses it.
        """
        asked = self._asked(environment, history)
        with _told(f"a conversation of {environment!r}"):
            return list(self._writer.prompt(asked.messages, asked.tools, asked.tool_choice, {}).tokens)

    def said(self, prompt: Sequence[int], answer: Sequence[int], environment: str) -> Message | None:
        """What an answer says; None where it says nothing, which ends a rollout."""
        tools = self._asked(environment, ()).tools
        # Only a tokenizer that reads answers by itself looks at the prompt.
        own = getattr(self._tokenizer, "response_template", None) is not None
        text = str(self._tokenizer.decode(list(prompt))) if own else ""
        said = self._writer.said(Prompt(text, prompt, tools=tools), answer, ())
        calls = tuple(
            RequestedCall(id=call_id(prompt, answer, place), name=one.name, arguments=one.arguments)
            for place, one in enumerate(said.calls)
        )
        message = from_completion(Completion(content=said.content or None, tool_calls=calls), "assistant")
        return None if message.text is None and not calls else message

    def following(self, said: Message, messages: Sequence[Message], *, ended: bool) -> list[int]:
        """Tokens from the end of an answer to where the next begins.

        Raises:
            TrainingError: the template refuses them, or ends answers by nothing.
        """
        answer, *back = _read([said, *messages], ()).messages
        with _told("what follows an answer"):
            return self._writer.following(answer, back, ended=ended)

    def _asked(self, environment: str, history: Sequence[Message]) -> ChatRequest:
        prompt, tools = self._agents[environment]
        return _read(history, tools, prompt)


@contextmanager
def _told(what: str) -> Iterator[None]:
    """What a template refuses, in one line."""
    try:
        yield
    except ApiError as error:
        raise TrainingError(
            f"the base's chat template cannot write {what}: {error}; mend the template, or train another base"
        ) from None


def _read(history: Sequence[Message], tools: Sequence[ToolSchema], prompt: str | None = None) -> ChatRequest:
    """A request as the server reads it."""
    system = [] if prompt is None else [{"role": "system", "content": prompt}]
    messages = [*system, *(to_wire(one) for one in history if heard(one))]
    return ChatRequest.read(json.dumps(request_body(_SETTINGS, messages, tools, 0)).encode())
