"""A project whose scripted agent follows rules of its instruction, and searches in it."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from pytest_trace2evolve.cases.case import read_cases
from pytest_trace2evolve.cli.main import main
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.records.improvement import SearchState
from pytest_trace2evolve.testing import ChatRequest, ChatServer, Reply, case_script
from tests.ci_files import REPOSITORY

SUITE = """\
provider = "trace2evolve"
domain = "support"
trials = 1
max_steps = 60

[splits]
discovery = { cases = "cases/discovery.jsonl" }
heldout = { cases = "cases/heldout.jsonl" }
"""
SIZE = 20

GOOD = "Answer every question in full."
BAD = "Never use a tool."
IDLE = "Be polite at all times."


class RuleAgent:
    """Solves a share of the cases, more of them under `GOOD`, and none under `BAD`.

    Attributes:
        reflections: The answers of the model that proposes, in turn; the last one repeats.
        asked: The requests to that model.
    """

    def __init__(self, root: Path, reflections: Sequence[str] = ()) -> None:
        cases = [case for path in sorted((root / "cases").glob("*.jsonl")) for case in read_cases(path)]
        self._solve = case_script([case.task for case in cases])
        self.reflections = list(reflections)
        self.asked: list[ChatRequest] = []

    def __call__(self, request: ChatRequest) -> Reply:
        """The next message of the conversation, or the next proposal."""
        if request.model == "reflector":
            self.asked.append(request)
            place = min(len(self.asked), len(self.reflections)) - 1
            return Reply(self.reflections[place])
        opening = next(str(message["content"]) for message in request.messages if message["role"] == "user")
        luck = hashlib.sha256(opening.encode()).digest()[0] / 256
        skill = 0.0 if BAD in request.system else 0.9 if GOOD in request.system else 0.3
        return self._solve(request) if luck < skill else Reply("I cannot help you with that.")


def write_project(root: Path, *, size: int = SIZE) -> Project:
    """A project with cases of each split, and a root candidate without an instruction."""
    (root / "candidates").mkdir(parents=True)
    (root / "candidates" / "v0.md").write_text("---\nid: v0\nfrozen_at: 2026-11-20\n---\n")
    (root / "suites").mkdir()
    (root / "suites" / "small.toml").write_text(SUITE)
    (root / "cases").mkdir()
    for split in ("discovery", "heldout"):
        lines = (REPOSITORY / "suites" / "support" / f"{split}.jsonl").read_text().splitlines()
        step = len(lines) // size
        (root / "cases" / f"{split}.jsonl").write_text("".join(f"{line}\n" for line in lines[::step][:size]))
    assert main(["--root", str(root), "lock"]) == 0
    return Project(root=root, suites_folder=root / "suites")


def write_table(root: Path, *sentences: str) -> Path:
    """A table of sentences."""
    path = root / "table.toml"
    path.write_text(f"sentences = {json.dumps(list(sentences), ensure_ascii=False)}\n")
    return path


def improve(project: Project, server: ChatServer, *arguments: str) -> int:
    """Run the command against a server, and return its exit status."""
    run = ["--t2e-model", "scripted", "--t2e-base-url", server.base_url]
    options, _, run_options = " ".join(arguments).partition(" -- ")
    command = ["--root", str(project.root), "improve", "--suite", "small", *options.split()]
    return main([*command, "--", *run, *run_options.split()])


def rows(project: Project) -> list[dict[str, str]]:
    """The lines of `results/improve.tsv`."""
    header, *lines = (project.root / "results" / "improve.tsv").read_text().splitlines()
    return [dict(zip(header.split("\t"), line.split("\t"), strict=True)) for line in lines]


def state(project: Project) -> SearchState:
    """The stored state of the last search."""
    paths = (project.root / ".trace2evolve" / "improving").glob("*/state.json")
    path = max(paths, key=lambda path: path.stat().st_mtime_ns)
    return SearchState.model_validate_json(path.read_text())
