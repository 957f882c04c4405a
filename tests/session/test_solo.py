"""Whole sessions in solo mode, and sessions whose time runs out."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from pytest_trace2evolve.agents.probe import PROBE_FILE
from pytest_trace2evolve.cli.main import main
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.records.adapter import AdapterState
from pytest_trace2evolve.testing import ChatRequest, ChatServer, Reply, gold_script
from pytest_trace2evolve.utils.resources import embedded_model
from pytest_trace2evolve.worlds.registry import Worlds
from tests.adapter_folders import write_adapter, write_router
from tests.fake_world import POLICY, TASKS
from tests.plugin.conftest import REPOSITORY, SUITE, DeskProject, Letters, letters, project

__all__ = ["letters", "project"]

SOLO = """\
provider = "fake"
domain = "desk"
solo = true

[splits]
heldout = ["close", "note", "restart", "look"]
discovery = ["opened"]
"""
SOLVED = gold_script(TASKS, {})
ONE = "suites/alone.toml::heldout::restart"


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-any")


@pytest.fixture
def alone(project: DeskProject) -> DeskProject:
    """The project with a solo suite beside the conversational one."""
    project.write("suites/alone.toml", SOLO)
    project.lock()
    return project


def live(project: DeskProject, server: ChatServer, *arguments: str) -> pytest.RunResult:
    """A session that talks to `server`, on the solo suite unless other items are named."""
    named = () if any("::" in one for one in arguments) else ("--t2e-suite=alone",)
    return project.pytester.runpytest_inprocess(
        "--t2e-model=m", f"--t2e-base-url={server.base_url}", *named, *arguments
    )


def last_run(project: DeskProject) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The header of the last run, and its simulations."""
    folder = project.runs[-1]
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("simulations/*.json"))]
    return json.loads((folder / "results.json").read_text()), found


def refused(project: DeskProject, text: str, *arguments: str) -> None:
    """A session that ends with a usage error whose one line matches `text`."""
    result = project.pytester.runpytest_inprocess(*arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {text}"])


def test_a_model_alone_solves_everything_by_tools_and_a_ticket(alone: DeskProject) -> None:
    with ChatServer(SOLVED) as server:
        live(alone, server, "--candidate=v1").assert_outcomes(passed=5)
    header, simulations = last_run(alone)
    assert header["info"]["user_info"] == {"implementation": "dummy_user", "llm": None, "llm_args": None}
    # By this name upstream's own tools score the folder as solo; our block says who it really was.
    assert header["info"]["agent_info"]["implementation"] == "llm_agent_solo"
    assert header["info"]["trace2evolve"]["agent"]["implementation"] == "chat"
    assert header["info"]["environment_info"]["policy"] == f"{POLICY} You are alone at the desk."
    for simulation in simulations:
        assert {message["role"] for message in simulation["messages"]} == {"assistant", "tool"}
        assert simulation["messages"][-1]["content"] == "###STOP###"
        assert simulation["termination_reason"] == "agent_stop"
    for request in server.requests:
        system = request["messages"][0]["content"]
        assert "You are alone at the desk." in system
        assert system.index("close note restart") < system.index("<ticket>\n")
        assert request["tool_choice"] == "required"
        names = [tool["function"]["name"] for tool in request["tools"]]
        assert {"get_ticket", "check_phone"} < set(names)
        assert names[-1] == "done"


def test_the_scripted_agents_frame_a_solo_suite_too(alone: DeskProject, letters: Letters) -> None:
    best = alone.pytester.runpytest_inprocess("--t2e-agent=oracle", "--t2e-suite=alone")
    best.assert_outcomes(passed=5)
    worst = alone.pytester.runpytest_inprocess("--t2e-agent=nop", "--t2e-suite=alone")
    worst.assert_outcomes(failed=5)
    assert {one["termination_reason"] for one in last_run(alone)[1]} == {"agent_stop"}


@pytest.mark.parametrize("said", ["It is done.", ""])
def test_an_agent_that_writes_in_place_of_calling_fails(alone: DeskProject, said: str) -> None:
    with ChatServer(lambda request: Reply(said)) as server:
        live(alone, server, ONE).assert_outcomes(failed=1)
    assert last_run(alone)[1][0]["termination_reason"] == "agent_error"


def test_the_users_model_changes_no_solo_simulation_and_the_mode_does(alone: DeskProject) -> None:
    with ChatServer(SOLVED) as server:
        live(alone, server, ONE)
        first = server.count.served
        live(alone, server, ONE, "--t2e-user-model=n")
        assert server.count.served == first
    served = 0

    def silent(request: ChatRequest) -> Reply:
        nonlocal served
        served += 1
        return Reply("###STOP###")

    with ChatServer(silent) as server:
        live(alone, server, ONE.replace("alone", "desk"))
    assert served


def test_recorded_runs_go_to_the_suites_of_their_mode(alone: DeskProject, letters: Letters) -> None:
    with ChatServer(SOLVED) as server:
        first = letters(live(alone, server, "-v", "--t2e-run-folder=solo", "--candidate=v1"))
    alone.run("--t2e-suite=desk", "--t2e-run-folder=talk", "--candidate=v1")
    solo = ("-v", "--candidate=v1", "--t2e-results=solo")
    replayed = alone.pytester.runpytest_inprocess(*solo)
    assert letters(replayed) == first
    replayed.stdout.fnmatch_lines(["suites/alone.toml::heldout::close *"])
    refused(
        alone,
        "*solo: was recorded with candidate 'v1', but --t2e-results must hold runs of candidate 'v0'; *",
        "--t2e-results=solo",
    )
    both = alone.pytester.runpytest_inprocess(*solo, "--t2e-results=talk")
    both.assert_outcomes(passed=5 + 5, failed=2)
    refused(
        alone,
        "*solo: holds results of domain 'desk' in solo mode, but the selected suites are desk (desk)*"
        "; they need a suite with solo = true",
        "--candidate=v1",
        "--t2e-results=solo",
        "--t2e-suite=desk",
    )
    refused(
        alone,
        "*talk: holds results of domain 'desk', but the selected suites are alone (desk, solo)",
        "--candidate=v1",
        "--t2e-results=talk",
        "--t2e-suite=alone",
    )


def test_a_replayed_task_with_another_ticket_is_left_out(alone: DeskProject) -> None:
    alone.pytester.runpytest_inprocess("--t2e-agent=oracle", "--t2e-suite=alone", "--t2e-run-folder=solo")
    header = alone.root / "solo" / "results.json"
    header.write_text(header.read_text().replace("about restart.", "about something else."))
    result = alone.pytester.runpytest_inprocess("--t2e-results=solo", "-rs")
    result.assert_outcomes(passed=4, skipped=1)
    result.stdout.fnmatch_lines(["*left out: the recorded task differs from the lock"])


def test_baselines_are_of_the_suites_mode(alone: DeskProject) -> None:
    solo = ("--t2e-agent=oracle", "--t2e-suite=alone")
    alone.pytester.runpytest_inprocess(*solo, "--t2e-run-folder=solo")
    alone.run("--t2e-suite=desk", "--t2e-run-folder=talk")
    refused(
        alone,
        "*talk: holds results of domain desk, but the selected suites are alone (desk, solo)",
        *solo,
        "--t2e-baseline=talk",
    )
    result = alone.pytester.runpytest_inprocess(*solo, "--t2e-baseline=solo", "--t2e-goal=hold")
    result.stdout.fnmatch_lines(["heldout *4 *", "PROMOTE: *"])


def test_the_command_compares_within_a_mode(
    alone: DeskProject, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(alone.root)
    solo = ("--t2e-suite=alone", "--t2e-agent=oracle")
    alone.pytester.runpytest_inprocess(*solo, "--t2e-run-folder=solo")
    alone.run("--t2e-suite=desk", "--t2e-run-folder=talk")
    for arguments, expected in (
        (["solo", "talk"], "suite 'alone' and 'desk'; policy '"),
        (
            ["solo", "solo", "--suite=desk"],
            "has domain 'desk', but the runs have 'desk' in solo mode; name a",
        ),
    ):
        capsys.readouterr()
        assert main(["compare", *arguments]) == 2
        assert expected in capsys.readouterr().err
    assert main(["compare", "solo", "solo", "--suite=alone", "--goal=hold"]) == 0


def test_a_task_without_a_ticket_is_refused_before_anything_runs(alone: DeskProject) -> None:
    alone.write("suites/alone.toml", SOLO.replace('"opened"', '"opened", "idle"'))
    expected = "*alone.toml: 'solo' is set, but task 'idle' of split 'discovery' has no ticket *; remove it *"
    refused(alone, expected, "--t2e-agent=oracle", "--t2e-suite=alone")
    assert alone.runs == []


def test_an_agent_that_was_not_made_for_solo_mode_is_refused(alone: DeskProject) -> None:
    expected = (
        "suite 'alone' is a solo suite, but agent 'listed' has no solo mode: its factory does not accept *"
    )
    refused(alone, expected, "--t2e-agent=listed")
    assert alone.run("--t2e-suite=desk", "--candidate=v1").ret in (0, 1)


def test_nothing_is_routed_without_a_customer(alone: DeskProject) -> None:
    write_adapter(alone.root / "adapters", "one", state=AdapterState.PROMOTED)
    write_router(alone.root / "adapters" / PROBE_FILE, embedded_model(), "one")
    named = "--t2e-model=base", "--t2e-base-url=http://127.0.0.1:9/v1", "--t2e-suite=alone"
    expected = (
        "suite 'alone' is a solo suite, but a router reads a customer's first message; omit the suite, *"
    )
    refused(alone, expected, *named, "--candidate=v0+routed")


def test_a_slow_endpoint_costs_a_simulation_its_time_and_no_more(project: DeskProject) -> None:
    one = "suites/desk.toml::heldout::close"

    def limited(seconds: float) -> None:
        project.write("suites/desk.toml", SUITE.replace("[splits]", f"timeout = {seconds}\n\n[splits]"))
        project.lock()

    limited(0.4)

    def ids() -> set[str]:
        return {simulation["id"] for simulation in last_run(project)[1]}

    with ChatServer(SOLVED) as server:
        server.hold()
        live(project, server, one, "--t2e-trials=3").assert_outcomes(failed=1)
        for simulation in last_run(project)[1]:
            assert simulation["termination_reason"] == "timeout"
            assert simulation["reward_info"]["reward"] == 0.0
            assert simulation["duration"] >= 0.4
        made = ids()
        assert len(made) == 3
        live(project, server, one, "--t2e-trials=3")
        assert ids() == made, "what timed out is finished"
        limited(0.5)
        live(project, server, one)
        assert not ids() & made, "under another limit it is another simulation"


def test_time_enough_changes_nothing(project: DeskProject) -> None:
    project.write("suites/alone.toml", SOLO.replace("[splits]", "timeout = 60\n\n[splits]"))
    project.lock()
    with ChatServer(SOLVED) as server:
        live(project, server).assert_outcomes(passed=5)


def documented() -> str:
    """The solo suite that the docs show."""
    page = (REPOSITORY / "docs" / "project.md").read_text(encoding="utf-8")
    block = page.partition("    # suites/tau2-telecom-solo.toml\n")[2].partition("\n\nτ²")[0]
    return "\n".join(line.removeprefix("    ") for line in block.splitlines())


@pytest.fixture
def telecom(project: DeskProject) -> DeskProject:
    """A project whose one suite is the one of the docs."""
    (project.root / "suites" / "desk.toml").unlink()
    project.write("suites/tau2-telecom-solo.toml", documented())
    Project(project.root, project.root / "suites").renew_lock(Worlds())
    return project


def spawn(project: DeskProject, *arguments: str) -> pytest.RunResult:
    """A session in a process of its own: the benchmark's package cannot be imported twice in one."""
    return project.pytester.runpytest_subprocess("-p", "no:xdist", *arguments)


def test_the_oracle_passes_every_task_of_the_guides_solo_suite(telecom: DeskProject) -> None:
    assert tomllib.loads(documented())["solo"] is True
    spawn(telecom, "--t2e-agent=oracle").assert_outcomes(passed=114)


def test_recorded_solo_runs_are_gated_and_compared_with_a_run_of_ours(
    telecom: DeskProject, recorded: Path
) -> None:
    base, tuned = (recorded / f"telecom-solo-gpt-4.1{name}.json.gz" for name in ("", "-sft"))
    against = f"--t2e-baseline={base}"
    telecom.candidate("tuned", "", changes="model")
    result = spawn(telecom, "-m", "heldout", "--candidate=tuned", f"--t2e-results={tuned}", against)
    result.stdout.fnmatch_lines(["heldout *40 *", "DISCARD: *"])
    telecom.candidate("best", "", changes="agent")
    result = spawn(telecom, "-m", "heldout", "--candidate=best", "--t2e-agent=oracle", against)
    result.stdout.fnmatch_lines(["heldout *40 *", "PROMOTE: *"])
