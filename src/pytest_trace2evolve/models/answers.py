"""Models whose answers are kept, and models that only give back what was kept.

The key of an answer is the digest of its request as it is sent and of its trial, so that what differs in
anything that a model can see is another answer. Secrets are no part of it.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pytest_trace2evolve.errors import ContextWindowError, InfrastructureError
from pytest_trace2evolve.models.api import request_body
from pytest_trace2evolve.models.settings import ModelSettings
from pytest_trace2evolve.records.completion import Answer, Completion, JournalEntry, Side
from pytest_trace2evolve.records.protocols import Answers, FirstTokens, Journal, Model, ToolSchema
from pytest_trace2evolve.utils.canonical import canonical_json, digest, digest_text
from pytest_trace2evolve.utils.secrets import without_secrets

WHOLE_ENDS = frozenset({None, "stop", "tool_calls", "function_call"})
"""Finish reasons of a completion that nothing cut short."""


def answer_key(request: Mapping[str, Any], trial: int) -> str:
    """The key of an answer, wherever it was made.

    Args:
        request: The request's body, which holds the seed where there is one.
        trial: The simulation's trial: two trials are two draws, also where no seed tells them apart.
    """
    return digest([trial, request])


class KeyedRequests:
    """Keys of one model's requests.

    Attributes:
        model: The model's name.
    """

    def __init__(self, settings: ModelSettings) -> None:
        self.model = settings.model
        self._settings = replace(settings, extra_body=without_secrets(settings.extra_body))
        recorded = settings.recorded()
        self._endpoint = str(recorded.get("weights") or recorded.get("endpoint", ""))

    def key(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[ToolSchema],
        trial: int,
        tool_choice: str = "auto",
    ) -> str:
        """The key of a request, the same at every endpoint."""
        return answer_key(request_body(self._settings, messages, tools, trial, tool_choice), trial)

    def at_endpoint(self, key: str) -> str:
        """The same key at this endpoint only: a cache must not mix two of them."""
        return digest_text(f"{key} {self._endpoint}")


class StoredModel:
    """A model whose answers are kept.

    Args:
        model: Who answers what is not kept yet.
        settings: The model's settings.
        side: Whose model it is.
        cache: Answers of earlier runs, taken instead of asking; whole and good ones are added.
        record: Answers of this run, all of them. A request that comes again gets the recorded answer again,
            so that the run goes as its recording will.
        place: A part of the cache: answers of one place are never taken in another.
    """

    def __init__(
        self,
        model: Model,
        settings: ModelSettings,
        side: Side,
        *,
        cache: Answers | None = None,
        record: Answers | None = None,
        place: str = "",
    ) -> None:
        self._model = model
        self._settings = settings
        self._requests = KeyedRequests(settings)
        self._place = place
        self._name = settings.model
        self._side: Side = side
        self._cache = cache
        self._record = record

    async def complete(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[ToolSchema],
        *,
        trial: int = 0,
        tool_choice: str = "auto",
    ) -> Completion:
        """One completion, kept or fresh.

        Raises:
            ContextWindowError: the conversation does not fit the model.
            InfrastructureError: a store could not be read.
            StorageError: a store could not be written.
            EndpointError: see `ChatModel.complete`.
        """
        key = self._requests.key(messages, tools, trial, tool_choice)
        here = self._requests.at_endpoint(f"{key} {self._place}" if self._place else key)
        kept = self._record.get(key) if self._record else None
        if kept is not None:
            return _told(kept, cached=True)
        cached = self._cache.get(here) if self._cache else None
        answer = cached or await self._ask(messages, tools, trial, tool_choice)
        if self._cache is not None and cached is None and _whole(answer.completion):
            self._cache.put(here, answer)
        if self._record is not None:
            answer = self._record.put(key, answer)
        return _told(answer, cached=cached is not None)

    def at(self, place: str) -> "StoredModel":
        """The same model, with the part of the cache of a place."""
        return StoredModel(
            self._model, self._settings, self._side, cache=self._cache, record=self._record, place=place
        )

    async def _ask(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[ToolSchema], trial: int, tool_choice: str
    ) -> Answer:
        answer = Answer.model_construct(trial=trial, side=self._side, model=self._name)
        return await _answered(answer, self._model, messages, tools, tool_choice)


class _Conversation:
    """Digests of the requests of one side of a conversation, each of which mostly repeats the one before.

    A digest depends on the request alone. What was digested for the last request is not digested again: a
    whole request takes a tenth of a millisecond.
    """

    def __init__(self, requests: KeyedRequests) -> None:
        self._requests = requests
        self._frame: tuple[Sequence[ToolSchema], int, str] | None = None
        self._frame_key = ""
        self._messages: list[Mapping[str, Any]] = []
        self._chain = ""

    def digest(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[ToolSchema], trial: int, tool_choice: str
    ) -> str:
        """The digest of a request and its trial."""
        before = self._frame
        if before is None or before[0] is not tools or before[1:] != (trial, tool_choice):
            self._frame = (tools, trial, tool_choice)
            self._frame_key = self._requests.key((), tools, trial, tool_choice)
        if list(messages[: len(self._messages)]) != self._messages:
            self._messages, self._chain = [], ""
        for message in messages[len(self._messages) :]:
            self._messages.append(message)
            self._chain = digest_text(self._chain + canonical_json(message))
        return digest_text(self._frame_key + self._chain)


class JournaledModel:
    """A model in one simulation: its answers are written down before they are used.

    Args:
        model: Who answers what the journal does not hold.
        requests: Keys of its requests.
        side: Whose model it is.
        journal: The simulation's. What it holds already is taken from it, marked `cached`.
        before_use: Called before an answer is used.
    """

    def __init__(
        self,
        model: Model,
        requests: KeyedRequests,
        side: Side,
        journal: Journal,
        before_use: Callable[[], Awaitable[None]],
    ) -> None:
        self._model = model
        self._name = requests.model
        self._conversation = _Conversation(requests)
        self._side: Side = side
        self._journal = journal
        self._before_use = before_use

    async def complete(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[ToolSchema],
        *,
        trial: int = 0,
        tool_choice: str = "auto",
    ) -> Completion:
        """One completion, of the journal or fresh.

        Raises:
            ContextWindowError: the conversation does not fit the model.
            StorageError: the journal cannot be written.
            Exception: see `ChatModel.complete` and `StoredModel.complete`.
        """
        request = f"{self._side} {self._conversation.digest(messages, tools, trial, tool_choice)}"
        kept = self._journal.take(request)
        if kept is not None and kept.answer is not None:
            await self._before_use()
            return _told(kept.answer, cached=True)
        answer = Answer.model_construct(trial=trial, side=self._side, model=self._name)
        answer = await _answered(answer, self._model, messages, tools, tool_choice)
        self._journal.add(JournalEntry(request, answer))
        await self._before_use()
        return _told(answer, cached=answer.completion is not None and answer.completion.cached)


class JournaledTokens:
    """The first tokens of a model in one simulation, written down before they are used.

    Args:
        model: Who answers what the journal does not hold.
        requests: Keys of its requests.
        journal: The simulation's.
        before_use: Called before an answer is used.
    """

    def __init__(
        self,
        model: FirstTokens,
        requests: KeyedRequests,
        journal: Journal,
        before_use: Callable[[], Awaitable[None]],
    ) -> None:
        self._model = model
        self._requests = requests
        self._journal = journal
        self._before_use = before_use

    async def first_tokens(self, messages: Sequence[Mapping[str, Any]]) -> Mapping[str, float]:
        """The log-probabilities of the likeliest first tokens, of the journal or fresh."""
        request = f"first tokens {self._requests.key(messages, (), 0)}"
        kept = self._journal.take(request)
        if kept is not None and kept.first_tokens is not None:
            await self._before_use()
            return kept.first_tokens
        tokens = await self._model.first_tokens(messages)
        self._journal.add(JournalEntry(request, first_tokens=tokens))
        await self._before_use()
        return tokens


class PlayedModel:
    """A model that gives back what a cassette holds, and asks nobody.

    Args:
        settings: The settings that the cassette was recorded with.
        side: Whose model it is.
        answers: The recorded answers by their keys.
        name: What to call the cassette.
    """

    def __init__(self, settings: ModelSettings, side: Side, answers: Mapping[str, Answer], name: str) -> None:
        self._requests = KeyedRequests(settings)
        self._model = settings.model
        self._side = side
        self._answers = answers
        self._name = name

    async def complete(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[ToolSchema],
        *,
        trial: int = 0,
        tool_choice: str = "auto",
    ) -> Completion:
        """One recorded completion.

        Raises:
            ContextWindowError: it was recorded that the conversation does not fit the model.
            InfrastructureError: the cassette holds no answer to this request.
        """
        answer = self._answers.get(self._requests.key(messages, tools, trial, tool_choice))
        if answer is None:
            raise InfrastructureError(
                f"{self._name} holds no answer of the {self._side}'s model {self._model!r} in trial {trial} "
                f"to these {len(messages)} messages; record it again with --t2e-record"
            )
        return _told(answer, cached=True)


async def _answered(
    answer: Answer,
    model: Model,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[ToolSchema],
    tool_choice: str,
) -> Answer:
    """An answer with what a model says to a request, or with its refusal of a too long conversation."""
    try:
        completion = await model.complete(messages, tools, trial=answer.trial, tool_choice=tool_choice)
    except ContextWindowError as error:
        return answer.model_copy(update={"context_window": str(error)})
    return answer.model_copy(update={"completion": completion})


def _told(answer: Answer, *, cached: bool) -> Completion:
    if answer.completion is None:
        raise ContextWindowError(answer.context_window or "")
    return answer.completion.model_copy(update={"cached": cached})


def _whole(completion: Completion | None) -> bool:
    """Whether a completion is worth keeping for other runs: something was said, and nothing cut it short."""
    if completion is None or completion.finish_reason not in WHOLE_ENDS:
        return False
    return bool(completion.tool_calls or (completion.content and not completion.content.isspace()))
