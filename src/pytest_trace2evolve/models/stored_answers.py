"""Models that store their answers, and models that only return stored ones.

The key of an answer is the digest of its trial and of its request as sent, without secrets. Requests that
differ in anything that a model can see have different keys.
"""

import copy
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pytest_trace2evolve.errors import ContextWindowError, InfrastructureError
from pytest_trace2evolve.models.api import request_body
from pytest_trace2evolve.models.settings import ModelSettings
from pytest_trace2evolve.records.completion import Answer, Completion, JournalEntry, ParticipantSide
from pytest_trace2evolve.records.protocols import AnswerStore, FirstTokens, Journal, Model, ToolSchema
from pytest_trace2evolve.utils.canonical import canonical_json, digest, digest_text
from pytest_trace2evolve.utils.secrets import remove_secret_fields

Messages = Sequence[Mapping[str, Any]]
Tools = Sequence[ToolSchema]

COMPLETE_REASONS = frozenset({None, "stop", "tool_calls", "function_call"})
"""Finish reasons of a complete answer."""


def answer_key(request: Mapping[str, Any], trial: int) -> str:
    """The key of an answer at any endpoint. Trials have different keys even without a seed in the request."""
    return digest([trial, request])


class RequestKeys:
    """Computes the keys of one model's requests."""

    def __init__(self, settings: ModelSettings) -> None:
        self.model = settings.model
        self._settings = replace(settings, extra_body=remove_secret_fields(settings.extra_body))
        settings_record = settings.to_record()
        self._endpoint = str(settings_record.get("weights") or settings_record.get("endpoint", ""))

    def key(self, messages: Messages, tools: Tools, trial: int, tool_choice: str = "auto") -> str:
        """The key of a request at any endpoint."""
        return answer_key(request_body(self._settings, messages, tools, trial, tool_choice), trial)

    def endpoint_key(self, key: str) -> str:
        """Restrict a key to this endpoint, because a cache must not mix endpoints."""
        return digest_text(f"{key} {self._endpoint}")


class StoredModel:
    """A model whose answers are stored.

    Args:
        model: Answers new requests.
        cache: Answers of earlier runs, which replace requests; new complete answers are added.
        record: All answers of this run. A repeated request gets the recorded answer, so a playback repeats
            the run.
    """

    def __init__(
        self,
        model: Model,
        settings: ModelSettings,
        side: ParticipantSide,
        *,
        cache: AnswerStore | None = None,
        record: AnswerStore | None = None,
    ) -> None:
        self._model = model
        self._settings = settings
        self._requests = RequestKeys(settings)
        self._side: ParticipantSide = side
        self._cache = cache
        self._record = record
        self._cache_partition = ""

    async def complete(
        self, messages: Messages, tools: Tools, *, trial: int = 0, tool_choice: str = "auto"
    ) -> Completion:
        """Return one completion, either stored or new.

        Raises:
            ContextWindowError: the conversation does not fit the model.
            InfrastructureError: a store could not be read.
            StorageError: a store could not be written.
            EndpointError: see `ChatModel.complete`.
        """
        key = self._requests.key(messages, tools, trial, tool_choice)
        recorded_answer = await self._record.get(key) if self._record else None
        if recorded_answer is not None:
            return _to_completion(recorded_answer, is_cached=True)
        cache_key = self._requests.endpoint_key(
            f"{key} {self._cache_partition}" if self._cache_partition else key
        )
        cached_answer = await self._cache.get(cache_key) if self._cache else None
        answer = cached_answer
        if answer is None:
            call = self._model.complete(messages, tools, trial=trial, tool_choice=tool_choice)
            answer = await _await_answer(call, self._settings.model, self._side, trial)
        if self._cache is not None and cached_answer is None and _is_complete(answer.completion):
            await self._cache.put(cache_key, answer)
        if self._record is not None:
            answer = await self._record.put(key, answer)
        return _to_completion(answer, is_cached=cached_answer is not None)

    def with_cache_partition(self, partition: str) -> "StoredModel":
        """Return the same model with a separate part of the cache; parts share no answers."""
        model = copy.copy(self)
        model._cache_partition = partition
        return model


class JournaledModel:
    """A model in one simulation, which writes its answers to a journal before they are used.

    Args:
        model: Answers new requests.
        requests: Computes the keys of the model's requests.
        journal: The simulation's journal; answers from it are marked `cached`.
        before_use: Called before an answer is used.
    """

    def __init__(
        self,
        model: Model,
        requests: RequestKeys,
        side: ParticipantSide,
        journal: Journal,
        before_use: Callable[[], Awaitable[None]],
    ) -> None:
        self._model = model
        self._digests = _RequestDigests(requests)
        self._name = requests.model
        self._side: ParticipantSide = side
        self._journal = journal
        self._before_use = before_use

    async def complete(
        self, messages: Messages, tools: Tools, *, trial: int = 0, tool_choice: str = "auto"
    ) -> Completion:
        """Return one completion, either from the journal or new.

        Raises:
            ContextWindowError: the conversation does not fit the model.
            StorageError: the journal cannot be written.
            Exception: see `ChatModel.complete` and `StoredModel.complete`.
        """
        request = f"{self._side} {self._digests.digest(messages, tools, trial, tool_choice)}"
        entry = self._journal.take(request)
        if entry is not None and entry.answer is not None:
            await self._before_use()
            return _to_completion(entry.answer, is_cached=True)
        call = self._model.complete(messages, tools, trial=trial, tool_choice=tool_choice)
        answer = await _await_answer(call, self._name, self._side, trial)
        self._journal.add(JournalEntry(request, answer))
        await self._before_use()
        return _to_completion(answer, is_cached=answer.completion is not None and answer.completion.cached)


class _RequestDigests:
    """Computes digests of the successive requests of a conversation.

    A digest depends on the request alone. Most requests repeat the messages of the previous request. Repeated
    messages are not digested again, because a whole request takes a tenth of a millisecond.
    """

    def __init__(self, requests: RequestKeys) -> None:
        self._requests = requests
        self._frame: tuple[Tools, int, str] | None = None
        self._frame_digest = ""
        self._messages: list[Mapping[str, Any]] = []
        self._messages_digest = ""

    def digest(self, messages: Messages, tools: Tools, trial: int, tool_choice: str) -> str:
        frame = self._frame
        if frame is None or frame[0] is not tools or frame[1:] != (trial, tool_choice):
            self._frame = (tools, trial, tool_choice)
            self._frame_digest = self._requests.key((), tools, trial, tool_choice)
        if list(messages[: len(self._messages)]) != self._messages:
            self._messages, self._messages_digest = [], ""
        for message in messages[len(self._messages) :]:
            self._messages.append(message)
            self._messages_digest = digest_text(self._messages_digest + canonical_json(message))
        return digest_text(self._frame_digest + self._messages_digest)


class JournaledFirstTokens:
    """Journals the first tokens of a model, as `JournaledModel` does with completions."""

    def __init__(
        self,
        model: FirstTokens,
        requests: RequestKeys,
        journal: Journal,
        before_use: Callable[[], Awaitable[None]],
    ) -> None:
        self._model = model
        self._requests = requests
        self._journal = journal
        self._before_use = before_use

    async def first_tokens(self, messages: Messages) -> Mapping[str, float]:
        """Log-probabilities of the likeliest first tokens, either from the journal or new."""
        request = f"first tokens {self._requests.key(messages, (), 0)}"
        entry = self._journal.take(request)
        tokens = None if entry is None else entry.first_tokens
        if tokens is None:
            tokens = await self._model.first_tokens(messages)
            self._journal.add(JournalEntry(request, first_tokens=tokens))
        await self._before_use()
        return tokens


class PlaybackModel:
    """A model that returns a cassette's answers and contacts no endpoint.

    Args:
        settings: The settings of the recording.
        answers: The recorded answers by their keys.
        name: The cassette's name, for error messages.
    """

    def __init__(
        self, settings: ModelSettings, side: ParticipantSide, answers: Mapping[str, Answer], name: str
    ) -> None:
        self._requests = RequestKeys(settings)
        self._side = side
        self._answers = answers
        self._name = name

    async def complete(
        self, messages: Messages, tools: Tools, *, trial: int = 0, tool_choice: str = "auto"
    ) -> Completion:
        """Return one recorded completion.

        Raises:
            ContextWindowError: the recorded conversation did not fit the model.
            InfrastructureError: the cassette has no answer to this request.
        """
        answer = self._answers.get(self._requests.key(messages, tools, trial, tool_choice))
        if answer is None:
            raise InfrastructureError(
                f"{self._name} has no answer of the {self._side}'s model {self._requests.model!r} in trial "
                f"{trial} to these {len(messages)} messages; record it again with --t2e-record"
            )
        return _to_completion(answer, is_cached=True)


async def _await_answer(call: Awaitable[Completion], name: str, side: ParticipantSide, trial: int) -> Answer:
    """Await a model's answer; a conversation that is too long becomes an answer without a completion."""
    answer = Answer.model_construct(trial=trial, side=side, model=name)
    try:
        completion = await call
    except ContextWindowError as error:
        return answer.model_copy(update={"context_window": str(error)})
    return answer.model_copy(update={"completion": completion})


def _to_completion(answer: Answer, *, is_cached: bool) -> Completion:
    if answer.completion is None:
        raise ContextWindowError(answer.context_window or "")
    return answer.completion.model_copy(update={"cached": is_cached})


def _is_complete(completion: Completion | None) -> bool:
    """Whether other runs may use a completion, because it is neither empty nor cut short."""
    if completion is None or completion.finish_reason not in COMPLETE_REASONS:
        return False
    return bool(completion.tool_calls or (completion.content and not completion.content.isspace()))
