"""Candidates that talk with adapters, in whole sessions: what is asked, what is kept, what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_trace2evolve.records.adapter import AdapterState
from pytest_trace2evolve.serving.folder import folder_digest
from tests.adapter_folders import write_adapter
from tests.plugin.conftest import DeskProject, project
from tests.serving.test_sessions import session, settings, traces

__all__ = ["project", "settings"]


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


def test_a_candidate_with_an_adapter_is_one_of_its_own(adapted: DeskProject, models: Path) -> None:
    result = session(adapted, models, "--candidate=v0+three", "--t2e-save-baseline=v0+three", "-n2")
    assert result.ret in (0, 1), result.stdout.str()
    result.stdout.fnmatch_lines(["trace2evolve: candidate v0+three on desk*"])
    kept = origin(adapted, "v0+three")
    assert (kept["candidate"]["id"], kept["candidate"]["parent"]) == ("v0+three", "v0")
    assert kept["candidate"]["informed_by"] == ["desk::discovery"]
    digests = folder_digest(models / "base"), folder_digest(models / "one")
    assert kept["agent"]["model"] == "base+three"
    assert kept["agent"]["arguments"]["weights"] == "+".join(digests)
    assert kept["user"]["model"] == "base"


def test_a_routed_candidate_chooses_among_promoted_adapters(adapted: DeskProject, models: Path) -> None:
    result = session(adapted, models, "--candidate=v0+routed", "--t2e-save-baseline=routed")
    assert result.ret in (0, 1), result.stdout.str()
    kept = origin(adapted, "routed")
    assert kept["agent"]["model"] == "base+routed"
    assert kept["agent"]["arguments"]["weights"].startswith(folder_digest(models / "base") + "+")
    assert len(traces(adapted)) == 4
    for path in adapted.runs[-1].glob("simulations/*.json"):
        messages = json.loads(path.read_text())["messages"]
        decided = [one["routing"] for one in messages if "routing" in one]
        spoke = [one for one in messages if one["role"] == "assistant" and "usage" in one]
        assert len(decided) == min(1, len(spoke)), "once a task"
        for routing in decided:
            assert set(routing["shares"]) == {"one", "two", "none"}
            assert routing["chosen"] in routing["shares"]
            assert sum(routing["shares"].values()) == pytest.approx(1)


def test_what_cannot_talk_is_a_usage_error(adapted: DeskProject, models: Path) -> None:
    model = f"--t2e-model={models / 'base'}"
    for arguments, told in (
        ([model, "--candidate=v0+tree"], "unknown adapter 'tree'; did you mean 'three'?"),
        (
            [model, "--candidate=v0+foreign"],
            "adapter 'foreign' was trained on 'base' (ffffffffffff)",
        ),
        (
            ["--t2e-agent=oracle", "--candidate=v0+one"],
            "'v0+one' talks with an adapter, and this",
        ),
        (
            [model, "--candidate=v0+one", f"--t2e-adapter={models / 'two'}"],
            "--t2e-adapter does not go with candidate 'v0+one', which names its adapter",
        ),
        ([model, "--candidate=v0+routed", "--t2e-cache"], "--t2e-cache keeps the answers of one model, and"),
        ([model, "--candidate=v0+one", "--t2e-route=turn"], "--t2e-route says nothing where no candidate is"),
        (
            ["--t2e-model=m", "--t2e-base-url=http://127.0.0.1:9/v1", "--candidate=v0+routed"],
            "no promoted adapter in",
        ),
    ):
        result = adapted.pytester.runpytest_inprocess(*arguments)
        assert result.ret == pytest.ExitCode.USAGE_ERROR, arguments
        assert told in result.stderr.str()


def test_without_a_promoted_adapter_nothing_is_routed(project: DeskProject, models: Path) -> None:
    result = project.pytester.runpytest_inprocess(f"--t2e-model={models / 'base'}", "--candidate=v0+routed")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "+routed: no adapter in" in result.stderr.str()
