"""Between messages and tokens: prompts by the model's chat template, and what an answer's tokens say.

What a model wrote, as content, reasoning and tool calls; what is no call stays content.
"""

import hashlib
import json
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_trace2evolve.serving.request import ApiError

OPENING = "<tool_call>"
_CALL = re.compile(r"<tool_call>\s*(.*?)\s*(?:</tool_call>|$)", re.DOTALL)
_THOUGHT = re.compile(r"\A\s*(?:<think>)?(.*?)</think>\s*", re.DOTALL)


@dataclass(frozen=True)
class Call:
    """A tool call: the tool's name, and its arguments as JSON text."""

    name: str
    arguments: str


@dataclass(frozen=True)
class Said:
    """One answer; `content` is empty where there is none."""

    content: str
    calls: tuple[Call, ...] = ()
    reasoning: str = ""


def plain(text: str) -> Said:
    """A text without calls: what was thought before it, and the rest."""
    thought = _THOUGHT.match(text)
    if thought is None:
        return Said(text)
    return Said(text[thought.end() :], reasoning=thought.group(1).strip())


def hermes(text: str) -> Said:
    """Calls as `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, in Hermes' and Qwen's way.

    All of it is content where any call cannot be read.
    """
    said = plain(text)
    begin = said.content.find(OPENING)
    if begin < 0:
        return said
    rest = said.content[begin:]
    found = [_call(body) for body in _CALL.findall(rest)]
    between = _CALL.sub("", rest).strip()
    calls = tuple(one for one in found if one is not None)
    if len(calls) < len(found) or not calls:
        return said
    content = "\n".join(part for part in (said.content[:begin].strip(), between) if part)
    return Said(content, calls, said.reasoning)


def from_parsed(parsed: Any) -> Said | None:
    """What a tokenizer's own parser found; None where its calls cannot be understood."""
    if not isinstance(parsed, dict):
        return None
    calls = []
    for one in parsed.get("tool_calls") or ():
        function = one.get("function", one) if isinstance(one, dict) else None
        if not isinstance(function, dict) or (call := _of(function)) is None:
            return None
        calls.append(call)
    reasoning = parsed.get("reasoning_content") or parsed.get("thinking") or ""
    content = parsed.get("content") or ""
    if not isinstance(content, str) or not isinstance(reasoning, str):
        return None
    return Said(content.strip() if calls else content, tuple(calls), reasoning.strip())


def call_id(prompt: Sequence[int], answer: Sequence[int], place: int) -> str:
    """A call's id: equal requests that are answered alike get equal ids, so that their traces are equal."""
    told = hashlib.sha256(f"{list(prompt)}\n{list(answer)}\n{place}".encode()).hexdigest()
    return f"call_{told[:24]}"


def _call(body: str) -> Call | None:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return _of(value) if isinstance(value, dict) else None


def _of(function: dict[str, Any]) -> Call | None:
    name = function.get("name")
    arguments = function.get("arguments", function.get("parameters", {}))
    if isinstance(arguments, str):  # JSON in a string, as the API itself has it
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return None
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        return None
    try:
        return Call(name, json.dumps(arguments, ensure_ascii=False))
    except RecursionError:
        return None


_MARK = "t2e_marked_name"
_PROBE = ({"role": "system", "content": "s"}, {"role": "user", "content": "u"})
_PROBE_TOOL = {
    "type": "function",
    "function": {"name": _MARK, "description": "d", "parameters": {"type": "object", "properties": {}}},
}
_HEAD = re.compile(r"\{\s*\"(?:name|function)\"\s*:\s*\"?$")
"""How a call in JSON begins, up to its tool's name."""


@dataclass(frozen=True)
class Prompt:
    """A prompt as it is sent to the model.

    Attributes:
        text: All of it, `opening` included.
        opening: What was written for the model of its answer: how a call begins that it must make.
        tools: The tools that it may call; empty where it must not.
    """

    text: str
    tokens: Sequence[int]
    opening: str = ""
    tools: Sequence[Mapping[str, Any]] = ()


class Writer:
    """Writes prompts and reads answers; from any thread, one at a time.

    Args:
        tokenizer: The model's.
        ends: Tokens that end an answer; no part of what it says.
        context: Tokens that fit the model; None if nothing says.
    """

    def __init__(self, tokenizer: Any, ends: frozenset[int], context: int | None = None) -> None:
        self._tokenizer = tokenizer
        self._ends = ends
        # Tokenizing megabytes takes long, and meanwhile no other prompt is written. A text that cannot fit
        # even in the longest tokens is not tokenized.
        self._max_characters = None if context is None else context * max(map(len, tokenizer.get_vocab()))
        # A tokenizer must not be used by two threads at once.
        self._lock = threading.RLock()
        marks = {
            tokenizer.convert_tokens_to_ids(one) for one in (OPENING, "</tool_call>", "<think>", "</think>")
        }
        self._hidden = (set(tokenizer.all_special_ids) | ends) - (marks - ends - {tokenizer.unk_token_id})
        self._takes_tools = self._heeds_tools()

    def prompt(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        choice: str | Mapping[str, Any],
        settings: Mapping[str, Any],
    ) -> Prompt:
        """A conversation's prompt.

        Args:
            messages: As the API has them, arguments of tool calls as objects.
            tools: Descriptions of tools.
            choice: `auto`, `none`, `required`, or the API's object that names one.
            settings: Further variables of the template.

        Raises:
            ApiError: the template refuses the conversation, or knows no tools; the prompt cannot fit.
        """
        if choice == "none":
            tools = ()
        if tools and not self._takes_tools:
            raise ApiError("this model's chat template knows no tools", "tools")
        with self._lock:
            text = self._rendered(messages, tools, settings, asking=True)
            opening = ""
            if tools and choice != "auto":
                name = None if isinstance(choice, str) else choice["function"]["name"]
                opening = self._opening(text, messages, tools, settings, name)
            if self._max_characters is not None and len(text) > self._max_characters:
                raise ApiError(
                    f"the prompt has {len(text)} characters, too many for this model's context length",
                    "messages",
                    "context_length_exceeded",
                )
            tokens = self._tokenizer(text + opening, add_special_tokens=False)["input_ids"]
        return Prompt(text + opening, tokens, opening, tools)

    def said(self, prompt: Prompt, tokens: Sequence[int], stops: Sequence[str]) -> Said:
        """What an answer says.

        Args:
            prompt: Its prompt.
            tokens: All of it, the token that ended it included.
            stops: Texts that end an answer and are no part of it.
        """
        with self._lock:
            text = self._text(tokens)
            cut = min((place for stop in stops if (place := text.find(stop)) >= 0), default=len(text))
            whole = prompt.opening + text[:cut]
            if not prompt.tools:
                return plain(whole)
            if getattr(self._tokenizer, "response_template", None) is None:
                return hermes(whole)
            raw = self._tokenizer.decode(list(tokens), skip_special_tokens=False)
            raw = prompt.opening + (raw if cut == len(text) else text[:cut])
            begun = prompt.text.removesuffix(prompt.opening)
            try:
                parsed = self._tokenizer.parse_response(raw, prefix=begun, tools=list(prompt.tools))
                found = from_parsed(parsed)
            except Exception:  # a parser of the model's own, and whatever the model wrote
                found = None
        return plain(whole) if found is None else found

    def following(
        self, answer: Mapping[str, Any], messages: Sequence[Mapping[str, Any]], *, ended: bool
    ) -> list[int]:
        """Tokens from the end of an answer to where the next one begins.

        An answer is marked and rendered with what follows it, and all behind the mark is taken: what
        templates do to earlier answers (leave out what was thought) does not come in.

        Args:
            answer: A message of the assistant; only its kind counts, and the names and ids of its calls.
            messages: What came back on it.
            ended: Whether the token that ends answers is there already.

        Raises:
            ApiError: the template refuses the messages, or ends answers by nothing.
        """
        marked: dict[str, Any] = {"role": "assistant", "content": _MARK}
        if answer.get("tool_calls"):
            calls = [
                {**one, "function": {**one["function"], "arguments": {_MARK: _MARK}}}
                for one in answer["tool_calls"]
            ]
            marked = {**marked, "content": "", "tool_calls": calls}
        with self._lock:
            text = self._rendered([_PROBE[1], marked, *messages], (), {}, asking=True)
            text = text[text.index(_MARK) :]
            ends = [str(self._tokenizer.decode([one], skip_special_tokens=False)) for one in self._ends]
            places = [place for one in ends if one and (place := text.find(one)) >= 0]
            if not places:
                raise ApiError("this model's chat template does not show where an answer ends", "messages")
            tokens: list[int] = self._tokenizer(text[min(places) :], add_special_tokens=False)["input_ids"]
        return tokens[1:] if ended else tokens

    def stopper(self, stops: Sequence[str]) -> Callable[[Sequence[int]], bool] | None:
        """Tells whether the last of an answer's tokens completed a text that ends it."""
        if not stops:
            return None
        # A character takes four tokens at most.
        window = 4 * max(len(stop) for stop in stops) + 4

        def stopped(tokens: Sequence[int]) -> bool:
            with self._lock:
                text = self._text(tokens[-window:])
            return any(stop in text for stop in stops)

        return stopped

    def token(self, token: int) -> str:
        """The text of one token."""
        with self._lock:
            return str(self._tokenizer.decode([token], skip_special_tokens=False))

    def _text(self, tokens: Sequence[int]) -> str:
        shown = [token for token in tokens if token not in self._hidden]
        return str(
            self._tokenizer.decode(shown, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        )

    def _rendered(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        settings: Mapping[str, Any],
        *,
        asking: bool,
    ) -> str:
        try:
            return str(
                self._tokenizer.apply_chat_template(
                    [dict(message) for message in messages],
                    tools=[dict(tool) for tool in tools] or None,
                    add_generation_prompt=asking,
                    tokenize=False,
                    **settings,
                )
            )
        except Exception as error:  # whatever a template of the model's own raises
            told = " ".join(str(error).split()) or type(error).__name__
            raise ApiError(f"the chat template refuses this conversation: {told[:300]}", "messages") from None

    def _heeds_tools(self) -> bool:
        """Whether tools change a prompt at all."""
        for messages in (_PROBE, _PROBE[1:]):
            try:
                told = self._rendered(messages, [_PROBE_TOOL], {}, asking=True)
                if told != self._rendered(messages, [], {}, asking=True):
                    return True
            except ApiError:
                continue
        return False

    def _opening(
        self,
        asked: str,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        settings: Mapping[str, Any],
        name: str | None,
    ) -> str:
        """How a call begins in this template: to the tool's arguments where one is named, else to its name.

        Raises:
            ApiError: the template does not show it.
        """
        call = {"type": "function", "function": {"name": _MARK, "arguments": {_MARK: _MARK}}}
        said = {"role": "assistant", "content": "", "tool_calls": [call]}
        whole = self._rendered([*messages, said], tools, settings, asking=False)
        head, mark, tail = whole.removeprefix(asked).partition(_MARK)
        if not whole.startswith(asked) or not mark or len(head) > 200:
            raise ApiError(
                "this model's chat template does not show how a call begins: tool_choice must be 'auto'",
                "tool_choice",
            )
        if name is None:
            return _HEAD.sub("", head)
        between, arguments, _ = tail.partition(f'{{"{_MARK}"')
        return head + name + (between.rstrip() if arguments and len(between) < 40 else "")
