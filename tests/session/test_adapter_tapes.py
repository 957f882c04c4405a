"""Stored answers and adapters: a candidate with an adapter is given nothing that another one said."""

import pytest

from pytest_trace2evolve.records.adapter import WEIGHTS_NAME, AdapterState
from pytest_trace2evolve.testing import ChatServer
from tests.adapter_folders import write_adapter
from tests.plugin.conftest import DeskProject, project
from tests.session.tapes import play, record
from tests.session.test_live import SOLVED, key

__all__ = ["key", "project"]


@pytest.fixture
def adapted(project: DeskProject) -> DeskProject:
    """A project with two promoted adapters."""
    for name in ("one", "two"):
        write_adapter(project.root / "adapters", name, state=AdapterState.PROMOTED)
    return project


def refused(result: pytest.RunResult, message: str) -> None:
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert message in result.stderr.str()


def test_a_cassette_of_the_plain_candidate_is_not_what_an_adapter_said(adapted: DeskProject) -> None:
    with ChatServer(SOLVED) as server:
        cassette = record(adapted, server)
    refused(
        play(adapted, "--candidate=v0+one"),
        f"--t2e-playback {cassette}: was recorded with 'v0', so it lacks the answers of candidate "
        "'v0+one'; record them with --t2e-record",
    )
    refused(
        play(adapted, "--candidate=v0+routed"),
        f"--t2e-playback {cassette}: a cassette holds the answers of one model, but candidate 'v0+routed' "
        "uses several; omit it",
    )
    play(adapted, "--candidate=v0").assert_outcomes(passed=7)


def test_a_cassette_of_an_adapter_is_played_by_that_adapter_alone(adapted: DeskProject) -> None:
    with ChatServer(SOLVED) as server:
        record(adapted, server, "--candidate=v0+one")
    play(adapted, "--candidate=v0+one").assert_outcomes(passed=7)
    for name in ("v0", "v0+two"):
        refused(
            play(adapted, f"--candidate={name}"),
            f"was recorded with 'v0+one', so it lacks the answers of candidate '{name}'",
        )
    (adapted.root / "adapters" / "one" / WEIGHTS_NAME).write_bytes(b"others")
    refused(
        play(adapted, "--candidate=v0+one"), "was recorded with different weights or a different text, so"
    )


def test_a_replay_of_the_plain_candidate_is_not_what_an_adapter_said(adapted: DeskProject) -> None:
    with ChatServer(SOLVED) as server:
        record(adapted, server)
    run = adapted.runs[-1]
    for name in ("v0+one", "v0+routed"):
        refused(
            adapted.pytester.runpytest_inprocess(f"--candidate={name}", f"--t2e-results={run}"),
            f"{run}: was recorded with candidate 'v0', but --t2e-results must hold runs of candidate "
            f"'{name}' with its current weights; run it live",
        )
    replayed = adapted.pytester.runpytest_inprocess("--candidate=v0", f"--t2e-results={run}")
    replayed.assert_outcomes(passed=7)
