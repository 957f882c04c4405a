"""Attempts to draw the simulations of a sealed split until they look good: each is found or has no effect.

The endpoint answers well with a probability, drawn from a seed of the test: the same candidate never gets
better, however often it is drawn.
"""

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_trace2evolve.cli.main import main
from pytest_trace2evolve.evidence.ledger import Ledger
from pytest_trace2evolve.records.ledger import Draw, DrawOrigin, Evaluation
from pytest_trace2evolve.records.verdict import Decision, Goal
from pytest_trace2evolve.testing import ChatRequest, ChatServer, Reply
from tests.plugin.conftest import SUITE, DeskProject, project
from tests.session.test_live import SECRET, SOLVED, live

__all__ = ["project"]

HELDOUT = ("close", "note", "restart", "look")


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)


class Luck:
    """A model that solves a task if it is lucky, and gives up otherwise."""

    def __init__(self) -> None:
        self.begin(0, 1.0)

    def begin(self, seed: int, chance: float = 0.7) -> None:
        """From now on a request is answered well with this chance."""
        self.chance = chance
        self._random = random.Random(seed)

    def __call__(self, request: ChatRequest) -> Reply:
        if request.tools and self._random.random() > self.chance:
            return Reply("I cannot help you with that. ###TRANSFER###")
        return SOLVED(request)


def rewards(run: Path) -> dict[tuple[str, int], float]:
    """The rewards of a run by task and trial."""
    records = [json.loads(path.read_text()) for path in run.glob("simulations/*.json")]
    return {(one["task_id"], one["trial"]): one["reward_info"]["reward"] for one in records}


def entries(project: DeskProject) -> tuple[list[Draw], list[Evaluation]]:
    """The draws and the evaluations of the ledger, which must be sound."""
    history = Ledger(project.root / "ledger").read()
    assert history.problems == ()
    return (
        [one for one in history.entries_by_time if isinstance(one, Draw)],
        [one for one in history.entries_by_time if isinstance(one, Evaluation)],
    )


@pytest.fixture
def luck() -> Luck:
    return Luck()


@pytest.fixture
def server(luck: Luck) -> Iterator[ChatServer]:
    with ChatServer(luck) as server:
        yield server


@pytest.fixture
def compared(project: DeskProject, server: ChatServer) -> DeskProject:
    """A project whose candidate v3 is to be compared with v0, which solves everything."""
    project.candidate("v3", "Be quick.", parent="v0")
    live(project, server, "--t2e-save-baseline=v0", "--t2e-gate=off", "--t2e-trials=2")
    return project


def v3(project: DeskProject, server: ChatServer, *arguments: str) -> pytest.RunResult:
    return live(
        project,
        server,
        "--candidate=v3",
        "--t2e-trials=2",
        "-ot2e_max_reruns=0",
        "--t2e-concurrency=1",
        *arguments,
    )


@pytest.mark.parametrize("goal", ["improve", "hold"])
def test_failures_that_are_redrawn_are_not_used(
    compared: DeskProject, server: ChatServer, luck: Luck, goal: str
) -> None:
    """The attack: draw all, draw the failures again until they pass, then let the gate judge."""
    luck.begin(7)
    v3(compared, server, "--t2e-gate=off", "--t2e-fresh")
    first = rewards(compared.runs[-1])
    failed = sorted({task for (task, _), reward in first.items() if reward < 1.0 and task in HELDOUT})
    assert failed
    luck.chance = 1.0  # even if every further draw is a good one
    v3(compared, server, "--t2e-gate=off", "--t2e-fresh", "-k", " or ".join(failed))
    v3(compared, server, "--t2e-gate=off", "--t2e-fresh", "--lf")
    luck.chance = 0.0
    v3(compared, server, f"--t2e-goal={goal}", "--t2e-gate=calibrated")
    judged_rewards = {one for (task, _), one in rewards(compared.runs[-1]).items() if task in HELDOUT}
    assert judged_rewards == {0.0}, "the gate judges the first draw of the store"
    draws, (judged,) = entries(compared)
    own = [one for one in draws if one.candidate.id == "v3"]
    assert {one.made for one in own[:-1]} == {DrawOrigin.FRESH}
    assert own[-1].made is DrawOrigin.KEPT
    assert [one.gated for one in own] == [False] * (len(own) - 1) + [True]
    assert [one.whole for one in own[:2]] == [True, False]
    assert judged.draw == own[-1].draw


def test_a_narrowed_run_keeps_what_it_draws(compared: DeskProject, server: ChatServer, luck: Luck) -> None:
    """The same with the store: the gate judges what `-k`, `--lf` and a gate that is off drew first."""
    luck.begin(3)
    v3(compared, server, "--t2e-gate=off", "-k", "close or note")
    seen = rewards(compared.runs[-1])
    luck.chance = 1.0
    v3(compared, server, "--t2e-gate=off", "--lf")
    v3(compared, server, "-k", "close")
    v3(compared, server, "--t2e-gate=calibrated")
    judged = rewards(compared.runs[-1])
    assert 0.0 in seen.values()
    assert {place: judged[place] for place in seen} == seen
    draws, _ = entries(compared)
    (own,) = (one for one in draws if one.candidate.id == "v3")
    assert (own.made, own.gated, own.whole) == (DrawOrigin.KEPT, False, False)


def test_a_deleted_failure_is_named_and_nothing_is_judged(
    compared: DeskProject, server: ChatServer, luck: Luck
) -> None:
    luck.begin(5)
    finished = compared.root / ".trace2evolve" / "finished"
    of_v0 = set(finished.rglob("*.json"))
    v3(compared, server, "--t2e-gate=off")
    bad = [task for (task, _), reward in rewards(compared.runs[-1]).items() if reward < 1.0]
    (path, *_) = [
        one for one in set(finished.rglob("*.json")) - of_v0 if f'"task_id": "{bad[0]}"' in one.read_text()
    ]
    asked, text = server.count.attempts, path.read_text()
    for content in (None, text.replace('"task_id"', ' "task_id"', 1)):
        path.unlink() if content is None else path.write_text(content)
        result = v3(compared, server)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        how = "was deleted, but the account of its draw names it" if content is None else "was changed since"
        result.stderr.fnmatch_lines([f"ERROR: {path}: {how}*; restore it, use --t2e-fresh, or begin a new*"])
    assert server.count.attempts == asked
    path.write_text(text)
    assert v3(compared, server).ret != pytest.ExitCode.USAGE_ERROR
    _, judged = entries(compared)
    assert len(judged) == 1


def test_a_deleted_store_is_a_draw_that_counts(compared: DeskProject, server: ChatServer, luck: Luck) -> None:
    luck.begin(5)
    v3(compared, server, "--t2e-gate=off", "-k", "close")
    first = compared.runs[-1].name
    shutil.rmtree(compared.root / ".trace2evolve" / "finished")
    result = v3(compared, server, "--t2e-gate=calibrated")
    (judged,) = entries(compared)[1]
    assert (judged.look, judged.analysis) == (1, 2)
    result.stdout.fnmatch_lines(
        [f"*1 other draw of this split could have been chosen instead, so *: {first} (20*); *"]
    )


def test_hold_is_not_repeated_until_it_is_green(
    compared: DeskProject, server: ChatServer, luck: Luck
) -> None:
    luck.begin(2, 0.0)
    bad = v3(compared, server, "--t2e-goal=hold", "--t2e-fresh")
    luck.chance = 1.0
    good = v3(compared, server, "--t2e-goal=hold", "--t2e-fresh")
    assert (bad.ret, good.ret) == (1, 1)
    good.stdout.fnmatch_lines(["*recorded: DISCARD on *; now: PROMOTE; the worse of the two counts*"])
    _, (first, second) = entries(compared)
    assert (first.goal, second.repeats, second.decision) == (Goal.HOLD, first.name, Decision.DISCARD)


def test_a_run_that_was_stopped_is_a_draw_that_counts(project: DeskProject) -> None:
    """Agents of one's own have no store: a whole gated run that is stopped was a chance to promote."""
    project.baseline("v1")
    project.run("--candidate=v2", "-x")
    project.run("--candidate=v2", "-k", "close")
    project.run("--candidate=v2")
    draws, (judged,) = entries(project)
    assert [(one.gated, one.whole) for one in draws if one.candidate.id == "v2"] == [
        (True, True),
        (True, False),
        (True, True),
    ]
    assert judged.analysis == 2


def test_scripted_agents_draw_nothing(project: DeskProject) -> None:
    project.pytester.runpytest_inprocess("--t2e-agent=oracle", "--t2e-gate=off")
    assert not (project.root / "ledger").exists()


def test_a_sealed_simulation_is_not_shown_if_the_ledger_cannot_be_written(
    compared: DeskProject, server: ChatServer, luck: Luck
) -> None:
    shutil.rmtree(compared.root / "ledger")
    compared.write("ledger", "no folder")
    luck.begin(5)
    result = v3(compared, server)
    assert result.ret == pytest.ExitCode.INTERNAL_ERROR
    result.stdout.fnmatch_lines([" why:  */ledger: cannot be written (*); make room or allow writing*"])
    sealed = [task for task, _ in rewards(compared.runs[-1]) if task in HELDOUT]
    assert sealed == []


TWIN = SUITE.replace("heldout", "development")
"""The same tasks in a split whose draws the ledger does not name."""


def add_twin(project: DeskProject) -> None:
    project.write("suites/twin.toml", TWIN)
    project.lock()


@pytest.mark.parametrize("cache", [(), ("--t2e-cache",)], ids=["store", "cache"])
def test_what_was_drawn_in_another_suite_is_not_used(
    compared: DeskProject, server: ChatServer, luck: Luck, cache: tuple[str, ...]
) -> None:
    """The attack: draw the tasks in a suite without an entry, choose, and judge the sealed suite by it."""
    add_twin(compared)
    luck.chance = 1.0
    v3(compared, server, "--t2e-suite=twin", "--t2e-gate=off", *cache)
    luck.chance = 0.0
    v3(compared, server, "--t2e-suite=desk", *cache)
    assert {one for (task, _), one in rewards(compared.runs[-1]).items() if task in HELDOUT} == {0.0}
    draws, _ = entries(compared)
    assert [one.suite for one in draws if one.candidate.id == "v3"] == ["desk"]


def test_a_fresh_draw_whose_answers_are_cached_counts(
    compared: DeskProject, server: ChatServer, luck: Luck, capsys: pytest.CaptureFixture[str]
) -> None:
    """Later runs read its answers, and whoever deletes the cache in between can choose."""
    for _ in range(2):
        v3(compared, server, "--t2e-gate=off", "--t2e-fresh", "--t2e-cache", "-k", "close")
    v3(compared, server, "--t2e-gate=calibrated", "--t2e-cache").stdout.fnmatch_lines(
        ["*2 other draws of this split could have been chosen instead, *"]
    )
    draws, _ = entries(compared)
    assert [one.made for one in draws if one.candidate.id == "v3"] == [DrawOrigin.CACHED] * 2 + [
        DrawOrigin.KEPT
    ]
    capsys.readouterr()
    assert main(["--root", str(compared.root), "ledger"]) == 0
    assert capsys.readouterr().out.count("v3 was drawn · by --t2e-fresh, with cached answers, ") == 2


def test_a_seed_that_was_chosen_on_a_guard_is_a_test(
    project: DeskProject, server: ChatServer, luck: Luck
) -> None:
    project.write("suites/desk.toml", SUITE.replace("discovery", "transfer"))
    project.lock()
    project.candidate("v3", "Be quick.", parent="v0")
    live(project, server, "--t2e-save-baseline=v0", "--t2e-gate=off", "--t2e-trials=2")
    for seed in (1, 2, 3):
        v3(project, server, "--t2e-gate=off", f"--t2e-seed={seed}", "-m", "transfer")
    v3(project, server, "--t2e-gate=calibrated")
    draws, evaluations = entries(project)
    assert [one.split for one in draws if one.candidate.id == "v3"][:3] == ["transfer"] * 3
    (judged,) = [one for one in evaluations if one.split == "heldout"]
    assert judged.look == 4


def test_a_cassette_of_another_lock_is_development_evidence(
    project: DeskProject, server: ChatServer, luck: Luck
) -> None:
    """Its answers may have been drawn where no draw is named, as often as somebody liked."""
    project.candidate("v3", "Be quick.", parent="v0")
    project.write("suites/desk.toml", TWIN)
    project.lock()
    v3(project, server, "--t2e-record=best.jsonl").assert_outcomes(passed=7)
    project.write("suites/desk.toml", SUITE)
    project.lock()
    live(project, server, "--t2e-save-baseline=v0", "--t2e-gate=off", "--t2e-trials=2")
    result = project.pytester.runpytest_inprocess(
        "--candidate=v3", "--t2e-playback=best.jsonl", "--t2e-trials=2"
    )
    result.stdout.fnmatch_lines(
        [
            "heldout decides (not clean evidence: *):",
            "*cassette best.jsonl was not recorded on desk under its lock",
        ]
    )
