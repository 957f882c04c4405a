"""Runs a project's own agent in a process of its own, for one simulation at a time.

The parent sends requests as JSON lines on standard input, and reads events as JSON lines from the file
descriptor that was standard output. Output of the agent goes to standard error instead, so that it cannot mix
with the events. Only the standard library and modules without dependencies are imported here, because each
process pays for its imports.

Requests: `import` (import the function), `make` (call it), `run` (the user's next message), `close`. Before
it answers `make` or `run`, the child may send `call` events; the parent answers each with a `result`.
"""

import asyncio
import importlib
import inspect
import json
import os
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TextIO

from pytest_trace2evolve.engine.agent_code import MAX_FRAMES, is_network_error

MAX_TEXT = 1_000_000
"""The largest number of characters of one reply that are sent to the parent."""

_TYPES: Mapping[str, Any] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "array": list,
    "object": dict,
    "null": None,
}
"""Python types of JSON schema types."""


@dataclass(frozen=True)
class Configuration:
    """The candidate as an agent sees it.

    Attributes:
        id: The candidate's id, such as `v6`.
        prompt: The text that the agent must follow: the candidate's prompt, or else the world's policy, and
            the candidate's instruction after it.
        instruction: The candidate's instruction alone; may be empty.
        model: The name of the model to call; None if neither the candidate nor an option names one.
        parameters: Parameters of the model, such as `temperature`.
        trial: The index of the simulation among those of its task; also a useful seed.
    """

    id: str
    prompt: str
    instruction: str = ""
    model: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    trial: int = 0


class UnusableResultError(Exception):
    """A result of the agent's code that cannot be used; the message is shown without a traceback."""


def make_tool(schema: Mapping[str, Any], call: Callable[[str, dict[str, Any]], str]) -> Callable[..., str]:
    """Make a function that calls a tool of the world.

    Frameworks that inspect functions find the name, a docstring in Google style, a signature and type hints.
    The function's `parameters` is the JSON schema of its arguments, and its `schema` is the tool as a request
    for a chat completion lists it.

    Args:
        schema: The tool's `name`, `description` and `parameters`.
        call: Calls a tool by name with its arguments; returns the text that a model reads.
    """
    name, parameters = schema["name"], schema["parameters"]
    properties = {
        key: value for key, value in (parameters.get("properties") or {}).items() if key.isidentifier()
    }
    required = [key for key in parameters.get("required") or [] if key in properties]
    optional = [key for key in properties if key not in required]
    hints = {key: _type_of(value) for key, value in properties.items()}
    hints |= {key: hints[key] | None for key in optional}
    signature = inspect.Signature(
        [
            inspect.Parameter(
                key,
                inspect.Parameter.POSITIONAL_OR_KEYWORD,
                annotation=hints[key],
                default=inspect.Parameter.empty if key in required else None,
            )
            for key in (*required, *optional)
        ],
        return_annotation=str,
    )

    def tool(*args: Any, **kwargs: Any) -> str:
        # A framework may pass None for every argument that a model left out.
        bound = signature.bind(*args, **kwargs).arguments
        given = {key: value for key, value in bound.items() if value is not None or key in required}
        return call(name, given)

    lines = [
        f"    {key}: {value['description']}" for key, value in properties.items() if "description" in value
    ]
    tool.__name__ = tool.__qualname__ = name
    # Some frameworks reject a function without a docstring.
    description = schema["description"] or f"{name.replace('_', ' ').capitalize()}."
    tool.__doc__ = description + ("\n\nArgs:\n" + "\n".join(lines) if lines else "")
    tool.__annotations__ = {**hints, "return": str}
    tool.__signature__ = signature  # type: ignore[attr-defined]
    tool.parameters = dict(parameters)  # type: ignore[attr-defined]
    tool.schema = {  # type: ignore[attr-defined]
        "type": "function",
        "function": {"name": name, "description": description, "parameters": dict(parameters)},
    }
    return tool


def _type_of(schema: Any) -> Any:
    """A type hint for a JSON schema; `Any` if the schema is not simple."""
    if not isinstance(schema, dict):
        return Any
    if choices := schema.get("enum"):
        return Literal[tuple(choices)]
    if options := schema.get("anyOf"):
        hints = [_type_of(option) for option in options]
        hint = hints[0]
        for other in hints[1:]:
            hint = Any if Any in (hint, other) else hint | other
        return hint
    kind = schema.get("type")
    if kind == "array":
        return list[_type_of(schema.get("items"))]  # type: ignore[misc]
    if kind == "object":
        return dict[str, Any]
    return _TYPES.get(kind, Any) if isinstance(kind, str) else Any


class Child:
    """The loop that answers the parent's requests.

    Args:
        requests: The stream of the parent's lines.
        events: The stream that the parent reads.
    """

    def __init__(self, requests: TextIO, events: TextIO) -> None:
        self._requests = requests
        self._events = events
        self._runner = asyncio.Runner()
        self._agent: object = None
        self._calling = threading.Lock()  # a framework may call tools in several threads

    def serve(self) -> None:
        """Answer requests until the parent closes its end."""
        with self._runner:
            while (request := self._read()) is not None:
                self._answer(request)

    def _answer(self, request: dict[str, Any]) -> None:
        try:
            if request["do"] == "import":
                import_path(request["agent"])
                self._send({"event": "imported"})
            elif request["do"] == "make":
                self._make(request)
                self._send({"event": "made"})
            elif request["do"] == "run":
                self._send({"event": "reply", "content": self._run(request["message"])})
            else:
                self._close()
                self._send({"event": "closed"})
        except _ParentGoneError:
            raise SystemExit(0) from None
        except BaseException as error:  # including `SystemExit` and `KeyboardInterrupt` of the agent's code
            self._send(_failure(error))

    def _make(self, request: dict[str, Any]) -> None:
        make = import_path(request["agent"])
        tools = [make_tool(schema, self._call) for schema in request["tools"]]
        further = {}
        if request["history"]:
            if "history" not in inspect.signature(make).parameters:
                self._send({"event": "no history"})
                return
            further["history"] = request["history"]
        made = self._finished(make(tools, Configuration(**request["candidate"]), **further))
        from pytest_trace2evolve.agents.wrappers import wrapped

        self._agent = wrapped(made, request["agent"])

    def _run(self, message: str) -> str:
        assert callable(self._agent)
        reply = self._finished(self._agent(message))
        if not isinstance(reply, str):
            raise UnusableResultError(f"run returned {type(reply).__name__}, not a text")
        return reply[:MAX_TEXT]

    def _close(self) -> None:
        agent, self._agent = self._agent, None
        close = getattr(agent, "close", None)
        if callable(close):
            self._finished(close())

    def _finished(self, value: Any) -> Any:
        """The value, or the result of an awaitable, in one event loop for the whole process."""

        async def result(awaitable: Awaitable[Any]) -> Any:
            return await awaitable

        return self._runner.run(result(value)) if inspect.isawaitable(value) else value

    def _call(self, name: str, arguments: dict[str, Any]) -> str:
        """Call a tool of the world; blocks until the parent answers, since one simulation runs at a time."""
        with self._calling:
            self._send({"event": "call", "name": name, "arguments": arguments})
            answer = self._read()
        if answer is None:
            raise _ParentGoneError
        return str(answer["result"])

    def _read(self) -> dict[str, Any] | None:
        line = self._requests.readline()
        return json.loads(line) if line else None

    def _send(self, event: dict[str, Any]) -> None:
        self._events.write(json.dumps(event, default=str) + "\n")
        self._events.flush()


class _ParentGoneError(BaseException):
    """The parent has closed its end, so the simulation is over."""


def import_path(path: str) -> Any:
    """Import `package.module:attribute`.

    Raises:
        UnusableResultError: the module has no such attribute, or the attribute is not callable.
    """
    module, _, name = path.partition(":")
    value = importlib.import_module(module)
    for part in name.split("."):
        try:
            value = getattr(value, part)
        except AttributeError:
            raise UnusableResultError(f"{path}: module {module} has no {name!r}") from None
    if not callable(value):
        raise UnusableResultError(f"{path}: is a {type(value).__name__}, not a function")
    return value


def _failure(error: BaseException) -> dict[str, Any]:
    try:
        text = str(error)
    except Exception as other:
        text = f"its message cannot be shown ({type(other).__name__})"
    if isinstance(error, UnusableResultError):
        return {"event": "failed", "error": text, "frames": "", "network": False}
    frames = traceback.extract_tb(error.__traceback__)
    inner = [number for number, frame in enumerate(frames) if frame.filename == __file__]
    own = frames[inner[-1] + 1 :] if inner else frames
    return {
        "event": "failed",
        "error": f"{type(error).__name__}: {text[:MAX_TEXT]}".rstrip(": "),
        "frames": "".join(traceback.format_list(own[-MAX_FRAMES:])),
        "network": is_network_error(error),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve the parent; the only argument is the folder to import from."""
    (folder,) = sys.argv[1:] if arguments is None else arguments
    events = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    requests = os.fdopen(os.dup(0), encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.path.insert(0, folder)
    Child(requests, events).serve()


if __name__ == "__main__":
    main()
