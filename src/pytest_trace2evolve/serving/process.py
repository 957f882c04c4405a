"""Starting a local server as a process of its own, and ending it: it never outlives whoever started it.

A model in a folder, served for as long as something measures it.
"""

import json
import os
import secrets
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from pytest_trace2evolve.errors import ModelFolderError
from pytest_trace2evolve.models.settings import ModelSettings
from pytest_trace2evolve.serving.folder import ModelFolder, folder_digest

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


@contextmanager
def served(
    base: ModelFolder,
    adapters: Mapping[str, Path] | None = None,
    *,
    seed: int | None = None,
    at_once: int = 64,
    threads: int | None = None,
) -> Iterator[ModelSettings]:
    """Serve a base and its adapters; gives how the base is asked. Adapters are asked by their names.

    Args:
        adapters: Folders, by the names under which they are asked.
        seed: Of the first answer.
        at_once: Requests at once at most.
        threads: Of the server; None leaves it to torch.

    Raises:
        ModelFolderError: the base or an adapter cannot be served.
    """
    options = () if threads is None else ("--threads", str(threads))
    server = LocalServer(base.path, adapters or {}, options)
    try:
        yield ModelSettings(
            model=base.name,
            base_url=server.base_url,
            token=server.token,
            temperature=base.temperature,
            seed=seed,
            max_connections=at_once,
            weights=folder_digest(base.path),
        )
    finally:
        server.close()
