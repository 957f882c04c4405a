"""The pages on worlds and tasks work: their files are written, and their commands run in a project."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_trace2evolve.testing import ChatServer, Reply
from tests.e2e.test_doc_blocks import blocks

FILE = re.compile(r"# (?P<path>[\w./-]+\.(?:py|json|md|toml|yaml))\n(?P<text>.*)", re.DOTALL)


def run(root: Path, line: str) -> str:
    program, *words = shlex.split(line)
    module = {"trace2evolve": "pytest_trace2evolve", "pytest": "pytest"}[program]
    done = subprocess.run(
        [sys.executable, "-m", module, *words],
        cwd=root,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTEST_ADDOPTS": "-p no:cacheprovider"},
        timeout=240,
    )
    assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    return done.stdout


WORLD = blocks("extending", "Make a world from a class")


@pytest.mark.parametrize("page", ["worlds", "tasks"])
def test_the_blocks_of_a_page_work(page: str, tmp_path: Path) -> None:
    if page == "tasks":  # its tasks are for the world of the other page
        for block in WORLD[:4]:
            write(tmp_path, block)
    outputs = []
    for block in WORLD if page == "worlds" else blocks("tasks")[:5]:
        if FILE.match(block):
            write(tmp_path, block)
        else:
            outputs += [run(tmp_path, line) for line in block.splitlines() if not line.startswith("pip ")]
    assert any("tasks admitted" in text for text in outputs)
    assert json.loads((tmp_path / "suites/suites.lock").read_text())["suites"]["hotel"]["splits"]
    if page == "worlds":
        run(tmp_path, "trace2evolve lock")  # with the texts locked, and a hook that registers the world


def write(root: Path, block: str) -> None:
    """Write the files of a block; a comment with a path starts each."""
    for part in re.split(r"\n\n(?=# [\w./-]+\.\w+\n)", block):
        found = FILE.match(part)
        assert found is not None, part
        path = root / found["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(found["text"].rstrip() + "\n", encoding="utf-8")


def test_a_model_plays_the_user_of_written_tasks_with_an_own_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for block in WORLD[:4]:
        write(tmp_path, block)
    with (tmp_path / "pyproject.toml").open("a") as file:
        file.write('agent = "app.bot:make"\n')
    (tmp_path / "app/bot.py").write_text(
        "def make(tools, candidate):\n"
        "    calls = {tool.__name__: tool for tool in tools}\n"
        "    def run(message):\n"
        "        if 'B17' in message:\n"
        "            return calls['cancel_booking'](booking_id='B17') + ' Anything else?'\n"
        "        return 'Which booking?'\n"
        "    return run\n"
    )
    run(tmp_path, "trace2evolve lock")
    prompts = []

    def play(request: object) -> Reply:
        prompts.append(request.system)  # type: ignore[attr-defined]
        said = [message for message in request.messages if message["role"] == "assistant"]  # type: ignore[attr-defined]
        return Reply(("I want to cancel.", "It is B17.", "Thanks! ###STOP###")[min(len(said), 2)])

    with ChatServer(play) as server:
        line = f"pytest suites --candidate v0 --t2e-user-model gpt-x -o t2e_user_base_url={server.base_url}"
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        output = run(tmp_path, line)
    assert "1 passed" in output, output
    assert "name: Ann Lee" in prompts[0]
    assert "Cancel booking B17." in prompts[0]
    assert "Domain: None" not in prompts[0]
