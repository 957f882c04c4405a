"""Trials are added to a saved baseline by its own candidate."""

import json
from pathlib import Path

import pytest

from pytest_trace2evolve.cli.main import main
from pytest_trace2evolve.evidence.baselines import evidence_digest, read_evidence
from pytest_trace2evolve.records.score import Status
from pytest_trace2evolve.testing import ChatServer
from tests.plugin.conftest import DeskProject, letters, project
from tests.session.test_confirmation import baseline, command, desk, key, script
from tests.session.test_live import SOLVED
from tests.session.test_stages import made

__all__ = ["desk", "key", "letters", "project"]


def extend(project: DeskProject, server: ChatServer, trials: int, *arguments: str) -> int:
    """The command, in a project with a baseline `v0`."""
    given = ["baseline", "extend", "v0", "--trials", str(trials), "--root", str(project.root), "--"]
    return main([*given, *command(server, *arguments), "-pno:xdist"])


def saved(project: DeskProject) -> Path:
    return project.root / "baselines" / "desk" / "v0.json"


def test_only_the_missing_trials_are_made(desk: DeskProject, capfd: pytest.CaptureFixture[str]) -> None:
    with ChatServer(SOLVED) as server:
        baseline(desk, server)
        before, asked = read_evidence(saved(desk)), len(server.requests)
        assert extend(desk, server, 4) == 0
        simulations = made(server, asked)
        assert "baseline extended, 14 trials added: baselines/desk/v0.json" in capfd.readouterr().out
        assert len(simulations) == 14
        after = read_evidence(saved(desk))
        assert {record.trial for record in after.simulations} == {0, 1, 2, 3}
        assert len(after.simulations) == 28
        assert all(record in after.simulations for record in before.simulations)
        assert after.provenance.replaces == evidence_digest(before)
        assert (after.provenance.run_id, after.provenance.created_at) == (
            before.provenance.run_id,
            before.provenance.created_at,
        )
        assert after.provenance.extended_at is not None
        assert extend(desk, server, 4) == 0
        assert "baseline v0 has 4 trials of each task already" in capfd.readouterr().out
        assert main(["baseline", "list", "--root", str(desk.root), "--json"]) == 0
        (facts,) = json.loads(capfd.readouterr().out)["baselines"]
        assert facts["trials"] == [4, 4]
        assert facts["newest_age_days"] <= facts["age_days"]
        result = desk.pytester.runpytest_inprocess(*command(server, "--candidate=v3", "--t2e-trials=2"))
    result.stdout.fnmatch_lines(["trace2evolve: baseline v0: 0 days old (newest trials 0 days), 4 trials, *"])
    assert result.ret in (0, 1, 10)


def test_another_agent_adds_nothing(desk: DeskProject, capfd: pytest.CaptureFixture[str]) -> None:
    with ChatServer(SOLVED) as server:
        baseline(desk, server)
        before, asked = saved(desk).read_bytes(), len(server.requests)
        assert extend(desk, server, 4, "--t2e-temperature=0.7") == 4
        assert "this run cannot be added to it: agent arguments" in capfd.readouterr().err
        assert len(server.requests) == asked
        assert saved(desk).read_bytes() == before


def test_a_budget_ends_it_and_the_same_command_completes_it(
    desk: DeskProject, capfd: pytest.CaptureFixture[str]
) -> None:
    with ChatServer(SOLVED) as server:
        baseline(desk, server)
        before = saved(desk).read_bytes()
        used = sum(record.usage["assistant"].tokens for record in read_evidence(saved(desk)).simulations)
        assert extend(desk, server, 4, f"--t2e-max-tokens={used}") != 0
        assert saved(desk).read_bytes() == before
        capfd.readouterr()
        assert extend(desk, server, 4) == 0
        assert " finished before\n" in capfd.readouterr().out
    assert len(read_evidence(saved(desk)).simulations) == 28


def test_failed_tasks_are_trials_too(desk: DeskProject, capfd: pytest.CaptureFixture[str]) -> None:
    with ChatServer(script(lambda task, quick, trial: task == "note" and trial > 1)) as server:
        baseline(desk, server)
        assert extend(desk, server, 3) == 0
    records = read_evidence(saved(desk)).simulations
    assert all(record.status is Status.MEASURED for record in records)
    assert [record.reward for record in records if record.task_id == "note"] == [1.0, 1.0, 0.0]
    capfd.readouterr()


def test_a_baseline_that_is_not_saved_is_named(desk: DeskProject, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["baseline", "extend", "v9", "--trials", "4", "--root", str(desk.root)]) == 2
    assert "no saved baseline has the name 'v9'; saved are none" in capsys.readouterr().err
