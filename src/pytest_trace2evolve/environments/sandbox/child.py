"""The process of one generated module, which `box` starts and `kernel` locks before it reads the source.

Each message is one line of JSON. The process first reports that it is locked. It then receives the source,
and after that one call at a time:

    {"source": …, "name": …}                         → {"id": 0, "value": null}
    {"id": 7, "call": "scenario", "arguments": [3]}  → {"id": 7, "value": …}
                                                    or {"id": 7, "error": "ValueError: …", "line": 12}

The parent treats an answer only as data. Code that breaks out of Python in this process can send the parent
any text, but can do nothing else.
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

_MAX_ERROR_LENGTH = 500  # characters of an error's message
_GC_THRESHOLD = 20_000  # allocations between collections; a call makes thousands of objects and few cycles
_CHUNK = 1 << 16  # bytes of one read, the size of a pipe; a larger buffer would be allocated at each call

# Cycles fail by their depth instead of a check, which would track every list and cost a tenth of the time.
_encode = json.JSONEncoder(
    check_circular=False, ensure_ascii=False, allow_nan=False, separators=(",", ":")
).encode


class _Sink:
    """Discards text that the module prints without its own `print`."""

    encoding = "utf-8"

    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None:
        """Do nothing, because no text is kept."""


class _Pipes:
    """The pipes for requests and for answers of at most `max_answer_bytes` bytes."""

    def __init__(self, requests: int, answers: int, max_answer_bytes: int) -> None:
        self._requests, self._answers, self._max_answer_bytes = requests, answers, max_answer_bytes

    def read(self) -> Any:
        """Read the next request; end this process if the pipe is closed."""
        line = bytearray()
        while not line.endswith(b"\n"):
            chunk = os.read(self._requests, _CHUNK)
            if not chunk:
                os._exit(0)
            line += chunk
        return json.loads(line.decode())

    def write(self, answer: dict[str, Any]) -> None:
        """Send an answer; raise an error if it has no JSON form or is too long."""
        line = _encode(answer).encode() + b"\n"
        if len(line) > self._max_answer_bytes:
            raise ValueError(f"the answer has {len(line)} bytes, but the limit is {self._max_answer_bytes}")
        while line:
            line = line[os.write(self._answers, line) :]


def main() -> NoReturn:
    """Lock this process, load the module, and answer calls until the parent is gone."""
    pipes, modules = _lock_process()
    try:
        load_request = pipes.read()
        module = _Module(pipes, load_request["name"], load_request["source"], modules)
        while True:
            module.call(pipes.read())
    except BaseException:
        # Otherwise the interpreter would search for files to print the error, which would kill it.
        os._exit(70)


def probe() -> NoReturn:
    """Lock this process, then open a file. If the lock holds, the kernel kills the process."""
    _lock_process()
    os.open(os.devnull, os.O_RDONLY)
    os._exit(0)


def _lock_process() -> tuple[_Pipes, dict[str, ModuleType]]:
    """Lock this process, so that it keeps only the pipes and the views that it loads first."""
    requests, answers, life_pipe, memory_bytes, cpu_seconds, max_answer_bytes = map(int, sys.argv[1:7])
    pipes = _Pipes(requests, answers, max_answer_bytes)
    try:
        tie_to_parent(life_pipe)
        modules = views.preload()
        gc.freeze()
        gc.set_threshold(_GC_THRESHOLD)
        _close_everything()
        lock(requests, answers, memory_bytes, cpu_seconds)
    except Exception as error:
        pipes.write({"missing": str(error) if isinstance(error, LockError) else _describe_error(error)})
        os._exit(1)
    pipes.write({"locked": True})
    return pipes, modules


def _close_everything() -> None:
    """Close the standard streams and clear the import path.

    A search for a file would kill the locked process; with an empty path, an import just fails.
    """
    null_device = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null_device, stream)
    os.close(null_device)
    sys.stdout = sys.stderr = _Sink()
    sys.stdin = None
    sys.path.clear()
    sys.meta_path.clear()
    sys.path_hooks.clear()
    sys.path_importer_cache.clear()


class _Module:
    """The generated module. Its tracebacks use `name` as the file name, and it may import only `modules`."""

    _code: CodeType

    def __init__(self, pipes: _Pipes, name: str, source: str, modules: dict[str, ModuleType]) -> None:
        """Run the source, and send an answer as for a call."""
        self._pipes, self._file_name, self._modules = pipes, f"<{name}>", modules
        self._namespace: dict[str, Any] = {}
        self._library_state = views.writable_objects(modules)

        def load() -> dict[str, Any]:
            self._code = compile(source, self._file_name, "exec", dont_inherit=True)
            self._run_anew()
            return {"value": None}

        self._send_answer(0, load)

    def call(self, request: dict[str, Any]) -> None:
        """Call one of the module's functions, and send the answer.

        The module first runs anew, because the answer must not depend on earlier calls.
        """

        def run() -> dict[str, Any]:
            function = self._run_anew().get(request["call"])
            if not callable(function):
                return {"error": "it has no such function", "line": 0}
            return {"value": function(*request["arguments"])}

        self._send_answer(request["id"], run)

    def _run_anew(self) -> dict[str, Any]:
        """Run the source in a new namespace, and return the namespace."""
        views.restore_attributes(self._library_state)
        self._namespace.clear()  # breaks the cycle between the namespace and its functions
        self._namespace = views.make_namespace(self._modules)
        exec(self._code, self._namespace)
        return self._namespace

    def _send_answer(self, number: int, run: Callable[[], dict[str, Any]]) -> None:
        """Send the answer that `run` returns, or any exception, so that only a kill ends this process."""
        try:
            answer = run()
        except BaseException as error:
            answer = {"error": _describe_error(error), "line": self._innermost_line(error.__traceback__)}
        try:
            self._pipes.write({"id": number, **answer})
        except BaseException as error:
            problem = f"its answer is not valid JSON: {_describe_error(error)}"
            self._pipes.write({"id": number, "error": problem, "line": 0})

    def _innermost_line(self, traceback: TracebackType | None) -> int:
        """The number of the innermost line of the generated module in a traceback; 0 if there is none."""
        line = 0
        while traceback is not None:
            if traceback.tb_frame.f_code.co_filename == self._file_name:
                line = traceback.tb_lineno
            traceback = traceback.tb_next
        return line


def _describe_error(error: BaseException) -> str:
    kind = type(error).__name__[:_MAX_ERROR_LENGTH]
    try:
        text = str(error)[:_MAX_ERROR_LENGTH].encode("utf-8", "replace").decode()
        return f"{kind}: {text}" if text else kind
    except BaseException:
        return f"{kind}, whose message cannot be shown"
