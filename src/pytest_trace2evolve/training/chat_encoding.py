"""Encodes conversations as tokens for training, with the server's own code for prompts and answers."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import transformers

from pytest_trace2evolve.agents.chat import is_visible
from pytest_trace2evolve.errors import TrainingError
from pytest_trace2evolve.models.api import request_body
from pytest_trace2evolve.models.settings import ModelSettings
from pytest_trace2evolve.records.completion import Completion, RequestedCall, from_completion, to_wire
from pytest_trace2evolve.records.message import Message
from pytest_trace2evolve.records.protocols import ToolSchema
from pytest_trace2evolve.serving.chat_format import ChatFormat, Prompt, call_id
from pytest_trace2evolve.serving.folder import ModelFolder
from pytest_trace2evolve.serving.loading import convert_failures, find_end_tokens, silenced_libraries
from pytest_trace2evolve.serving.request import ApiError, ChatRequest

_PROMPT_SETTINGS = ModelSettings(model="trained", base_url="", temperature=None)
"""Placeholder settings for building requests; none of them changes a prompt."""


class ChatEncoder:
    """Writes prompts and reads answers as the server does for `ChatAgent`.

    Args:
        tokenizer: The base model's tokenizer.
        end_tokens: Tokens that end an answer.
        agents: The system prompt and the tools of the agent in each environment.
    """

    def __init__(
        self,
        tokenizer: Any,
        end_tokens: frozenset[int],
        agents: Mapping[str, tuple[str, Sequence[ToolSchema]]],
    ) -> None:
        self._chat_format = ChatFormat(tokenizer, end_tokens)
        self._tokenizer = tokenizer
        self._agents = agents
        self._tools = {name: self._make_request(name, ()).tools for name in agents}

    def prompt(self, environment: str, history: Sequence[Message]) -> list[int]:
        """Return the prompt of a conversation for the agent's next turn, as tokens.

        Raises:
            TrainingError: the template rejects the conversation.
        """
        with _convert_failures(f"a conversation of {environment!r}"):
            return list(self._chat_format.prompt(self._make_request(environment, history)).tokens)

    def parse(self, prompt: Sequence[int], answer: Sequence[int], environment: str) -> Message | None:
        """Return the message of an answer; None if the answer is empty, which ends a rollout."""
        # Only a tokenizer with its own parser uses the prompt.
        has_parser = getattr(self._tokenizer, "response_template", None) is not None
        text = str(self._tokenizer.decode(list(prompt))) if has_parser else ""
        prompt_with_tools = Prompt(text, prompt, tools=self._tools[environment])
        parsed_answer = self._chat_format.parse(prompt_with_tools, answer)
        calls = tuple(
            RequestedCall(id=call_id(prompt, answer, index), name=call.name, arguments=call.arguments)
            for index, call in enumerate(parsed_answer.calls)
        )
        message = from_completion(
            Completion(content=parsed_answer.content or None, tool_calls=calls), "assistant"
        )
        return message if calls or message.text is not None else None

    def continuation(self, answer: Message, messages: Sequence[Message], *, has_end_token: bool) -> list[int]:
        """Return the tokens between an answer and the next one, including those of the messages between them.

        Unless `has_end_token` is true, the result begins with the token that ends the answer.

        Raises:
            TrainingError: the template rejects the messages, or does not show where an answer ends.
        """
        answer_message, *later_messages = _parse_request(None, [answer, *messages], ()).template_messages
        with _convert_failures("the messages after an answer"):
            return self._chat_format.continuation(answer_message, later_messages, has_end_token=has_end_token)

    def _make_request(self, environment: str, history: Sequence[Message]) -> ChatRequest:
        prompt, tools = self._agents[environment]
        return _parse_request(prompt, history, tools)


@contextmanager
def _convert_failures(subject: str) -> Iterator[None]:
    try:
        yield
    except ApiError as error:
        raise TrainingError(
            f"the base's chat template cannot render {subject}: {error}; fix the template, or train a "
            "different base"
        ) from None


def _parse_request(
    prompt: str | None, history: Sequence[Message], tools: Sequence[ToolSchema]
) -> ChatRequest:
    """Build a request, and parse it as the server does."""
    system_messages = [] if prompt is None else [{"role": "system", "content": prompt}]
    messages = [*system_messages, *(to_wire(message) for message in history if is_visible(message))]
    return ChatRequest.parse(json.dumps(request_body(_PROMPT_SETTINGS, messages, tools, 0)).encode())


def read_end_tokens(folder: ModelFolder, tokenizer: Any) -> frozenset[int]:
    """Return the tokens that end an answer, determined without loading the model.

    Raises:
        ModelFolderError: the model's generation settings cannot be read.
    """
    with silenced_libraries(), convert_failures(str(folder.path)):
        if (folder.path / "generation_config.json").exists():
            settings = transformers.GenerationConfig.from_pretrained(folder.path)
        else:
            config = transformers.AutoConfig.from_pretrained(folder.path, trust_remote_code=False)
            settings = transformers.GenerationConfig.from_model_config(config)
    return find_end_tokens(settings, tokenizer)
