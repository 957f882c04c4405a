"""How a server begins and ends: by its parent, by signals, and nobody else's harm."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx2

from tests.serving.conftest import REPOSITORY

PARENT = """
import sys, time
from pathlib import Path
from pytest_trace2evolve.serving.process import LocalServer
server = LocalServer(Path(sys.argv[1]))
print(server.pid, server.base_url, server.token, flush=True)
time.sleep(600)
"""


def environment() -> dict[str, str]:
    path = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "src")])
    return {**os.environ, "PYTHONPATH": path}


def gone(pid: int, seconds: float = 15.0) -> bool:
    """Whether a process ends in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.05)
    return False


def test_a_parent_that_is_killed_leaves_no_server(models: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(models / "base")],
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        pid, url, token = parent.stdout.readline().split()
        told = httpx2.get(f"{url}/models", headers={"Authorization": f"Bearer {token}"})
        assert told.status_code == 200
        for place in (f"/proc/{pid}/cmdline", f"/proc/{parent.pid}/cmdline"):
            assert token not in Path(place).read_text()
        parent.kill()
        parent.wait()
        assert gone(int(pid))


def test_a_server_tells_its_address_and_ends_by_a_signal_in_good_order(models: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "pytest_trace2evolve.cli",
        "serve",
        str(models / "base"),
        "--name",
        "tiny",
    ]
    with subprocess.Popen(
        command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        assert server.stderr is not None
        line, token = server.stdout.readline(), server.stdout.readline()
        url = re.fullmatch(r"serving tiny on cpu at (http://127\.0\.0\.1:\d+/v1)\n", line)
        assert url is not None, line
        key = token.removeprefix("token: ").strip()
        told = httpx2.get(f"{url[1]}/models", headers={"Authorization": f"Bearer {key}"})
        assert told.json()["data"][0]["id"] == "tiny"
        server.send_signal(signal.SIGTERM)
        assert server.wait(20) == 0
        assert (server.stdout.read(), server.stderr.read()) == ("", "")
