"""Bad input: one clear line and pytest's usage error, before anything runs."""

import gzip
import json
from pathlib import Path

import pytest

from pytest_trace2evolve.testing import ChatServer, Reply
from tests.plugin.conftest import INI, SUITE, DeskProject


def refused(project: DeskProject, text: str, *arguments: str) -> None:
    """A session that ends with a usage error whose one line matches `text`, and leaves nothing behind."""
    result = project.run(*arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    errors = [line for line in result.errlines if line.startswith("ERROR: ")]
    assert len(errors) == 1
    result.stderr.fnmatch_lines([f"ERROR: {text}"])
    assert project.runs == []


def results(tmp: Path, name: str = "results.json", domain: str = "desk", **simulation: object) -> Path:
    """A small results file of the help desk."""
    record = {
        "info": {"environment_info": {"domain_name": domain}},
        "tasks": [{"id": "close", "user_scenario": {"instructions": "x"}}],
        "simulations": [
            {"id": "s1", "task_id": "close", "termination_reason": "user_stop", "trial": 0, **simulation}
        ],
    }
    path = tmp / name
    path.write_text(json.dumps(record), encoding="utf-8")
    return path


def test_an_unknown_candidate_names_the_nearest(project: DeskProject) -> None:
    refused(project, "unknown candidate 'v11'; nearest are v1*", "--candidate=v11")


def test_a_silent_edit_names_file_and_task(project: DeskProject) -> None:
    project.write("suites/desk.toml", SUITE.replace('"close", ', ""))
    refused(project, "*desk.toml: task 'close' was removed from split 'heldout'*trace2evolve lock*")


def test_a_suite_that_is_not_locked_is_refused(project: DeskProject) -> None:
    project.write("suites/fresh.toml", SUITE)
    refused(project, "*fresh.toml: not in suites.lock; run 'trace2evolve lock'*", "--t2e-suite=fresh")


def test_an_unknown_agent_and_policy_are_named(project: DeskProject) -> None:
    result = project.pytester.runpytest_inprocess("--t2e-agent=orakel")
    result.stderr.fnmatch_lines(["ERROR: unknown agent 'orakel'; did you mean 'oracle'?"])
    result = project.pytester.runpytest_inprocess("--t2e-agent=desk/agent.py:make")
    result.stderr.fnmatch_lines(
        ["*unknown agent 'desk/agent.py:make'; *, or module:function, such as desk.agent:make"]
    )
    refused(project, "unknown gate policy 'strikt'; did you mean 'strict'?", "--t2e-gate=strikt")


def test_a_suite_without_any_agent_is_a_usage_error(project: DeskProject) -> None:
    result = project.pytester.runpytest_inprocess("--candidate=v1")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: suite 'desk' has no agent: give --t2e-model, --t2e-agent or *"])


def test_no_suites_at_all_is_a_usage_error(project: DeskProject) -> None:
    project.write("pytest.ini", INI.replace("suites = suites", "suites = elsewhere"))
    refused(
        project,
        "no suites in *elsewhere; set the ini key t2e_suites to the folder of the suites",
        "--candidate=v1",
    )


def test_replayed_results_of_another_domain_are_refused(project: DeskProject, tmp_path: Path) -> None:
    path = results(tmp_path, domain="retail")
    project.pytester.runpytest_inprocess(f"--t2e-results={path}").stderr.fnmatch_lines(
        ["ERROR: *results.json: holds results of domain 'retail', but the selected suites are *"]
    )


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (gzip.compress(bytes(range(256)))[:60], "*damaged gzip (*); fetch the file again"),
        (b'{"tasks": [], "simulations": [{"id": "a"}]}', "*1 of 1 simulations have no task_id *"),
    ],
    ids=["truncated gzip", "no task id"],
)
def test_damaged_results_are_refused(project: DeskProject, tmp_path: Path, content: bytes, text: str) -> None:
    path = tmp_path / "damaged.json"
    path.write_bytes(content)
    result = project.pytester.runpytest_inprocess(f"--t2e-results={path}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: *damaged.json: {text}"])


@pytest.mark.parametrize(
    ("argument", "text"),
    [
        (
            "--t2e-run-folder=ledger",
            "--t2e-run-folder ledger lies in ledger/, which the gate reads; choose *",
        ),
        (
            "--t2e-run-folder=baselines/desk/x",
            "--t2e-run-folder baselines/desk/x lies in baselines/, which *",
        ),
        ("--t2e-run-folder=.", "--t2e-run-folder . is the project's folder; choose a different path"),
        ("--t2e-summary=suites/suites.lock", "--t2e-summary suites/suites.lock lies in suites/, which *"),
        (
            "--t2e-record=out/../candidates/x.jsonl",
            "--t2e-record out/../candidates/x.jsonl lies in candidates/*",
        ),
    ],
)
def test_nothing_is_written_where_the_gate_reads(project: DeskProject, argument: str, text: str) -> None:
    lock = (project.root / "suites/suites.lock").read_bytes()
    refused(project, text, "--t2e-agent=listed", argument)
    assert (project.root / "suites/suites.lock").read_bytes() == lock
    assert not (project.root / "ledger").exists()


def test_an_unknown_baseline_lists_the_saved_ones(project: DeskProject) -> None:
    refused(
        project,
        "baseline 'v9' is neither a file nor a saved baseline of desk; saved are none",
        "--t2e-baseline=v9",
    )


def test_trials_do_not_go_with_a_replay(project: DeskProject, tmp_path: Path) -> None:
    path = results(tmp_path)
    result = project.pytester.runpytest_inprocess(f"--t2e-results={path}", "--t2e-trials=2")
    result.stderr.fnmatch_lines(["ERROR: --t2e-trials cannot be combined with --t2e-results, *"])


def test_a_run_folder_is_used_once(project: DeskProject) -> None:
    assert project.run("--t2e-run-folder=mine").ret in (0, 1)
    result = project.run("--t2e-run-folder=mine")
    result.stderr.fnmatch_lines(["ERROR: *mine already holds a run; choose a different --t2e-run-folder"])


@pytest.mark.parametrize("option", ["--candidate=", "--t2e-gate=", "--t2e-suite=", "--t2e-baseline="])
def test_an_empty_value_is_no_default(project: DeskProject, option: str) -> None:
    result = project.run(option)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --t2e-* is empty; omit it or give a value"])


WRITTEN = """
- id: written
  user: {goal: Please close ticket T1., knows: {ticket_id: T1}}
  expect: {calls: [{name: close_ticket, arguments: {ticket_id: T1}}]}
"""


@pytest.mark.parametrize("split", ['transfer.tasks = "tasks.yaml"\n'], ids=["some"])
def test_tasks_without_a_user_are_one_error(
    project: DeskProject, monkeypatch: pytest.MonkeyPatch, split: str
) -> None:
    """They are found before the first simulation, even if only some tasks of a suite lack a script."""
    project.write("tasks.yaml", WRITTEN)
    project.write("bot.py", "def make(tools, candidate):\n    return lambda message: 'No. Goodbye.'\n")
    project.write("suites/desk.toml", SUITE + split)
    project.lock()
    arguments = ("--candidate=v0", "--t2e-agent=bot:make", "--t2e-gate=off")
    result = project.pytester.runpytest_inprocess(*arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    message_text = (
        "ERROR: task 'close' of suite 'desk' and 6 more: no model plays the user, and there is no script; "
        "write the task with user.goal and user.knows, or name a model with --t2e-user-model"
    )
    assert [line for line in result.errlines if line.strip()] == [message_text]
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    with ChatServer(lambda request: Reply("Help. ###STOP###")) as server:
        options = ("--t2e-user-model=m", f"-ot2e_user_base_url={server.base_url}")
        played = project.pytester.runpytest_subprocess(*arguments, *options)
    assert sum(played.parseoutcomes().get(name, 0) for name in ("passed", "failed")) == 7 + bool(split)
    assert "lost" not in played.stdout.str()


@pytest.mark.parametrize(
    "name",
    [
        "../evil",
        "x" * 300,
    ],
)
def test_a_baselines_name_is_a_plain_name(project: DeskProject, name: str) -> None:
    refused(
        project, "--t2e-save-baseline *: a name must be up to 100 letters, *", f"--t2e-save-baseline={name}"
    )


def test_suites_outside_the_project_are_refused(project: DeskProject) -> None:
    project.write("pytest.ini", INI.replace("= suites", "= ../elsewhere", 1))
    result = project.run()
    result.stderr.fnmatch_lines(["ERROR: t2e_suites: *elsewhere is outside the rootdir *"])
