"""Who was compared: another agent must be declared by the candidate, and every report shows both sides."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from pytest_trace2evolve.gate.comparable import agent_changes
from pytest_trace2evolve.project.candidates import read_candidate
from pytest_trace2evolve.records.evidence import Provenance, Settings
from tests.plugin.conftest import Command, DeskProject

BOTH = "both sides: agent listed; user gold"


def of(agent: Settings | None = None) -> Provenance:
    return Provenance(domain="desk", provider="fake", agent=agent or Settings())


def chat(model: str = "m", **arguments: Any) -> Settings:
    return Settings(implementation="chat", model=model, arguments={"temperature": 0.0, **arguments})


ORACLE, NOP = Settings(implementation="oracle"), Settings(implementation="nop")


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        (chat(), chat(), {}),
        (chat(), chat("n"), {"model": ["model 'm' and 'n'"]}),
        (chat(), chat(temperature=1.0), {"parameters": ["temperature 0.0 and 1.0"]}),
        (chat(), chat(reasoning_effort="low"), {"parameters": ["reasoning effort not set and 'low'"]}),
        (chat(weights="a"), chat(weights="a+b"), {"model": ["weights 'a' and 'a+b'"]}),
        (chat(endpoint="http://a"), chat(endpoint="http://b", seed=3), {}),
        (chat(), ORACLE, {"agent": ["agent 'chat' and 'oracle'"]}),
        (NOP, ORACLE, {"agent": ["agent 'nop' and 'oracle'"]}),
        (ORACLE, ORACLE, {}),
        (Settings(), chat(), {}),
        (Settings(model="m"), chat("n"), {"model": ["model 'm' and 'n'"]}),
        (Settings(), ORACLE, {"agent": ["agent not recorded and 'oracle'"]}),
        (NOP, Settings(), {"agent": ["agent 'nop' and not recorded"]}),
    ],
)
def test_what_differs_between_two_agents(old: Settings, new: Settings, found: dict[str, list[str]]) -> None:
    assert agent_changes(of(old), of(new)) == found


def test_a_reference_agent_against_another_agents_baseline_is_refused(project: DeskProject) -> None:
    project.baseline("v0")
    runs = project.runs
    result = project.spread("--candidate=v1", "--t2e-agent=oracle")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["ERROR: baseline 'v0' of 'desk' and this run have different agents: agent 'listed' and *"]
    )
    assert result.errlines[0].endswith(
        "measure a baseline with this agent, or declare the change in the front matter of candidates/v1.md: "
        "changes: [agent]"
    )
    assert project.runs == runs, "no simulation was made"


def declares(project: DeskProject, name: str, parent: str, changes: str) -> None:
    project.candidate(name, "close note", parent=parent, changes=changes)


def test_a_declared_change_is_compared_and_shown(project: DeskProject) -> None:
    project.baseline("v0")
    declares(project, "v1", "v0", "agent")
    result = project.spread("--candidate=v1", "--t2e-agent=oracle", "--t2e-summary=s.md")
    assert result.ret == 0
    shown = [
        "baseline: agent listed; user gold",
        "candidate: agent oracle; user gold",
        "declared changes: agent",
    ]
    result.stdout.fnmatch_lines(shown)
    text = (project.root / "s.md").read_text(encoding="utf-8")
    assert all(line in text for line in shown)
    record = json.loads((project.runs[-1] / "verdict.json").read_text(encoding="utf-8"))
    compared = record["suites"]["desk"]["compared"]
    assert (compared["baseline"]["agent"], compared["candidate"]["agent"]) == ("listed", "oracle")
    assert compared["declared"] == ["agent"]


def test_a_change_that_an_ancestor_declares_counts_until_its_own_baseline(project: DeskProject) -> None:
    project.baseline("v0")
    declares(project, "v1", "v0", "agent")
    project.candidate("v2", "close note restart", parent="v1")
    assert project.spread("--candidate=v2", "--t2e-agent=oracle").ret == 0
    project.baseline("v1")
    result = project.spread("--candidate=v2", "--t2e-agent=oracle")
    assert result.ret == pytest.ExitCode.USAGE_ERROR


def test_a_declaration_is_a_part_of_the_candidate(project: DeskProject) -> None:
    project.candidate("v1", "close note", parent="v0")
    path = project.root / "candidates/v1.md"
    plain = read_candidate(path)
    declares(project, "v1", "v0", "model, agent")
    item = read_candidate(path)
    declares(project, "v1", "v0", "agent, model")
    assert (item.changes, item.digest) == (("model", "agent"), read_candidate(path).digest)
    assert item.digest != plain.digest
    declares(project, "v3", "v0", "shoes")
    result = project.run("--candidate=v3")
    result.stderr.fnmatch_lines(["ERROR: *v3.md: changes.0: Input should be 'agent', 'model' or *"])


def test_reports_say_who_was_compared(project: DeskProject, command: Command) -> None:
    project.baseline("v0")
    result = project.run(
        "--candidate=v1", "-v", "--junitxml=junit.xml", "--t2e-summary=s.md", "--t2e-summary=s.json"
    )
    result.stdout.fnmatch_lines([BOTH])
    assert BOTH in (project.root / "s.md").read_text(encoding="utf-8")
    (suite,) = json.loads((project.root / "s.json").read_text(encoding="utf-8"))["suites"]
    assert suite["compared"]["candidate"]["agent"] == "listed"
    found = {
        item.get("name"): item.get("value")
        for item in ElementTree.parse(project.root / "junit.xml").iter("property")
    }
    assert found["trace2evolve.desk.baseline_agent"] == "agent listed; user gold"
    assert found["trace2evolve.desk.candidate_agent"] == "agent listed; user gold"
    base, run = "baselines/desk/v0.json", str(Path(project.runs[-1]) / "evidence/desk.json")
    assert BOTH in command("compare", base, run, "--policy=strict", "-v").stdout
    message = json.loads(command("compare", base, run, "--policy=strict", "--json").stdout)
    assert message["compared"]["baseline"]["user"] == "gold"
