"""Verdicts of policies on small sides, shared by the tests of the gate."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pytest_trace2evolve.gate.calibrated import CALIBRATED
from pytest_trace2evolve.gate.decide import GateInput, decide
from pytest_trace2evolve.gate.pairs import pair
from pytest_trace2evolve.gate.policy import get_policy
from pytest_trace2evolve.gate.protocols import Check, Policy
from pytest_trace2evolve.records.verdict import CheckResult, Goal, Label, Verdict
from tests.gate_helpers import Side, side


def renamed(records: Side) -> Side:
    """The same simulations under ids of their own: another run with the same outcome."""
    return [record.model_copy(update={"id": f"new-{record.id}"}) for record in records]


def judged(
    old: Side, new: Side, goal: Goal = Goal.IMPROVE, policy: Policy = CALIBRATED, **further: Any
) -> Verdict:
    """The verdict on two runs."""
    return decide(GateInput(pair(old, renamed(new)), policy, goal=goal, label=Label.CLEAN, **further))


def check(verdict: Verdict, name: str) -> CheckResult:
    """One check of a verdict."""
    return next(one for one in verdict.checks if one.id == name)


def of(tasks: int, broken: int, fixed: int = 0, fails: int = 0) -> tuple[Side, Side]:
    """So many tasks of one trial: some break, some are fixed, some fail on both sides, the rest pass."""
    same = [1.0] * (tasks - broken - fixed - fails) + [0.0] * fails
    return side(*[1.0] * broken, *[0.0] * fixed, *same), side(*[0.0] * broken, *[1.0] * fixed, *same)


def policy_of(text: str, *checks: Check) -> Policy:
    """A project's policy from the text of its file, with the checks of a plugin."""
    with TemporaryDirectory() as folder:
        (Path(folder) / "own.toml").write_text(text, encoding="utf-8")
        return get_policy("own", Path(folder), {check.id: check for check in checks})
