"""Laws of the Markdown of a run: it fits, says its verdict, and holds nothing that acts, for any run."""

from hypothesis import given, settings
from hypothesis import strategies as st

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
    Verdict,
)
from pytest_trace2evolve.report.github import MIN_VERDICT_BYTES, run_markdown
from tests.hostile import HOSTILE, alive, headings

TEXTS = st.one_of(
    st.sampled_from(HOSTILE),
    st.text(max_size=30),
    st.text(alphabet="`@|\\<>[]()!#\n- a", max_size=30),
    st.sampled_from(["x" * 5_000, "`" * 999, "|\\" * 300, "🙂 " * 700]),
)
NUMBERS = st.none() | st.floats(allow_nan=False, allow_infinity=False)
CHECKS = st.builds(
    CheckResult,
    id=TEXTS,
    status=st.sampled_from(CheckStatus),
    **dict.fromkeys(("estimate", "low", "high", "threshold", "p", "detectable"), NUMBERS),
    detail=TEXTS,
)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
SIDES = st.builds(
    SideFigures,
    reward=NUMBERS,
    action_match=NUMBERS,
    max_steps=st.integers(0, 10**9),
    pass_hat=st.dictionaries(
        st.integers(1, 50), st.builds(Interval, estimate=FINITE, low=FINITE, high=FINITE), max_size=3
    ),
)
COUNTS = st.none() | st.integers(0, 10**12)
NAMES = st.builds(
    lambda some, times: tuple(some * times), st.lists(TEXTS, max_size=2), st.sampled_from([1, 30, 120])
)
VERDICTS = st.builds(
    Verdict,
    decision=st.none() | st.sampled_from(Decision),
    policy=TEXTS,
    goal=st.sampled_from(Goal),
    label=st.sampled_from(Label),
    suite=st.none() | TEXTS,
    split=st.none() | TEXTS,
    reason=TEXTS,
    partial=st.booleans(),
    checks=st.lists(CHECKS, max_size=6).map(tuple),
    **dict.fromkeys(("fixed", "broken", "regressions", "suspected", "left_out"), NAMES),
    tasks=st.integers(0, 10**9),
    identical=st.booleans(),
    alpha=NUMBERS,
    look=COUNTS,
    settling=st.lists(
        st.builds(
            NeededEvidence,
            check=TEXTS,
            trials=COUNTS,
            tasks=COUNTS,
            simulations=COUNTS,
            cost=st.none() | st.floats(0, 1e12),  # dollars
            tokens=COUNTS,
        ),
        max_size=3,
    ).map(tuple),
    baseline=SIDES,
    candidate=SIDES,
)
SUITES = st.builds(
    SuiteSummary,
    name=TEXTS,
    baseline=st.none() | TEXTS,
    reason=TEXTS,
    verdicts=st.lists(VERDICTS, max_size=2).map(tuple),
    left_out=NAMES,
)
SUMMARIES = st.builds(
    RunSummary,
    candidate=TEXTS,
    decision=st.none() | st.sampled_from(Decision),
    trouble=st.just("") | TEXTS,
    suites=st.builds(
        lambda suites, times: tuple(suites * times), st.lists(SUITES, max_size=2), st.sampled_from([1, 1, 8])
    ),
    notes=NAMES,
    used=TEXTS,
    command=NAMES,
    run_id=TEXTS,
    page=TEXTS,
    evidence=TEXTS,
)


def size(text: str) -> int:
    return len(text.encode("utf-8"))


@given(SUMMARIES, st.sampled_from([MIN_VERDICT_BYTES, 20_000, 65_536]))
@settings(max_examples=40)
def test_any_run_fits_and_nothing_of_it_acts(summary: RunSummary, limit: int) -> None:
    text = run_markdown(summary, max_bytes=limit)
    assert size(text) <= limit
    assert text.startswith("## ")
    assert alive(text) == []
    assert headings(text) == 1
