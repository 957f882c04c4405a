"""The process of one generated module: started by `box`, locked by `kernel` before it reads the source.

It speaks one line of JSON at a time. First it says that it is locked. Then it gets the source, and then one
call after another:

    {"source": …, "name": …}                         → {"id": 0, "value": null}
    {"id": 7, "call": "scenario", "arguments": [3]}  → {"id": 7, "value": …}
                                                    or {"id": 7, "error": "ValueError: …", "line": 12}

To the parent an answer is nothing but data. Code that breaks out of Python in here can say what it likes to
the parent, and do nothing else.
"""

import gc
import json
import os
import sys
from collections.abc import Callable
from types import CodeType, ModuleType, TracebackType
from typing import Any, NoReturn

from pytest_trace2evolve.environments.sandbox import views
from pytest_trace2evolve.environments.sandbox.kernel import LockError, lock, tie_to_parent

_MAX_ERROR = 500  # characters of an error's message
_ALLOCATIONS = 20_000  # before the collector runs: a call makes thousands of objects, and hardly a cycle
_CHUNK = 1 << 16  # bytes of one read, the size of a pipe: more would be allocated and freed at each call

# A cycle is found by its depth: tracking every list on the way costs a tenth.
_encode = json.JSONEncoder(
    check_circular=False, ensure_ascii=False, allow_nan=False, separators=(",", ":")
).encode


class _Sink:
    """Discards text that the module prints past its own `print`."""

    encoding = "utf-8"

    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None:
        """Nothing is kept."""


class _Pipes:
    """The pipe of requests and that of answers, of `max_answer` bytes at most."""

    def __init__(self, requests: int, answers: int, max_answer: int) -> None:
        self._requests, self._answers, self._max_answer = requests, answers, max_answer

    def read(self) -> Any:
        """The next request; ends this process if there will be none."""
        line = bytearray()
        while not line.endswith(b"\n"):
            chunk = os.read(self._requests, _CHUNK)
            if not chunk:
                os._exit(0)
            line += chunk
        return json.loads(line.decode())

    def write(self, answer: dict[str, Any]) -> None:
        """Send an answer; any error says that it has no JSON form, or is too long."""
        line = _encode(answer).encode() + b"\n"
        if len(line) > self._max_answer:
            raise ValueError(f"an answer of {len(line)} bytes; allowed are {self._max_answer}")
        while line:
            line = line[os.write(self._answers, line) :]


def main() -> NoReturn:
    """Lock, load the module, answer calls until the parent is gone."""
    pipes, modules = _lock_process()
    try:
        first = pipes.read()
        module = _Module(pipes, first["name"], first["source"], modules)
        while True:
            module.call(pipes.read())
    except BaseException:
        # The interpreter would search for files to print the error with, and die of that instead.
        os._exit(70)


def probe() -> NoReturn:
    """Lock, and try what must kill now: the end of this process tells whether the lock holds."""
    _lock_process()
    os.open(os.devnull, os.O_RDONLY)
    os._exit(0)


def _lock_process() -> tuple[_Pipes, dict[str, ModuleType]]:
    """Leave this process nothing but the pipes, and the views that it loaded before."""
    requests, answers, life, memory, cpu, max_answer = map(int, sys.argv[1:7])
    pipes = _Pipes(requests, answers, max_answer)
    try:
        tie_to_parent(life)
        modules = views.preload()
        gc.freeze()
        gc.set_threshold(_ALLOCATIONS)
        _close_everything()
        lock(requests, answers, memory, cpu)
    except Exception as error:
        pipes.write({"missing": str(error) if isinstance(error, LockError) else _described(error)})
        os._exit(1)
    pipes.write({"locked": True})
    return pipes, modules


def _close_everything() -> None:
    """Leave nothing open or findable: a search for a file would kill from now on; it fails softly instead."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)
    os.close(nothing)
    sys.stdout = sys.stderr = _Sink()
    sys.stdin = None
    sys.path.clear()
    sys.meta_path.clear()
    sys.path_hooks.clear()
    sys.path_importer_cache.clear()


class _Module:
    """The generated module; its lines are reported under `name`, and it may import `modules`."""

    _code: CodeType

    def __init__(self, pipes: _Pipes, name: str, source: str, modules: dict[str, ModuleType]) -> None:
        """Run the source, and answer as to a call."""
        self._pipes, self._file, self._modules = pipes, f"<{name}>", modules
        self._names: dict[str, Any] = {}
        self._library = views.attributes(modules)

        def load() -> dict[str, Any]:
            self._code = compile(source, self._file, "exec", dont_inherit=True)
            self._run_anew()
            return {"value": None}

        self._answer(0, load)

    def call(self, request: dict[str, Any]) -> None:
        """Call one of its functions and answer.

        The module runs anew first: the answer must not depend on earlier calls.
        """

        def run() -> dict[str, Any]:
            function = self._run_anew().get(request["call"])
            if not callable(function):
                return {"error": "it has no such function", "line": 0}
            return {"value": function(*request["arguments"])}

        self._answer(request["id"], run)

    def _run_anew(self) -> dict[str, Any]:
        """Run the source in a namespace of its own; returns the module's names."""
        views.restore(self._library)
        self._names.clear()  # its functions hold it, and it holds them
        self._names = views.namespace(self._modules)
        exec(self._code, self._names)
        return self._names

    def _answer(self, number: int, run: Callable[[], dict[str, Any]]) -> None:
        """Answer with a value or with whatever is raised: this process ends only when it is killed."""
        try:
            answer = run()
        except BaseException as error:
            answer = {"error": _described(error), "line": self._line(error.__traceback__)}
        try:
            self._pipes.write({"id": number, **answer})
        except BaseException as error:
            problem = f"its answer is not JSON as needed: {_described(error)}"
            self._pipes.write({"id": number, "error": problem, "line": 0})

    def _line(self, frame: TracebackType | None) -> int:
        """The last line of the generated module in a traceback; 0 if there is none."""
        line = 0
        while frame is not None:
            if frame.tb_frame.f_code.co_filename == self._file:
                line = frame.tb_lineno
            frame = frame.tb_next
        return line


def _described(error: BaseException) -> str:
    kind = type(error).__name__[:_MAX_ERROR]
    try:
        text = str(error)[:_MAX_ERROR].encode("utf-8", "replace").decode()
        return f"{kind}: {text}" if text else kind
    except BaseException:
        return f"{kind}, whose message cannot be shown"
