"""Natural-language assertions: recorded verdicts, zeros that decide without a judge, and one denominator."""

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_trace2evolve.cli.main import main
from pytest_trace2evolve.errors import JudgeError
from pytest_trace2evolve.records.message import Message
from pytest_trace2evolve.records.protocols import World
from pytest_trace2evolve.records.score import NO_JUDGE_NOTE, RECORDED_VERDICTS, Check, JudgeUse, Score, Status
from pytest_trace2evolve.records.task import RewardBasis, Task
from pytest_trace2evolve.records.trace import Simulation
from pytest_trace2evolve.scoring.reward import score
from pytest_trace2evolve.session.evidence_sources import load_evidence, rescore_files
from pytest_trace2evolve.worlds.registry import Worlds
from tests.fake_world import FakeWorld

NL = RewardBasis.NL_ASSERTION
WORLD: World = FakeWorld()
TRACE = [
    {"role": "assistant", "content": "Hello."},
    {"role": "user", "content": "A question."},
    {"role": "assistant", "content": "An answer."},
    {"role": "user", "content": "###STOP###"},
]


def task(*assertions: str, says: Sequence[str] = (), basis: Sequence[str] = ("DB", "NL_ASSERTION")) -> Task:
    criteria = {
        "actions": [],
        "communicate_info": list(says),
        "nl_assertions": list(assertions) or None,
        "reward_basis": list(basis),
    }
    return Task.model_validate({"id": "t", "evaluation_criteria": criteria})


def verdict(text: Any, met: Any = True, **fields: Any) -> dict[str, Any]:
    return {"nl_assertion": text, "met": met, "justification": "because", **fields}


def simulation(verdicts: Any, reason: str = "user_stop") -> Simulation:
    record = {"id": "s", "task_id": "t", "termination_reason": reason, "messages": TRACE}
    return Simulation.model_validate({**record, "reward_info": {"reward": 1.0, "nl_assertions": verdicts}})


def scored(of: Task, verdicts: Any) -> Score:
    return score(simulation(verdicts), of, WORLD)


@pytest.mark.parametrize(
    ("verdicts", "reward"),
    [
        ([verdict("A", judge="x"), {"nl_assertion": "B", "met": True}], 1),
        ([verdict("A"), verdict("B", justification=None)], 1),
        ([verdict("A"), verdict("B", "true")], None),
        ([verdict("A"), verdict("B", 1)], None),
        ([verdict("A"), verdict("B", None)], None),
        ([verdict("A"), verdict("B"), verdict("B", 1)], None),
        ([verdict("A"), {"nl_assertion": "B"}], None),
        ([verdict("A"), {"met": True}], None),
        ([verdict("A"), verdict(["B"])], None),
        ([verdict("A"), "B"], None),
        ({"A": True, "B": True}, None),
        ("AB", None),
        ([], None),
        (None, None),
    ],
)
def test_recorded_verdicts_count_if_their_texts_are_the_task_s(verdicts: Any, reward: int | None) -> None:
    result = scored(task("A", "B"), verdicts)
    assert result.reward == reward
    if reward is None:
        assert (result.status, result.note) == (Status.NOT_MEASURED, NO_JUDGE_NOTE)
        assert NL not in result.components
    else:
        assert (result.status, result.note) == (Status.MEASURED, RECORDED_VERDICTS)
        assert [check.met for check in result.nl_assertions] == [item["met"] for item in verdicts]


def test_a_simulation_without_reward_info_has_no_verdicts() -> None:
    bare = simulation(None).model_copy(update={"reward_info": None})
    assert score(bare, task("A"), WORLD).note == NO_JUDGE_NOTE
    assert score(bare, task(), WORLD).reward == 1


def test_equal_assertions_need_as_many_verdicts() -> None:
    assert scored(task("A", "A"), [verdict("A"), verdict("A", False)]).reward == 0
    assert scored(task("A", "A"), [verdict("A"), verdict("A")]).reward == 1
    assert scored(task("A", "A"), [verdict("A")]).reward is None


class CountingJudge:
    """Finds that every assertion is met, or that none is, or fails."""

    def __init__(self, met: bool | None) -> None:
        self.met = met
        self.count = 0

    def judge(self, assertions: Sequence[str], trace: Sequence[Message]) -> tuple[list[Check], JudgeUse]:
        self.count += 1
        if self.met is None:
            raise JudgeError("down")
        use = JudgeUse(model="counting", prompt_version="0")
        return [Check(wanted=text, met=self.met) for text in assertions], use


ASSERTIONS = st.lists(st.sampled_from("ABC"), max_size=3)
VERDICTS = st.lists(st.builds(verdict, st.sampled_from("ABC"), st.sampled_from([True, False, "yes", None])))


@given(
    ASSERTIONS,
    VERDICTS,
    st.booleans(),
    st.none() | st.builds(CountingJudge, st.sampled_from([True, False, None])),
)
def test_a_zero_decides_and_nothing_is_guessed(
    assertions: list[str], verdicts: list[dict[str, Any]], is_said: bool, judge: CountingJudge | None
) -> None:
    said = "answer" if is_said else "nothing of the kind"
    of = task(*assertions, says=[said], basis=["COMMUNICATE", "NL_ASSERTION"])
    result = score(simulation(verdicts), of, WORLD, judge)
    if not is_said:
        assert result.reward == 0
    elif not assertions:
        assert result.reward == 1
    elif judge is not None:
        assert result.reward == (None if judge.met is None else float(judge.met))
    elif sorted(item["nl_assertion"] for item in verdicts) == sorted(assertions) and all(
        isinstance(item["met"], bool) for item in verdicts
    ):
        assert result.reward == float(all(item["met"] for item in verdicts))
    else:
        assert result.reward is None
    if judge is not None:
        assert judge.count == (is_said and bool(assertions))


# Files and the report.


def retail_file(path: Path, verdicts: Sequence[Any], **changes: Any) -> Path:
    """A results file as tau2 1.0.1 writes it, with one task and simulation for each list of verdicts."""
    criteria = {"actions": [], "nl_assertions": ["A"], "reward_basis": ["DB", "NL_ASSERTION"]}
    tasks = [
        {"id": f"t{number}", "user_scenario": {"instructions": {}}, "evaluation_criteria": criteria}
        for number in range(len(verdicts))
    ]
    simulations = []
    for number, given_verdicts in enumerate(verdicts):
        record = {"id": f"s{number}", "task_id": f"t{number}", "trial": 0, "termination_reason": "user_stop"}
        reward = float(bool(given_verdicts and given_verdicts[0]["met"]))
        reward_info = {"reward": reward, "nl_assertions": given_verdicts}
        simulations.append({**record, "messages": TRACE, "reward_info": reward_info, **changes})
    info = {"environment_info": {"domain_name": "retail"}}
    path.write_text(json.dumps({"info": info, "tasks": tasks, "simulations": simulations}), encoding="utf-8")
    return path


def test_the_means_cover_the_same_simulations_and_the_report_counts_the_others(
    tmp_path: Path, worlds: Worlds, capsys: pytest.CaptureFixture[str]
) -> None:
    verdicts = [[verdict("A")], [verdict("A", False)], [verdict("a")], [verdict("a")], None]
    path = retail_file(tmp_path / "base.json", verdicts)
    (file,) = rescore_files([path], worlds, None, None)
    metrics = file.metrics
    assert (metrics.measured, metrics.not_measured) == (2, 3)
    assert (metrics.reward, metrics.recorded_reward, metrics.agreement) == (0.5, 0.5, 1.0)
    assert main(["score", str(path)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert f"base.json: 3 not scored, first 's2': {NO_JUDGE_NOTE}; give --judge MODEL" in out
    assert "base.json: 2 scored with recorded verdicts of natural-language assertions" in out


def test_a_comparison_uses_recorded_verdicts_and_names_them(
    tmp_path: Path, worlds: Worlds, capsys: pytest.CaptureFixture[str]
) -> None:
    base = retail_file(tmp_path / "base.json", [[verdict("A", number % 2 == 0)] for number in range(30)])
    candidate = retail_file(tmp_path / "cand.json", [[verdict("A")]] * 30)
    main(["compare", str(base), str(candidate), "--goal", "hold"])
    out = " ".join(capsys.readouterr().out.split())
    assert "PROMOTE: cand is not worse than base" in out
    assert "note: base.json: 30 scored with recorded verdicts of natural-language assertions" in out
    assert "lost" not in out
    (side,) = load_evidence([base], worlds).sides
    assert side.provenance.judge == RECORDED_VERDICTS
    (unjudged,) = load_evidence([retail_file(tmp_path / "none.json", [None])], worlds).sides
    assert unjudged.provenance.judge is None


def test_scoring_does_not_change_the_simulation() -> None:
    recorded = simulation([verdict("A")])
    before = copy.deepcopy(recorded.model_dump())
    score(recorded, task("A"), WORLD)
    assert recorded.model_dump() == before
