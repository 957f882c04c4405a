"""A process that has everything imported, and forks for each session: one costs a fraction of a second.

Each line of standard input is a JSON object: the arguments of `pytest` or `trace2evolve`, the folder, the
file for the output, an offset of the clock, and further environment variables. The answers are the child's
process id, and after its end its exit status, negative for a signal.
"""

import contextlib
import gc
import json
import os
import signal
import sys
import time
from datetime import date, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any

from _pytest.config import default_plugins

PRELOADED = (
    *(f"_pytest.{name}" for name in default_plugins),
    "_pytest._argcomplete",
    "aiohttp",
    "anyio._backends._asyncio",
    "filelock",
    "hypothesis",
    "openai",
    "openai.resources.chat.completions",
    "pytest_trace2evolve.cli",
    "pytest_trace2evolve.plugin.controller",
    "pytest_trace2evolve.models.chat",
    "pytest_trace2evolve.plugin",
    "pytest_trace2evolve.plugin.case_fixtures",
    "pytest_trace2evolve.plugin.hookspecs",
    "pytest_trace2evolve.project.extensions",
    "rich._emoji_codes",
    "safetensors",
    "scipy.optimize",
    "scipy.stats",
    "truststore",
    "xml.etree.ElementTree",
    "yaml",
)


def serve() -> None:
    """Fork for each request until standard input ends."""
    for name in PRELOADED:
        with contextlib.suppress(ImportError):  # a package that this environment does not have
            __import__(name)
    from pytest_trace2evolve.utils.http import tls_context

    tls_context()
    gc.freeze()  # pytest collects garbage several times a session: not what was there before
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            _run(request)
        answers.write(f"{child}\n")
        _, status = os.waitpid(child, 0)
        answers.write(f"{os.waitstatus_to_exitcode(status)}\n")


def _run(request: dict[str, Any]) -> None:
    """Run one session or command in this process and end the process."""
    status = 70
    try:
        os.setsid()
        # A shell without job control hands on an ignored Ctrl-C to what it starts in the background.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        output = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (output, 1), (output, 2)):
            os.dup2(source, target)
        os.chdir(request["folder"])
        os.environ.update(request["environment"])
        sys.argv = list(request["command"])
        _prepare(request["ahead"])
        status = _main(sys.argv[0], sys.argv[1:])
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _main(program: str, arguments: list[str]) -> int:
    if program == "pytest":
        import pytest

        return int(pytest.main(arguments))
    from pytest_trace2evolve.cli.main import main

    return main(arguments)


def _prepare(ahead: float) -> None:
    """Make pauses between tries of a request short, and the clock go `ahead` by so many seconds."""
    from pytest_trace2evolve.models.settings import Retries

    Retries.pause = lambda *_: 0.001  # type: ignore[method-assign]
    if ahead:
        _set_clock(ahead)


def _set_clock(ahead: float) -> None:
    real_time = time.time
    time.time = lambda: real_time() + ahead
    shift = timedelta(seconds=ahead)

    class Meta(type):
        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, cls.__mro__[1])

    class Datetime(datetime, metaclass=Meta):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            return datetime.now(tz) + shift

    class Date(date, metaclass=Meta):
        @classmethod
        def today(cls) -> date:  # type: ignore[override]
            return (datetime.now() + shift).date()

    shifted = {id(datetime): Datetime, id(date): Date}
    for name, module in list(sys.modules.items()):
        if name.startswith("pytest_trace2evolve"):
            for attribute, value in list(vars(module).items()):
                if id(value) in shifted:
                    setattr(module, attribute, shifted[id(value)])


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    serve()
