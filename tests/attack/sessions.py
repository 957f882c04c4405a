"""Sessions and commands in processes of their own, forked from one that has everything imported."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

CHECKOUT = Path(__file__).resolve().parents[2]
DROPPED = ("PYTEST_ADDOPTS", "PYTEST_CURRENT_TEST", "GITHUB_STEP_SUMMARY", "OPENAI_BASE_URL")


@dataclass(frozen=True)
class Done:
    """An ended session or command: its exit status, negative for a signal, and everything that it printed."""

    status: int
    text: str


class Sessions:
    """Runs one session at a time; several objects run sessions at the same time."""

    def __enter__(self) -> Self:
        environment = {name: value for name, value in os.environ.items() if name not in DROPPED}
        environment |= {
            "PYTHONPATH": os.pathsep.join([str(CHECKOUT / "src"), str(CHECKOUT)]),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTEST_PLUGINS": "pytest_trace2evolve.plugin",
            "OPENAI_API_KEY": "none",
            "OPENBLAS_NUM_THREADS": "1",
            "COLUMNS": "160",
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.attack.zygote"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=CHECKOUT,
        )
        self._output = Path(tempfile.mkstemp(prefix="t2e-attack-")[1])
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._output.unlink()

    def run(
        self,
        folder: Path,
        *command: str,
        ahead: float = 0.0,
        environment: Mapping[str, str] | None = None,
        meanwhile: Callable[[int], None] | None = None,
    ) -> Done:
        """Run `pytest` or `trace2evolve` with arguments.

        Args:
            folder: The current folder.
            command: The program's name and its arguments.
            ahead: Seconds that the session's clock is ahead.
            environment: Further environment variables.
            meanwhile: Called with the process id while the process runs.
        """
        assert self._process.stdin is not None
        request = {
            "folder": str(folder),
            "command": command,
            "output": str(self._output),
            "ahead": ahead,
            "environment": dict(environment or {}),
        }
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        child = self._answer()
        if meanwhile is not None:
            meanwhile(child)
        status = self._answer()
        return Done(status, self._output.read_text(encoding="utf-8", errors="replace"))

    def _answer(self) -> int:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the process that forks sessions has ended")
        return int(line)
