"""Plans: every arm gets the same rollouts, whatever is asked for; what cannot be shared out is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_trace2evolve.errors import ConfigError
from research.trace.arms import (
    ARMS,
    CURVED,
    Chosen,
    Piece,
    adapter_at,
    candidates_of,
    chosen_of,
    pieces_of,
    policy_of,
    trained_for,
)
from research.trace.plan import PLAN, POINTS, Plan, made_plan, plan_in, write_plan
from tests.experiments.made import tiny_recipe

NAMES = ("precondition_verification", "conditional_detail_retrieval", "tool_calling_precision", "another")


@given(st.integers(2, 4), st.integers(1, 9), st.integers(1, 4), st.integers(2, 4))
def test_every_arm_gets_the_whole_budget(count: int, times: int, groups: int, size: int) -> None:
    unit = groups * size * count * 4
    recipe = tiny_recipe(groups, size)
    plan = Plan(capabilities=NAMES[:count], rollouts=times * unit, recipe=recipe)
    for arm in set(ARMS) - {"base", "gepa"}:
        trainings = trained_for(plan, arm, NAMES[1])
        assert sum(plan.rollouts_of(one) for one in trainings) == plan.rollouts, arm
        for one in trainings:
            own = plan.recipe_of(one, 1)
            assert own.steps * own.groups * own.rollouts == plan.rollouts_of(one)
            assert own.redraws == 0  # each would be a rollout more
            assert own.patience > own.steps  # nothing ends early
            assert all(round(point * one.steps) % own.keep_every == 0 for point in POINTS)
    assert not trained_for(plan, "base", NAMES[1])
    assert not trained_for(plan, "gepa", NAMES[1])


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            {"rollouts": 1000},
            (
                "1000 rollouts cannot be shared out equally: 3 adapters, 4 parts each, of steps of 64; take "
                "a multiple of 768, such as 768"
            ),
        ),
        (
            {"control": NAMES[2]},
            f"the control '{NAMES[2]}' is among the selected capabilities; name another with --control",
        ),
        (
            {"capabilities": NAMES[:1]},
            f"two different capabilities or more are wanted, not {NAMES[0]}: one alone needs no router",
        ),
        (
            {"capabilities": NAMES[:1] * 2},
            f"two different capabilities or more are wanted, not {NAMES[0]}, {NAMES[0]}: one alone needs no",
        ),
        ({"tasks": 1}, "tasks: Input should be greater than or equal to 2, not 1"),
    ],
)
def test_what_cannot_be_planned(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError) as raised:
        made_plan(**given)
    assert str(raised.value).startswith(f"experiment: {told}")


def test_a_folder_holds_one_experiment(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert plan_in(Plan(seeds=1), out) == Plan(seeds=1)
    write_plan(Plan(seeds=1), out)
    assert plan_in(Plan(seeds=2), out).seeds == 2, "more seeds go on with fewer"
    write_plan(Plan(seeds=30), out)
    assert plan_in(Plan(), out) == Plan(), "what was only asked for can be taken back"
    (out / "seed-4" / "adapters").mkdir(parents=True)
    assert plan_in(Plan(), out, seeds_given=False).seeds == 4, "and nobody loses any unasked"
    told = rf"^--seeds 3: {out} holds 4, and results of some would stand for those of all; leave it out, or"
    with pytest.raises(ConfigError, match=told):
        plan_in(Plan(), out)
    write_plan(Plan(), out)
    with pytest.raises(ConfigError, match="holds an experiment with another tasks; go on with that, or"):
        plan_in(Plan(tasks=7), out)
    with pytest.raises(ConfigError, match="holds an experiment with another recipe; go on with that, or"):
        plan_in(Plan(recipe=tiny_recipe(4, 16)), out)
    told = "an experiment with another version of the code, of an environment or of a package below it; go on"
    with pytest.raises(ConfigError, match=told):
        plan_in(Plan(code="newer"), out)
    with pytest.raises(ConfigError, match="an experiment with another set of held-out tasks; go on with"):
        plan_in(Plan(targets="others"), out)
    for old in ("recipe", "target_tokens", "targets"):  # written by code that did not tell it
        told = {name: one for name, one in json.loads((out / PLAN).read_text()).items() if name != old}
        (tmp_path / old).mkdir()
        (tmp_path / old / PLAN).write_text(json.dumps(told))
        with pytest.raises(ConfigError, match="holds an experiment with another"):
            plan_in(Plan(), tmp_path / old)
    (out / PLAN).write_text("{")
    with pytest.raises(ConfigError, match=f"{PLAN}: .*; give another --out"):
        plan_in(Plan(), out)
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "love.txt").touch()
    with pytest.raises(ConfigError, match=f"holds something else and no {PLAN}"):
        plan_in(Plan(), tmp_path / "letters")


FIGURES = {
    f"{kind}_{name}": place / 10 for kind in ("share", "whole") for place, name in enumerate(NAMES[:3])
}
CHOSEN = chosen_of(Plan(), {**FIGURES, "weights_mean": 0.2, "weights_sum": 0.2})


def test_choices_fall_on_the_best_and_are_counted() -> None:
    assert (
        Chosen(
            single=NAMES[2],
            whole=NAMES[2],
            merge="weights_mean",
            figures={**FIGURES, "weights_mean": 0.2, "weights_sum": 0.2},
            rollouts={"single": 180, "single-whole": 180, "weight-merge": 120},
        )
        == CHOSEN
    )
    assert set(candidates_of(Plan())) == set(CHOSEN.rollouts)


def test_every_piece_has_a_name_and_somebody_who_answers() -> None:
    plan = Plan()
    pieces = pieces_of(plan)
    instructions = {**{f"{point:g}": "Half." for point in POINTS}, "1": "All."}
    assert len({one.name for one in pieces}) == len(pieces) == len(ARMS) + len(CURVED) * 2 + 4
    known = {adapter_at(one, point) for one in plan.trainings() for point in (1.0, *POINTS)}
    for piece in pieces:
        policy = policy_of(plan, piece, CHOSEN, instructions)
        assert policy.adapters <= known | {"weights_mean"}
        if piece.arm not in ("base", "gepa"):
            assert policy.adapters
    assert policy_of(plan, Piece("gepa", 0.5), CHOSEN, instructions).instruction == "Half."
    assert policy_of(plan, Piece("single"), CHOSEN, instructions).adapter == f"share_{NAMES[2]}"
    early = policy_of(plan, Piece("oracle-routed", 0.25), CHOSEN, instructions)
    assert early.oracle
    assert dict(early.table)[NAMES[0]] == f"share_{NAMES[0]}-000004"
    assert len(policy_of(plan, Piece("routed", count=2), CHOSEN, instructions).table) == 2
