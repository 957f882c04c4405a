"""Starting a local server as a process of its own, and ending it: it never outlives whoever started it."""

import json
import os
import secrets
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from pytest_trace2evolve.errors import ModelFolderError

TOKEN_VAR = "TRACE2EVOLVE_TOKEN"
"""The variable that holds a server's token: a command line is seen by everybody on the machine."""

LOOPBACK = ("127.0.0.1", "::1", "localhost")
"""The hosts that are served without a token."""

_LONGEST_LINE = 1 << 16
"""Bytes that are read of what the server's process prints."""

_PREFIX = "trace2evolve: "


def _base_url(line: bytes) -> str:
    """The address in the first line that a server prints.

    Raises:
        ModelFolderError: the line is none of its own.
    """
    try:
        return str(json.loads(line)["base_url"])
    except (ValueError, TypeError, KeyError):
        told = line.decode(errors="replace").strip()[:200]
        raise ModelFolderError(
            f"the local server did not say where it listens, but {told!r}: something prints to standard "
            "output whenever Python starts (sitecustomize?)"
        ) from None


class LocalServer:
    """A server of one model folder, started here.

    Attributes:
        base_url: Where it listens.
        token: What requests must bring.

    Args:
        folder: The model's.
        adapters: Folders of adapters by name.
        options: Further options of `trace2evolve serve`.

    Raises:
        ModelFolderError: it did not start; its own line says why.
    """

    def __init__(
        self, folder: Path, adapters: Mapping[str, Path] | None = None, options: Sequence[str] = ()
    ) -> None:
        self._folder = folder
        self.token = secrets.token_urlsafe(24)
        self._ending = False
        command = [
            sys.executable,
            "-P",
            "-m",
            "pytest_trace2evolve",
            "serve",
            str(folder),
            "--parent-pipe",
        ]
        for name, path in (adapters or {}).items():
            command += ["--adapter", f"{name}={path}"]
        command += options
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the server
        # A session of its own: Ctrl-C is for the run, which then ends this.
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, TOKEN_VAR: self.token},
            start_new_session=True,
        )
        try:
            assert self._process.stdout is not None
            line = self._process.stdout.readline(_LONGEST_LINE)
            if not line:
                self._process.wait()
                raise ModelFolderError(self._last_words().removeprefix(_PREFIX))
            self.base_url = _base_url(line)
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """The server's process."""
        return self._process.pid

    def watch(self, ended: Callable[[str], None]) -> None:
        """Tell once where the server ends though nobody closed it."""

        def wait() -> None:
            status = self._process.wait()
            if not self._ending:
                ended(
                    f"the local server of {self._folder} ended with status {status} ({self._last_words()}); "
                    "start the run again"
                )

        threading.Thread(target=wait, name="trace2evolve-server-watch", daemon=True).start()

    def close(self) -> None:
        """End it and wait until it has."""
        self._ending = True
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()

    def _last_words(self) -> str:
        with suppress(OSError, ValueError):
            self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - _LONGEST_LINE))
            lines = self._errors.read().decode(errors="replace").strip().splitlines()
            if lines:
                return lines[-1].strip()
        return "it said nothing"
