"""Answers of chat models, their usage, and messages in the shape of the chat-completions API."""

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from pytest_trace2evolve.records.base import Count, Record
from pytest_trace2evolve.records.message import (
    MALFORMED_ARGUMENTS,
    PROVIDER_FIELDS,
    Message,
    Requestor,
    ToolCall,
    storage_problem,
)
from pytest_trace2evolve.utils.canonical import storable_text

ParticipantSide = Literal["agent", "user"]
"""The side whose model answered."""

MAX_TOKENS = 10**9
"""The maximum number of tokens accepted for one call. Sums of token counts must fit into 64 bits."""

MAX_DOLLARS = 1e9
"""The maximum cost of one call in US dollars."""

MAX_PORTABLE_LENGTH = 100_000
"""The length, in characters, above which an endpoint may reject a text."""

_PORTABLE_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""Matches the names of tools that every endpoint accepts."""


TOOL_USE_FAILED = "tool_use_failed"
"""The finish reason of an answer that an endpoint withheld, because it holds a malformed call."""

ProviderFields = dict[str, Any]
"""Fields of an answer that only its endpoint knows, such as reasoning and signatures; they are sent back."""


class RequestedCall(Record):
    """A tool call as a model asked for it. `arguments` is the model's own text, valid JSON or not.

    `id` is the endpoint's, which may be empty, and need not be unique.
    """

    id: str
    name: str
    arguments: str
    provider_fields: ProviderFields = Field(default_factory=dict)


class Usage(Record):
    """Tokens of one or more calls of a model, and their cost in US dollars (None if a price is not known).

    `cached_tokens` counts the tokens of the prompt that the endpoint had cached.
    """

    calls: Count = 1
    prompt_tokens: Count = 0
    cached_tokens: Count = 0
    completion_tokens: Count = 0
    cost: Annotated[float, Field(ge=-1e18, le=1e18)] | None = None

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    def __add__(self, other: Self) -> Self:
        """The sum; its cost is None if either cost is None."""
        return self.model_copy(
            update={
                "calls": self.calls + other.calls,
                "prompt_tokens": self.prompt_tokens + other.prompt_tokens,
                "cached_tokens": self.cached_tokens + other.cached_tokens,
                "completion_tokens": self.completion_tokens + other.completion_tokens,
                "cost": None if self.cost is None or other.cost is None else self.cost + other.cost,
            }
        )


NO_USAGE = Usage(calls=0, cost=0.0)
"""The start value of a sum of usages."""


class Completion(Record):
    """One answer of a chat model; `seconds` is the time of the whole exchange, retries included.

    `cached` means that the answer was taken from a store, so its usage is not spent again.
    """

    content: str | None = None
    tool_calls: tuple[RequestedCall, ...] = ()
    provider_fields: ProviderFields = Field(default_factory=dict)
    finish_reason: str | None = None
    usage: Usage = Usage()
    seconds: float = 0.0
    cached: bool = False


class HttpAnswer(Record):
    """An endpoint's answer to an agent that calls its model itself, as the agent received it.

    `seconds` is the time of the whole exchange.
    """

    content_type: str
    body: str
    usage: Usage = Usage()
    seconds: float = 0.0


class Answer(Record):
    """A stored answer of a model.

    The request is not stored, and neither is anything that identifies its sender.

    Attributes:
        completion: The answer to agent `chat`, or to a model that plays the user.
        context_window: The rejection of a conversation that is too long for the model.
        http: The answer to an agent that calls its model itself.
    """

    trial: int
    side: ParticipantSide
    model: str
    completion: Completion | None = None
    context_window: str | None = None
    http: HttpAnswer | None = None

    @model_validator(mode="after")
    def _check_one_outcome(self) -> Self:
        outcomes = (self.completion, self.context_window, self.http)
        if sum(outcome is not None for outcome in outcomes) != 1:
            raise ValueError(
                "an answer must be exactly one of: a completion, the rejection of a conversation that is too "
                "long, an HTTP answer"
            )
        return self

    @property
    def seconds(self) -> float:
        """The time of the exchange, retries included."""
        exchange = self.completion or self.http
        return exchange.seconds if exchange is not None else 0.0


@dataclass(frozen=True)
class JournalEntry:
    """An answer in the journal of a simulation.

    Attributes:
        request: The side and the digest of the request that the entry answers.
        answer: The answer; None for first tokens.
        first_tokens: Log-probabilities of first tokens, by text; None for an answer.
    """

    request: str
    answer: Answer | None = None
    first_tokens: Mapping[str, float] | None = None


def to_wire(message: Message, role: str | None = None) -> dict[str, Any]:
    """Convert a message to the API's form.

    `role` replaces the message's own role, because a user simulator speaks as the assistant. Only the model
    that wrote a message gets back the fields of its endpoint.
    """
    if message.role == "tool":
        call_id = provider_fields(message).get("id", message.id)
        return {"role": "tool", "tool_call_id": call_id, "content": message.content or ""}
    role = role or message.role
    fields = provider_fields(message) if role == "assistant" else {}
    wire_message: dict[str, Any] = {**fields, "role": role, "content": message.content}
    if message.tool_calls:
        wire_message["tool_calls"] = [_call_to_wire(call) for call in message.tool_calls]
    return wire_message


def _call_to_wire(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": json.dumps(call.arguments)}
    if fields := provider_fields(call):
        inner = fields.get("function")
        function = {**(inner if isinstance(inner, dict) else {}), **function}
        return {"id": call.id, **fields, "type": "function", "function": function}
    return {"id": call.id, "type": "function", "function": function}


def provider_fields(record: Message | ToolCall) -> ProviderFields:
    """The fields that only the endpoint of a message knows; empty if there are none.

    Those of a call contain its `id` at the endpoint if another call of the conversation has the same. The
    result of the call contains it too.
    """
    fields = (record.model_extra or {}).get(PROVIDER_FIELDS)
    return fields if isinstance(fields, dict) else {}


def without_provider_fields(request: Mapping[str, Any]) -> dict[str, Any]:
    """A request whose messages contain only the fields that the API defines."""

    def plain(record: Mapping[str, Any], *names: str) -> dict[str, Any]:
        return {name: record[name] for name in names if name in record}

    messages = [plain(message, "role", "content", "tool_call_id") for message in request["messages"]]
    for message, sent in zip(messages, request["messages"], strict=True):
        if calls := sent.get("tool_calls"):
            message["tool_calls"] = [
                plain(call, "id", "type") | {"function": plain(call["function"], "name", "arguments")}
                for call in calls
            ]
    return {**request, "messages": messages}


def from_completion(completion: Completion, role: Requestor, history: Iterable[Message] = ()) -> Message:
    """Convert a model's answer to a message of the agent or of the user, in tau2's shape.

    A call whose id is empty, or in use in the conversation so far, gets a new one.
    """
    calls = _number_calls(completion.tool_calls, role, history) if completion.tool_calls else None
    usage: dict[str, Any] = {
        "prompt_tokens": completion.usage.prompt_tokens,
        "completion_tokens": completion.usage.completion_tokens,
    }
    if completion.usage.cached_tokens:
        usage["prompt_tokens_details"] = {"cached_tokens": completion.usage.cached_tokens}
    fields: dict[str, Any] = {
        "role": role,
        "content": None if completion.content is None else storable_text(completion.content),
        "tool_calls": calls,
        "cost": completion.usage.cost,
        "usage": usage,
        "generation_time_seconds": completion.seconds,
    }
    if completion.cached:
        fields["cached"] = True
    if completion.provider_fields:
        fields[PROVIDER_FIELDS] = completion.provider_fields
    return Message.model_validate(fields)


def _number_calls(
    requested_calls: Iterable[RequestedCall], role: Requestor, history: Iterable[Message]
) -> list[ToolCall]:
    used_ids = {call.id for message in history for call in message.tool_calls or ()}
    wire_ids = set[str]()
    calls = []
    for number, requested_call in enumerate(requested_calls, len(used_ids) + 1):
        sent_id = call_id = storable_text(requested_call.id)
        fields = requested_call.provider_fields
        while not call_id or call_id in used_ids:
            # Nine letters and digits, because Mistral accepts no other ids.
            call_id, number = f"call{number:05d}", number + 1
        wire_id = sent_id if sent_id and sent_id not in wire_ids else call_id
        if wire_id != call_id:
            fields = {"id": wire_id, **fields}
        used_ids.add(call_id)
        wire_ids.add(wire_id)
        calls.append(
            ToolCall(
                id=call_id,
                name=storable_text(requested_call.name),
                arguments=parse_arguments(requested_call.arguments),
                requestor=role,
                **({PROVIDER_FIELDS: fields} if fields else {}),
            )
        )
    return calls


def parse_arguments(text: str) -> dict[str, Any]:
    """The arguments of a tool call from a model's text; `MALFORMED_ARGUMENTS` if it is not a JSON object."""
    try:
        arguments = json.loads(text or "{}")
    except (ValueError, RecursionError, MemoryError):
        return {MALFORMED_ARGUMENTS: storable_text(text)}
    if not isinstance(arguments, dict) or storage_problem(arguments):
        return {MALFORMED_ARGUMENTS: storable_text(text)}
    return arguments


def usage_of(trace: Iterable[Message], role: Requestor) -> Usage:
    """Sum the recorded usage of one side's messages in a trace; zero calls if no message records usage."""
    sums, cost = dict.fromkeys(("calls", "prompt_tokens", "completion_tokens", "cached_tokens"), 0), 0.0
    is_priced = True
    for message in trace:
        if message.role == role and isinstance(usage := getattr(message, "usage", None), dict):
            dollars = parse_dollars(getattr(message, "cost", None))
            cost, is_priced = cost + (dollars or 0.0), is_priced and dollars is not None
            sums["calls"] += 1
            sums["prompt_tokens"] += parse_token_count(usage.get("prompt_tokens"))
            sums["completion_tokens"] += parse_token_count(usage.get("completion_tokens"))
            sums["cached_tokens"] += parse_cached_tokens(usage)
    return Usage(**sums, cost=cost if is_priced else None)


def answer_seconds(trace: Iterable[Message]) -> float | None:
    """Sum the seconds that the agent's model took to answer; None unless all answers were live and timed."""
    seconds: list[float] = []
    for message in trace:
        if message.role != "assistant" or not isinstance(getattr(message, "usage", None), dict):
            continue
        duration: object = getattr(message, "generation_time_seconds", None)
        if (
            getattr(message, "cached", False)
            or not isinstance(duration, int | float)
            or not 0 < duration < 1e9
        ):
            return None
        seconds.append(duration)
    return round(math.fsum(seconds), 3) if seconds else None


def called_models(trace: Iterable[Message]) -> tuple[str, ...]:
    """Return the models that a project's own agent named in its requests, in alphabetical order."""
    names: set[str] = set()
    for message in trace:
        usage = getattr(message, "usage", None)
        models = usage.get("models") if message.role == "assistant" and isinstance(usage, dict) else None
        names.update(name for name in (models if isinstance(models, list) else ()) if isinstance(name, str))
    return tuple(sorted(names))


def read_usage(usage: Any) -> Usage:
    """Read the `usage` of an answer of the chat-completions or the responses API.

    An answer without usage counts as one call without tokens.
    """
    if not isinstance(usage, dict):
        return Usage()
    if "input_tokens_details" in usage:
        usage = {"prompt_tokens_details": usage["input_tokens_details"], **usage}
    return Usage(
        prompt_tokens=parse_token_count(usage.get("prompt_tokens", usage.get("input_tokens"))),
        completion_tokens=parse_token_count(usage.get("completion_tokens", usage.get("output_tokens"))),
        cached_tokens=parse_cached_tokens(usage),
        cost=parse_dollars(usage.get("cost")),
    )


def parse_cached_tokens(usage: Mapping[str, Any]) -> int:
    """Return the number of cached prompt tokens in an API's `usage`."""
    details = usage.get("prompt_tokens_details")
    return parse_token_count(details.get("cached_tokens")) if isinstance(details, dict) else 0


def parse_token_count(value: object) -> int:
    """Return a count of tokens from any value of an endpoint or a file; 0 if the value is not a count."""
    return value if type(value) is int and 0 <= value <= MAX_TOKENS else 0


def parse_dollars(value: object) -> float | None:
    """Return an amount from any value of an endpoint or a file; None if the value is not an amount."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_DOLLARS:
        return None
    return float(value)


def rejection_risk(history: Iterable[Message], role: Requestor) -> str:
    """Describe the first thing in one side's messages that an endpoint may reject; empty if there is none."""
    for message in history:
        if message.role != role:
            continue
        content = message.content or ""
        if len(content) > MAX_PORTABLE_LENGTH:
            return f"a message of {len(content):,} characters"
        if "\0" in content:
            return "a message with the character NUL"
        for call in message.tool_calls or ():
            if not _PORTABLE_NAME.fullmatch(call.name):
                return f"a call of a tool named {call.name[:100]!r}"
            if MALFORMED_ARGUMENTS in call.arguments or len(str(call.arguments)) > MAX_PORTABLE_LENGTH:
                return f"a call of {call.name!r} with malformed or very long arguments"
    return ""
