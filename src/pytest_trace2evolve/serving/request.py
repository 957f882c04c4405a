"""A chat completion's request: what of the API is understood, and what is refused by name.

A request that is refused, in the API's own shape of errors.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


class ApiError(Exception):
    """A request that is refused.

    Attributes:
        param: The field that is wrong; None where it is none.
        code: The API's code, where there is one.
        status: The HTTP status.
        retry_after: Seconds after which another try may help; None where none helps.
    """

    def __init__(
        self,
        message: str,
        param: str | None = None,
        code: str | None = None,
        *,
        status: int = 400,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.param = param
        self.code = code
        self.status = status
        self.retry_after = retry_after

    def body(self) -> dict[str, Any]:
        """The error as the API tells it."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


MOST_TOP_LOGPROBS = 20
MOST_STOPS = 16

MAX_CONTAINERS = 500_000
"""Lists and objects of a body, brackets in texts included; 32 MiB could hold eleven million, which take a
minute and a gigabyte to read."""

_IGNORED = {
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "stream_options",
}
"""Fields that change no answer."""

_NEUTRAL: dict[str, tuple[object, ...]] = {
    "n": (1,),
    "stream": (False,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "top_k": (-1, 0),
    "min_p": (0,),
    "repetition_penalty": (1,),
}
"""Fields that are understood only where they say what happens anyhow."""

_ROLES = ("system", "developer", "user", "assistant", "tool")


@dataclass(frozen=True)
class ChatRequest:
    """A request, checked.

    Attributes:
        messages: As chat templates take them: text contents, arguments of calls as objects.
        tool_choice: `auto`, `none`, `required`, or the API's object that names a tool.
        most: New tokens at most; None: as many as fit.
        logprobs: How many of the likeliest tokens are told of each token; None tells nothing.
        one_call: Whether only the first of several calls is wanted.
    """

    model: str
    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...] = ()
    tool_choice: str | Mapping[str, Any] = "auto"
    most: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    stops: tuple[str, ...] = ()
    logprobs: int | None = None
    one_call: bool = False
    template: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, raw: bytes) -> "ChatRequest":
        """A request from its body.

        Raises:
            ApiError: it is no JSON, or a field is wrong, unknown or not supported; names it.
        """
        body = _body(raw)
        _refuse_unsupported(body)
        tools = _tools(body)
        return cls(
            model=_text(body, "model"),
            messages=_messages(body),
            tools=tools,
            tool_choice=_tool_choice(body, tools),
            most=_most(body),
            temperature=_number(body, "temperature", 1.0, 0.0, 2.0),
            top_p=_number(body, "top_p", 1.0, 0.0, 1.0),
            seed=_whole(body, "seed", -(1 << 63), (1 << 64) - 1),
            stops=_stops(body),
            logprobs=_logprobs(body),
            one_call=_flag(body, "parallel_tool_calls") is False,
            template=_template(body),
        )


_KNOWN = {
    "model",
    "messages",
    "tools",
    "tool_choice",
    "max_tokens",
    "max_completion_tokens",
    "temperature",
    "top_p",
    "seed",
    "stop",
    "logprobs",
    "top_logprobs",
    "parallel_tool_calls",
    "chat_template_kwargs",
}


def _body(raw: bytes) -> dict[str, Any]:
    if raw.count(b"{") + raw.count(b"[") > MAX_CONTAINERS:
        raise ApiError(f"the body has more than {MAX_CONTAINERS:,} lists and objects", status=413)
    try:
        body = _parsed(raw)
    except (ValueError, RecursionError):
        raise ApiError("the body is no JSON that can be read") from None
    if not isinstance(body, dict):
        raise ApiError("the body is no JSON object")
    return {key: value for key, value in body.items() if value is not None}


def _parsed(text: str | bytes) -> Any:
    """The value of JSON whose texts are whole characters, which is all that a tokenizer takes.

    Raises:
        ValueError: it is none; the nesting may be the cause (`RecursionError`).
    """
    value = json.loads(text, parse_constant=_refuse_constant)
    json.dumps(value, ensure_ascii=False).encode()  # fails on half a surrogate pair
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


def _refuse_unsupported(body: Mapping[str, Any]) -> None:
    for name, value in body.items():
        if name in _NEUTRAL and not any(value == one and _alike(value, one) for one in _NEUTRAL[name]):
            told = " or ".join(json.dumps(one) for one in _NEUTRAL[name])
            raise ApiError(
                f"{name} is not supported: leave it out (or give {told})", name, "unsupported_value"
            )
        if name not in _NEUTRAL and name not in _KNOWN and name not in _IGNORED:
            raise ApiError(f"{name} is not supported: leave it out", name, "unknown_parameter")


def _alike(value: object, other: object) -> bool:
    return isinstance(value, bool) == isinstance(other, bool)


def _text(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name)
    if value is None:
        raise ApiError(f"{name} is missing", name, "missing_required_parameter")
    if not isinstance(value, str):
        raise _wrong(name, "a string")
    return value


def _messages(body: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    given = body.get("messages")
    if given is None:
        raise ApiError("messages is missing", "messages", "missing_required_parameter")
    if not isinstance(given, list) or not given:
        raise _wrong("messages", "a list of one message or more")
    return tuple(_message(one, f"messages[{place}]") for place, one in enumerate(given))


def _message(given: Any, where: str) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise _wrong(where, "an object")
    role = given.get("role")
    if role not in _ROLES:
        raise _wrong(f"{where}.role", f"one of {', '.join(_ROLES)}")
    message: dict[str, Any] = {"role": "system" if role == "developer" else role}
    if given.get("function_call") is not None:
        raise ApiError(
            f"{where}.function_call is not supported: use tool_calls", "messages", "unsupported_value"
        )
    calls = given.get("tool_calls")
    content = given.get("content")
    if content is None and role != "assistant":
        raise _wrong(f"{where}.content", "a string")
    message["content"] = _content(content, f"{where}.content")
    for name in ("name", "tool_call_id", "reasoning_content"):
        if given.get(name) is not None:
            if not isinstance(given[name], str):
                raise _wrong(f"{where}.{name}", "a string")
            message[name] = given[name]
    if calls is not None:
        if role != "assistant" or not isinstance(calls, list):
            raise _wrong(f"{where}.tool_calls", "a list, in messages of the assistant")
        if calls:
            message["tool_calls"] = [
                _call(one, f"{where}.tool_calls[{place}]") for place, one in enumerate(calls)
            ]
    return message


def _content(given: Any, where: str) -> str:
    """A content as text; parts are joined, and those that are no text refused."""
    if given is None or isinstance(given, str):
        return given or ""
    if not isinstance(given, list):
        raise _wrong(where, "a string or a list of parts")
    for place, part in enumerate(given):
        if not isinstance(part, dict) or part.get("type") not in ("text", "refusal"):
            raise _wrong(f"{where}[{place}]", "a part of type 'text': nothing else is served")
        if not isinstance(part.get(part["type"]), str):
            raise _wrong(f"{where}[{place}].{part['type']}", "a string")
    return "".join(part[part["type"]] for part in given)


def _call(given: Any, where: str) -> dict[str, Any]:
    """A tool call with its arguments as an object; what is no JSON object stays text."""
    function = given.get("function") if isinstance(given, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise _wrong(f"{where}.function", "an object with a name")
    arguments = function.get("arguments", "{}")
    if not isinstance(arguments, str):
        raise _wrong(f"{where}.function.arguments", "a string of JSON")
    try:
        parsed = _parsed(arguments or "{}")
    except (ValueError, RecursionError):
        parsed = None
    told = parsed if isinstance(parsed, dict) else arguments
    call: dict[str, Any] = {"type": "function", "function": {"name": function["name"], "arguments": told}}
    if isinstance(given.get("id"), str):
        call["id"] = given["id"]
    return call


def _tools(body: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    given = body.get("tools", [])
    if not isinstance(given, list):
        raise _wrong("tools", "a list")
    for place, tool in enumerate(given):
        where = f"tools[{place}]"
        if not isinstance(tool, dict) or tool.get("type") != "function":
            raise _wrong(f"{where}.type", "'function'")
        function = tool.get("function")
        if (
            not isinstance(function, dict)
            or not isinstance(function.get("name"), str)
            or not function["name"]
        ):
            raise _wrong(f"{where}.function.name", "a string")
        if not isinstance(function.get("description", ""), str | None):
            raise _wrong(f"{where}.function.description", "a string")
        if not isinstance(function.get("parameters", {}), dict | None):
            raise _wrong(f"{where}.function.parameters", "an object")
        if function.get("strict"):
            raise ApiError(
                f"{where}.function.strict is not supported: leave it out", "tools", "unsupported_value"
            )
    return tuple(given)


def _tool_choice(body: Mapping[str, Any], tools: tuple[dict[str, Any], ...]) -> str | Mapping[str, Any]:
    given = body.get("tool_choice", "auto")
    if given in ("auto", "none"):
        return str(given)
    if not tools:
        raise ApiError("tool_choice needs tools", "tool_choice")
    if given == "required":
        return "required"
    function = given.get("function") if isinstance(given, dict) and given.get("type") == "function" else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise _wrong(
            "tool_choice", '\'auto\', \'none\', \'required\' or {"type": "function", "function": {"name": …}}'
        )
    if name not in [tool["function"]["name"] for tool in tools]:
        raise ApiError(f"tool_choice names {name!r}, which is none of the tools", "tool_choice")
    return dict(given)


def _most(body: Mapping[str, Any]) -> int | None:
    names = [name for name in ("max_completion_tokens", "max_tokens") if name in body]
    values = {name: _whole(body, name, 1, 1 << 31) for name in names}
    if len(set(values.values())) > 1:
        raise ApiError("max_tokens and max_completion_tokens differ: give one of them", "max_tokens")
    return next(iter(values.values()), None)


def _stops(body: Mapping[str, Any]) -> tuple[str, ...]:
    given = body.get("stop", [])
    stops = [given] if isinstance(given, str) else given
    sound = isinstance(stops, list) and all(isinstance(one, str) and one for one in stops)
    if not sound or len(stops) > MOST_STOPS:
        raise _wrong("stop", f"a string that is not empty, or a list of {MOST_STOPS} such at most")
    return tuple(stops)


def _logprobs(body: Mapping[str, Any]) -> int | None:
    wanted = _flag(body, "logprobs")
    top = _whole(body, "top_logprobs", 0, MOST_TOP_LOGPROBS)
    if top is not None and not wanted:
        raise ApiError("top_logprobs needs logprobs: true", "top_logprobs")
    return (top or 0) if wanted else None


def _template(body: Mapping[str, Any]) -> Mapping[str, Any]:
    given = body.get("chat_template_kwargs", {})
    own = {"tools", "messages", "conversation", "add_generation_prompt", "tokenize", "chat_template"}
    further = {
        "return_dict",
        "return_tensors",
        "continue_final_message",
        "padding",
        "truncation",
        "max_length",
    }
    if not isinstance(given, dict):
        raise _wrong("chat_template_kwargs", "an object")
    refused = sorted(given.keys() & (own | further | {"documents", "tokenizer_kwargs", "processor_kwargs"}))
    refused += sorted(name for name in given if name.startswith("return_") and name not in refused)
    if refused:
        raise ApiError(f"chat_template_kwargs must not hold {refused[0]!r}", "chat_template_kwargs")
    return given


def _flag(body: Mapping[str, Any], name: str) -> bool | None:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise _wrong(name, "true or false")
    return value


def _whole(body: Mapping[str, Any], name: str, least: int, most: int) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        limits = f"from {least} to {most}" if most < 1 << 31 else f"of {least} or more"
        raise _wrong(name, f"a whole number {limits}")
    return value


def _number(body: Mapping[str, Any], name: str, default: float, least: float, most: float) -> float:
    value = body.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise _wrong(name, f"a number from {least:g} to {most:g}")
    return float(value)


def _wrong(name: str, wanted: str) -> ApiError:
    return ApiError(f"{name} must be {wanted}", name.partition("[")[0].partition(".")[0], "invalid_value")
