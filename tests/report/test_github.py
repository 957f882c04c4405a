"""The Markdown of a run: the verdict first, every figure that there is, and nothing foreign that acts."""

import pytest

from pytest_trace2evolve.records.verdict import (
    CheckResult,
    CheckStatus,
    Decision,
    Goal,
    Interval,
    Label,
    NeededEvidence,
    RunSummary,
    SideFigures,
    SuiteSummary,
    UsageRatio,
    Verdict,
)
from pytest_trace2evolve.report.github import code_block, code_span, run_markdown
from tests.hostile import HOSTILE, alive, headings, page

CHECKS = (
    CheckResult(
        id="reward_improved",
        status=CheckStatus.PASS,
        estimate=0.25,
        low=0.1,
        threshold=0.0,
        p=0.0004,
        detectable=0.12,
        detail="0.500 → 0.750 (n=40)",
    ),
    CheckResult(id="max_steps", status=CheckStatus.UNDECIDED, estimate=5, p=0.031),
    CheckResult(id="read_action_match", status=CheckStatus.NOT_APPLICABLE),
)
VERDICT = Verdict(
    decision=Decision.INCONCLUSIVE,
    policy="calibrated",
    goal=Goal.IMPROVE,
    label=Label.CLEAN,
    suite="tau2-retail",
    split="heldout",
    checks=CHECKS,
    fixed=("1", "2", "3"),
    broken=("7",),
    suspected=("7",),
    regressions=("8",),
    tasks=40,
    left_out=("9: its content in the baseline differs from the lock",),
    alpha=0.05 / 3,
    look=2,
    settling=(
        NeededEvidence(check="max_steps", trials=8, tasks=200, simulations=320, cost=12.5, tokens=1_000_000),
        NeededEvidence(check="reward_improved", tasks=90),
    ),
    baseline=SideFigures(reward=0.5, pass_rate=0.5, measured=160),
    candidate=SideFigures(
        reward=0.75,
        pass_rate=0.75,
        measured=158,
        missing=2,
        pass_hat={1: Interval(estimate=0.75, low=0.6, high=0.9)},
    ),
)


def summary(
    *verdicts: Verdict, decision: Decision | None = Decision.INCONCLUSIVE, **fields: object
) -> RunSummary:
    """A run over one suite."""
    suite = SuiteSummary(name="tau2-retail", baseline="v5", verdicts=verdicts)
    return RunSummary.model_validate({"candidate": "v6", "decision": decision, "suites": (suite,), **fields})


def first_line(one: RunSummary) -> str:
    return run_markdown(one).splitlines()[0]


def strict(decision: Decision | None, **fields: object) -> Verdict:
    """A verdict with what the policy `strict` leaves empty."""
    given = {"decision": decision, "policy": "strict", "goal": Goal.IMPROVE, "label": Label.CLEAN, **fields}
    return Verdict.model_validate(given)


@pytest.mark.parametrize(
    ("decision", "fields", "line"),
    [
        (Decision.PROMOTE, {}, "## ✅ Promote: `v6` is better than its baseline"),
        (Decision.PROMOTE, {"goal": Goal.HOLD}, "## ✅ Promote: `v6` is not worse than its baseline"),
        (
            Decision.PROMOTE,
            {"suspected": ("1", "2")},
            "## ✅ Promote: `v6` is better than its baseline; suspected regressions: 2",
        ),
        (
            Decision.DISCARD,
            {"checks": tuple(CheckResult(id=name, status=CheckStatus.FAIL) for name in "dcba")},
            "## ❌ Discard: `v6` fails on `a`, `b`, `c` and 1 more checks",
        ),
        (Decision.DISCARD, {}, "## ❌ Discard: `v6` fails the gate"),
        (Decision.INCONCLUSIVE, {}, "## ⚠️ Inconclusive: `v6` is not shown to be better than its baseline"),
        (
            Decision.INCONCLUSIVE,
            {"goal": Goal.HOLD},
            "## ⚠️ Inconclusive: `v6` is not shown to be no worse than its baseline",
        ),
        (Decision.INCONCLUSIVE, {"partial": True}, "## ⚠️ Inconclusive: `v6` was not measured completely"),
        (None, {}, "## No verdict on `v6`"),
    ],
)
def test_the_first_line_is_the_verdict(
    decision: Decision | None, fields: dict[str, object], line: str
) -> None:
    assert first_line(summary(strict(decision, **fields), decision=decision)) == line


GUARD: dict[str, object] = {
    "goal": Goal.HOLD,
    "label": Label.SYNTHETIC,
    "suite": "support",
    "split": "synthetic",
}
"""A guard is judged by goal `hold` under any goal of the run."""


@pytest.mark.parametrize(
    ("goal", "claim"),
    [(Goal.IMPROVE, "is better than its baseline"), (Goal.HOLD, "is not worse than its baseline")],
)
def test_the_first_line_names_the_guard_that_withholds_a_promotion(goal: Goal, claim: str) -> None:
    message = summary(
        strict(Decision.PROMOTE, goal=goal, split="heldout"), strict(Decision.INCONCLUSIVE, **GUARD)
    )
    assert first_line(message) == (
        f"## ⚠️ Inconclusive: `v6` {claim}, but harm on `support` · `synthetic` is not ruled out"
    )


def test_a_run_in_trouble_has_no_verdict_whatever_was_decided() -> None:
    message = summary(VERDICT, decision=Decision.PROMOTE, trouble="nothing was measured")
    assert first_line(message) == "## ⚠️ No verdict on `v6`: `nothing was measured`"


def test_the_report_is_a_block_of_code() -> None:
    text = run_markdown(
        summary(VERDICT, used="$4.20", notes=("a note",), command=("pytest", "-k", "a b"), evidence="runs/x")
    )
    (block,) = (token.content for token in page(text) if token.type == "code_block")
    for message in (
        "heldout decides on clean evidence (test 2, level 0.0167):",
        "✓ reward_improved",
        "regressions (1): 8",
        "fixed (3): 1, 2, 3",
        "left out (1): 9: its content in the baseline differs from the lock",
        "90 tasks with the current number of trials",
        "used: $4.20",
        "data: runs/x",
        "note: a note",
        "to reproduce: pytest -k 'a b'",
    ):
        assert message in block, message


@pytest.mark.parametrize("text", HOSTILE)
def test_a_foreign_text_is_one_dead_span(text: str) -> None:
    for made in (
        code_span(text),
        f"- {code_span(text)}",
        f"x {code_span(text)} y {code_span(text)}",
        f"x\n\n{code_block(text)}",
    ):
        assert alive(made) == []
    assert "\n" not in code_span(text)


@pytest.mark.parametrize("text", HOSTILE)
def test_no_field_of_a_summary_acts(text: str) -> None:
    check = CheckResult(id=text, status=CheckStatus.FAIL, estimate=0.5, detail=text)
    texts = {"policy": text, "suite": text, "split": text, "reason": text, "checks": (check,)}
    lists = dict.fromkeys(("fixed", "broken", "regressions", "suspected", "left_out"), (text, "1"))
    used = (UsageRatio(metric=text, baseline=1.0, candidate=2.0, ratio=2.0, note=text),)
    settling = (NeededEvidence(check=text, trials=3),)
    verdict = strict(Decision.DISCARD, **texts, **lists, settling=settling, usage=used)
    suites = (
        SuiteSummary(name=text, baseline=text, verdicts=(verdict,)),
        SuiteSummary(name=text, reason=text, left_out=(text,)),
    )
    fields = dict.fromkeys(("candidate", "trouble", "used", "run_id", "evidence", "page"), text)
    for trouble in ("", text):
        message = RunSummary.model_validate(
            {**fields, "trouble": trouble, "suites": suites, "notes": (text,), "command": ("pytest", text)}
        )
        made = run_markdown(message)
        assert alive(made) == []
        assert headings(made) == 1


def test_a_long_name_is_cut() -> None:
    assert code_span("x" * 500) == f"`{'x' * 239}…`"


def test_a_long_run_loses_figures_first_and_keeps_the_verdict() -> None:
    message = summary(*[VERDICT] * 5, notes=("n" * 300,), command=("pytest",))
    texts = [run_markdown(message, max_bytes=limit) for limit in (30_000, 5_000, 2_500, 250)]
    assert ["detects" in text for text in texts] == [True, False, False, False]
    assert ["heldout decides" in text for text in texts] == [True, True, False, False]
    assert all(text.startswith("## ⚠️ Inconclusive") for text in texts)
    assert "*Shortened: " in texts[3]


def test_a_run_that_claims_nothing_is_not_called_better() -> None:
    held = VERDICT.model_copy(update={"goal": Goal.NO_REGRESSION, "suspected": ()})
    passed = first_line(summary(held, decision=Decision.PROMOTE))
    assert passed.endswith(
        "Promote: confirmed regressions: `8`; no regression of `v6` against its baseline detected"
    )
    open_ = first_line(summary(held.model_copy(update={"checks": ()})))
    assert open_.endswith(
        "Inconclusive: confirmed regressions: `8`; `v6` is not shown to be free of regressions"
    )


def test_changes_of_the_evidence_come_before_every_figure() -> None:
    lines = ("baseline desk/v0 was saved again: reward 1.000 → 0.125", "suite desk: task 'a' was removed")
    message = run_markdown(summary(VERDICT, changes=lines)).splitlines()
    assert message[2] == "⚠️ Changes of tasks, baselines or policies: 2"
    assert message[5:7] == [f"    changed: {line}" for line in lines]
