"""The process of one generated module: started by `box`, locked by `kernel` before it reads the source.

It speaks a line of JSON at a time. First it says that it is locked. Then it is given the source, and then
one call after another:

    {"source": …, "name": …}                   {"id": 0, "value": null}
    {"id": 7, "call": "scenario", "arguments": [3]}  →  {"id": 7, "value": …}
                                                    or  {"id": 7, "error": "ValueError: …", "line": 12}

An answer never leads to anything but data in the parent. Whoever breaks out of Python in here can say what it
likes to the parent, and do nothing else.
"""

import gc
import json
import os
import sys
from collections.abc import Callable
from types import CodeType, ModuleType, TracebackType
from typing import Any, NoReturn

from pytest_trace2evolve.environments.sandbox import views
from pytest_trace2evolve.environments.sandbox.kernel import Bounds, LockError, lock, tie_to_parent

_WORDS = 500
_ALLOCATIONS = 20_000
"""How many objects more before circles are looked for: a call makes thousands, and hardly any circle."""

_CHUNK = 1 << 16
"""Bytes of one read: what a pipe holds. More would be asked from the kernel and given back at each call."""

_TOLD = (
    *("open", "socket.", "os.", "subprocess.", "ctypes.dlsym", "mmap.", "fcntl.", "signal.", "shutil."),
    *("_thread.", "sys._current", "resource.", "syslog."),
)
"""Beginnings of the events after which the kernel may kill: the parent is told the last one."""

# A circle is found by its depth: to keep book of every list on the way costs a tenth.
_encode = json.JSONEncoder(
    check_circular=False, ensure_ascii=False, allow_nan=False, separators=(",", ":")
).encode


class _Sink:
    """Where the module's text goes that is printed past the `print` it was given: nowhere."""

    encoding = "utf-8"

    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None:
        """Nothing is kept."""


class _Wire:
    """The two pipes.

    Args:
        requests: Where requests come from.
        answers: Where answers go.
        most: Bytes of the longest answer.
    """

    def __init__(self, requests: int, answers: int, most: int) -> None:
        self._requests, self._answers, self._most = requests, answers, most

    def read(self) -> Any:
        """The next request; the end of this process where there is none any more."""
        got = bytearray()
        while not got.endswith(b"\n"):
            chunk = os.read(self._requests, _CHUNK)
            if not chunk:
                os._exit(0)
            got += chunk
        return json.loads(got.decode())

    def write(self, answer: dict[str, Any]) -> None:
        """Send an answer.

        Raises:
            ValueError, TypeError, RecursionError: it has no JSON form, or is too long.
        """
        line = _encode(answer).encode() + b"\n"
        if len(line) > self._most:
            raise ValueError(f"an answer of {len(line)} bytes; allowed are {self._most}")
        while line:
            line = line[os.write(self._answers, line) :]

    def tell(self, event: str) -> None:
        """Say what is about to be tried: where the kernel kills for it, nobody else can."""
        os.write(self._answers, b'{"tries":"%s"}\n' % event.encode("ascii", "replace")[:80])


def main() -> NoReturn:
    """Lock, load the module, answer calls until the parent is gone."""
    wire, modules = _locked()
    try:
        first = wire.read()
        module = _Module(wire, first["name"], modules)
        module.load(first["source"])
        while True:
            module.call(wire.read())
    except BaseException:
        # The interpreter would look for files to print the error with, and die of that instead.
        os._exit(70)


def probe() -> NoReturn:
    """Lock, and try what must kill now: whoever started this knows by its end whether the lock holds."""
    _locked()
    os.open(os.devnull, os.O_RDONLY)
    os._exit(0)


def _locked() -> tuple[_Wire, dict[str, ModuleType]]:
    """This process with nothing left to it but the pipes, and the views that it loaded before."""
    requests, answers, life, by_thread, memory, cpu, most = map(int, sys.argv[1:8])
    wire = _Wire(requests, answers, most)
    try:
        tie_to_parent(life, bool(by_thread))
        modules = views.preload()
        gc.freeze()
        gc.set_threshold(_ALLOCATIONS)
        _let_go()
        walled = lock(requests, answers, Bounds(memory, cpu))
    except Exception as error:
        told = str(error) if isinstance(error, LockError) else f"{type(error).__name__}: {error}"
        wire.write({"missing": told})
        os._exit(1)
    wire.write({"locked": True, "landlock": walled})
    _announce(wire)
    return wire, modules


def _let_go() -> None:
    """Leave nothing open or findable: a look for a file would kill from now on; it fails softly instead."""
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


def _announce(wire: _Wire) -> None:
    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event.startswith(_TOLD):
            wire.tell(f"{event} {arguments[1]}" if event == "ctypes.dlsym" else event)

    sys.addaudithook(hook)


class _NoFunctionError(Exception):
    """The module has no function of a name."""


class _Module:
    """The generated module, and how its functions are called.

    Args:
        wire: Where answers go.
        name: What its lines are told under.
        modules: The views that it may import.
    """

    def __init__(self, wire: _Wire, name: str, modules: dict[str, ModuleType]) -> None:
        self._wire, self._file = wire, f"<{name}>"
        self._modules = modules
        self._names: dict[str, Any] = {}
        self._code: CodeType | None = None
        self._library = views.attributes(modules)

    def load(self, source: str) -> None:
        """Run the source, and answer as to a call."""

        def run() -> None:
            self._code = compile(source, self._file, "exec", dont_inherit=True)
            self._anew()

        self._answer(0, run, [])

    def call(self, request: dict[str, Any]) -> None:
        """Call one of its functions and answer.

        The module is run anew first: what a function answers must not depend on what was asked before.
        """

        def run(*arguments: Any) -> Any:
            function = self._anew().get(request["call"])
            if not callable(function):
                raise _NoFunctionError
            return function(*arguments)

        self._answer(request["id"], run, request["arguments"])

    def _anew(self) -> dict[str, Any]:
        """The names of the module after its source has run in a namespace of its own."""
        if self._code is None:
            raise _NoFunctionError
        views.restore(self._library)
        self._names.clear()  # its functions hold it, and it holds them
        self._names = views.namespace(self._modules)
        exec(self._code, self._names)
        return self._names

    def _answer(self, number: int, function: Callable[..., Any], arguments: list[Any]) -> None:
        """Whatever is raised is an answer: this process ends only when it is made to."""
        try:
            value = function(*arguments)
        except _NoFunctionError:
            self._wire.write({"id": number, "error": "it has no such function", "line": 0})
            return
        except BaseException as error:
            line = self._line(error.__traceback__)
            self._wire.write({"id": number, "error": _told(error), "line": line})
            return
        try:
            self._wire.write({"id": number, "value": value})
        except BaseException as error:
            told = f"its answer is not JSON as needed: {_told(error)}"
            self._wire.write({"id": number, "error": told, "line": 0})

    def _line(self, at: TracebackType | None) -> int:
        """The last line of the generated module on the way to an exception; 0 where there is none."""
        line = 0
        while at is not None:
            if at.tb_frame.f_code.co_filename == self._file:
                line = at.tb_lineno
            at = at.tb_next
        return line


def _told(error: BaseException) -> str:
    kind = type(error).__name__[:_WORDS]
    try:
        text = str(error)[:_WORDS].encode("utf-8", "replace").decode()
        return f"{kind}: {text}" if text else kind
    except BaseException:
        return f"{kind}, without words"
