"""How a server begins and ends: by its parent, by signals, and nobody else's harm."""

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from pytest_trace2evolve.errors import ModelFolderError
from pytest_trace2evolve.serving.process import LocalServer
from tests.patience import HANG_SECONDS
from tests.serving.conftest import REPOSITORY, Asking, refusal


def environment() -> dict[str, str]:
    path = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "src")])
    return {**os.environ, "PYTHONPATH": path}


def test_no_process_shows_the_token(asking: Asking) -> None:
    for pid in (asking.server.pid, os.getpid()):
        assert asking.server.token not in Path(f"/proc/{pid}/cmdline").read_text()


def test_a_missing_package_is_told_with_its_extra(models: Path, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(name='torch')")
    place = os.pathsep.join([str(tmp_path), environment()["PYTHONPATH"]])
    done = subprocess.run(
        [sys.executable, "-m", "pytest_trace2evolve.cli", "serve", str(models / "base")],
        env={**os.environ, "PYTHONPATH": place},
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "trace2evolve: 'torch' is not installed; run: pip install 'pytest-trace2evolve[local]'\n"
    )


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT])
def test_a_server_tells_its_address_and_ends_by_a_signal_in_good_order(
    models: Path, ending: signal.Signals
) -> None:
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
        server.send_signal(ending)
        assert server.wait(HANG_SECONDS) == 0
        assert (server.stdout.read(), server.stderr.read()) == ("", "")


HANGING = """
import sys, time
from pytest_trace2evolve.serving import app, loading, run
def hang(self, *given):
    print("hangs", flush=True)
    while True:
        time.sleep(3600)
if sys.argv[1] == "model":
    loading.LoadedModel._probe = lambda *given: None
    loading.LoadedModel.forward = hang
else:
    app.ChatApp._prompt = hang
run.END_SECONDS = run.GRACE_SECONDS = 0.2
from pytest_trace2evolve.cli.main import main
sys.exit(main(["serve", sys.argv[2], "--no-token"]))
"""


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("what", ["model", "template"])
def test_a_server_ends_though_a_request_hangs(models: Path, ending: signal.Signals, what: str) -> None:
    """The thread that hangs cannot be ended; the process is."""
    with subprocess.Popen(
        [sys.executable, "-c", HANGING, what, str(models / "base")],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        try:
            assert server.stdout is not None
            url = re.search(r"http://127\.0\.0\.1:(\d+)", server.stdout.readline())
            assert url is not None
            assert server.stdout.readline().startswith("no token: ")
            body = b'{"model": "base", "messages": [{"role": "user", "content": "?"}]}'
            with socket.create_connection(("127.0.0.1", int(url[1]))) as one:
                one.sendall(
                    b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
                    b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body
                )
                assert server.stdout.readline() == "hangs\n"
                server.send_signal(ending)
                assert server.wait(60) == 130
        finally:
            server.kill()


def test_without_a_token_it_must_be_asked_by_a_name_of_this_machine(models: Path) -> None:
    """Else a page whose name was pointed here could ask it."""
    server = LocalServer(models / "base", options=("--no-token",))
    try:
        url = f"{server.base_url}/models"
        answers = {
            host: httpx2.get(url, headers={"Host": host})
            for host in ("localhost", "[::1]:80", "evil.example")
        }
    finally:
        server.close()
    assert [one.status_code for one in answers.values()] == [200, 200, 403]
    assert refusal(answers["evil.example"], 403, "forbidden_host") == (
        "host 'evil.example': without a token only requests to 127.0.0.1, ::1 or localhost are served"
    )


def test_a_server_whose_parent_gave_it_no_pipe_ends(models: Path) -> None:
    line = f"exec {sys.executable} -m pytest_trace2evolve serve {models / 'base'} --parent-pipe <&-"
    done = subprocess.run(["sh", "-c", line], env=environment(), capture_output=True, timeout=HANG_SECONDS)
    assert done.returncode == 0, done.stderr


def test_what_others_print_is_not_taken_for_an_address(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('Welcome!')")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), environment()["PYTHONPATH"]]))
    with pytest.raises(
        ModelFolderError, match=r"did not say where it listens, but 'Welcome!': .*sitecustomize"
    ):
        LocalServer(models / "base")
