"""Starts local servers as separate processes, which never outlive the process that started them."""

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
"""The environment variable with a server's token; a command line would show the token to other users."""

LOOPBACK_HOSTS = ("127.0.0.1", "::1", "localhost")
"""The hosts that may be served without a token."""

_MAX_OUTPUT_BYTES = 1 << 16
"""Maximum bytes that are read from each output of the server's process."""


class LocalServer:
    """A server of one model folder, and of adapters whose folders are given by name.

    Attributes:
        base_url: The URL of the API.
        token: The bearer token that requests must send.

    Raises:
        ModelFolderError: the server did not start; the message is the server's own.
    """

    def __init__(
        self, folder: Path, adapters: Mapping[str, Path] | None = None, options: Sequence[str] = ()
    ) -> None:
        self._folder = folder
        self.token = secrets.token_urlsafe(24)
        self._is_closing = False
        command = [sys.executable, "-P", "-m", "pytest_trace2evolve", "serve", str(folder), "--parent-pipe"]
        for name, path in (adapters or {}).items():
            command += ["--adapter", f"{name}={path}"]
        self._error_output = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the server
        self._process = subprocess.Popen(
            [*command, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._error_output,
            env={**os.environ, TOKEN_VAR: self.token},
            start_new_session=True,  # Ctrl-C is for the run, which then ends the server
        )
        try:
            assert self._process.stdout is not None
            line = self._process.stdout.readline(_MAX_OUTPUT_BYTES)
            if not line:
                self._process.wait()
                raise ModelFolderError(self._last_error_line().removeprefix("trace2evolve: "))
            self.base_url = _read_address(line)
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """The id of the server's process."""
        return self._process.pid

    def watch(self, on_end: Callable[[str], None]) -> None:
        """Call `on_end` with a message if the server ends before it is closed."""

        def report_end() -> None:
            status = self._process.wait()
            if not self._is_closing:
                on_end(
                    f"the local server of {self._folder} ended with status {status} "
                    f"({self._last_error_line()}); start the run again"
                )

        threading.Thread(target=report_end, name="trace2evolve-server-watch", daemon=True).start()

    def close(self) -> None:
        """End the server and wait until it has ended."""
        self._is_closing = True
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._error_output.close()

    def _last_error_line(self) -> str:
        with suppress(OSError, ValueError):
            self._error_output.seek(max(0, self._error_output.seek(0, os.SEEK_END) - _MAX_OUTPUT_BYTES))
            lines = self._error_output.read().decode(errors="replace").strip().splitlines()
            if lines:
                return lines[-1].strip()
        return "no error output"


def _read_address(line: bytes) -> str:
    try:
        return str(json.loads(line)["base_url"])
    except (ValueError, TypeError, KeyError):
        output = line.decode(errors="replace").strip()[:200]
        raise ModelFolderError(
            f"the local server printed {output!r} instead of its address; something prints to standard "
            "output when Python starts (sitecustomize?)"
        ) from None
