"""The page of the experiment says what the command does."""

import argparse
import re
from pathlib import Path

from pytest_trace2evolve import cli
from pytest_trace2evolve.workflow.experiments.arms import ARMS
from pytest_trace2evolve.workflow.experiments.plan import CAPABILITIES, CONTROL, SEEDS, SHARE, TASKS, Plan

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "experiment.md").read_text(encoding="utf-8")


def test_every_option_stands_there_with_its_default() -> None:
    asked = cli._parser().parse_args(["experiment", "trace"])
    names = set(vars(asked)) - {"command", "root"}
    assert {name.replace("-", "_") for name in re.findall(r"^\| `--([a-z-]+)", TEXT, re.M)} == names
    assert isinstance(asked, argparse.Namespace)
    for told in (
        *CAPABILITIES,
        CONTROL,
        f"({SEEDS});",
        f"({SHARE:,} a capability",
        f"({TASKS})",
        f"({asked.parallel})",
    ):
        assert told in TEXT


def test_every_arm_stands_there() -> None:
    assert re.findall(r"^\| `([a-z-]+)` \|", TEXT.partition("## What is measured")[0], re.M)
    for arm in ARMS:
        assert f"\n| `{arm}` | " in TEXT


def test_its_numbers_are_the_plans() -> None:
    plan = Plan()
    assert f"{plan.groups} groups of {plan.size} rollouts" in TEXT
    assert f"a multiple of {plan.groups * plan.size} × N × 4" in TEXT
    assert f"{plan.validation} of each kind" in TEXT
    assert f"{plan.scenarios} held-out scenarios × {plan.repeats} rollouts" in TEXT
    assert f"difficulty {plan.difficulty}" in TEXT
    assert "<!-- results -->" in TEXT or "| `routed` |" in TEXT.partition("## Results")[2]
