"""pytest's own JUnit file: each task's properties, and the run's verdict."""

import xml.etree.ElementTree as ET

import pytest

from pytest_trace2evolve.testing import ChatServer, gold_script
from pytest_trace2evolve.users.chat import render_scenario
from tests.fake_world import TASKS
from tests.plugin.conftest import CONFTEST, DeskProject

SOLVED = gold_script(TASKS, {name: render_scenario(task.user_scenario) for name, task in TASKS.items()})

LOSING = """
def losing(task, world, candidate, trial):
    if task.id == "idle":
        raise ConnectionError("gone")
    return listed(task, world, candidate, trial)


def pytest_t2e_agents(config):
    return {"listed": losing}
"""

Told = dict[str, str]


def properties(element: ET.Element) -> Told:
    """The properties right under an element, without our prefix."""
    found = element.findall("properties/property")
    return {item.attrib["name"].removeprefix("trace2evolve."): item.attrib["value"] for item in found}


def read(project: DeskProject) -> tuple[Told, dict[str, Told]]:
    """The properties of the run, and those of each task."""
    (suite,) = ET.parse(project.root / "junit.xml").getroot()
    return properties(suite), {item.attrib["name"]: properties(item) for item in suite.findall("testcase")}


def test_junit_tells_verdict_and_figures(project: DeskProject) -> None:
    project.baseline("v1")
    assert project.run("--candidate=v2", "--junitxml=junit.xml").ret == 1
    run, tasks = read(project)
    assert run.pop("run") == project.runs[-1].name
    assert run == {
        "verdict": "discard",
        "candidate": "v2",
        "desk.baseline": "v1",
        "desk.baseline_agent": "agent listed; user gold",
        "desk.candidate_agent": "agent listed; user gold",
        "desk.heldout.verdict": "discard",
        "desk.heldout.policy": "strict",
        "desk.heldout.goal": "improve",
        "desk.heldout.label": "clean",
        "desk.heldout.failed_checks": run["desk.heldout.failed_checks"],
    }
    assert "no_task_regressions" in run["desk.heldout.failed_checks"].split(", ")
    assert len(tasks) == 7
    assert tasks["note"] == {
        "suite": "desk",
        "split": "heldout",
        "task": "note",
        "trials": "1",
        "measured": "1",
        "passed": "0",
        "reward": "0",
        "ended_by": "user_stop 1",
    }
    assert (tasks["look"]["passed"], tasks["look"]["reward"]) == ("1", "1")


def test_a_lost_task_has_no_reward(project: DeskProject) -> None:
    project.baseline("v0")
    project.pytester.makeconftest(CONFTEST + LOSING)
    project.run("--candidate=v1", "--junitxml=junit.xml")
    _, tasks = read(project)
    lost = tasks["idle"]
    assert (lost["trials"], lost["measured"], lost["ended_by"]) == ("1", "0", "infrastructure_error 1")
    assert "reward" not in lost


def test_a_live_run_tells_calls_and_tokens(project: DeskProject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-planted-0123456789")
    prices = '["m"]\ninput = 1000.0\noutput = 1000.0\n'
    project.write("prices.toml", prices)
    with ChatServer(SOLVED) as server:
        project.pytester.runpytest_inprocess(
            "--t2e-model=m", f"--t2e-base-url={server.base_url}", "--t2e-trials=2", "--junitxml=junit.xml"
        )
    _, tasks = read(project)
    assert sum(int(item["calls"]) for item in tasks.values()) == server.count.served
    tokens = server.count.prompt_tokens + server.count.completion_tokens
    assert sum(int(item["tokens"]) for item in tasks.values()) == tokens
    assert sum(float(item["cost"]) for item in tasks.values()) == pytest.approx(tokens / 1000, rel=1e-4)
