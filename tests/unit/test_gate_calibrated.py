"""Policy `calibrated`: what it says of recorded runs of real models, its checks one by one, and its files."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pytest_trace2evolve.cli.main import main
from pytest_trace2evolve.errors import PolicyError
from pytest_trace2evolve.gate.alpha_spending import share
from pytest_trace2evolve.gate.confirm import FreshResult
from pytest_trace2evolve.gate.decide import decide
from pytest_trace2evolve.gate.judgement import Policy
from pytest_trace2evolve.gate.pairs import pair
from pytest_trace2evolve.gate.planning import Spread, settling
from pytest_trace2evolve.gate.policy import CALIBRATED, STRICT, get_policy, version_of
from pytest_trace2evolve.gate.stages import stage_alpha
from pytest_trace2evolve.records.verdict import (
    CheckResult,
    CheckStatus,
    Decision,
    Goal,
    Label,
    Obstacle,
    Settling,
    Verdict,
)
from pytest_trace2evolve.report.verdict import settling_line, verdict_lines
from tests.gate_helpers import Side, ids, lost, side, sim

PASS, FAIL, OPEN, ABSENT = (
    CheckStatus.PASS,
    CheckStatus.FAIL,
    CheckStatus.UNDECIDED,
    CheckStatus.NOT_APPLICABLE,
)


def renamed(records: Side) -> Side:
    """The same simulations under ids of their own: another run of the same outcome."""
    return [record.model_copy(update={"id": f"new-{record.id}"}) for record in records]


def judged(
    old: Side, new: Side, goal: Goal = Goal.IMPROVE, policy: Policy = CALIBRATED, **further: Any
) -> Verdict:
    return decide(pair(old, renamed(new)), policy, goal=goal, label=Label.CLEAN, **further)


def check(verdict: Verdict, name: str) -> CheckResult:
    return next(one for one in verdict.checks if one.id == name)


# What the recorded runs of real models come to.

RECORDED = [
    ("telecom-gpt-4.1", "telecom-gpt-4.1-sft", 10, (12, 0, 0), {"max_steps": OPEN, "reward_improved": PASS}),
    ("telecom-solo-gpt-4.1", "telecom-solo-gpt-4.1-sft", 0, (16, 2, 2), {"reward_improved": PASS}),
    ("telecom-gpt-4.1-sft", "telecom-gpt-4.1", 1, (0, 12, 12), {"reward_improved": FAIL}),
    ("telecom-solo-gpt-4.1-sft", "telecom-solo-gpt-4.1", 1, (2, 16, 16), {"reward_improved": FAIL}),
    ("retail-gpt-4.1", "retail-gpt-4.1-sft", 10, (6, 6, 6), {"reward_improved": OPEN}),
    (
        "retail-gpt-4.1-mini-base",
        "retail-gpt-4.1-mini-policy-v1",
        10,
        (16, 19, 19),
        {"reward_improved": OPEN},
    ),
    (
        "retail-gpt-4.1-mini-base",
        "retail-gpt-4.1-mini-policy-v2",
        1,
        (21, 14, 14),
        {"reward_improved": OPEN, "invariants": FAIL},
    ),
]


@pytest.mark.parametrize(
    ("old", "new", "status", "counts", "answers"), RECORDED, ids=[f"{r[0]}-{r[1]}" for r in RECORDED]
)
def test_recorded_runs_of_real_models(
    recorded: Path, capsys: pytest.CaptureFixture[str], old, new, status, counts, answers
) -> None:
    sides = [str(recorded / f"{name}.json.gz") for name in (old, new)]
    assert main(["compare", *sides, "--json"]) == status
    verdict = json.loads(capsys.readouterr().out)
    tasks = verdict["tasks"]
    assert (len(tasks["fixed"]), len(tasks["broken"]), len(tasks["suspected"])) == counts
    found = {one["id"]: one["status"] for one in verdict["checks"]}
    assert answers.items() <= found.items()


def test_five_tasks_at_max_steps_against_none_stand_between_a_gain_and_its_promotion(
    recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sides = [str(recorded / f"telecom-gpt-4.1{name}.json.gz") for name in ("", "-sft")]
    main(["compare", *sides, "--json"])
    (open_,) = [one for one in json.loads(capsys.readouterr().out)["checks"] if one["status"] == "undecided"]
    assert (open_["id"], round(open_["p"], 3), open_["detail"]) == ("max_steps", 0.031, "0 → 5 tasks")


def test_a_kind_of_breach_that_pooling_hid_discards(
    recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Any kind: 18 to 28 of 114, not significant by task; authentication alone: 0 to 16."""
    sides = [str(recorded / f"retail-gpt-4.1-mini-{name}.json.gz") for name in ("base", "policy-v2")]
    assert main(["compare", *sides, "--json"]) == 1
    (failed,) = [one for one in json.loads(capsys.readouterr().out)["checks"] if one["status"] == "fail"]
    assert failed["id"] == "invariants"
    assert failed["detail"] == "authentication 0 → 16 of 114 simulations; any kind 18 → 28"
    assert failed["p"] == pytest.approx(6 * 2**-16)


def test_suspected_tasks_block_where_a_policy_says_so(
    recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "suites").mkdir()
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "careful.toml").write_text('suspected = "block"\n', encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    sides = [str(recorded / f"telecom-solo-gpt-4.1{name}.json.gz") for name in ("", "-sft")]
    assert main(["compare", *sides, "--policy", "careful"]) == 10
    assert "task_regressions   undecided" in capsys.readouterr().out


@pytest.mark.parametrize(("goal", "status"), [("hold", 0), ("improve", 10)])
def test_a_file_against_itself_is_identical_evidence(
    recorded: Path, capsys: pytest.CaptureFixture[str], goal: str, status: int
) -> None:
    file = str(recorded / "retail-gpt-4.1.json.gz")
    assert main(["compare", file, file, "--goal", goal, "--json"]) == status
    verdict = json.loads(capsys.readouterr().out)
    assert verdict["identical"] is True
    assert verdict["checks"][0]["detail"].startswith("identical evidence; ")


def test_three_trials_a_side_are_paired_by_task(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {
        x: [str(recorded / f"retail-gpt-4o-prompt-{x}-trial-{n}.json.gz") for n in (1, 2, 3)] for x in "ab"
    }
    arguments = [part for file in files["a"] for part in ("--baseline", file)]
    arguments += [part for file in files["b"] for part in ("--candidate", file)]
    assert main(["compare", *arguments, "--json"]) == 10
    verdict = json.loads(capsys.readouterr().out)
    reward = verdict["checks"][0]
    assert (verdict["tasks"]["compared"], round(reward["estimate"], 3), round(reward["p"], 3)) == (
        38,
        0.105,
        0.064,
    )
    assert sorted(verdict["candidate"]["pass_hat"]) == ["1", "2"]


# Check by check.


def test_a_gain_is_promoted_and_its_reverse_discarded() -> None:
    old, new = side(*[0] * 12, *[1] * 8), side(*[1] * 12, *[1] * 8)
    assert judged(old, new).decision is Decision.PROMOTE
    back = judged(new, old)
    assert back.decision is Decision.DISCARD
    assert "reward_improved" in ids(back, FAIL)


def test_a_small_gain_is_inconclusive_and_says_what_would_settle_it() -> None:
    verdict = judged(side(*[0, 1] * 10), side(*[1, 1], *[0, 1] * 9))
    assert verdict.decision is Decision.INCONCLUSIVE
    (one,) = verdict.settling
    assert one.check == "reward_improved"
    assert one.tasks is not None
    assert one.tasks > 20
    assert one.simulations == (one.trials - 1) * 20 * 2 if one.trials else one.simulations is None


def test_no_gain_has_nothing_to_settle_it() -> None:
    verdict = judged(side(*[0, 1] * 10), renamed(side(*[0, 1] * 10)))
    (one,) = verdict.settling
    assert (one.trials, one.tasks, one.obstacle) == (None, None, Obstacle.TOO_SMALL)


def test_a_loss_says_that_the_change_points_the_wrong_way() -> None:
    verdict = judged(side(*[1, 1], *[0, 1] * 9), side(*[0, 1] * 10))
    (one,) = verdict.settling
    assert verdict.decision is Decision.INCONCLUSIVE
    assert (one.trials, one.tasks, one.obstacle) == (None, None, Obstacle.WRONG_DIRECTION)
    assert verdict_lines(verdict)[-1] == "reward_improved: the change points the wrong way"


def test_a_loss_beyond_the_margin_points_the_wrong_way_under_hold() -> None:
    verdict = judged(side(*[1] * 6, *[0, 1] * 7), side(*[0, 1] * 10), Goal.HOLD)
    (one,) = verdict.settling
    assert (one.check, one.obstacle) == ("reward_not_worse", Obstacle.WRONG_DIRECTION)


def test_what_settles_a_tiny_gain_of_many_tasks_is_found_by_bisection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    quantiles, tried = stats.t.ppf, []

    def counted(*given: Any) -> Any:
        tried.append(given)
        return quantiles(*given)

    monkeypatch.setattr(stats.t, "ppf", counted)
    old, tiny = side(*[0, 1] * 2_000), side(1, 1, *[0, 1] * 1_999)
    pairs, spread = pair(old, renamed(tiny)), Spread(between=0.1, within=0.1, trials=4, tasks=4_000)
    plan = settling("reward_improved", 1e-4, spread, 0.05, pairs)
    assert (plan.trials, plan.tasks, plan.obstacle) == (None, None, Obstacle.TOO_SMALL)
    assert settling_line(plan) == "reward_improved: the effect is too small to detect with these tasks"
    assert len(tried) < 64, "bisection does not try every number of tasks"


def test_a_verdict_from_before_causes_were_recorded_names_none() -> None:
    old = Settling.model_validate({"check": "reward_improved", "trials": None, "tasks": None})
    assert settling_line(old) == "reward_improved: neither more trials nor more tasks would settle it"


@pytest.mark.parametrize("rounding", [0.0, -5.6e-17, 5.6e-17])
def test_an_effect_of_zero_points_nowhere_however_it_was_rounded(rounding: float) -> None:
    spread = Spread(between=0.02, within=0.2, trials=2, tasks=40)
    plan = settling("reward_improved", rounding, spread, 0.05, pair(side(0), side(1)))
    assert plan.obstacle is Obstacle.TOO_SMALL


@given(
    effect=st.floats(-1, 1),
    between=st.floats(0, 0.25),
    within=st.floats(0, 0.25),
    tasks=st.integers(2, 400),
)
def test_a_check_has_an_obstacle_exactly_if_nothing_settles_it(
    effect: float, between: float, within: float, tasks: int
) -> None:
    spread = Spread(between=between, within=within, trials=2, tasks=tasks)
    plan = settling("reward_improved", effect, spread, 0.05, pair(side(0), side(1)))
    assert (plan.obstacle is None) == (plan.trials is not None or plan.tasks is not None)
    assert (plan.obstacle is Obstacle.WRONG_DIRECTION) == (effect < -1e-9)


@pytest.mark.parametrize("effect", [0.03, 0.1, 0.3])
def test_what_settles_is_the_first_number_that_would_do(effect: float) -> None:
    spread = Spread(between=0.02, within=0.2, trials=2, tasks=40)

    def shown(trials: int, tasks: int) -> bool:
        return bool(stats.t.ppf([0.95, 0.8], tasks - 1).sum() * spread.error(trials, tasks) <= effect)

    plan = settling("reward_improved", effect, spread, 0.05, pair(side(0), side(1)))
    assert plan.trials == next((count for count in range(3, 65) if shown(count, 40)), None)
    assert plan.tasks == next((count for count in range(41, 4_000) if shown(2, count)), None)


def test_hold_needs_the_bound_above_minus_the_margin() -> None:
    few, many = side(*[1, 0] * 10), side(*[1, 0] * 60)
    assert judged(few, few, Goal.HOLD).decision is Decision.INCONCLUSIVE
    held = judged(many, many, Goal.HOLD)
    assert held.decision is Decision.PROMOTE
    reward = check(held, "reward_not_worse")
    assert (reward.threshold, reward.low) == (-0.10, pytest.approx(-(1 - 0.05 ** (1 / 120))))


def test_harm_to_actions_alone_is_found() -> None:
    old = [sim(task, 1.0, read=(2, 2), write=(2, 2)) for task in range(20)]
    new = [sim(task, 1.0, read=(2, 1), write=(2, 2)) for task in range(20)]
    verdict = judged(old, new, Goal.HOLD)
    assert verdict.decision is Decision.DISCARD
    assert ids(verdict, FAIL) == {"action_match", "read_action_match"}


def test_max_steps_count_by_task_not_by_trial() -> None:
    def at_limit(tasks: int) -> Side:
        return [sim(task, 0.0, trial=n, end="max_steps" if task < tasks else "user_stop")
                for task in range(40) for n in range(2)]  # fmt: skip

    assert check(judged(at_limit(0), at_limit(4)), "max_steps").status is PASS
    five = check(judged(at_limit(0), at_limit(5)), "max_steps")
    assert (five.status, round(five.p or 0, 4)) == (OPEN, 0.0312)
    assert check(judged(at_limit(0), at_limit(9)), "max_steps").status is FAIL


def test_pass_rate_is_watched_only_where_rewards_are_not_binary() -> None:
    assert "pass_rate" not in {one.id for one in judged(side(1, 0), side(1, 1)).checks}
    shares = judged(side(*[1.0] * 12), side(*[0.99] * 12))
    assert check(shares, "pass_rate").status is FAIL
    assert check(shares, "pass_rate").estimate == -1


def test_metrics_without_actions_do_not_count_among_the_checks() -> None:
    verdict = judged(side(1, 0), side(1, 1))
    assert {"action_match", "read_action_match", "write_action_match"} == ids(verdict, ABSENT)


def test_fresh_trials_confirm_clear_and_leave_the_rest_suspected() -> None:
    old, new = side(*[1] * 30), side(*[0] * 3, *[1] * 27)
    pairs = pair(old, renamed(new))
    fresh = {"0": FreshResult(1e-5, 1e-5), "1": FreshResult(0.6, 0.6)}
    verdict = decide(pairs.tried_again(fresh), CALIBRATED, goal=Goal.HOLD, label=Label.CLEAN)
    assert (verdict.regressions, verdict.suspected, verdict.decision) == (("0",), ("2",), Decision.DISCARD)
    cleared = decide(
        pairs.tried_again({"1": FreshResult(0.6, 0.6)}), CALIBRATED, goal=Goal.HOLD, label=Label.CLEAN
    )
    assert "task_regressions" in ids(cleared, PASS)
    assert cleared.suspected == ("0", "2")


def test_a_lost_fresh_trial_that_could_confirm_withholds_the_promotion() -> None:
    old, new = side(*[0] * 30, *[1] * 30), side(*[1] * 30, 0, *[1] * 29)
    pairs = pair(old, renamed(new))
    for worst, decision in ((0.9, Decision.PROMOTE), (1e-6, Decision.INCONCLUSIVE)):
        tried = pairs.tried_again({"30": FreshResult(0.9, worst)})
        verdict = decide(tried, CALIBRATED, goal=Goal.IMPROVE, label=Label.CLEAN)
        assert verdict.decision is decision
    assert "worst_case" in ids(verdict, OPEN)


def test_recorded_falls_block_only_where_they_outnumber_what_was_fixed() -> None:
    even = judged(side(*[1] * 6, *[0] * 6, *[1] * 30), side(*[0] * 6, *[1] * 6, *[1] * 30), Goal.HOLD)
    assert "task_regressions" in ids(even, PASS)
    assert len(even.suspected) == 6
    uneven = judged(side(*[1] * 40), side(*[0] * 5, *[1] * 35), Goal.HOLD)
    assert "task_regressions" in ids(uneven, OPEN)


def test_many_recorded_trials_confirm_by_themselves() -> None:
    verdict = judged(side([1] * 16, *[[1, 0] * 8] * 9), side([0] * 16, *[[1, 0] * 8] * 9), Goal.HOLD)
    assert verdict.regressions == ("0",)
    assert "task_regressions" in ids(verdict, FAIL)


def test_a_test_and_an_analysis_spend_their_share_of_the_level() -> None:
    old, new = side(*[0] * 6, *[1] * 30), side(*[1] * 6, *[1] * 30)
    for test, analysis, level, decision in (
        (1, None, 0.0304, Decision.PROMOTE),
        (1, 1, 0.0228, Decision.PROMOTE),
        (1, 2, 0.0057, Decision.INCONCLUSIVE),
        (2, 1, 0.0057, Decision.INCONCLUSIVE),
        (3, None, 0.0034, Decision.INCONCLUSIVE),
    ):
        verdict = judged(old, new, look=test, analysis=analysis)
        assert (verdict.look, verdict.analysis) == (test, analysis)
        assert (verdict.decision, round(verdict.alpha or 0, 4)) == (decision, level)


def test_stages_of_an_analysis_keep_its_share_together() -> None:
    """The level of a stage at a share of alpha is less than that share of its level at alpha."""
    old, new = side(*[0] * 6, *[1] * 30), side(*[1] * 6, *[1] * 30)
    level = stage_alpha(0.05, (2, 4, 8))
    verdict = judged(old, new, look=2, analysis=1, stage_alpha=level, schedule=(2, 4, 8))
    assert verdict.alpha == stage_alpha(0.05 * share(2, 1), (2, 4, 8)) < level * share(2, 1)
    held = judged(old, new, Goal.HOLD, stage_alpha=level, schedule=(2, 4, 8))
    assert held.alpha == level


def test_more_trials_settle_a_test_at_the_level_of_its_next_analysis() -> None:
    random = np.random.default_rng(4)
    chances = random.random(40)
    old, new = (side(*random.binomial(1, rate[:, None], (40, 4)).astype(float).tolist())
                for rate in (chances, np.clip(chances + 0.08, 0, 1)))  # fmt: skip
    (found,) = judged(old, new, look=1, analysis=1).settling
    here, further = (
        judged(old, new, policy=get_policy_from(f"alpha = {0.05 * share(1, one)}\n")).settling[0]
        for one in (1, 2)
    )
    assert (found.trials, found.tasks) == (further.trials, here.tasks)
    assert found.trials is not None
    assert found.trials > (here.trials or 0) > 4


def test_lost_simulations_cost_what_they_could_have_been() -> None:
    old, new = side(*[0] * 12, *[1] * 48), side(*[1] * 12, *[1] * 48)
    one = [*new[:-1], lost(new[-1])]
    assert judged(old, one).decision is Decision.PROMOTE
    five = [*new[:-5], *(lost(record) for record in new[-5:])]
    verdict = judged(old, five)
    assert verdict.decision is Decision.INCONCLUSIVE
    assert "worst_case" in ids(verdict, OPEN)


def test_the_suite_itself_as_estimand_knows_no_noise_of_tasks() -> None:
    within = get_policy_from("estimand = 'suite'\n")
    old = [sim(task, float(task % 2), trial=n) for task in range(20) for n in range(4)]
    new = [
        sim(task, float(task % 2 or (task == 0 and n < 3)), trial=n) for task in range(20) for n in range(4)
    ]
    wide, narrow = (
        check(judged(old, new, Goal.HOLD, policy), "reward_not_worse") for policy in (CALIBRATED, within)
    )
    assert narrow.estimate == wide.estimate
    assert (narrow.high or 0) - (narrow.low or 0) < (wide.high or 0) - (wide.low or 0)


# Policies as files.


def get_policy_from(text: str, cheap: "Cheap | None" = None) -> Policy:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "own.toml").write_text(text, encoding="utf-8")
        return get_policy("own", Path(folder), {"cheap": cheap or Cheap()})


class Cheap:
    """A check of somebody else's."""

    id = "cheap"

    def __init__(self, p: float | None = None, status: CheckStatus = PASS) -> None:
        self.p, self.status = p, status

    def evaluate(self, pairs: object) -> CheckResult:
        return CheckResult(id=self.id, status=self.status, p=self.p)


def test_a_policy_sets_margins_levels_and_what_is_watched() -> None:
    own = get_policy_from(
        "alpha = 0.1\n[checks.reward]\nmargin = 0.2\n[checks.read_action_match]\nwatch = false\n"
        "[checks.write_action_match]\nmargin = 0.3\n"
    )
    old = [sim(task, float(task % 2), read=(1, 1), write=(1, 1)) for task in range(30)]
    verdict = judged(old, old, Goal.HOLD, own)
    assert (verdict.policy, verdict.alpha) == ("own", 0.1)
    assert check(verdict, "reward_not_worse").threshold == -0.2
    assert check(verdict, "write_action_match").threshold == -0.3
    assert "read_action_match" not in {one.id for one in verdict.checks}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("alfa = 0.1\n", "alfa: Extra inputs are not permitted"),
        ("alpha = 0.7\n", "alpha: Input should be less than 0.5, not 0.7"),
        ("alpha = nan\n", "alpha: is not a finite number"),
        ("[checks.reward]\nmargin = 0\n", "checks.reward.margin: Input should be greater than 0, not 0"),
        ("[checks.reward]\nmargin = 1.5\n", "checks.reward.margin: Input should be less than 1, not 1.5"),
        ("[checks.reward]\nmagin = 0.1\n", "checks.reward.magin: Extra inputs are not permitted"),
        ("[checks.reward]\nwatch = false\n", "checks.reward: the reward cannot be left out"),
        ("[checks.max_steps]\nmargin = 0.1\n", "checks.max_steps: has no margin; leave 'margin' out"),
        ("[checks.max_step]\n", "unknown check 'max_step'; did you mean 'max_steps'?"),
        (
            "[checks.max_steps]\nwatch = false\nalpha = 0.1\n",
            "'watch = false' leaves it out; remove the rest",
        ),
        ("base = 'strict'\nalpha = 0.1\n", "'alpha' says nothing to base 'strict', which has no levels"),
        ("base = 'strict'\n[checks.no_max_steps]\nmargin = 0.1\n", "has neither margins nor levels"),
        ('alpha = "0.05"\n', "alpha: Input should be a valid number, not '0.05'"),
        (
            "[checks.reward]\nalpha = 0.01\n",
            "checks.reward.alpha: the claim's level is the policy's; set alpha above",
        ),
        ("suspected = 'ignore'\n", "suspected: Input should be 'list' or 'block', not 'ignore'"),
        ("confirm = -1\n", "confirm: Input should be greater than or equal to 0, not -1"),
        ("alpha = \n", "not valid TOML: "),
    ],
)
def test_a_wrong_policy_is_one_line_that_names_file_place_and_value(text: str, told: str) -> None:
    with pytest.raises(PolicyError, match=r"^[^\n]*own\.toml: [^\n]*$") as error:
        get_policy_from(text)
    assert told in str(error.value)


def test_a_policy_may_not_take_a_built_in_name(tmp_path: Path) -> None:
    (tmp_path / "strict.toml").write_text("", encoding="utf-8")
    with pytest.raises(PolicyError, match=r"strict.toml: policy 'strict' is built in; name yours otherwise"):
        get_policy("calibrated", tmp_path)
    with pytest.raises(PolicyError, match=r"unknown gate policy 'calibrate'; did you mean 'calibrated'\?"):
        get_policy("calibrate")


@pytest.mark.parametrize(
    ("p", "status", "answer"),
    [
        (None, FAIL, FAIL),
        (None, OPEN, OPEN),
        (0.5, PASS, PASS),
        (0.04, PASS, OPEN),
        (1e-6, PASS, FAIL),
        (0.5, OPEN, OPEN),
    ],
)
def test_a_check_of_others_answers_for_itself_or_shares_the_error(p, status, answer) -> None:
    policy = get_policy_from("[checks.cheap]\n")
    own = type(policy)(**{**policy.__dict__, "further": (Cheap(p, status),)})
    old = side(*[1, 0] * 60)
    assert check(judged(old, old, Goal.HOLD, own), "cheap").status is answer


def test_the_level_of_a_share_of_actions_is_its_own() -> None:
    """Also where it is the only one, or where all three have the same."""
    old = [sim(task, 1.0, read=(2, 2)) for task in range(40)]
    new = [sim(task, 1.0, read=(2, 1 if task < 9 else 2)) for task in range(40)]
    shares = ("action_match", "read_action_match", "write_action_match")
    alone = "".join(f"[checks.{name}]\nwatch = false\n" for name in shares[1:])
    alike = "".join(f"[checks.{name}]\nalpha = 1e-5\n" for name in shares)
    for text, answer in (
        (alone, FAIL),
        (alone + "[checks.action_match]\nalpha = 1e-5\n", PASS),
        (alike, PASS),
    ):
        verdict = judged(old, new, Goal.HOLD, get_policy_from(text))
        assert check(verdict, "action_match").status is answer, text


class Wrong(Cheap):
    """A check that answers what it may not."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def evaluate(self, pairs: object) -> CheckResult:
        if isinstance(self.answer, Exception):
            raise self.answer
        answer: CheckResult = self.answer
        return answer


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (ValueError("two\nlines"), "check 'cheap' failed with ValueError: 'two'; mend it"),
        (None, "check 'cheap' answered NoneType, not a CheckResult; mend it"),
        (
            CheckResult(id="action_match", status=PASS, p=1.0),
            "check 'cheap' answered for 'action_match'; it answers for itself alone",
        ),
        (
            CheckResult(id="cheap", status=PASS, p=-3.0),
            "check 'cheap' answered p = -3; a p-value lies between 0 and 1",
        ),
    ],
)
@pytest.mark.parametrize("base", ["calibrated", "strict"])
def test_a_check_of_others_that_answers_wrongly_is_one_line(answer: Any, told: str, base: str) -> None:
    text = f'base = "{base}"\n[checks.cheap]\n'
    with pytest.raises(PolicyError, match=f"^{re.escape(told)}$"):
        judged(side(1, 0), side(1, 0), policy=get_policy_from(text, Wrong(answer)))


@pytest.mark.parametrize(
    ("name", "told"),
    [("action_match", "is built in"), ("dear", "calls itself 'cheap'")],
)
@pytest.mark.parametrize("base", ["calibrated", "strict"])
def test_a_check_of_others_has_an_id_of_its_own(tmp_path: Path, name: str, told: str, base: str) -> None:
    (tmp_path / "own.toml").write_text(f'base = "{base}"\n[checks.{name}]\n', encoding="utf-8")
    with pytest.raises(PolicyError, match=rf"own.toml: check '{name}' of a plugin {told}; give it an id"):
        get_policy("own", tmp_path, {name: Cheap()})


def test_no_number_of_equal_tasks_is_certainty() -> None:
    reward = check(judged(side(*[1] * 5), side(*[1] * 5), Goal.HOLD), "reward_not_worse")
    assert reward.status is OPEN
    assert reward.low is not None
    assert reward.low <= -(1 - 0.05**0.2)
    assert np.isfinite(reward.low)


def test_an_edited_policy_is_another_test_of_the_same_claim() -> None:
    first, same, other = (get_policy_from(f"alpha = {alpha}\n") for alpha in (0.05, 0.05, 0.04))
    assert version_of(first) == version_of(same) != version_of(other)
    assert (version_of(CALIBRATED), version_of(STRICT)) == ("calibrated", "strict")
    assert version_of(get_policy_from("base = 'strict'\n")) == "strict", (
        "a copy under another name is the same"
    )
    assert version_of(other).startswith("own ")
