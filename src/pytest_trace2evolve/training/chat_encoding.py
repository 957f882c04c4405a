"""Conversations as tokens for a training: by the very code by which the server writes and reads them.

Answers of a model in training, drawn by the server's engine in this process.
"""

import json
import queue
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from pytest_trace2evolve.agents.chat import is_visible
from pytest_trace2evolve.errors import TrainingError
from pytest_trace2evolve.models.api import request_body
from pytest_trace2evolve.models.settings import ModelSettings
from pytest_trace2evolve.records.completion import Completion, RequestedCall
from pytest_trace2evolve.records.message import Message
from pytest_trace2evolve.records.protocols import ToolSchema
from pytest_trace2evolve.records.wire import from_completion, to_wire
from pytest_trace2evolve.serving.chat_format import Prompt, Writer, call_id
from pytest_trace2evolve.serving.engine import Answer, Engine, EngineError, Job
from pytest_trace2evolve.serving.in_process import FoldedModel
from pytest_trace2evolve.serving.request import ApiError, ChatRequest
from pytest_trace2evolve.training.protocols import Then, Wish

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
    messages = [*system, *(to_wire(one) for one in history if is_visible(one))]
    return ChatRequest.read(json.dumps(request_body(_SETTINGS, messages, tools, 0)).encode())


PREFIX_BYTES = 1 << 30
"""What is kept of ended rows; all of a step's rollouts fit for a small model."""


class EngineSampler:
    """Draws answers; what was worked out of prompts is used again until the weights change.

    Args:
        base: The base, before an adapter was put on it.
        ends: Tokens that end an answer.
        rows: Rows that are decoded together at most.
    """

    def __init__(self, base: Any, ends: frozenset[int], rows: int = 256) -> None:
        self._model = FoldedModel(base, ends)
        self._rows = rows
        self._engine: Engine | None = None

    def play(
        self, model: Any, wishes: Sequence[Wish], then: Then, *, temperature: float, fresh: bool
    ) -> None:
        """Draw answers until nobody wishes any more; see `Sampler`.

        Raises:
            TrainingError: the model gave no numbers, or there is no memory for them.
        """
        try:
            self._play(model, wishes, then, temperature=temperature, fresh=fresh)
        except EngineError as error:
            raise TrainingError(
                f"answers cannot be drawn: {error}; lower the rate where these are no numbers, and groups or "
                "rollouts where memory is short"
            ) from None

    def _play(
        self, model: Any, wishes: Sequence[Wish], then: Then, *, temperature: float, fresh: bool
    ) -> None:
        if fresh or self._engine is None:
            self.close()
            self._model.fold(model)
            # Nobody is turned away: there are never more requests than rollouts.
            self._engine = Engine(
                self._model, rows=self._rows, waiting=max(1, len(wishes)), prefix_bytes=PREFIX_BYTES
            )
        engine = self._engine
        self._read([one.prompt for one in wishes])
        ready: queue.SimpleQueue[tuple[int, Future[Answer]]] = queue.SimpleQueue()

        def submit(place: int, wish: Wish) -> None:
            job = Job(wish.prompt, most=wish.most, temperature=temperature, seed=wish.seed)
            engine.submit(job).add_done_callback(lambda done: ready.put((place, done)))

        for place, wish in enumerate(wishes):
            submit(place, wish)
        going = len(wishes)
        while going:
            place, done = ready.get()
            following = then(place, done.result().tokens)
            if following is None:
                going -= 1
            else:
                submit(place, following)

    def close(self) -> None:
        """End the engine's thread, and forget what was worked out."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def _read(self, prompts: Sequence[Sequence[int]]) -> None:
        """Work each prompt of a group out once, the first alone: all begin with what it begins with."""
        assert self._engine is not None
        different = [list(one) for one in dict.fromkeys(map(tuple, prompts))]
        for part in (different[:1], different[1:]):
            futures = [self._engine.submit(Job(one, seed=0)) for one in part]
            for future in futures:
                future.result()


def sampler_of(ends: frozenset[int]) -> Callable[[Any], EngineSampler]:
    """Makes the sampler of a base."""
    return lambda base: EngineSampler(base, ends)
