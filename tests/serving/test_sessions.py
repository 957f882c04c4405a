"""Whole pytest sessions with a model folder: its server starts and ends with them; adapters as candidates."""

import json
import os
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from pytest_trace2evolve.agents.probe import PROBE_FILE
from pytest_trace2evolve.records.adapter import AdapterState
from pytest_trace2evolve.serving.folder import folder_digest
from tests.adapter_folders import write_adapter, write_router
from tests.patience import HANG_SECONDS, gone, until
from tests.plugin.conftest import DeskProject, project

__all__ = ["project"]

SUITE = """\
provider = "fake"
domain = "desk"
max_steps = 6

[splits]
heldout = ["close", "note", "restart", "look"]
"""


@pytest.fixture(autouse=True)
def settings(project: DeskProject, monkeypatch: pytest.MonkeyPatch) -> None:
    """No key and no endpoint are there, and conversations are short."""
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    project.write("suites/desk.toml", SUITE)
    project.lock()


def traces(project: DeskProject) -> dict[str, Any]:
    """What was said and called in the last run, by task and trial."""
    found = {}
    for path in project.runs[-1].glob("simulations/*.json"):
        record = json.loads(path.read_text())
        said = [
            (one["role"], one["content"], one.get("tool_calls"), one.get("usage"))
            for one in record["messages"]
        ]
        found[record["task_id"], record["trial"]] = (record["termination_reason"], said)
    return found


def session(project: DeskProject, models: Path, *arguments: str) -> pytest.RunResult:
    """A session with the tiny model as agent and user."""
    return project.spread(f"--t2e-model={models / 'base'}", "--t2e-gate=off", *arguments)


OURS = "T2E_TESTS_OF_SESSIONS"
"""Variable that tells the servers of these tests from those of other workers and of other suites."""


@pytest.fixture(autouse=True)
def _ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OURS, str(os.getpid()))


def servers() -> list[int]:
    """Local servers of these tests that run now."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            words = (place / "cmdline").read_bytes().split(b"\0")
            variables = (place / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if {b"serve", b"--parent-pipe"} <= set(words) and f"{OURS}={os.getpid()}".encode() in variables:
            found.append(int(place.name))
    return found


def test_a_seed_gives_the_same_traces(project: DeskProject, models: Path) -> None:
    """They share one server, and evidence holds digests of what it served, not its address."""
    before = set(servers())
    runs = []
    for arguments in (("--t2e-save-baseline=v0",), ("--t2e-fresh",)):
        result = session(
            project,
            models,
            *("--t2e-seed=7", "--t2e-temperature=1", "--t2e-concurrency=1"),
            *arguments,
        )
        assert result.ret in (0, 1), result.stdout.str()
        runs.append(traces(project))
        # Runs of one model keep their simulations under the same keys, for any port of the server.
        assert len(list((project.root / ".trace2evolve/finished").rglob("*.json"))) == 4
    assert runs[0] == runs[1]
    assert len(runs[0]) == 4
    assert any(len(messages) > 2 for _, messages in runs[0].values()), runs[0]
    assert set(servers()) <= before
    everything = [path.read_text() for path in project.root.rglob("*.json")]
    assert len(everything) > 8
    assert not any("127.0.0.1" in text for text in everything)
    kept = origin(project, "v0")
    base = folder_digest(models / "base")
    sides = [(side["model"], side["arguments"]["weights"]) for side in (kept["agent"], kept["user"])]
    assert sides == [("base", base)] * 2
    assert not any("endpoint" in side["arguments"] for side in (kept["agent"], kept["user"]))


def test_a_folder_that_cannot_be_served_is_a_usage_error(project: DeskProject, models: Path) -> None:
    for arguments, message in (
        (["--t2e-model=./nowhere"], "nowhere: no such folder"),
        ([f"--t2e-model={models / 'one'}"], "one: has no config.json: not a model's folder"),
        (
            ["--t2e-model=~nobody-here/m"],
            "~nobody-here/m: no such folder: this machine does not know that user",
        ),
    ):
        result = project.pytester.runpytest_inprocess(*arguments)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        assert message in result.stderr.str()


def running(project: DeskProject, models: Path, *arguments: str) -> "tuple[subprocess.Popen[str], int]":
    """A session that goes on for long, and its server."""
    before = set(servers())
    # Conversations one by one, so that most are still to come when the first is finished.
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "pytest",
            f"--t2e-model={models / 'base'}",
            "--t2e-gate=off",
            "--t2e-trials=200",
            "--t2e-concurrency=2",
            *arguments,
        ],
        cwd=project.root,
        env={**os.environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    finished = project.root / ".trace2evolve/finished"
    until(lambda: list(finished.rglob("*.json")) or process.poll() is not None)
    if process.poll() is not None:
        pytest.fail(process.communicate()[0])
    (server,) = set(servers()) - before
    return process, server


def test_a_controller_that_is_killed_leaves_no_server(project: DeskProject, models: Path) -> None:
    process, server = running(project, models, "-n1")
    process.kill()
    process.communicate()
    assert gone(server)


@pytest.fixture
def adapted(project: DeskProject, models: Path) -> DeskProject:
    """A project with two promoted adapters, one that is not, and one of another base."""
    base, folder = folder_digest(models / "base"), project.root / "adapters"
    for name in ("one", "two"):
        write_adapter(folder, name, base=base, state=AdapterState.PROMOTED, weights=models / name)
    write_adapter(folder, "three", base=base, weights=models / "one")
    write_adapter(folder, "foreign", base="f" * 32, state=AdapterState.PROMOTED, weights=models / "one")
    return project


def origin(project: DeskProject, name: str) -> Any:
    return json.loads((project.root / f"baselines/desk/{name}.json").read_text())["provenance"]


def test_a_server_that_dies_ends_the_run_with_one_line_and_no_score(
    adapted: DeskProject, models: Path
) -> None:
    process, server = running(adapted, models, "--candidate=v0+three")
    os.kill(server, signal.SIGKILL)
    text, _ = process.communicate(timeout=HANG_SECONDS)
    assert process.returncode not in (0, 1), text
    assert f"the local server of {models / 'base'} ended with status -9" in text
    assert text.count("ERROR suites") == 1, text
    for path in adapted.runs[-1].glob("simulations/*.json"):
        record = json.loads(path.read_text())
        lost = record["termination_reason"] == "infrastructure_error"
        assert (record["reward_info"] is None) == lost
    # A candidate with an adapter is one of its own.
    kept = json.loads((adapted.runs[-1] / "results.json").read_text())["info"]["trace2evolve"]
    assert (kept["candidate"]["id"], kept["candidate"]["parent"]) == ("v0+three", "v0")
    assert kept["candidate"]["informed_by"] == ["desk::discovery"]
    assert kept["agent"]["model"] == "base+three"
    digests = folder_digest(models / "base"), folder_digest(models / "one")
    assert kept["agent"]["arguments"]["weights"] == "+".join(digests)
    assert kept["user"]["model"] == "base"


@pytest.mark.usefixtures("forked_servers")
def test_a_routed_candidate_chooses_among_promoted_adapters(adapted: DeskProject, models: Path) -> None:
    write_router(adapted.root / "adapters" / PROBE_FILE, models / "base", "two")
    result = session(adapted, models, "--candidate=v0+routed", "--t2e-save-baseline=routed")
    assert result.ret in (0, 1), result.stdout.str()
    kept = origin(adapted, "routed")
    assert kept["agent"]["model"] == "base+routed"
    assert kept["agent"]["arguments"]["weights"].startswith(folder_digest(models / "base") + "+")
    assert len(traces(adapted)) == 4
    for path in adapted.runs[-1].glob("simulations/*.json"):
        messages = json.loads(path.read_text())["messages"]
        decided = [one["routing"] for one in messages if "routing" in one]
        said = [one for one, after in pairwise(messages) if one["role"] == "user" and "usage" in after]
        assert len(decided) == len(said), "once for each message of the customer"
        for routing in decided:
            assert set(routing["shares"]) == {"one", "two", "none"}
            assert routing["chosen"] == "two"
            assert sum(routing["shares"].values()) == pytest.approx(1)


def test_what_cannot_talk_is_a_usage_error(adapted: DeskProject, models: Path) -> None:
    model = f"--t2e-model={models / 'base'}"
    for arguments, message in (
        ([model, "--candidate=v0+tree"], "unknown adapter 'tree'; did you mean 'three'?"),
        ([model, "--candidate=v0+foreign"], "adapter 'foreign' was trained on 'base' (ffffffffffff)"),
        (["--t2e-agent=oracle", "--candidate=v0+one"], "'v0+one' uses an adapter, but this"),
        ([model, "--candidate=v0+routed", "--t2e-cache"], "--t2e-cache stores the answers of one model, but"),
        (
            ["--t2e-model=m", "--t2e-base-url=http://127.0.0.1:9/v1", "--candidate=v0+routed"],
            "router.safetensors: no such file; train it with: trace2evolve train --router --base",
        ),
    ):
        result = adapted.pytester.runpytest_inprocess(*arguments)
        assert result.ret == pytest.ExitCode.USAGE_ERROR, arguments
        assert message in result.stderr.str()
