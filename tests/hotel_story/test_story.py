"""The hotel's story: every kind of change to an agent is gated, with 40 lines of code and 5 commands.

The story's commands are:

    trace2evolve lock
    pytest --candidate v0 --t2e-save-baseline v0
    pytest --candidate v1
    trace2evolve baseline promote RUN
    pytest --candidate v1 --t2e-baseline v1       # the code of the working tree
"""

import importlib.util
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

import pytest_trace2evolve as t2e
from pytest_trace2evolve.project.suites import Suite
from pytest_trace2evolve.testing import ChatServer
from tests.attack.sessions import Done, Sessions
from tests.hotel_story.model import LARGE, NANO, HotelModel

TEMPLATE = Path(__file__).with_name("project")
MAX_CODE_LINES = 40
HAS_CHECKS = hasattr(t2e, "check")
DECIDES_ON_SUITES = "estimand" in Suite.model_fields
"""Whether a suite of one's own asks about exactly its tasks; then no falls need reruns to be shown."""

LOGGED = """

def logged(tool):
    def call(**arguments):
        print("calls", tool.name, arguments)
        return tool(**arguments)

    return call
"""
"""A wrapper that a refactoring adds; functions have no attribute `name`, so it always raises."""

PYDANTIC = """\
from pydantic_ai import Agent


def make(tools, candidate):
    model = candidate.model or "hotel-small"
    return Agent(f"openai-chat:{model}", tools=tools, system_prompt=candidate.prompt)
"""

LANGGRAPH = """\
from langchain_openai import ChatOpenAI
from langgraph.prebuilt import create_react_agent


def make(tools, candidate):
    model = ChatOpenAI(model=candidate.model or "hotel-small")
    return create_react_agent(model, tools, prompt=candidate.prompt)
"""


@dataclass
class Story:
    """A copy of the project, and sessions in it."""

    root: Path
    sessions: Sessions
    endpoint: str

    def command(self, program: str, *arguments: str) -> Done:
        """Run `pytest` or `trace2evolve` in the project."""
        options = f"--t2e-concurrency=2{' -ot2e_max_reruns=0' if DECIDES_ON_SUITES else ''}"
        environment = {"OPENAI_BASE_URL": self.endpoint, "PYTEST_ADDOPTS": options}
        return self.sessions.run(self.root, program, *arguments, environment=environment)

    def gate(self, candidate: str, *arguments: str) -> dict[str, Any]:
        """Gate a candidate, check that the exit status is that of the verdict, and return the verdict."""
        done = self.command("pytest", "--candidate", candidate, *arguments)
        verdict = self.verdict()
        statuses = {"promote": 0, "discard": 1, "inconclusive": 10}
        assert done.status == statuses[verdict["verdict"]], done.text
        verdict["text"] = done.text
        return verdict

    def save(self, candidate: str, *arguments: str) -> Done:
        """Measure a candidate, and save it as a baseline of its own name."""
        done = self.command("pytest", "--candidate", candidate, "--t2e-save-baseline", candidate, *arguments)
        assert f"baseline saved: baselines/hotel/{candidate}.json" in done.text, done.text
        return done

    def verdict(self) -> dict[str, Any]:
        """The content of the last run's `verdict.json`."""
        folder = self.root / ".trace2evolve/runs"
        run = max(folder.iterdir(), key=lambda path: path.stat().st_mtime_ns)
        content: dict[str, Any] = json.loads((run / "verdict.json").read_text(encoding="utf-8"))
        return content | {"run": run.name}

    def candidate(self, name: str, parent: str, *lines: str) -> None:
        """Write a candidate without an instruction."""
        text = "\n".join(["---", f"id: {name}", f"parent: {parent}", *lines, "---", ""])
        (self.root / f"candidates/{name}.md").write_text(text, encoding="utf-8")

    def refactor(self) -> None:
        """Wrap every tool in the agent's code."""
        bot = self.root / "app/bot.py"
        text = bot.read_text(encoding="utf-8").replace("__name__: tool for", "__name__: logged(tool) for")
        bot.write_text(text + LOGGED, encoding="utf-8")

    def git(self, *arguments: str) -> str:
        """Run git in the project."""
        environment = {
            **os.environ,
            "GIT_CONFIG_GLOBAL": os.devnull,
            **{f"GIT_{role}_{key}": "ann" for role in ("AUTHOR", "COMMITTER") for key in ("NAME", "EMAIL")},
        }
        command = ["git", *arguments]
        done = subprocess.run(
            command, cwd=self.root, env=environment, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    def copy(self, root: Path) -> "Story":
        """The same project in another folder."""
        shutil.copytree(self.root, root)
        return Story(root, self.sessions, self.endpoint)


@pytest.fixture(scope="module")
def new(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """The project as its author wrote it, locked."""
    root = tmp_path_factory.mktemp("story") / "hotel"
    shutil.copytree(TEMPLATE, root, ignore=shutil.ignore_patterns("__pycache__"))
    if not HAS_CHECKS:
        (root / "app/checks.py").unlink()
        settings = root / "pyproject.toml"
        settings.write_text(
            settings.read_text("utf-8").replace('checks = "app.checks"\n', ""), encoding="utf-8"
        )
    with Sessions() as sessions, ChatServer(HotelModel()) as server:
        story = Story(root, sessions, server.base_url)
        locked = story.command("trace2evolve", "lock")
        assert locked.status == 0, locked.text
        yield story


@pytest.fixture(scope="module")
def promoted(new: Story) -> Story:
    """The project after v0 was saved and v1 promoted, whose run is then the baseline of v1."""
    story = new.copy(new.root.with_name("promoted"))
    saved = story.save("v0")
    assert "6 failed, 6 passed" in saved.text
    verdict = story.gate("v1")
    assert verdict["verdict"] == "promote", verdict["text"]
    promoted = story.command("trace2evolve", "baseline", "promote", verdict["run"])
    assert promoted.status == 0, promoted.text
    assert (story.root / "baselines/hotel/v1.json").exists()
    return story


@pytest.fixture
def story(promoted: Story, tmp_path: Path) -> Story:
    return promoted.copy(tmp_path / "hotel")


def test_the_code_of_the_user_has_40_lines_at_most() -> None:
    lines = [
        line
        for path in TEMPLATE.rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if line.strip()
    ]
    assert len(lines) <= MAX_CODE_LINES
    assert (TEMPLATE / "app/hotel.py").read_text(encoding="utf-8").count("    def ") == 6
    assert len(yaml.safe_load((TEMPLATE / "tasks.yaml").read_text(encoding="utf-8"))) == 12


def test_a_real_gain_is_promoted(promoted: Story) -> None:
    verdict = promoted.verdict()
    assert (verdict["verdict"], verdict["candidate"]["id"], verdict["goal"]) == ("promote", "v1", "improve")
    assert verdict["suites"]["hotel"]["baseline"]["name"] == "v0"


@pytest.mark.skipif(not HAS_CHECKS, reason="@t2e.check does not exist yet")
def test_a_prompt_that_drops_the_consent_question_is_discarded_by_the_check(story: Story) -> None:
    verdict = story.gate("v2")
    assert verdict["verdict"] == "discard", verdict["text"]
    assert "consent" in verdict["text"]
    assert "0 of 4 trials passed" not in verdict["text"]  # every task is still solved


def test_a_commit_with_a_tool_that_always_raises_is_discarded(story: Story) -> None:
    story.git("init", "-q")
    story.git("add", ".")
    story.git("commit", "-qm", "Gate v1")
    story.refactor()
    story.git("commit", "-qam", "Log the calls of tools")
    commit = story.git("rev-parse", "HEAD")
    story.git("checkout", "-q", "HEAD~1")
    story.candidate("v3", "v1", "prompt: prompts/v1.md", f"ref: {commit}")
    verdict = story.gate("v3")
    assert verdict["verdict"] == "discard", verdict["text"]


def test_the_verdict_names_changed_code_and_an_edited_prompt(story: Story) -> None:
    bot = story.root / "app/bot.py"
    bot.write_text(bot.read_text(encoding="utf-8") + "# edited\n", encoding="utf-8")
    story.candidate("v6", "v1", "prompt: prompts/v1.md")
    verdict = story.gate("v6", "--t2e-goal", "no-regression")
    assert "no regression of v6 and changed code (app/bot.py) against v1 detected; a" in verdict["text"]
    assert verdict["suites"]["hotel"]["compared"]["changed_code"] == ["app/bot.py"]
    bot.write_text(bot.read_text(encoding="utf-8").removesuffix("# edited\n"), encoding="utf-8")
    (story.root / "prompts/v0.md").write_bytes((story.root / "prompts/v1.md").read_bytes())
    verdict = story.gate("v0", "--t2e-baseline", "v0")
    assert "PROMOTE: the working tree (changed: v0) is better than v0" in verdict["text"]
    assert "v0.md or its prompt was edited after the baseline was measured" in " ".join(
        verdict["text"].split()
    )


@pytest.mark.parametrize("result", ["None", "lambda message: None"], ids=["make", "run"])
def test_an_agent_that_cannot_work_is_saved_with_exit_1_and_never_promoted(
    result: str, new: Story, tmp_path: Path
) -> None:
    story = new.copy(tmp_path / "hotel")
    code = f"def make(tools, candidate):\n    return {result}\n"
    (story.root / "app/bot.py").write_text(code, encoding="utf-8")
    saved = story.save("v0")
    assert saved.status == 1
    text = " ".join(saved.text.split())
    assert "note: hotel: agent errors in 24 of 24 simulations (first: " in text
    assert f"{'run' if 'message' in result else 'make'} returned NoneType" in text
    assert "the saved baseline holds 24 simulations that ended in agent_error" in text
    (story.root / "app/bot.py").write_text(f"{code}# edited\n", encoding="utf-8")
    verdict = story.gate("v0", "--t2e-baseline", "v0", "--t2e-goal", "no-regression")
    assert verdict["verdict"] == "inconclusive"
    assert "all 24 simulations of the candidate ended in agent_error" in verdict["text"]


@pytest.mark.parametrize(("model", "parent", "expected"), [(LARGE, "v0", "promote"), (NANO, "v1", "discard")])
def test_a_swapped_model_is_gated(model: str, parent: str, expected: str, story: Story) -> None:
    story.candidate("v5", parent, f"prompt: prompts/{parent}.md", f"model: {model}")
    verdict = story.gate("v5")
    assert verdict["verdict"] == expected, verdict["text"]
    assert f"model {model}" in verdict["text"]


@pytest.mark.parametrize(
    ("text", "packages"),
    [(PYDANTIC, ("pydantic_ai",)), (LANGGRAPH, ("langgraph", "langchain_openai"))],
    ids=["pydantic-ai", "langgraph"],
)
def test_the_same_holds_for_agents_of_frameworks(
    text: str, packages: tuple[str, ...], new: Story, tmp_path: Path
) -> None:
    for package in packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    story = new.copy(tmp_path / "hotel")
    (story.root / "app/bot.py").write_text(text, encoding="utf-8")
    item = "--t2e-concurrency=1"  # each process imports the framework
    story.save("v0", item)
    gained = story.gate("v1", item)
    assert gained["verdict"] == "promote", gained["text"]
    story.candidate("v5", "v0", "prompt: prompts/v0.md", f"model: {LARGE}")
    swapped = story.gate("v5", item)
    assert swapped["verdict"] == "promote", swapped["text"]
