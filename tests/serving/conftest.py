"""One tiny model and one server of it for all tests of a process."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from pytest_trace2evolve.serving.process import LocalServer
from tests.patience import HANG_SECONDS, until
from tests.tiny_model import TOOLS

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `base`, adapters `one` and `two`, and the answers of transformers itself; built once."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    folder, ready = shared / "tiny-models", shared / "tiny-models.ready"
    try:
        folder.mkdir()
    except FileExistsError:  # another worker builds them
        until(ready.exists, "the other worker did not build the models")
        return folder
    # In a process of its own: a worker that never loads torch stays small.
    subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.tiny_model", str(folder)],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "src")])},
        check=True,
        capture_output=True,
    )
    ready.touch()
    return folder


@pytest.fixture(scope="session")
def references(models: Path) -> list[dict[str, Any]]:
    """The answers of transformers, called directly, to each conversation."""
    found: list[dict[str, Any]] = json.loads((models / "references.json").read_text(encoding="utf-8"))
    return found


class Client:
    """Asks a server as any client would."""

    def __init__(self, base_url: str, token: str) -> None:
        self.base_url = base_url
        self.token = token
        self.http = httpx2.Client(
            base_url=base_url, headers={"Authorization": f"Bearer {token}"}, timeout=HANG_SECONDS
        )

    def post(self, **fields: Any) -> httpx2.Response:
        """The response of a chat completion; by default greedy and with tools."""
        body = {"model": "base", "tools": TOOLS, "temperature": 0, "max_tokens": 40, **fields}
        if "messages" in body:
            body["messages"] = json.loads(json.dumps(body["messages"]), object_hook=_arguments_as_text)
        return self.http.post("/chat/completions", json={k: v for k, v in body.items() if v is not None})

    def choice(self, **fields: Any) -> dict[str, Any]:
        """The one choice of a good answer."""
        response = self.post(**fields)
        assert response.status_code == 200, response.text
        (choice,) = response.json()["choices"]
        return dict(choice)

    def usage(self, **fields: Any) -> dict[str, Any]:
        """The usage of a good answer."""
        return dict(self.post(**fields).json()["usage"])

    def error(self, status: int, code: str | None, **fields: Any) -> str:
        """The message of a rejection."""
        return error_message(self.post(**fields), status, code)


def _arguments_as_text(found: dict[str, Any]) -> dict[str, Any]:
    if isinstance(found.get("arguments"), dict):
        found["arguments"] = json.dumps(found["arguments"])
    return found


def error_message(response: httpx2.Response, status: int, code: str | None) -> str:
    """The message of an error, which has the API's shape."""
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == code, error
    return str(error["message"])


@pytest.fixture(scope="session")
def server(models: Path) -> Iterator[LocalServer]:
    """A server of the base and both adapters."""
    adapters = {name: models / name for name in ("one", "two")}
    server = LocalServer(models / "base", adapters, options=["-ot2e_batch_size=32", "-ot2e_queue_size=40"])
    yield server
    server.close()


@pytest.fixture(scope="session")
def client(server: LocalServer) -> Iterator[Client]:
    """A client of that server."""
    client = Client(server.base_url, server.token)
    yield client
    client.http.close()
