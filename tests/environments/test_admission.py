"""Admission: the built-in environments pass, and each kind of cheat is found by the check made for it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_trace2evolve.cli import main as cli
from pytest_trace2evolve.environments import admission
from pytest_trace2evolve.environments.admission import (
    admit,
)
from pytest_trace2evolve.environments.generators.precondition import PreconditionVerification
from pytest_trace2evolve.environments.generators.support import SupportGenerator
from pytest_trace2evolve.environments.held_out import collect_held_out_identifiers, describe_held_out_content
from pytest_trace2evolve.environments.registry import BUILT_IN, Environments
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.records.message import Message
from pytest_trace2evolve.records.protocols import Offer
from pytest_trace2evolve.records.task import Content, Task

ENVIRONMENTS = Environments()
FEW = 4  # scenarios that are made again, unless a test is about that
ROOT = Path(__file__).resolve().parents[2]


def without_new_process(kind: type[SupportGenerator]) -> Offer:
    """An offer whose scenarios this process makes again: a new process is the subject of one test alone."""
    return Offer(kind, "what it pays", elsewhere=kind)


@pytest.fixture(scope="module")
def held_out() -> list[str]:
    found = collect_held_out_identifiers(Project(root=ROOT, suites_folder=ROOT / "suites"))
    assert len(found) > 300
    return found


@pytest.mark.parametrize(("content", "seeds"), [(Content.TRAIN, 5), (Content.HELDOUT, 2)])
@pytest.mark.parametrize("kind", BUILT_IN)
def test_every_built_in_environment_is_admitted(
    kind: type[SupportGenerator],
    content: Content,
    seeds: int,
    held_out: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(admission, "SEEDS_IN_NEW_PROCESS", FEW)
    environments = Environments({kind.capability: without_new_process(kind)})
    found = admit(environments, kind.capability, seeds=seeds, content=content, held_out_identifiers=held_out)
    # Of so few scenarios an average says nothing.
    assert [line for line in found.checks if not line.passed and not line.check.startswith("no luck")] == []
    assert set(found.digests) == {1, 2, 3, 4, 5}
    assert len(set(found.digests.values())) == 5


class Generous(PreconditionVerification):
    """Pays for the right end, without regard to reads."""

    def grade(self, task: Task, trace: Sequence[Message], *, solved: bool) -> float:
        return 1.0 if solved else 0.0

    def settled(self, task: Task, trace: Sequence[Message]) -> bool:
        return False


class Monotone(PreconditionVerification):
    """Knows one scenario only."""

    def make_scenario(self, seed: int) -> Task:
        return super().make_scenario(7)


class Forgetful(PreconditionVerification):
    """Makes another scenario each time."""

    made = 0

    def make_scenario(self, seed: int) -> Task:
        type(self).made += 1
        return super().make_scenario(seed + 1000 * type(self).made)


class Spoken(PreconditionVerification):
    """Lets a customer say what is held out."""

    def make_scenario(self, seed: int) -> Task:
        record = super().make_scenario(seed).model_dump(mode="json")
        record["user_scenario"]["persona"] = "Sorry, that I could not say."
        return Task.model_validate(record)


class Invented(PreconditionVerification):
    """Has tools answer in its history what they do not answer."""

    def make_scenario(self, seed: int) -> Task:
        record = super().make_scenario(seed).model_dump(mode="json")
        for message in record["initial_state"]["message_history"]:
            if message["role"] == "tool":
                message["content"] = "somebody_else_1"
        return Task.model_validate(record)


class Fatal(PreconditionVerification):
    """Never lets anybody reach the top."""

    def grade_trajectory(self, trajectory: Any, solved: bool) -> float:
        return min(super().grade_trajectory(trajectory, solved), 0.8)


class Moody(PreconditionVerification):
    """Pays less each time that it is asked about the same trace."""

    asked = 0

    def grade(self, task: Task, trace: Sequence[Message], *, solved: bool) -> float:
        type(self).asked += 1
        return float(type(self).asked % 2)


@pytest.mark.parametrize(
    ("kind", "check", "expected"),
    [
        (Moody, "same trace, same grade", "a different grade the second time"),
        (Generous, "unpaid: shortcut", "the reward is 1"),
        (Generous, "nothing is paid at the start", "1 before any action"),
        (Monotone, "seeds differ in substance", "1 of 4 without names, ids and figures"),
        (Forgetful, "same seed, same scenario", "a different scenario the second time"),
        (Spoken, "nothing held out", "held-out content"),
        (Invented, "tools are the target's", "differs from the target's"),
        (Fatal, "expert reaches the top", "the reward is 0.8"),
    ],
)
def test_each_cheat_is_found(
    kind: type[SupportGenerator], check: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "SEEDS_IN_NEW_PROCESS", 0)
    found = admit(Environments({"mine": without_new_process(kind)}), "mine", seeds=4, difficulty=1)
    assert not found.passed
    [line] = [line for line in found.checks if line.check == check]
    assert not line.passed
    assert expected in line.detail


def test_a_phrasing_with_small_changes_is_held_out_too() -> None:
    task = ENVIRONMENTS.generator("precondition_verification", 1).scenario(0)
    assert describe_held_out_content(task, ()) == ""
    [order] = {one.arguments["order_id"] for one in task.actions if one.name == "get_order_details"}
    assert describe_held_out_content(task, ["nobody", order]) == f"from a held-out task: {order!r}"
    assert task.user_scenario is not None

    def with_words(text: str) -> str:
        changed = {**task.user_scenario, "persona": text}
        return describe_held_out_content(task.model_copy(update={"user_scenario": changed}), ())

    assert with_words("Well now, it is all mixed up, I meant that").startswith("a held-out phrasing: ")
    # One sentence ends as a held-out one does, and the next begins as it goes on: that is no phrasing.
    assert with_words("Will it be called off, please?").startswith("a held-out phrasing: ")
    assert with_words("Should it be called off. Please find it") == ""


def test_the_command_reports_every_check_and_what_is_searched_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "SEEDS_IN_NEW_PROCESS", FEW)
    arguments = ["environment", "check", "account_address_inference", "--seeds", "4"]
    assert cli.main(["--root", str(ROOT), *arguments, "--difficulty", "2"]) == 0
    text = capsys.readouterr().out
    assert "account_address_inference: admitted, 4 seeds" in text
    assert "no name, product or phrasing, no id and no customer" in text
    offer = without_new_process(PreconditionVerification)

    def searched_for(content: Content) -> str:
        report = admit(Environments({"mine": offer}), "mine", seeds=1, content=content)
        return next(line.detail for line in report.checks if line.check == "nothing held out")

    assert searched_for(Content.TRAIN).endswith("no project says which ids and customers")
    assert searched_for(Content.HELDOUT) == "not searched: the content itself is held out"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ["check", "precondition"],
            "unknown environment 'precondition'; did you mean 'precondition_verification'?",
        ),
        (["check", "--seeds", "0"], "--seeds 0: must be 1 or more"),
        (["check", "--difficulty", "9"], "difficulty must be from 1 to 5, got 9"),
        (["tune", "-ot2e_rollouts=1"], "t2e_rollouts: '1' is not a whole number of 2 or more"),
        (["tune", "--seeds", "1"], "--seeds 1: must be 2 or more"),
        (["tune", "--base-url", "http://x/v1"], "--base-url has no effect without --model"),
        (["tune", "--candidate", "v99"], "v99"),
    ],
)
def test_what_is_asked_wrongly_is_told_in_one_line(
    arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["--root", str(ROOT), "environment", *arguments]) == 2
    error = capsys.readouterr().err
    assert expected in error
    assert error.count("\n") == 1
