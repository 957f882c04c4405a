"""Runs a project's own agent in a process of its own, for one simulation at a time.

The parent sends requests as JSON lines on standard input, and reads events as JSON lines from the file
descriptor that was standard output. Output of the agent goes to standard error instead, so that it cannot mix
with the events. Only the standard library and modules without dependencies are imported here, because each
process pays for its imports.

Requests: `import` (import the function), `make` (call it), `run` (the user's next message), `close`, `exit`.
Before it answers `make` or `run`, the child may send `call` events; the parent answers each with a `result`.

A thread reads the requests. When the parent closes its end, or is killed, this thread ends the process and
everything that the agent started, at any time.
"""

import asyncio
import contextlib
import contextvars
import importlib
import inspect
import json
import keyword
import os
import queue
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn, TextIO

from pytest_trace2evolve.engine.agent_code import MAX_FRAMES, MAX_MESSAGE_LENGTH, is_network_error
from pytest_trace2evolve.engine.process_tree import MARK, adopt_orphans, kill_tree
from pytest_trace2evolve.utils.import_path import find_attribute

MAX_TEXT = 1_000_000
"""The largest number of characters of one reply."""

MAX_EVENT = 8_000_000
"""The largest number of characters of an event as JSON, including the arguments of a call."""

_TYPES: Mapping[str, Any] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "array": list,
    "object": dict,
    "null": None,
}
"""Python types by JSON schema type."""


@dataclass(frozen=True)
class Configuration:
    """The candidate as an agent sees it.

    Attributes:
        id: The candidate's id, such as `v6`.
        prompt: The text that the agent must follow: the candidate's prompt, or else the world's policy,
            followed by the candidate's instruction.
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


class ToolCallError(RuntimeError):
    """A tool was called while no message of its own simulation was being answered."""


def make_tool(schema: Mapping[str, Any], call: Callable[[str, dict[str, Any]], str]) -> Callable[..., str]:
    """Make a function that calls a tool of the world.

    Frameworks that inspect functions find the name, a docstring in Google style, a signature and type hints.
    The function's `parameters` is the JSON schema of its arguments, and its `schema` is the tool in the form
    of a chat-completion request. Unknown and missing arguments are passed on, so that the world rejects the
    call as it would reject the call of any model.

    Args:
        schema: The tool's `name`, `description` and `parameters`.
        call: Calls a tool by name with its arguments; returns the text that a model reads.
    """
    name, parameters = schema["name"], schema["parameters"]
    properties = {
        key: value
        for key, value in (parameters.get("properties") or {}).items()
        if key.isidentifier() and not keyword.iskeyword(key)
    }
    required = [key for key in parameters.get("required") or [] if key in properties]
    optional = [key for key in properties if key not in required]
    hints = {key: _type_of(value) for key, value in properties.items()}
    hints |= {key: hints[key] | None for key in optional if hints[key] is not Any}
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
        passed_arguments = dict(signature.bind_partial(*args).arguments)
        if repeated := passed_arguments.keys() & kwargs.keys():
            raise TypeError(f"{name}() got multiple values for argument {min(repeated)!r}")
        passed_arguments |= kwargs
        # A framework may pass None for every argument that a model left out.
        return call(
            name,
            {key: value for key, value in passed_arguments.items() if value is not None or key in required},
        )

    lines = [
        f"    {key}: {' '.join(str(value['description']).split())}"
        for key, value in properties.items()
        if isinstance(value, dict) and value.get("description")
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
        is_simple = all(choice is None or isinstance(choice, str | int | bool) for choice in choices)
        return Literal[tuple(choices)] if is_simple else Any
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
        self._stream = requests
        self._events = events
        self._requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._runner = asyncio.Runner()
        self._context = contextvars.copy_context()
        self._agent: object = None
        self._pid = os.getpid()
        self._call_lock = threading.Lock()  # a framework may call tools in several threads
        self._simulation = 0
        self._is_answering = False
        self._has_late_call = False

    def serve(self) -> None:
        """Answer requests until the parent sends `exit`, or closes the stream."""
        threading.Thread(target=self._receive, name="trace2evolve-requests", daemon=True).start()
        with self._runner:
            while (request := self._requests.get())["do"] != "exit":
                self._answer(request)

    def _receive(self) -> None:
        """Read the parent's lines; end the process when the parent closes the stream or is killed."""
        try:
            for line in self._stream:
                parsed_line = json.loads(line)
                (self._requests if "do" in parsed_line else self._results).put(parsed_line)
        except OSError:  # the agent closed the stream
            os._exit(1)
        except ValueError:  # the parent was killed in the middle of a line
            pass
        end_process()

    def _answer(self, request: dict[str, Any]) -> None:
        try:
            event: dict[str, Any]
            if request["do"] == "import":
                import_path(request["agent"], request.get("folder"))
                event = {"event": "imported"}
            elif request["do"] == "make":
                event = self._make(request)
            elif request["do"] == "run":
                event = {"event": "reply", "content": self._run(request["message"])}
            else:
                self._close()
                event = {"event": "closed", "reusable": not self._has_late_call}
        except BaseException as error:  # including `SystemExit` and `KeyboardInterrupt` of the agent's code
            event = _failure(error)
        self._stop_answering()
        self._send(event)

    def _make(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            make = import_path(request["agent"], request.get("folder"))
        except BaseException as error:
            return {**_failure(error), "stage": "import"}
        self._simulation += 1
        self._is_answering = True
        self._context = contextvars.copy_context()  # no variable of an earlier simulation is set
        simulation = self._simulation

        def call(name: str, arguments: dict[str, Any]) -> str:
            return self._call(simulation, name, arguments)

        tools = [make_tool(schema, call) for schema in request["tools"]]
        history_argument = {}
        if request["history"]:
            if not _takes_history(make):
                return {"event": "no history"}
            history_argument["history"] = request["history"]
        configuration = Configuration(**request["candidate"])
        with _signature_errors(f"{request['agent']}(tools, candidate)", make, (tools, configuration)):
            result = self._context.run(make, tools, configuration, **history_argument)
        agent = self._resolve(result)
        from pytest_trace2evolve.agents.wrappers import wrapped

        try:
            self._agent = wrapped(agent, request["agent"])
        except TypeError as error:
            raise UnusableResultError(str(error)) from None
        return {"event": "made"}

    def _run(self, message: str) -> str:
        assert callable(self._agent)
        self._is_answering = True
        with _signature_errors("run(message)", getattr(self._agent, "run", self._agent), (message,)):
            result = self._context.run(self._agent, message)
        reply = self._resolve(result)
        if not isinstance(reply, str):
            raise UnusableResultError(f"run returned {type(reply).__name__}, not a text")
        if len(reply) > MAX_TEXT:
            raise UnusableResultError(
                f"run returned a text of {len(reply):,} characters, but the limit is {MAX_TEXT:,}"
            )
        return reply

    def _close(self) -> None:
        """Close the agent, and cancel the tasks that it left in the event loop."""
        agent, self._agent = self._agent, None
        close = getattr(agent, "close", None)
        if callable(close):
            self._resolve(self._context.run(close))
        loop = self._runner.get_loop()
        if tasks := asyncio.all_tasks(loop):
            self._runner.run(_cancel(tasks))

    def _resolve(self, value: Any) -> Any:
        """Return a value, or the result of an awaitable, which runs in the event loop of the process."""

        async def result(awaitable: Awaitable[Any]) -> Any:
            return await awaitable

        if not inspect.isawaitable(value):
            return value
        return self._runner.run(result(value), context=self._context)

    def _call(self, simulation: int, name: str, arguments: dict[str, Any]) -> str:
        """Call a tool of the world, and block until the parent answers."""
        if os.getpid() != self._pid:
            raise ToolCallError(f"tool {name!r} was called in a process that the agent forked")
        with self._call_lock:
            if simulation != self._simulation or not self._is_answering:
                self._has_late_call = True  # code that still runs would disturb the next simulation
                raise ToolCallError(f"tool {name!r} was called while no message was being answered")
            self._send({"event": "call", "name": name, "arguments": arguments})
            return str(self._results.get()["result"])

    def _stop_answering(self) -> None:
        """Reject further tool calls, after a pending call of another thread has its result."""
        with self._call_lock:
            self._is_answering = False

    def _send(self, event: dict[str, Any]) -> None:
        if os.getpid() != self._pid:  # a process that the agent forked has left the agent's code
            os._exit(0)
        line = json.dumps(event, default=str)
        if len(line) > MAX_EVENT:
            if event["event"] == "call":
                raise UnusableResultError(
                    f"tool {event['name']!r} was called with arguments of {len(line):,} characters as JSON, "
                    f"but the limit is {MAX_EVENT:,}"
                )
            line = json.dumps(_failure(UnusableResultError(f"an answer of {len(line):,} characters as JSON")))
        try:
            self._events.write(line + "\n")
            self._events.flush()
        except BrokenPipeError:  # the parent was killed
            end_process()


async def _cancel(tasks: set[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _takes_history(make: Callable[..., Any]) -> bool:
    try:
        return "history" in inspect.signature(make).parameters
    except (TypeError, ValueError):  # a callable without a signature
        return False


@contextlib.contextmanager
def _signature_errors(
    call: str, function: Callable[..., Any], arguments: tuple[object, ...]
) -> Iterator[None]:
    """Report that a function does not take the arguments of a call, in words that quote none of them."""
    try:
        yield
    except TypeError as error:
        innermost_frame = traceback.extract_tb(error.__traceback__)[-1]
        if innermost_frame.filename.startswith(str(Path(__file__).parents[1])):  # else the function ran
            try:
                signature = inspect.signature(function, follow_wrapped=False)
            except (TypeError, ValueError):  # a callable without a signature
                raise error from None
            try:
                signature.bind(*arguments)
            except TypeError as bind_error:
                raise UnusableResultError(f"{call} cannot be called: {bind_error}") from None
        raise


def import_path(path: str, folder: str | None = None) -> Any:
    """Import `package.module:attribute`.

    Args:
        path: The import path.
        folder: The folder that must hold the module; None for any.

    Raises:
        UnusableResultError: the module has no such attribute, the attribute is not callable, or the module
            was found in a different folder.
    """
    module, _, name = path.partition(":")
    value = importlib.import_module(module)
    if folder is not None:
        _check_folder(module, folder)
    try:
        value = find_attribute(value, module, name)
    except LookupError as error:
        raise UnusableResultError(str(error)) from None
    if not callable(value):
        kind = type(value).__name__
        raise UnusableResultError(f"it is {'an' if kind[0] in 'aeiou' else 'a'} {kind}, not a function")
    return value


def _check_folder(module: str, folder: str) -> None:
    """Check that a module and its packages come from a folder, and not from an installed copy."""
    parts = module.split(".")
    for length in range(len(parts), 0, -1):
        file = getattr(sys.modules[".".join(parts[:length])], "__file__", None)
        if file is not None and not Path(file).resolve().is_relative_to(Path(folder).resolve()):
            raise UnusableResultError(
                f"module {'.'.join(parts[:length])!r} was imported from {file}, not from {folder}; the "
                "project may be installed in a way that hides the folder"
            )


def _failure(error: BaseException) -> dict[str, Any]:
    try:
        text = str(error)
    except Exception as other:
        text = f"its message cannot be shown ({type(other).__name__})"
    if len(text) > MAX_MESSAGE_LENGTH:
        text = f"{text[:MAX_MESSAGE_LENGTH]}… ({len(text)} characters)"
    if isinstance(error, UnusableResultError):
        return {"event": "failed", "error": text, "detail": "", "frames": "", "network": False}
    frames = traceback.extract_tb(error.__traceback__)
    inner_indexes = [number for number, frame in enumerate(frames) if frame.filename == __file__]
    own_frames = [
        frame
        for frame in frames[inner_indexes[-1] + 1 if inner_indexes else 0 :]
        if not frame.filename.startswith((importlib.__file__, "<frozen importlib"))
    ]
    return {
        "event": "failed",
        "error": type(error).__name__,
        "detail": f": {text}".rstrip(": "),
        "frames": "".join(traceback.format_list(own_frames[-MAX_FRAMES:])),
        "network": is_network_error(error),
    }


def end_process() -> NoReturn:
    """End this process and everything that it started."""
    with contextlib.suppress(Exception):
        kill_tree(os.getpid(), os.environ.get(MARK, ""))
    os._exit(0)


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve the parent; the arguments are the folders to import from."""
    folders = sys.argv[1:] if arguments is None else arguments
    adopt_orphans()
    events = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    requests = os.fdopen(os.dup(0), encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.path[:0] = folders
    Child(requests, events).serve()


if __name__ == "__main__":
    main()
