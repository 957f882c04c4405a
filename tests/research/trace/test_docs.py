"""The page of the experiment says what the command does."""

import argparse
import re
from pathlib import Path

from research.trace.__main__ import parser_of_experiment
from research.trace.arms import ARMS, CALIBRATED, PRIMARY, ROUTED, calibrated_for
from research.trace.evaluate import FIRST_SCENARIO
from research.trace.plan import CAPABILITIES, CONTROL, SEEDS, SHARE, TASKS, Plan

DOCS = Path(__file__).resolve().parents[2] / "docs"
TEXT = (DOCS / "experiment.md").read_text(encoding="utf-8")


DESCRIBED = (
    *("base", "direct", "merged", "routed", "routed-turns", "oracle-routed"),
    *("single", "weight-merge", "control", "gepa", "single-whole"),
)
"""The arms in the order in which the page builds them up."""


def test_every_option_stands_there_with_its_default() -> None:
    asked = parser_of_experiment().parse_args([])
    names = set(vars(asked)) - {"command", "root", "goes_on"}
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
    assert set(DESCRIBED) == set(ARMS)
    table = TEXT.partition("## The arms")[2].partition("## What is measured")[0]
    assert re.findall(r"^\| `([a-z-]+)` \|", table, re.M) == list(DESCRIBED)


def test_the_primary_comparison_stands_there() -> None:
    assert (
        f"**The primary comparison**, named before it was measured: `{ROUTED}` less `{PRIMARY}`, reward"
        in TEXT
    )


def test_calibration_is_that_of_the_page_of_environments() -> None:
    plan = Plan()
    told = (DOCS / "environments.md").read_text(encoding="utf-8")
    assert "100 scenarios × 16 rollouts each, at\ndifficulty 1" in told
    page = " ".join(TEXT.split())
    assert f"[{CALIBRATED:,} rollouts each]" in page
    assert f"{calibrated_for(plan, ROUTED):,} for the three selected ones" in page
    assert f"{calibrated_for(plan, 'control'):,} for the control" in page


def test_its_numbers_are_the_plans() -> None:
    plan = Plan()
    assert f"{plan.recipe.groups} groups of {plan.recipe.rollouts} rollouts" in TEXT
    assert f"a multiple of {plan.step} × N × 4" in TEXT
    assert f"{plan.validation} of each kind" in TEXT
    assert f"{plan.scenarios} held-out scenarios × {plan.repeats} rollouts" in TEXT
    assert f"difficulty {plan.difficulty}" in TEXT
    assert f"{plan.target_tokens:,} tokens at most" in TEXT
    assert f"one of an environment {plan.recipe.rollout_tokens}." in TEXT
    assert f"from\n  scenario {FIRST_SCENARIO:,} on" in TEXT
    assert f"`beta` {plan.recipe.beta}," in TEXT
    assert "<!-- results -->" in TEXT or "| `routed` |" in TEXT.partition("## Results")[2]
