"""Policies as files of a project, and the checks of plugins."""

import re
from pathlib import Path
from typing import Any

import pytest

from pytest_trace2evolve.errors import PolicyError
from pytest_trace2evolve.gate.calibrated import CALIBRATED
from pytest_trace2evolve.gate.policy import STRICT, get_policy, policy_version
from pytest_trace2evolve.records.verdict import (
    CheckResult,
    CheckStatus,
    Goal,
)
from tests.gate.verdicts import check, judged, policy_of
from tests.gate_helpers import side, sim

PASS, FAIL, OPEN, ABSENT = (
    CheckStatus.PASS,
    CheckStatus.FAIL,
    CheckStatus.UNDECIDED,
    CheckStatus.NOT_APPLICABLE,
)


class Cheap:
    """A check of somebody else's."""

    id = "cheap"

    def __init__(self, p: float | None = None, status: CheckStatus = PASS) -> None:
        self.p, self.status = p, status

    def evaluate(self, pairs: object) -> CheckResult:
        return CheckResult(id=self.id, status=self.status, p=self.p)


def test_a_policy_sets_margins_levels_and_what_is_watched() -> None:
    own = policy_of(
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
    ("text", "message"),
    [
        ("alfa = 0.1\n", "unknown key 'alfa'; did you mean 'alpha'?"),
        ("alpha = 0.7\n", "alpha: Input should be less than 0.5, not 0.7"),
        ("alpha = nan\n", "alpha: is not a finite number"),
        ("[checks.reward]\nmargin = 0\n", "checks.reward.margin: Input should be greater than 0, not 0"),
        ("[checks.reward]\nmargin = 1.5\n", "checks.reward.margin: Input should be less than 1, not 1.5"),
        ("[checks.reward]\nmagin = 0.1\n", "checks.reward: unknown key 'magin'; did you mean 'margin'?"),
        ("[checks.reward]\nwatch = false\n", "checks.reward: the reward cannot be left out"),
        ("[checks.max_steps]\nmargin = 0.1\n", "checks.max_steps: this check has no margin; remove 'margin'"),
        ("[checks.max_step]\n", "unknown check 'max_step'; did you mean 'max_steps'?"),
        (
            "[checks.max_steps]\nwatch = false\nalpha = 0.1\n",
            "'watch = false' omits the check; remove its other settings",
        ),
        ("base = 'strict'\nalpha = 0.1\n", "'alpha' has no effect on base 'strict', which has no levels"),
        ("base = 'strict'\n[checks.no_max_steps]\nmargin = 0.1\n", "has neither margins nor levels"),
        ('alpha = "0.05"\n', "alpha: Input should be a valid number, not '0.05'"),
        (
            "[checks.reward]\nalpha = 0.01\n",
            "checks.reward.alpha: the claim has the policy's level; set the policy's alpha",
        ),
        ("suspected = 'ignore'\n", "suspected: Input should be 'list' or 'block', not 'ignore'"),
        ("confirm = -1\n", "confirm: Input should be greater than or equal to 0, not -1"),
        ("alpha = \n", "not valid TOML: "),
    ],
)
def test_a_wrong_policy_is_one_line_that_names_file_place_and_value(text: str, message: str) -> None:
    with pytest.raises(PolicyError, match=r"^[^\n]*own\.toml: [^\n]*$") as error:
        policy_of(text)
    assert message in str(error.value)


def test_a_policy_may_not_take_a_built_in_name(tmp_path: Path) -> None:
    (tmp_path / "strict.toml").write_text("", encoding="utf-8")
    with pytest.raises(PolicyError, match=r"strict.toml: policy 'strict' is built in; rename the file"):
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
    own = policy_of("[checks.cheap]\n", Cheap(p, status))
    old = side(*[1, 0] * 60)
    assert check(judged(old, old, Goal.HOLD, own), "cheap").status is answer


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
    ("answer", "message"),
    [
        (ValueError("two\nlines"), "check 'cheap' failed with ValueError: 'two'; fix the check"),
        (None, "check 'cheap' returned NoneType, expected CheckResult; fix the check"),
        (
            CheckResult(id="action_match", status=PASS, p=1.0),
            "check 'cheap' returned a result with id 'action_match'; the ids must be equal",
        ),
        (
            CheckResult(id="cheap", status=PASS, p=-3.0),
            "check 'cheap' returned p = -3; p must be between 0 and 1",
        ),
    ],
)
@pytest.mark.parametrize("base", ["calibrated", "strict"])
def test_a_check_of_others_that_answers_wrongly_is_one_line(answer: Any, message: str, base: str) -> None:
    text = f'base = "{base}"\n[checks.cheap]\n'
    with pytest.raises(PolicyError, match=f"^{re.escape(message)}$"):
        judged(side(1, 0), side(1, 0), policy=policy_of(text, Wrong(answer)))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("action_match", "has the id of a built-in check; give it a different id"),
        ("dear", "has id 'cheap'; register it under its id"),
    ],
)
@pytest.mark.parametrize("base", ["calibrated", "strict"])
def test_a_check_of_others_has_an_id_of_its_own(tmp_path: Path, name: str, message: str, base: str) -> None:
    (tmp_path / "own.toml").write_text(f'base = "{base}"\n[checks.{name}]\n', encoding="utf-8")
    with pytest.raises(PolicyError, match=rf"own.toml: check '{name}' of a plugin {message}$"):
        get_policy("own", tmp_path, {name: Cheap()})


def test_an_edited_policy_is_another_test_of_the_same_claim() -> None:
    first, same, other = (policy_of(f"alpha = {alpha}\n") for alpha in (0.05, 0.05, 0.04))
    assert policy_version(first) == policy_version(same) != policy_version(other)
    assert (policy_version(CALIBRATED), policy_version(STRICT)) == ("calibrated", "strict")
    assert policy_version(policy_of("base = 'strict'\n")) == "strict", "a copy under another name is the same"
    assert policy_version(other).startswith("own ")
