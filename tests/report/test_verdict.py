"""The terminal report: what it says of each kind of run, and that it fits the terminal.

`T2E_RENEW_SNAPSHOTS=1 python -m pytest tests/report/test_verdict.py` writes the snapshots anew.
"""

import io
import os
import re
from pathlib import Path
from typing import Any

import pytest
from _pytest._io import TerminalWriter
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from pytest_trace2evolve.records.evidence import ComparedSides, SideDescription
from pytest_trace2evolve.records.verdict import (
    EXIT_STATUS,
    CheckResult,
    CheckStatus,
    Decision,
    Goal,
    GuardAnswer,
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
from pytest_trace2evolve.report.formatting import MIN_NAME_COLUMNS, Page, shorten_middle
from pytest_trace2evolve.report.verdict import SplitFigures, run_report
from pytest_trace2evolve.scoring.metrics import Metrics
from tests.report.test_github_laws import SUMMARIES

SNAPSHOTS = Path(__file__).parent / "snapshots"
WIDTHS = (80, 100, 140)
STYLES = re.compile(r"\x1b\[[0-9;]*m")

PASS, FAIL, OPEN, ABSENT = CheckStatus


FIGURES_OF_A_CHECK = ("estimate", "low", "high", "p", "detectable")


def check(
    name: str, status: CheckStatus, detail: str = "", *figures: float, **named: float | str | None
) -> CheckResult:
    """A check with its estimate, bounds, p and detectable change in this order, or by name."""
    given = dict(zip(FIGURES_OF_A_CHECK, figures, strict=False))
    return CheckResult(id=name, status=status, detail=detail, **given, **named)  # type: ignore[arg-type]


WATCHED = (
    check("action_match", PASS, "0.474 → 0.495 (n=56)", 0.021, -0.025, 0.067, 0.904, 0.046),
    check("read_action_match", ABSENT, "no gold read actions checked"),
    check("write_action_match", PASS, "0.271 → 0.245 (n=44)", -0.027, -0.09, 0.039, 0.187, 0.067),
    check("task_regressions", PASS, "2 broken, 1 fixed; 2 tried again", 0.018, -0.05, 0.08, 0.637, 0.089),
    check("max_steps", PASS, "0 → 0 tasks", 0.0, -0.065, 0.065, 1.0, 0.089),
    check(
        "invariants",
        PASS,
        "read_before_write 17 → 24 of 168 simulations; any kind 104 → 104",
        *(0.042, -0.007, 0.088, 0.117, 0.064),
    ),
)


def reward(status: CheckStatus, estimate: float, p: float, name: str = "reward_improved") -> CheckResult:
    detail = f"0.381 → {0.381 + estimate:.3f} (n=56)"
    return check(name, status, detail, estimate, estimate - 0.05, estimate + 0.052, p, 0.061, threshold=0.0)


def side(mean: float, missing: int = 0) -> SideFigures:
    chances = {k: Interval(estimate=mean - k / 100, low=mean - 0.1, high=mean + 0.1) for k in (1, 2)}
    return SideFigures(reward=mean, measured=168 - missing, missing=missing, pass_hat=chances)


USAGE = (
    UsageRatio(metric="cost", baseline=0.0021, candidate=0.0042, ratio=2.0, low=1.91, high=2.104, tasks=56),
    UsageRatio(metric="turns", baseline=4.0, candidate=4.1, ratio=1.025, tasks=56),
    UsageRatio(
        metric="latency", note="the baseline has no live latency (none was recorded, or answers came)"
    ),
)

HELDOUT = Verdict(
    decision=Decision.INCONCLUSIVE,
    policy="calibrated",
    goal=Goal.IMPROVE,
    label=Label.CLEAN,
    suite="support",
    split="heldout",
    checks=(reward(OPEN, -0.024, 0.92), *WATCHED),
    broken=("policy_edge-5ad37e363d", "vague_refund_request-8af2056243"),
    fixed=("cross_order_ambiguity-182b2ccd04",),
    usage=USAGE,
    tasks=56,
    alpha=0.0228,
    look=1,
    settling=(NeededEvidence(check="reward_improved", obstacle=Obstacle.WRONG_DIRECTION),),
    baseline=side(0.381),
    candidate=side(0.357),
)
SYNTHETIC = Verdict(
    decision=None,
    policy="calibrated",
    goal=Goal.HOLD,
    label=Label.SYNTHETIC,
    suite="support",
    split="synthetic",
    reason="no harm detected; a drop of 11 points would have been",
    guard=GuardAnswer.NO_HARM_DETECTED,
    detectable=0.108,
    checks=(reward(PASS, 0.0, 0.5, "reward_drop"), *WATCHED[:2]),
    broken=("a-1", "a-2"),
    tasks=36,
    alpha=0.05,
    baseline=side(0.25),
    candidate=side(0.25),
)
CHAT = SideDescription(
    agent="chat",
    model="pocket",
    parameters={"temperature": 0.7, "weights": "02260732ee1310b1ccbd4a26fe8cc281"},
    user="script",
)


def metrics(tasks: int, mean: float, lost: int = 0) -> Metrics:
    return Metrics(
        simulations=3 * tasks,
        tasks=tasks,
        measured=3 * tasks - lost,
        infrastructure_errors=lost,
        not_measured=0,
        reward=mean,
        recorded_reward=None,
        agreement=None,
        pass_hat={1: mean, 2: mean - 0.05},
        action_match=0.606,
        read_action_match=None,
        write_action_match=0.401,
        terminations={"max_steps": 2},
    )


FIGURES: SplitFigures = (
    ("support", "discovery", metrics(56, 0.399)),
    ("support", "heldout", metrics(56, 0.357)),
    ("support", "synthetic", metrics(36, 0.25)),
)


def changed(verdict: Verdict, **fields: object) -> Verdict:
    return verdict.model_copy(update=fields)


def run(*verdicts: Verdict, name: str = "support", **fields: object) -> SuiteSummary:
    given = {
        "name": name,
        "baseline": "v0",
        "compared": ComparedSides(baseline=CHAT, candidate=CHAT),
        **fields,
    }
    return SuiteSummary.model_validate({**given, "verdicts": verdicts})


def summary(*suites: SuiteSummary, decision: Decision | None, **fields: object) -> RunSummary:
    given = {
        "candidate": "v6",
        "used": "3.0 M tokens · $0.00 · 2:04 · 3,416 calls · simulations: 572 made",
        "evidence": ".trace2evolve/demo",
        **fields,
    }
    return RunSummary.model_validate({**given, "suites": suites, "decision": decision})


PROMOTED = changed(
    HELDOUT,
    decision=Decision.PROMOTE,
    checks=(reward(PASS, 0.119, 0.0002), *WATCHED),
    suspected=("vague_refund_request-8af2056243",),
    settling=(),
    candidate=side(0.5),
)
DROPPED = tuple(f"conditional_detail_retrieval-{number:010x}" for number in range(1, 10))
DISCARDED = changed(
    HELDOUT,
    decision=Decision.DISCARD,
    checks=(
        reward(FAIL, -0.131, 1.0),
        *WATCHED[:2],
        check("write_action_match", OPEN, "0.271 → 0.205 (n=44)", -0.066, -0.13, -0.002, 0.031, 0.067),
        check(
            "task_regressions",
            FAIL,
            "9 broken, 0 fixed; 2 confirmed; 6 tried again",
            *(0.161, 0.07, 0.25, 0.0, 0.089),
        ),
        *WATCHED[4:],
    ),
    broken=DROPPED,
    fixed=(),
    regressions=DROPPED[:2],
    suspected=DROPPED[2:5],
    settling=(),
    candidate=side(0.25),
)
LOST = changed(
    HELDOUT,
    checks=(
        reward(PASS, 0.119, 0.004),
        *WATCHED,
        check("measured", OPEN, "100.0% and 85.7% of runs", estimate=0.857, threshold=0.9),
        check("worst_case", OPEN, "would not pass: reward_improved"),
    ),
    settling=(),
    left_out=("policy_edge-5ad37e363d: its content in the baseline differs from the lock",),
    candidate=side(0.5, missing=24),
)
GUARDED = changed(
    SYNTHETIC,
    suite="billing-and-subscriptions",
    decision=Decision.INCONCLUSIVE,
    guard=GuardAnswer.HARM_SUSPECTED,
    reason="harm suspected: reward_drop (p = 0.0310); 36 tasks cannot detect a drop of 20 points "
    "(detectable: 24 points or more); about 60 tasks would detect it",
)
NOTES = (
    ("support: 1 regressed task not confirmed: the 31 fresh simulations of t2e_max_reruns are used up"),
    "warning: baseline v0 of support is 91 days old, more than 60; measure it again",
)

RUNS: dict[str, tuple[RunSummary, SplitFigures]] = {
    "inconclusive": (summary(run(HELDOUT, SYNTHETIC), decision=Decision.INCONCLUSIVE), FIGURES),
    "promote": (summary(run(PROMOTED, SYNTHETIC), decision=Decision.PROMOTE, notes=NOTES[:1]), FIGURES),
    "discard": (
        summary(
            run(
                DISCARDED,
                SYNTHETIC,
                compared=ComparedSides(
                    baseline=CHAT,
                    candidate=CHAT.model_copy(update={"model": "pocket-2"}),
                    declared=("model",),
                ),
            ),
            decision=Decision.DISCARD,
            notes=NOTES[1:],
        ),
        FIGURES,
    ),
    "lost": (
        summary(run(LOST, SYNTHETIC), decision=Decision.INCONCLUSIVE),
        (FIGURES[0], ("support", "heldout", metrics(56, 0.5, lost=24)), FIGURES[2]),
    ),
    "suites": (
        summary(
            run(PROMOTED, SYNTHETIC),
            run(
                changed(PROMOTED, suite="billing-and-subscriptions"),
                GUARDED,
                name="billing-and-subscriptions",
            ),
            run(
                name="travel",
                baseline=None,
                compared=None,
                reason="the gate is off",
                left_out=("t-1: other content",),
            ),
            decision=Decision.INCONCLUSIVE,
        ),
        (*FIGURES, ("travel", "heldout", metrics(40, 0.6))),
    ),
    "no-baseline": (
        summary(
            run(
                baseline=None,
                compared=None,
                reason=(
                    "candidate v6 has no ancestor to be compared with; "
                    "write a candidate with parent: v6, and run 'pytest --candidate ID'"
                ),
            ),
            decision=None,
            notes=("baseline saved: baselines/support/v6.json",),
        ),
        FIGURES,
    ),
}


def printed(name: str, width: int, *, colour: bool = False, verbosity: int = 0) -> str:
    """A report as pytest's terminal writer shows it."""
    found, figures = RUNS[name]
    writer = TerminalWriter(io.StringIO())
    writer.fullwidth, writer.hasmarkup = width, colour
    status = 0 if found.decision is None else EXIT_STATUS[found.decision]
    writer.write(
        run_report(
            found,
            figures,
            width=writer.fullwidth,
            has_colour=writer.hasmarkup,
            verbosity=verbosity,
            exit_status=status,
        )
    )
    return writer._file.getvalue()  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize("colour", [False, True], ids=["plain", "colour"])
@pytest.mark.parametrize("name", RUNS)
def test_each_kind_of_run_looks_like_its_snapshot(name: str, colour: bool) -> None:
    pages = [
        f"{width} columns{' -v' * verbosity}\n\n{printed(name, width, colour=colour, verbosity=verbosity)}\n"
        for verbosity in (0, 1)
        for width in WIDTHS
    ]
    path = SNAPSHOTS / f"{name}{'-colour' * colour}.txt"
    if os.environ.get("T2E_RENEW_SNAPSHOTS"):
        path.write_text("\n".join(pages), encoding="utf-8")
    assert "\n".join(pages) == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", RUNS)
def test_a_quiet_session_prints_the_verdict_alone(name: str) -> None:
    quiet, whole = printed(name, 80, verbosity=-1), printed(name, 80)
    assert whole.endswith(f"\n{quiet}")
    assert quiet.startswith(("PROMOTE: ", "DISCARD: ", "INCONCLUSIVE: ", "NO VERDICT "))


@pytest.mark.parametrize("name", RUNS)
def test_colours_change_no_letter(name: str) -> None:
    coloured = STYLES.sub("", printed(name, 80, colour=True, verbosity=1))
    assert [line.rstrip() for line in coloured.splitlines()] == printed(name, 80, verbosity=1).splitlines()


@given(SUMMARIES, st.integers(60, 160), st.integers(-1, 1))
@settings(max_examples=60)
def test_no_line_is_longer_than_the_terminal_is_wide(found: RunSummary, width: int, verbosity: int) -> None:
    figures = [(suite.name, "discovery", metrics(9, 0.5)) for suite in found.suites]
    text = run_report(found, figures, width=width, has_colour=False, verbosity=verbosity, exit_status=10)
    wrapped = [line for line in text.splitlines() if not line.startswith((" next: ", " open: "))]
    assert max(map(cell_len, wrapped)) <= width  # commands run as they stand


CELLS = st.text(st.characters(codec="utf-8", categories=("L", "N", "P")), max_size=60)


@given(st.lists(st.lists(CELLS, min_size=4, max_size=4), min_size=1, max_size=5), st.integers(60, 160))
@settings(max_examples=60)
def test_no_cell_of_a_table_is_wrapped(rows: list[list[str]], width: int) -> None:
    page = Page(width=width, has_colour=False)
    page.print_table([(cells, "") for cells in rows])
    lines = page.text.split("\n")
    assert len(lines) == len(rows)
    assert max(map(cell_len, lines)) <= width


@given(CELLS, st.integers(1, 60))
def test_a_long_name_keeps_its_start_and_its_end(name: str, width: int) -> None:
    short = shorten_middle(name, width)
    assert cell_len(short) <= width
    assert short == name or ("…" in short and name.startswith(short.partition("…")[0]))
    assert MIN_NAME_COLUMNS > 3


def shown(*verdicts: Verdict, width: int, verbosity: int = 0) -> str:
    """The report of a run on one suite, without figures."""
    found = summary(run(*verdicts), decision=verdicts[0].decision)
    return run_report(found, (), width=width, has_colour=False, verbosity=verbosity)


def test_many_passed_checks_are_wrapped_and_none_is_cut() -> None:
    names = [f"asks_before_change_{number}" for number in range(6)]
    own = (check(name, PASS, "", 0.0, unit="share") for name in names)
    text = shown(
        changed(HELDOUT, checks=(reward(PASS, 0.1, 0.001), *own), decision=Decision.PROMOTE), width=80
    )
    assert all(name in text for name in names), text
    assert max(map(len, text.splitlines())) <= 80


CHANGE, NEEDED = " why:  change −2.4 points", " todo: needed"


@pytest.mark.parametrize(
    ("needed", "place", "line"),
    [
        (
            {"obstacle": Obstacle.WRONG_DIRECTION},
            1,
            f"{CHANGE}, the wrong way; this run detects a gain of 6.1 or more",
        ),
        (
            {"obstacle": Obstacle.TOO_SMALL},
            1,
            f"{CHANGE}, too small to detect with these tasks; this run detects a gain of 6.1 or more",
        ),
        (
            {"trials": 8, "tasks": 190, "simulations": 320, "cost": 12.5},
            -1,
            f"{NEEDED}: 8 trials of each task on both sides or 190 tasks with the current number of trials",
        ),
    ],
)
def test_what_would_settle_a_claim_is_told(needed: dict[str, Any], place: int, line: str) -> None:
    settling = (NeededEvidence(check="reward_improved", **needed),)
    assert shown(changed(HELDOUT, settling=settling), width=140, verbosity=-1).splitlines()[place] == line


def test_changes_of_the_evidence_come_first() -> None:
    found, figures = RUNS["discard"]
    changed_run = found.model_copy(update={"changes": ("baseline support/v0 was removed",)})
    text = run_report(changed_run, figures, width=80, has_colour=False)
    assert text.splitlines()[1] == "changed: baseline support/v0 was removed"
