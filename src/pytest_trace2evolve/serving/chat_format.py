"""Converts messages to prompts with a model's chat template, and tokens to answers."""

import hashlib
import json
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_trace2evolve.serving.request import ApiError, ChatRequest

_CALL_START, _CALL_END = "<tool_call>", "</tool_call>"
_CALL_PATTERN = re.compile(r"<tool_call>\s*(.*?)\s*(?:</tool_call>|$)", re.DOTALL)
_REASONING_PATTERN = re.compile(r"\A\s*(?:<think>)?(.*?)</think>\s*", re.DOTALL)
_CALL_HEAD_PATTERN = re.compile(r"\{\s*\"(?:name|function)\"\s*:\s*\"?$")
"""The beginning of a JSON call, up to the name of its tool."""

_MARKER = "t2e_marked_name"
_PROBE_MESSAGES = ({"role": "system", "content": "s"}, {"role": "user", "content": "u"})
_PROBE_TOOL = {
    "type": "function",
    "function": {"name": _MARKER, "description": "d", "parameters": {"type": "object", "properties": {}}},
}

Messages = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class ParsedCall:
    """A tool call: the tool's name, and its arguments as JSON text."""

    name: str
    arguments: str


@dataclass(frozen=True)
class ParsedAnswer:
    """The content, calls and reasoning of an answer; a missing text is empty."""

    content: str
    calls: tuple[ParsedCall, ...] = ()
    reasoning: str = ""


def parse_plain(text: str) -> ParsedAnswer:
    """Parse an answer without calls into its reasoning and its content."""
    reasoning = _REASONING_PATTERN.match(text)
    if reasoning is None:
        return ParsedAnswer(text)
    return ParsedAnswer(text[reasoning.end() :], reasoning=reasoning.group(1).strip())


def parse_hermes(text: str) -> ParsedAnswer:
    """Parse an answer with `<tool_call>{"name": …, "arguments": {…}}</tool_call>` calls (Hermes, Qwen).

    If any call cannot be read, all text except the reasoning is content.
    """
    answer = parse_plain(text)
    start = answer.content.find(_CALL_START)
    if start < 0:
        return answer
    calls_text = answer.content[start:]
    bodies = _CALL_PATTERN.findall(calls_text)
    calls = [call for body in bodies if (call := _read_call(body))]
    if len(calls) < len(bodies):
        return answer
    text_between = _CALL_PATTERN.sub("", calls_text).strip()
    content = "\n".join(part for part in (answer.content[:start].strip(), text_between) if part)
    return ParsedAnswer(content, tuple(calls), answer.reasoning)


def convert_parser_result(parsed: Any) -> ParsedAnswer | None:
    """Convert the result of a tokenizer's own parser; None if any part has an unexpected form."""
    if not isinstance(parsed, dict):
        return None
    entries = parsed.get("tool_calls") or ()
    calls = [
        call
        for entry in entries
        if isinstance(entry, dict) and (call := _read_call(entry.get("function", entry)))
    ]
    reasoning = parsed.get("reasoning_content") or parsed.get("thinking") or ""
    content = parsed.get("content") or ""
    if len(calls) < len(entries) or not isinstance(content, str) or not isinstance(reasoning, str):
        return None
    return ParsedAnswer(content.strip() if calls else content, tuple(calls), reasoning.strip())


def _read_call(function: Any) -> ParsedCall | None:
    """Read a call from an object or from JSON text; None if it is malformed."""
    try:
        function = json.loads(function) if isinstance(function, str) else function
        if not isinstance(function, dict):
            return None
        name, arguments = function.get("name"), function.get("arguments", function.get("parameters", {}))
        if isinstance(arguments, str):  # JSON in a string, as in the API
            arguments = json.loads(arguments)
        if not isinstance(name, str) or not name or not isinstance(arguments, dict):
            return None
        return ParsedCall(name, json.dumps(arguments, ensure_ascii=False))
    except (ValueError, RecursionError):
        return None


def call_id(prompt: Sequence[int], answer: Sequence[int], index: int) -> str:
    """Return a call's id. Equal prompts with equal answers get equal ids, which makes their traces equal."""
    text = f"{list(prompt)}\n{list(answer)}\n{index}"
    return f"call_{hashlib.sha256(text.encode()).hexdigest()[:24]}"


@dataclass(frozen=True)
class Prompt:
    """A prompt as it is sent to the model.

    Attributes:
        text: The whole prompt, including `opening`.
        tokens: The tokens of `text`.
        opening: The beginning of the answer, which the server writes if the model must make a call.
        tools: The tools that the model may call.
    """

    text: str
    tokens: Sequence[int]
    opening: str = ""
    tools: Sequence[Mapping[str, Any]] = ()


class ChatFormat:
    """Writes prompts and reads answers in a model's format; safe to use from several threads.

    Args:
        tokenizer: The model's tokenizer.
        end_tokens: Tokens that end an answer and are not part of its text.
        context_length: The model's context length in tokens; None if unknown.
    """

    def __init__(self, tokenizer: Any, end_tokens: frozenset[int], context_length: int | None = None) -> None:
        self._tokenizer = tokenizer
        self._end_tokens = end_tokens
        # A text that would not fit even in the longest tokens is not tokenized, because tokenizing megabytes
        # takes long and other prompts wait meanwhile.
        self._max_characters = (
            None if context_length is None else context_length * max(map(len, tokenizer.get_vocab()))
        )
        self._lock = threading.RLock()  # two threads must not use a tokenizer at once
        marker_tokens = {
            tokenizer.convert_tokens_to_ids(marker)
            for marker in (_CALL_START, _CALL_END, "<think>", "</think>")
        }
        self._hidden_tokens = (set(tokenizer.all_special_ids) | end_tokens) - (
            marker_tokens - end_tokens - {tokenizer.unk_token_id}
        )
        self._supports_tools = self._can_render_tools()

    def prompt(self, request: ChatRequest) -> Prompt:
        """Return the prompt of a request.

        Raises:
            ApiError: the template rejects the conversation or renders no tools, or the prompt cannot fit.
        """
        messages, tools = request.template_messages, request.offered_tools
        if tools and not self._supports_tools:
            raise ApiError("this model's chat template does not support tools", "tools")
        with self._lock:
            text = self._render(messages, tools, request.chat_template_kwargs)
            opening = self._render_opening(text, request) if tools and request.must_call else ""
            if self._max_characters is not None and len(text) > self._max_characters:
                raise ApiError(
                    f"the prompt has {len(text)} characters, too many for this model's context length",
                    "messages",
                    "context_length_exceeded",
                )
            return Prompt(text + opening, self.encode(text + opening), opening, tools)

    def parse(self, prompt: Prompt, tokens: Sequence[int], stops: Sequence[str] = ()) -> ParsedAnswer:
        """Parse an answer from all of its tokens; the text is cut before the first of `stops`."""
        with self._lock:
            text = self._decode(tokens)
            text_end = min(
                (position for stop in stops if (position := text.find(stop)) >= 0), default=len(text)
            )
            answer = prompt.opening + text[:text_end]
            if not prompt.tools:
                return parse_plain(answer)
            if getattr(self._tokenizer, "response_template", None) is None:
                return parse_hermes(answer)
            if text_end == len(text):
                text = self._tokenizer.decode(list(tokens), skip_special_tokens=False)
            else:
                text = text[:text_end]
            try:
                parsed = convert_parser_result(
                    self._tokenizer.parse_response(
                        prompt.opening + text,
                        prefix=prompt.text.removesuffix(prompt.opening),
                        tools=list(prompt.tools),
                    )
                )
            except Exception:  # the model's own parser may raise anything
                parsed = None
        return parse_plain(answer) if parsed is None else parsed

    def continuation(
        self, answer: Mapping[str, Any], messages: Messages, *, has_end_token: bool
    ) -> list[int]:
        """Return the tokens from the end of an answer to the beginning of the next.

        A placeholder answer with a mark is rendered with the messages after it, and the text after the mark
        is used. Changes that templates make to earlier answers, such as omitting reasoning, have no effect.

        Args:
            answer: The assistant's message; only the names and ids of its calls matter.
            messages: The messages after the answer.
            has_end_token: Whether the answer already has its end token.

        Raises:
            ApiError: the template rejects the messages, or does not show where an answer ends.
        """
        placeholder: dict[str, Any] = {"role": "assistant", "content": _MARKER}
        if answer.get("tool_calls"):
            placeholder["content"] = ""
            placeholder["tool_calls"] = [
                {**call, "function": {**call["function"], "arguments": {_MARKER: _MARKER}}}
                for call in answer["tool_calls"]
            ]
        with self._lock:
            text = self._render([_PROBE_MESSAGES[1], placeholder, *messages])
            text = text[text.index(_MARKER) :]
            end_texts = [
                str(self._tokenizer.decode([token], skip_special_tokens=False)) for token in self._end_tokens
            ]
            positions = [
                position for end_text in end_texts if end_text and (position := text.find(end_text)) >= 0
            ]
            if not positions:
                raise ApiError("this model's chat template does not show where an answer ends", "messages")
            tokens = self.encode(text[min(positions) :])
        return tokens[1:] if has_end_token else tokens

    def make_stop_check(self, stops: Sequence[str]) -> Callable[[Sequence[int]], bool] | None:
        """Return a predicate of an answer's tokens that is true if the last token completed a stop string."""
        if not stops:
            return None
        window = 4 * max(map(len, stops)) + 4  # a character takes at most four tokens

        def is_stopped(tokens: Sequence[int]) -> bool:
            with self._lock:
                text = self._decode(tokens[-window:])
            return any(stop in text for stop in stops)

        return is_stopped

    def token_text(self, token: int) -> str:
        """Return the text of one token."""
        with self._lock:
            return str(self._tokenizer.decode([token], skip_special_tokens=False))

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text."""
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def _decode(self, tokens: Sequence[int]) -> str:
        visible_tokens = [token for token in tokens if token not in self._hidden_tokens]
        return str(
            self._tokenizer.decode(
                visible_tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False
            )
        )

    def _render(
        self,
        messages: Messages,
        tools: Messages = (),
        settings: Mapping[str, Any] | None = None,
        *,
        add_generation_prompt: bool = True,
    ) -> str:
        try:
            return str(
                self._tokenizer.apply_chat_template(
                    [dict(message) for message in messages],
                    tools=[dict(tool) for tool in tools] or None,
                    add_generation_prompt=add_generation_prompt,
                    tokenize=False,
                    **(settings or {}),
                )
            )
        except Exception as error:  # the model's own template may raise anything
            cause = " ".join(str(error).split()) or type(error).__name__
            raise ApiError(
                f"the chat template rejects this conversation: {cause[:300]}", "messages"
            ) from None

    def _can_render_tools(self) -> bool:
        for messages in (_PROBE_MESSAGES, _PROBE_MESSAGES[1:]):
            try:
                if self._render(messages, [_PROBE_TOOL]) != self._render(messages):
                    return True
            except ApiError:
                continue
        return False

    def _render_opening(self, prompt: str, request: ChatRequest) -> str:
        """Return the beginning of a call, up to a required tool's arguments, or else to the tool's name."""
        call = {"type": "function", "function": {"name": _MARKER, "arguments": {_MARKER: _MARKER}}}
        messages = [*request.template_messages, {"role": "assistant", "content": "", "tool_calls": [call]}]
        text = self._render(
            messages, request.tools, request.chat_template_kwargs, add_generation_prompt=False
        )
        head, marker, tail = text.removeprefix(prompt).partition(_MARKER)
        if not text.startswith(prompt) or not marker or len(head) > 200:
            raise ApiError(
                "this model's chat template does not show how a call begins: tool_choice must be 'auto'",
                "tool_choice",
            )
        if request.required_tool is None:
            return _CALL_HEAD_PATTERN.sub("", head)
        text_between, arguments, _ = tail.partition(f'{{"{_MARKER}"')
        return (
            head
            + request.required_tool
            + (text_between.rstrip() if arguments and len(text_between) < 40 else "")
        )
