"""The tutorial of docs/agents.md: its blocks run in order in an empty folder, and print what it shows.

A scripted model takes the place of the endpoint. Commands that make a virtual environment or install packages
are left out.
"""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_trace2evolve.project.suites import Suite
from pytest_trace2evolve.testing import ChatRequest, ChatServer, Reply
from tests.attack.sessions import Sessions
from tests.e2e.test_doc_blocks import blocks
from tests.hotel_story.model import results_of

PAGE = ("agents", "Gate your own agent in fifteen minutes")
NOT_RUN = ("python -m venv", ". .venv/", "pip install", "export OPENAI_API_KEY")
SHELL = ("sed", "mv", "git")
OURS = ("pytest", "trace2evolve")
DECIDES_ON_SUITES = "estimand" in Suite.model_fields
"""Whether a suite of one's own asks about exactly its tasks; only then can four tasks show a gain."""

EXPECTED = {
    "trace2evolve init --for own": (0, "next: pytest --candidate v0 --t2e-save-baseline v0"),
    "pytest --candidate v0 --t2e-save-baseline v0": (0, "1 failed, 3 passed"),
    "trace2evolve show RUN renew-reserved": (0, "Shall I renew loan L3, Ulysses?"),
    "pytest --candidate v1": (0, "PROMOTE: v1 is better than v0"),
    "trace2evolve baseline promote RUN": (0, "baselines/desk/v1.json: written"),
    "pytest --candidate v1 --t2e-goal no-regression": (
        1,
        "DISCARD: the working tree (changed: desk/agent.py) fails on reward",
    ),
    "pytest --candidate v0 --t2e-gate off": (1, "1 failed, 3 passed"),
    "trace2evolve cases check tasks.yaml": (0, "tasks.yaml: 5 of 5 tasks admitted"),
    "trace2evolve lock": (0, "desk: development 5;"),
    "pytest --candidate v2": (0, "PROMOTE: v2 is better than v0"),
}
"""The exit status of each command, and a text that it prints."""


def desk_model(request: ChatRequest) -> Reply:
    """A model of the library's desk. Only gpt-4.1 keeps reserved books without a rule in its prompt."""
    knows_rule = "reserved" in request.system or request.model == "gpt-4.1"
    said = [str(message["content"]) for message in request.messages if message["role"] == "user"]
    loan_id = re.search(r"\bL\d\b", " ".join(said))
    results = results_of(request.messages)
    wish = said[0]
    if loan_id is None:
        return Reply("What is the number of the loan?")
    if "find_loan" not in results:
        return Reply(tool_calls=(("find_loan", {"loan_id": loan_id[0]}),))
    loan = json.loads(results["find_loan"])
    if "due" in wish:
        return Reply(f"It is due in week {loan['due_week']}. Is there anything else?")
    name = "reserve" if "reserve" in wish else "renew_loan"
    if name in results:
        done = json.loads(results[name])
        return Reply(f"Done: reserved {done['reserved']}, week {done['due_week']}. Is there anything else?")
    if name == "renew_loan" and loan["reserved"] and knows_rule:
        return Reply("I am sorry, the book is reserved, so I cannot renew it.")
    if not said[-1].startswith("Yes"):
        return Reply(f"Shall I {'reserve' if name == 'reserve' else 'renew'} loan {loan_id[0]}?")
    return Reply(tool_calls=((name, {"loan_id": loan_id[0]}),))


class OwnAgentPage:
    """Runs the blocks of the page in one folder."""

    def __init__(self, root: Path, sessions: Sessions, endpoint: str) -> None:
        self.root = root
        self._sessions = sessions
        self._environment = {"OPENAI_BASE_URL": endpoint, "PYTEST_ADDOPTS": "--t2e-concurrency=2"}
        self._output = ""

    def run(self, block: str) -> None:
        """Run commands, write a file, or compare an output with that of the last command."""
        if path := re.match(r"# ([\w/]+\.(?:py|yaml))(, at its end)?\n", block):
            with (self.root / path[1]).open("a" if path[2] else "w", encoding="utf-8") as file:
                file.write(block.partition("\n")[2] + "\n")
        elif name := re.match(r"---\n(?:#.*\n)?id: (\w+)\n", block):
            (self.root / f"candidates/{name[1]}.md").write_text(block + "\n", encoding="utf-8")
        elif block.startswith(("PROMOTE", "DISCARD")):
            printed = [line.split() for line in self._output.splitlines()]
            for line in block.splitlines():
                assert line.split() in printed, self._output
        else:
            for line in block.splitlines():
                self._command(line)

    def _command(self, line: str) -> None:
        if line.startswith(NOT_RUN):
            return
        program, *arguments = line.split()
        if program in OURS:
            self._ours(line, program, arguments)
            return
        assert program in SHELL, line
        environment = {
            **os.environ,
            "GIT_CONFIG_GLOBAL": os.devnull,
            **{f"GIT_{role}_{key}": "ann" for role in ("AUTHOR", "COMMITTER") for key in ("NAME", "EMAIL")},
        }
        subprocess.run(["bash", "-c", line], cwd=self.root, env=environment, check=True, capture_output=True)

    def _ours(self, line: str, program: str, arguments: list[str]) -> None:
        runs = self.root / ".trace2evolve/runs"
        if "RUN" in arguments:
            last = max(runs.iterdir(), key=lambda path: path.stat().st_mtime_ns).name
            arguments = [last if word == "RUN" else word for word in arguments]
        done = self._sessions.run(self.root, program, *arguments, environment=self._environment)
        self._output = done.text
        status, text = EXPECTED.get(line, (0, "note: baseline "))
        assert (done.status, text in done.text) == (status, True), f"{line}\n{done.text}"


@pytest.fixture(scope="module")
def sessions() -> Iterator[Sessions]:
    with Sessions() as found:
        yield found


@pytest.mark.skipif(not DECIDES_ON_SUITES, reason="suites have no estimand yet")
def test_the_tutorial_leads_from_an_empty_folder_to_a_gated_change(
    tmp_path: Path, sessions: Sessions
) -> None:
    found = blocks(*PAGE)
    commands = [line for block in found for line in block.splitlines()]
    assert EXPECTED.keys() <= {*commands}
    with ChatServer(desk_model) as server:
        page = OwnAgentPage(tmp_path, sessions, server.base_url)
        for block in found:
            page.run(block)
    assert (tmp_path / ".git").is_dir()


def test_the_page_shows_the_files_of_the_template() -> None:
    template = Path(__file__).resolve().parents[2] / "docs/examples/library"
    assert (template / "candidates/v1.md").read_text("utf-8").rstrip() in blocks(*PAGE)
    (world,) = [block for block in blocks(*PAGE) if block.startswith("# desk/world.py")]
    own = [line for line in (template / "desk/world.py").read_text("utf-8").splitlines()[1:] if line]
    assert [line for line in own if line not in world] == []
