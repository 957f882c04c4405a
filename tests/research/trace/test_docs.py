"""The page of the experiment agrees with the command."""

import re

from research.common import REPOSITORY
from research.trace.__main__ import make_parser
from research.trace.evaluate import FIRST_SCENARIO
from research.trace.plan import (
    ARMS,
    CALIBRATION_ROLLOUTS,
    CAPABILITIES,
    CONTROL,
    PRIMARY,
    ROUTED,
    SEEDS,
    SHARE,
    TASKS,
    Plan,
    calibration_of,
)

DOCS = REPOSITORY / "docs"
TEXT = (DOCS / "training.md").read_text(encoding="utf-8").partition("\n## The experiment\n")[2]

DESCRIBED = (
    *("base", "direct", "merged", "routed", "routed-turns", "oracle-routed"),
    *("single", "weight-merge", "control", "gepa", "single-whole"),
)
"""The arms in the order in which the page introduces them."""


def test_the_page_has_every_option_with_its_default() -> None:
    options = make_parser().parse_args([])
    names = set(vars(options)) - {"command"}
    assert {name.replace("-", "_") for name in re.findall(r"^\| `--([a-z-]+)", TEXT, re.M)} == names
    for default in (
        *CAPABILITIES,
        CONTROL,
        f"({SEEDS});",
        f"({SHARE:,} a capability",
        f"({TASKS})",
        f"({options.parallel})",
    ):
        assert default in TEXT


def test_the_page_has_every_arm() -> None:
    assert set(DESCRIBED) == set(ARMS)
    table = TEXT.partition("### The arms")[2].partition("### What is measured")[0]
    assert re.findall(r"^\| `([a-z-]+)` \|", table, re.M) == list(DESCRIBED)


def test_the_page_names_the_primary_comparison() -> None:
    assert f"**The primary comparison**, named before it was measured: `{ROUTED}` minus `{PRIMARY}`" in TEXT


def test_calibration_agrees_with_the_page_of_environments() -> None:
    plan = Plan()
    environments = (DOCS / "capabilities.md").read_text(encoding="utf-8")
    assert "100 scenarios × 16 rollouts each, at difficulty 1" in " ".join(environments.split())
    page = " ".join(TEXT.split())
    assert f"[{CALIBRATION_ROLLOUTS:,} rollouts each]" in page
    assert f"{calibration_of(plan, ROUTED):,} rollouts for the three selected environments" in page
    assert f"{calibration_of(plan, 'control'):,} for the environment of the control" in page


def test_numbers_of_the_page_are_the_plans() -> None:
    plan, page = Plan(), " ".join(TEXT.split())
    assert f"{plan.recipe.groups} groups of {plan.recipe.rollouts} rollouts" in page
    assert f"a multiple of {plan.step} × N × 4" in page
    assert f"{plan.validation} of each kind" in page
    assert f"{plan.scenarios} held-out scenarios × {plan.repeats} rollouts" in page
    assert f"difficulty {plan.difficulty}" in page
    assert f"{plan.target_tokens:,} tokens at most" in page
    assert f"one of an environment {plan.recipe.rollout_tokens}." in page
    assert f"from scenario {FIRST_SCENARIO:,} on" in page
    assert f"`beta` {plan.recipe.beta}," in page
    assert "| `routed` |" in TEXT.partition("### Results")[2]
