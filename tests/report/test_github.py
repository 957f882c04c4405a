"""The Markdown of a run: the verdict first, every figure that there is, and nothing foreign that acts."""

import pytest

from pytest_trace2evolve.records.verdict import (
    CheckResult,
    CheckStatus,
    Decision,
    Estimand,
    Goal,
    Interval,
    Label,
    NeededEvidence,
    Obstacle,
    RunSummary,
    SideFigures,
    SuiteSummary,
    UsageRatio,
    Verdict,
)
from pytest_trace2evolve.report.github import MIN_VERDICT_BYTES, run_markdown
from pytest_trace2evolve.report.markdown import (
    code_span,
    fenced_block,
    render_table,
    table_cell,
)
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


OBSTACLES = [
    (Obstacle.WRONG_DIRECTION, "the change points the wrong way"),
    (Obstacle.TOO_SMALL, "the effect is too small to detect with these tasks"),
    (None, "neither more trials nor more tasks would settle it"),
]
"""None: a summary that was written before the cause was recorded."""


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
"""A guard is judged by goal `hold`, whatever the run's goal."""


@pytest.mark.parametrize("goal", list(Goal))
@pytest.mark.parametrize("deciding_first", [True, False])
def test_a_guard_that_shows_no_harm_leaves_the_first_line_alone(goal: Goal, deciding_first: bool) -> None:
    for decision in (Decision.PROMOTE, Decision.INCONCLUSIVE):
        deciding = strict(decision, goal=goal)
        both = [deciding, strict(None, **GUARD)]
        alone = first_line(summary(deciding, decision=decision))
        assert first_line(summary(*(both if deciding_first else both[::-1]), decision=decision)) == alone


def test_the_first_line_says_better_next_to_a_guard() -> None:
    guard = strict(None, **GUARD)
    promoted = summary(strict(Decision.PROMOTE), guard, decision=Decision.PROMOTE)
    assert first_line(promoted) == "## ✅ Promote: `v6` is better than its baseline"
    undecided = summary(strict(Decision.INCONCLUSIVE), guard)
    assert first_line(undecided) == "## ⚠️ Inconclusive: `v6` is not shown to be better than its baseline"


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


def test_a_discard_names_the_checks_of_the_splits_that_discard() -> None:
    def failed(name: str) -> tuple[CheckResult, ...]:
        return (CheckResult(id=name, status=CheckStatus.FAIL),)

    cut_short = strict(Decision.INCONCLUSIVE, partial=True, checks=failed("action_match"))
    guard = strict(Decision.DISCARD, **GUARD, checks=failed("invariants"))
    message = summary(cut_short, guard, decision=Decision.DISCARD)
    assert first_line(message) == "## ❌ Discard: `v6` fails on `invariants`"


def test_a_run_in_trouble_has_no_verdict_whatever_was_decided() -> None:
    message = summary(VERDICT, decision=Decision.PROMOTE, trouble="nothing was measured")
    assert first_line(message) == "## ⚠️ No verdict on `v6`: `nothing was measured`"


def test_a_verdict_about_fixed_tasks_says_so() -> None:
    message = "goal improve · says nothing about other tasks · α = 0.01667"
    for estimand, is_told in ((Estimand.SUITE, True), (Estimand.TASKS, False), (None, False)):
        text = run_markdown(summary(VERDICT.model_copy(update={"estimand": estimand})))
        assert (message in text) is is_told


def test_everything_that_a_verdict_holds_is_told() -> None:
    text = run_markdown(
        summary(VERDICT, used="$4.20", notes=("a note",), command=("pytest", "-k", "a b"), evidence="runs/x")
    )
    for message in (
        "### `tau2-retail` · `heldout`: ⚠️ inconclusive",
        "`v6` against `v5` · clean evidence · policy `calibrated` · goal improve · α = 0.01667 · test 2",
        " of this split · 40 tasks compared",
        "| check | answer | estimate | interval | threshold | p | detectable | detail |",
        "| `reward_improved` | ✅ pass | 0.250 | 0.100 … | 0.000 | &lt; 0.001 | 0.120 | `0.500 → 0.750",
        "| `max_steps` | ⚠️ undecided | 5 | – | – | 0.031 | – | – |",
        "| `read_action_match` | n/a | – | – | – | – | – | – |",
        "**Confirmed regressions (1)**: `8`",
        "**Suspected regressions (1)**: `7`",
        "**Fixed (3)**: `1`, `2`, `3`",
        "**Left out (1)**: `9: its content in the baseline differs from the lock`",
        "|  | reward | pass^1 | passed | max steps | measured | missing |",
        "| candidate | 0.750 | 0.750 (0.600 … 0.900) | 0.750 | 0 | 158 | 2 |",
        "- `max_steps`: 8 trials of each task on both sides or 200",
        "- `reward_improved`: 90 tasks with the current number of trials",
        "used: `$4.20` · evidence: `runs/x`",
        "- note: `a note`",
        "```text\npytest -k 'a b'\n```",
    ):
        assert message in text, message


@pytest.mark.parametrize(("obstacle", "message"), OBSTACLES)
def test_a_check_that_more_evidence_would_not_settle_says_why(
    obstacle: Obstacle | None, message: str
) -> None:
    verdict = VERDICT.model_copy(
        update={"settling": (NeededEvidence(check="reward_improved", obstacle=obstacle),)}
    )
    assert f"\n- `reward_improved`: {message}\n" in run_markdown(summary(verdict))


@pytest.mark.parametrize("text", HOSTILE)
def test_a_foreign_text_is_one_dead_span(text: str) -> None:
    for made in (
        code_span(text),
        f"- {code_span(text)}",
        f"x {code_span(text)} y {code_span(text)}",
        fenced_block(text),
    ):
        assert alive(made) == []
    assert "\n" not in code_span(text)


@pytest.mark.parametrize("text", HOSTILE)
def test_a_foreign_text_stays_in_its_cell(text: str) -> None:
    made = render_table(("a", "b"), [(table_cell(text), "1"), ("x", table_cell(text))])
    cells = [token.type for token in page(made) if token.type in ("td_open", "th_open")]
    assert len(cells) == 6
    assert alive(made) == []


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
        assert headings(made) == 3


def test_a_long_run_loses_lists_first_then_details_and_keeps_verdict_and_checks() -> None:
    tasks = tuple(f"task-{number}" for number in range(2_000))
    message = summary(VERDICT.model_copy(update={"fixed": tasks}), notes=("n" * 300,), command=("pytest",))
    texts = [run_markdown(message, max_bytes=limit) for limit in (30_000, 5_000, 2_500, 1_400)]
    assert "`task-99` and 1900 more" in texts[0]
    assert "**Fixed (2000)**" in texts[2]
    assert "To reproduce" in texts[1]
    assert "To reproduce" not in texts[3]
    for text in texts:
        assert text.startswith("## ⚠️ Inconclusive")
        assert "| `reward_improved` | ✅ pass | 0.250 |" in text
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
    assert message[2:4] == [f"- ⚠️ changed: `{line}`" for line in lines]
    short = run_markdown(summary(*[VERDICT] * 50, changes=lines), max_bytes=MIN_VERDICT_BYTES)
    assert short.splitlines()[2] == "⚠️ Changes of tasks, baselines or policies: 2"


def test_what_the_agents_used_is_compared() -> None:
    usage = (
        UsageRatio(metric="cost", baseline=0.01, candidate=0.02, ratio=2.0, low=1.9, high=2.1, tasks=12),
        UsageRatio(metric="latency", note="the baseline has no live latency"),
    )
    text = run_markdown(summary(VERDICT.model_copy(update={"usage": usage})))
    assert "| per simulation | baseline | candidate | ratio | tasks | note |" in text
    assert "| `cost` | `$0.01` | `$0.02` | ×2.00 (1.90…2.10) | 12 | – |" in text, "two $ enclose a formula"
    assert "| `latency` | `–` | `–` | – | 0 | `the baseline has no live latency` |" in text
