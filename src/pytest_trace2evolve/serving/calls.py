"""What a model wrote, as content, reasoning and tool calls; what is no call stays content."""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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
