"""Validates chat-completions requests, and rejects fields that would have an unsupported effect."""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from pytest_trace2evolve.utils.reading import first_problem, parse_json

MAX_CONTAINERS = 500_000
"""Maximum number of lists and objects in a body, including brackets in strings. 32 MiB could contain eleven
million, which would take a minute and a gigabyte to read."""

MAX_TOP_LOGPROBS = 20
MAX_STOPS = 16

IGNORED_FIELDS = {
    *("user", "metadata", "store", "service_tier", "safety_identifier", "stream_options"),
    *("prompt_cache_key", "prompt_cache_retention"),
}
"""Fields that have no effect on answers."""

NEUTRAL_VALUES: Mapping[str, tuple[object, ...]] = {
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
"""Fields that are accepted only with a value that has no effect."""

RESERVED_TEMPLATE_FIELDS = {
    *("tools", "messages", "conversation", "chat_template", "add_generation_prompt"),
    *("continue_final_message", "tokenize", "padding", "truncation", "max_length"),
    *("documents", "tokenizer_kwargs", "processor_kwargs"),
}
"""Arguments of `apply_chat_template` that requests may not set.

Arguments that begin with `return_` are also reserved.
"""


class ApiError(Exception):
    """A rejected request.

    Attributes:
        param: The field at fault; None if there is none.
        code: The API's error code; None if there is none.
        status: The HTTP status.
        retry_after: Seconds after which a retry may succeed; None if no retry will.
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
        """Return the error in the API's format."""
        error_type = "server_error" if self.status >= 500 else "invalid_request_error"
        return {"error": {"message": str(self), "type": error_type, "param": self.param, "code": self.code}}


def _join_content_parts(content: Any) -> Any:
    if not isinstance(content, list):
        return content
    texts = []
    for index, part in enumerate(content):
        match part:
            case {"type": "text", "text": str(text)} | {"type": "refusal", "refusal": str(text)}:
                texts.append(text)
            case _:
                raise ValueError(
                    f"part {index} must be of type 'text' with a string; other parts are not supported"
                )
    return "".join(texts)


def _check_tool(tool: dict[str, Any]) -> dict[str, Any]:
    try:
        _Tool.model_validate(tool)
    except ValidationError as error:
        raise ValueError(first_problem(error)) from None
    return tool


def _check_tool_choice(choice: Any) -> Any:
    match choice:
        case "auto" | "none" | "required" | {"type": "function", "function": {"name": str()}}:
            return choice
    example = '{"type": "function", "function": {"name": …}}'
    raise ValueError(f"must be 'auto', 'none', 'required' or {example}")


class _RequestPart(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True)


class _CalledFunction(_RequestPart):
    name: str
    arguments: str = "{}"


class _ToolCall(_RequestPart):
    id: Any = None
    function: _CalledFunction

    def to_template(self) -> dict[str, Any]:
        """Return the call with its arguments as an object, or as a string if they are not a JSON object."""
        arguments: Any = self.function.arguments
        try:
            parsed = parse_json(arguments or "{}")
        except ValueError:
            parsed = None
        if isinstance(parsed, dict):
            arguments = parsed
        call = {"type": "function", "function": {"name": self.function.name, "arguments": arguments}}
        return {**call, "id": self.id} if isinstance(self.id, str) else call


class _Message(_RequestPart):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str | None, BeforeValidator(_join_content_parts)] = None
    name: str | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[_ToolCall] | None = None
    function_call: Any = None

    @model_validator(mode="after")
    def _check_role(self) -> Self:
        if self.role != "assistant" and self.content is None:
            raise ValueError("content must be a string")
        if self.role != "assistant" and self.tool_calls is not None:
            raise ValueError("tool_calls are allowed only in messages of the assistant")
        return self

    def to_template(self) -> dict[str, Any]:
        role = "system" if self.role == "developer" else self.role
        message: dict[str, Any] = {"role": role, "content": self.content or ""}
        for name in ("name", "tool_call_id", "reasoning_content"):
            if (value := getattr(self, name)) is not None:
                message[name] = value
        if self.tool_calls:
            message["tool_calls"] = [call.to_template() for call in self.tool_calls]
        return message


class _ToolFunction(_RequestPart):
    name: Annotated[str, Field(min_length=1)]
    description: str | None = None
    parameters: dict[str, Any] | None = None


class _Tool(_RequestPart):
    type: Literal["function"]
    function: _ToolFunction


MaxTokens = Annotated[int, Field(ge=1, le=1 << 31)]


class ChatRequest(BaseModel):
    """A validated request, with the field names of the API."""

    model_config = ConfigDict(strict=True, frozen=True)

    model: str
    messages: Annotated[list[_Message], Field(min_length=1)]
    # Templates get the tools exactly as they were sent.
    tools: list[Annotated[dict[str, Any], AfterValidator(_check_tool)]] = []
    tool_choice: Annotated[Any, AfterValidator(_check_tool_choice)] = "auto"
    max_tokens: MaxTokens | None = None
    max_completion_tokens: MaxTokens | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Field(ge=0, le=1)] = 1.0
    seed: Annotated[int, Field(ge=-(1 << 63), lt=1 << 64)] | None = None
    stop: Annotated[
        list[Annotated[str, Field(min_length=1)]],
        BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
        Field(max_length=MAX_STOPS),
    ] = []
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    parallel_tool_calls: bool = True
    chat_template_kwargs: dict[str, Any] = {}

    @classmethod
    def parse(cls, raw: bytes | bytearray) -> Self:
        """Read a request from its body.

        Raises:
            ApiError: the body is too large or not a JSON object, or a field is invalid, missing or not
                supported; `param` names the field.
        """
        if raw.count(b"{") + raw.count(b"[") > MAX_CONTAINERS:
            raise ApiError(f"the body has more than {MAX_CONTAINERS:,} lists and objects", status=413)
        try:
            body = parse_json(raw)
        except ValueError:
            raise ApiError("the body cannot be read as JSON") from None
        if not isinstance(body, dict):
            raise ApiError("the body is not a JSON object")
        fields = {}
        for name, value in body.items():
            if value is None or name in IGNORED_FIELDS:
                continue
            if name in NEUTRAL_VALUES:
                _check_neutral(name, value)
            elif name in cls.model_fields:
                fields[name] = value
            else:
                raise ApiError(f"{name:.200} is not supported: remove it", name, "unknown_parameter")
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            location = error.errors(include_url=False)[0]["loc"]
            name = str(location[0])
            code = "invalid_value" if name in fields else "missing_required_parameter"
            raise ApiError(first_problem(error), name, code) from None

    @model_validator(mode="after")
    def _check_support(self) -> Self:
        for index, message in enumerate(self.messages):
            if message.function_call is not None:
                cause = f"messages[{index}].function_call is not supported: use tool_calls"
                raise ApiError(cause, "messages", "unsupported_value")
        if self.must_call and not self.tools:
            raise ApiError("tool_choice needs tools", "tool_choice")
        name = self.required_tool
        if name is not None and name not in [tool["function"]["name"] for tool in self.tools]:
            raise ApiError(f"tool_choice names {name!r}, which is not one of the tools", "tool_choice")
        if self.max_tokens and self.max_completion_tokens not in (None, self.max_tokens):
            raise ApiError("max_tokens and max_completion_tokens differ: set only one of them", "max_tokens")
        if self.top_logprobs is not None and not self.logprobs:
            raise ApiError("top_logprobs needs logprobs: true", "top_logprobs")
        for name in sorted(self.chat_template_kwargs):
            if name in RESERVED_TEMPLATE_FIELDS or name.startswith("return_"):
                raise ApiError(f"chat_template_kwargs must not contain {name!r}", "chat_template_kwargs")
        return self

    @property
    def template_messages(self) -> list[dict[str, Any]]:
        """The messages for chat templates, with contents as text and arguments of calls as objects."""
        return [message.to_template() for message in self.messages]

    @property
    def offered_tools(self) -> list[dict[str, Any]]:
        """The tools that the model may call."""
        return [] if self.tool_choice == "none" else self.tools

    @property
    def must_call(self) -> bool:
        """Whether the model must call a tool."""
        return self.tool_choice not in ("auto", "none")

    @property
    def required_tool(self) -> str | None:
        """The tool that the model must call; None if it may choose."""
        return None if isinstance(self.tool_choice, str) else self.tool_choice["function"]["name"]

    @property
    def token_limit(self) -> int | None:
        """Maximum new tokens; None if the request sets no limit."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def reported_logprobs(self) -> int | None:
        """Number of likeliest tokens reported per token; None reports no log-probabilities."""
        return (self.top_logprobs or 0) if self.logprobs else None


def _check_neutral(name: str, value: object) -> None:
    accepted_values = NEUTRAL_VALUES[name]
    # True equals 1 in Python, but is not one of the accepted values.
    if not any(
        value == neutral_value and isinstance(value, bool) == isinstance(neutral_value, bool)
        for neutral_value in accepted_values
    ):
        accepted_text = " or ".join(map(json.dumps, accepted_values))
        raise ApiError(
            f"{name} is not supported: remove it, or set it to {accepted_text}", name, "unsupported_value"
        )
