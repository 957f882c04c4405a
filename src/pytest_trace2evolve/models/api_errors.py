"""Reads the errors of OpenAI-compatible endpoints: one table of rules for the agent, own agents and judges.

The first rule that fits an error decides its outcome. An error that no rule fits is shown with its own words.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import Any

from pytest_trace2evolve.models.api import read_body
from pytest_trace2evolve.records.completion import Completion
from pytest_trace2evolve.utils.canonical import storable_text

MAX_ERROR_LENGTH = 300
"""The largest number of characters of an endpoint's error that are shown."""

MAX_READ_LENGTH = 4_000
"""The largest number of characters of an endpoint's error in which words are looked for."""


class Outcome(StrEnum):
    """The consequence of an error."""

    OVERFLOW = "overflow"  # the conversation does not fit: the end of the simulation, not of the run
    TOO_LARGE = "too large"  # like OVERFLOW if the model has answered before, otherwise like REFUSED
    MALFORMED_CALL = "malformed call"  # the model's own failure
    FATAL = "fatal"  # every further request would get it
    FORBIDDEN = "forbidden"  # FATAL before the first answer of the model, REFUSED after it
    MISSING = "missing"  # FATAL before the first answer of the model, RETRY after it
    RETRY = "retry"  # a later attempt may succeed
    FILTERED = "filtered"  # the content of this request is at fault, even in the first one
    REFUSED = "refused"  # the content of this request is at fault if the model has answered one like it


@dataclass(frozen=True)
class Rule:
    """A rule, which fits an error with one of its statuses and codes, or with its words in lower case."""

    outcome: Outcome
    keys: str
    words: str
    source: str

    def fits(self, keys: set[str], text: str) -> bool:
        return not keys.isdisjoint(self.keys.split()) or bool(self.words and re.search(self.words, text))


_OVERFLOW = Outcome.OVERFLOW
_SIZE = "(length|window|size|limit)"
_CONTEXT = "context(?! (deadline|cancel))"  # Go's "context deadline exceeded" is about time
_RATES = "rate limit|tokens per minute|too many requests|throttl"
_SERVER_ERRORS = " ".join(map(str, range(500, 600)))

RULES = (
    Rule(Outcome.FATAL, "insufficient_quota invalid_api_key model_not_found", "", "OpenAI"),
    Rule(Outcome.MALFORMED_CALL, "tool_use_failed", "", "Groq"),
    Rule(Outcome.RETRY, "429 rate_limit_exceeded", _RATES, "all; Groq sends 413 for the account's limit"),
    Rule(_OVERFLOW, "context_length_exceeded exceed_context_size_error", "", "R1: OpenAI, Groq; llama.cpp"),
    Rule(_OVERFLOW, "request_too_large", "", "R1: Anthropic"),
    Rule(_OVERFLOW, "", f"{_CONTEXT}.{{0,200}}{_SIZE}|{_SIZE}.{{0,200}}{_CONTEXT}", "R2: vLLM, LM Studio, …"),
    Rule(_OVERFLOW, "", "prompt is too long|prompt too long|input is too long", "R3: Anthropic, Bedrock"),
    Rule(_OVERFLOW, "", "maximum.{0,80}(model|prompt|input) length", "R4: vLLM, xAI"),
    Rule(_OVERFLOW, "", "input token.{0,200}exceed|too many input tokens", "R5: Gemini, Bedrock"),
    Rule(_OVERFLOW, "", "prompt tokens.{0,200}exceed model maximum", "R5: Bedrock"),
    Rule(_OVERFLOW, "", "inputs`? (tokens|must have less than)", "R6: TGI"),
    Rule(_OVERFLOW, "", "max_num_tokens|default_max_tokens.{0,200}greater than 0", "R7: TensorRT-LLM"),
    Rule(_OVERFLOW, "", "n_keep.{0,200}n_ctx", "R8: LM Studio"),
    Rule(_OVERFLOW, "", "reduce the length of the messages|exceeded model token limit", "R9: Groq"),
    Rule(_OVERFLOW, "", "range of input length", "R9: others"),
    Rule(Outcome.FILTERED, "content_filter", "", "Azure"),
    Rule(Outcome.FATAL, "401 402", "", "all"),
    Rule(Outcome.FORBIDDEN, "403", "", "all; OpenRouter's moderation"),
    Rule(Outcome.MISSING, "404", "", "all: an unknown model; MLX-LM: any failed generation"),
    Rule(Outcome.TOO_LARGE, "413", "", "gateways' limit of bytes"),
    Rule(Outcome.REFUSED, "501", "requires --jinja", "vLLM, llama.cpp: not implemented, or not enabled"),
    Rule(Outcome.RETRY, "408 409 424 425 498 499", "", "all; TGI 424, Groq 498, Ollama 499"),
    Rule(Outcome.RETRY, _SERVER_ERRORS, "", "all; Anthropic 529"),
)
"""The rules by priority."""

OVERFLOW_REASONS = frozenset({"model_length", "model_context_window_exceeded"})
"""R10: finish reasons of an answer whose conversation does not fit (Mistral, z.ai)."""


def is_overflow(completion: Completion) -> bool:
    """R10: whether an answer says that the conversation does not fit, or is cut before its first token."""
    if completion.finish_reason in OVERFLOW_REASONS:
        return True
    has_output = completion.content or completion.tool_calls or completion.provider_fields
    return completion.finish_reason == "length" and not (has_output or completion.usage.completion_tokens)


@dataclass(frozen=True)
class ApiError:
    """An error of an endpoint.

    Attributes:
        status: The HTTP status, which may be 200.
        text: The error's own words in one line; may be empty.
        field: The field of the request that the error names; empty if it names none.
        is_known: Whether a rule fits it.
    """

    status: int
    text: str
    outcome: Outcome
    is_known: bool = True
    field: str = ""

    def __str__(self) -> str:
        note = "" if self.is_known else "unknown error of the endpoint: "
        return f"{note}{self.status} {self.text}".rstrip()


def read_error(status: int, content: bytes | Any) -> ApiError:
    """Read an error from the body of an answer, or from its JSON.

    An error in an answer with status 200 may pass, so it is retried if no rule fits it.
    """
    body = content
    if isinstance(content, bytes):
        try:
            body = read_body(content)
        except ValueError:
            body = content.decode("utf-8", "replace")
    text, keys, field = error_text(body), {str(status)}, ""
    for record in _records(body):
        if isinstance(record, dict):
            inner = record.get("innererror")  # Azure's
            values = [record.get(name) for name in ("code", "type", "error_type", "status")]
            values += [inner.get("code")] if isinstance(inner, dict) else []
            keys |= {str(value) for value in values if isinstance(value, str | int)}
            loc = record.get("loc")
            place = loc[-1] if isinstance(loc, list) and loc else record.get("param")
            field = field or (place[:80] if isinstance(place, str) and place.isidentifier() else "")
    words = "" if text.startswith("<") else text[:MAX_READ_LENGTH].lower()  # not those of a gateway's page
    rule = next((rule for rule in RULES if rule.fits(keys, words)), None)
    outcome = rule.outcome if rule else Outcome.RETRY if status < 400 else Outcome.REFUSED
    text = storable_text(text[:MAX_ERROR_LENGTH])
    if field not in text:
        text += f" ({field})"
    return ApiError(status, text, outcome, rule is not None, field)


def error_text(body: Any) -> str:
    """The words of an error in one line, wherever the body holds them; a body without words as JSON."""
    for record in _records(body):
        if isinstance(record, str):
            texts: list[Any] = [record]
        else:
            metadata = record.get("metadata")  # OpenRouter's, with the words of the provider
            raw = metadata.get("raw") if isinstance(metadata, dict) else None
            texts = [record.get("message"), record.get("msg"), raw]
        if line := " ".join(": ".join(text for text in texts if isinstance(text, str)).split()):
            return line
    return " ".join(json.dumps(body, ensure_ascii=False)[:MAX_ERROR_LENGTH].split()) if body else ""


def retry_after(headers: Mapping[str, str]) -> float | None:
    """The seconds that an endpoint asks the client to wait; None if it does not ask."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            return float(headers[name]) * unit
        except (KeyError, ValueError):
            continue
    try:
        date = parsedate_to_datetime(headers["retry-after"])
        return (date.replace(tzinfo=date.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
    except (KeyError, ValueError):
        return None


def _records(body: Any, levels: int = 5) -> Iterator[str | dict[str, Any]]:
    """The texts and objects of a body that may hold the error, the most specific first."""
    if isinstance(body, str):
        yield body
    if isinstance(body, list) and body and levels:  # Gemini, and FastAPI's `detail`
        yield from _records(body[0], levels - 1)
    if isinstance(body, dict) and levels:
        # Mistral may send an object as message, and OpenRouter an error in a choice.
        message = body.get("message")
        for inner in (body.get("error"), body.get("detail"), None if isinstance(message, str) else message):
            yield from _records(inner, levels - 1)
        if isinstance(body.get("choices"), list):
            yield from _records(
                [choice for choice in body["choices"] if isinstance(choice, dict)], levels - 1
            )
        yield body
