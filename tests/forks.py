"""Processes of Python, forked from one that has everything imported: one starts in a fraction of its time.

`Forks.popen` stands in for `subprocess.Popen` where the product starts a server or a training, where a test
starts a pytest session, and where a session starts its workers. What it starts is a process of its own, with
the same arguments, streams, folder and environment.
"""

import atexit
import gc
import importlib
import io
import json
import os
import random
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import IO, Any, NoReturn, Self

import pytest

from tests.attack import zygote
from tests.patience import HANG_SECONDS
from tests.project_modules import FOLDER

CHECKOUT = Path(__file__).resolve().parents[1]
PRELOADED = {
    "servers": (
        "peft",
        "pytest_trace2evolve.cli.parser",
        "pytest_trace2evolve.serving.app",
        "pytest_trace2evolve.serving.engine",
        "pytest_trace2evolve.serving.loading",
        "transformers.models.auto.modeling_auto",
        "transformers.models.auto.tokenization_auto",
        "transformers.models.qwen3.modeling_qwen3",
        "uvicorn",
    ),
    "sessions": (*zygote.PRELOADED, "asyncio", "execnet", "pdb", "tests.fake_world", "xdist.remote"),
}
"""What is imported before, for each kind of process."""

MAX_REQUEST = 1 << 18


class Forked:
    """A forked process, as `subprocess.Popen` shows one."""

    def __init__(self, arguments: Sequence[str], streams: dict[str, IO[Any] | None], status: int) -> None:
        self.args = arguments
        self.stdin, self.stdout, self.stderr = (streams.get(name) for name in ("stdin", "stdout", "stderr"))
        self.returncode: int | None = None
        self._status = os.fdopen(status)
        self.pid = int(self._status.readline())
        self._ended = threading.Event()
        threading.Thread(target=self._await, name="forked", daemon=True).start()

    def _await(self) -> None:
        with self._status as status:
            self.returncode = int(status.readline())
        self._ended.set()

    def poll(self) -> int | None:
        """Its exit status, negative for a signal; None as long as it runs."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status once it has ended."""
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        assert self.returncode is not None
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[Any, None]:
        """What it printed to its standard output, once that has ended and it has."""
        assert self.stdout is not None
        assert self.stderr is None
        found: list[Any] = []
        reader = threading.Thread(target=lambda: found.append(self.stdout.read()), daemon=True)
        reader.start()
        reader.join(timeout)
        if reader.is_alive():
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        self.stdout.close()
        self.wait(timeout)
        return found[0], None

    def send_signal(self, number: int) -> None:
        """Send it a signal if it runs."""
        if self.returncode is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send it SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send it SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                stream.close()
        self.wait()


class Forks:
    """The process that forks.

    Args:
        kind: One of `PRELOADED`.
        client: The socket of requests of one that runs.
    """

    def __init__(self, kind: str, client: socket.socket | None = None) -> None:
        self._kind = kind
        self._environment = _of_python(os.environ)
        if client is not None:
            self._socket = client

    def __enter__(self) -> Self:
        from pytest_trace2evolve.serving.server import PASSIVE_THREAD_VARIABLES

        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * MAX_REQUEST)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.forks", self._kind, str(theirs.fileno())],
                env={
                    **os.environ,
                    **PASSIVE_THREAD_VARIABLES,
                    "PYTHONPATH": os.pathsep.join(map(str, (CHECKOUT / "src", CHECKOUT, FOLDER))),
                },
                cwd=CHECKOUT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self._process.wait(HANG_SECONDS)

    def follows(self, arguments: Sequence[object], environment: Mapping[str, str]) -> bool:
        """Whether a fork can do what a new process would."""
        same = _of_python(environment) == self._environment
        return same and arguments[0] == sys.executable and command_of(list(map(str, arguments))) is not None

    def popen(self, arguments: Sequence[Any], **options: Any) -> Any:
        """Start a process; options are those of `subprocess.Popen`, which starts what a fork cannot do."""
        if not self.follows(arguments, options.get("env") or os.environ):
            return subprocess.Popen(arguments, **options)
        handles: dict[str, int] = {}
        streams: dict[str, IO[Any] | None] = {}
        text = {name: options.pop(name, None) for name in ("encoding", "errors")}
        is_text = options.pop("text", False)
        for name, flags in (("stdin", os.O_RDONLY), ("stdout", os.O_WRONLY), ("stderr", os.O_WRONLY)):
            given = options.pop(name, None)
            if given is None:
                handles[name] = os.dup(len(handles))
            elif given == subprocess.PIPE:
                theirs, ours = os.pipe() if name == "stdin" else reversed(os.pipe())
                handles[name] = theirs
                raw = os.fdopen(ours, "wb" if name == "stdin" else "rb")
                streams[name] = io.TextIOWrapper(raw, **text) if is_text else raw
            elif given == subprocess.STDOUT:
                handles[name] = os.dup(handles["stdout"])
            elif given == subprocess.DEVNULL:
                handles[name] = os.open(os.devnull, flags)
            else:
                handles[name] = os.dup(given if isinstance(given, int) else given.fileno())
        kept = [os.dup(self._socket.fileno())]
        kept += [os.dup(handle) for handle in options.pop("pass_fds", ())]
        status, report = os.pipe()
        request = {
            "arguments": list(map(str, arguments)),
            "folder": str(options.pop("cwd", None) or Path.cwd()),
            "environment": dict(options.pop("env", None) or os.environ),
        }
        options.pop("start_new_session", None)  # always: the terminal is none of theirs
        assert not options, f"not known: {options}"
        sent = [*handles.values(), report, *kept]
        socket.send_fds(self._socket, [json.dumps(request).encode()], sent)
        for handle in sent:
            os.close(handle)
        return Forked(arguments, streams, status)


def _of_python(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables of Python itself that a fork could not follow."""
    known = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED")
    return {
        name: value for name, value in environment.items() if name.startswith("PYTHON") and name not in known
    }


def command_of(arguments: Sequence[str]) -> tuple[str, list[str]] | None:
    """The option with which Python runs something, and what follows; None if it runs a file."""
    for place, word in enumerate(arguments[1:], start=1):
        if word in ("-m", "-c"):
            return word, list(arguments[place + 1 :])
        if word.startswith("-m"):
            return "-m", [word[2:], *arguments[place + 1 :]]
        if word not in ("-u", "-P", "-B"):
            break
    return None


@contextmanager
def forking(forks: Forks, *modules: ModuleType) -> Iterator[None]:
    """Have these modules start processes with a fork."""
    forked = SimpleNamespace(**{**vars(subprocess), "Popen": forks.popen})
    with pytest.MonkeyPatch.context() as patch:
        for module in modules:
            patch.setattr(module, "subprocess", forked)
        yield


def main(kind: str, requests: socket.socket) -> None:
    """Fork for each request until the other end is closed."""
    own = (str(CHECKOUT), "", *os.environ["PYTHONPATH"].split(os.pathsep))
    installed = [path for path in sys.path if path not in own]
    if kind == "sessions":
        with tempfile.TemporaryDirectory() as folder:  # imports the plugins as pytest itself does
            pytest.main(["-q", f"--rootdir={folder}", f"-c{os.devnull}", "-pno:cacheprovider", folder])
    for name in PRELOADED[kind]:
        with suppress(ImportError):  # a package that this environment does not have
            importlib.import_module(name)
    gc.freeze()
    waiting: list[int] = []
    while True:
        request, handles, *_ = socket.recv_fds(requests, MAX_REQUEST, 8)
        if not request:
            break
        child = os.fork()
        if child == 0:
            requests.close()
            _start(json.loads(request), handles, installed)
        for handle in handles:
            os.close(handle)
        waiting = [item for item in waiting if os.waitpid(item, os.WNOHANG) == (0, 0)] + [child]
    for item in waiting:
        os.waitpid(item, 0)


def _start(request: Mapping[str, Any], handles: list[int], installed: Sequence[str]) -> NoReturn:
    """Fork the process, tell its id and, once it has ended, its status."""
    os.setsid()
    *streams, report = handles[:4]
    child = os.fork()
    if child == 0:
        os.close(report)
        _run(request, streams, Forks("", socket.socket(fileno=handles[4])), installed)
    for handle in (*streams, *handles[4:]):
        os.close(handle)
    os.write(report, f"{child}\n".encode())
    _, status = os.waitpid(child, 0)
    os.write(report, f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def _run(request: Mapping[str, Any], streams: list[int], forks: Forks, installed: Sequence[str]) -> NoReturn:
    """Run what Python would run, in this process, and end the process."""
    status = 70
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for target, source in enumerate(streams):
            os.dup2(source, target)
            os.close(source)
        os.chdir(request["folder"])
        os.environ.clear()
        os.environ.update(request["environment"])
        option, words = command_of(request["arguments"]) or ("", [])
        paths = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
        sys.path[:] = [request["folder"] if option == "-m" else "", *paths, *installed]
        sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
        importlib.invalidate_caches()
        random.seed()
        sys.stdout.reconfigure(line_buffering=os.isatty(1))  # type: ignore[union-attr]  # a text stream
        status = _do(option, words, forks)
    except SystemExit as end:
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
        status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    finally:
        threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as the end of Python does
        atexit._run_exitfuncs()
        with suppress(OSError, ValueError):
            sys.stdout.flush()
        with suppress(OSError, ValueError):
            sys.stderr.flush()
        os._exit(status)


def _do(option: str, words: list[str], forks: Forks) -> int:
    if option == "-c":
        sys.argv = ["-c", *words[1:]]
        exec(words[0], {"__name__": "__main__"})
        return 0
    module, *arguments = words
    sys.argv = [module, *arguments]
    if module == "pytest_trace2evolve":
        from pytest_trace2evolve.cli.main import main as command

        return command(arguments)
    if module == "pytest":
        from execnet import gateway_io

        class Worker(gateway_io.Popen2IOMaster):
            def __init__(self, args: Any, execmodel: Any) -> None:
                self.popen = forks.popen(args, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
                gateway_io.Popen2IO.__init__(self, self.popen.stdin, self.popen.stdout, execmodel=execmodel)

        gateway_io.Popen2IOMaster = Worker  # type: ignore[misc]
        return int(pytest.main(arguments))
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    return 0


if __name__ == "__main__":
    main(sys.argv[1], socket.socket(fileno=int(sys.argv[2])))
