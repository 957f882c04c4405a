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
    """A folder with `base`, adapters `one` and `two`, and what transformers itself says; built once."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    folder, ready = shared / "tiny-models", shared / "tiny-models.ready"
    try:
        folder.mkdir()
    except FileExistsError:  # another worker builds them
        until(ready.exists, "the other worker did not build the models")
        return folder
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
    """What transformers, called directly, says to each conversation."""
    found: list[dict[str, Any]] = json.loads((models / "references.json").read_text(encoding="utf-8"))
    return found


class Asking:
    """Asks a server as any client would."""

    def __init__(self, server: LocalServer) -> None:
        self.server = server
        self.client = httpx2.Client(
            base_url=server.base_url,
            headers={"Authorization": f"Bearer {server.token}"},
            timeout=HANG_SECONDS,
        )

    def post(self, **fields: Any) -> httpx2.Response:
        """A chat completion's response; greedy and with tools, where nothing else is said."""
        body = {"model": "base", "tools": TOOLS, "temperature": 0, "max_tokens": 40, **fields}
        if "messages" in body:
            body["messages"] = wired(body["messages"])
        return self.client.post("/chat/completions", json={k: v for k, v in body.items() if v is not None})

    def choice(self, **fields: Any) -> dict[str, Any]:
        """The one choice of a good answer."""
        response = self.post(**fields)
        assert response.status_code == 200, response.text
        (choice,) = response.json()["choices"]
        return dict(choice)

    def health(self) -> dict[str, Any]:
        """How busy the server is."""
        root = self.server.base_url.removesuffix("/v1")
        return dict(httpx2.get(f"{root}/health").json())

    def refused(self, status: int, code: str | None, **fields: Any) -> str:
        """The message of a refusal, its shape checked."""
        response = self.post(**fields)
        return refusal(response, status, code)


def wired(messages: Any) -> Any:
    """Messages as the API has them: arguments of calls as text."""
    return json.loads(json.dumps(messages), object_hook=_as_text) if isinstance(messages, list) else messages


def _as_text(found: dict[str, Any]) -> dict[str, Any]:
    if isinstance(found.get("arguments"), dict):
        found["arguments"] = json.dumps(found["arguments"])
    return found


def refusal(response: httpx2.Response, status: int, code: str | None) -> str:
    """The message of an error in the API's shape."""
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == code, error
    return str(error["message"])


@pytest.fixture(scope="session")
def asking(models: Path) -> Iterator[Asking]:
    """A server of the base and both adapters."""
    adapters = {name: models / name for name in ("one", "two")}
    server = LocalServer(models / "base", adapters, options=["--rows", "32", "--waiting", "40"])
    asking = Asking(server)
    yield asking
    asking.client.close()
    server.close()
