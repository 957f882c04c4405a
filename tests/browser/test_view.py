"""The pages of `show --serve` in a real browser: that no text of a project acts."""

from pathlib import Path
from typing import Any

from pytest_trace2evolve.project.candidates import Candidate
from pytest_trace2evolve.records.evidence import Provenance
from pytest_trace2evolve.records.verdict import CheckStatus
from pytest_trace2evolve.report import view
from pytest_trace2evolve.scoring.metrics import Trials
from pytest_trace2evolve.session.runs import CandidateColumn, RecordedVerdict, RunFacts
from pytest_trace2evolve.session.traces import FailedTask, FailedTasks, OpenedTrace
from tests.browser.test_report_page import (
    ELEMENTS,
    STRINGS,
    Opened,
    answered,
    browser,
    called,
    said,
    simulation,
    traces,
)
from tests.report.test_page import trial
from tests.report.test_verdict import reward

__all__ = ["browser"]


def hostile_pages() -> dict[str, str]:
    """Pages whose every name and text is hostile."""
    verdicts = [
        RecordedVerdict(
            *(text, text, text, text, "desk", "heldout", "discard", text, (0.5, 0.4)),
            reward(CheckStatus.FAIL, 0.1, 0.5, text),
            None,
        )
        for text in STRINGS
    ]
    runs = [RunFacts(text, text, text, (text,), None, text, (text,), text) for text in STRINGS]
    columns = [
        CandidateColumn(text, text, {task: Trials((trial(task, 0, 1),)) for task in STRINGS})
        for text in STRINGS[:9]
    ]
    tree = [(1, Candidate.model_construct(id=text, hypothesis=text)) for text in STRINGS]
    failed = tuple(FailedTask(text, text, (), True, 1, 1, 0.0) for text in STRINGS)
    messages = [
        message
        for text in STRINGS
        for message in (said("user", text), called(text, **{text: text}), answered(text, text))
    ]
    finding, failure = traces(STRINGS[0])[1][0].findings[0], traces(STRINGS[0])[1][0].failure
    opened = OpenedTrace(
        simulation(STRINGS[0], *messages),
        *(Provenance(domain="desk", provider="p"), STRINGS[1], (0,), (), STRINGS[2], (finding,), failure),
    )
    return {
        "board": view.board(verdicts, runs),
        "candidates": view.candidates(STRINGS, STRINGS[0], columns, tree),
        "ledger": view.view_page("ledger", STRINGS[0], entries=[], problems=STRINGS),
        "failed": view.view_page(
            "failed",
            STRINGS[1],
            failed=FailedTasks("r", None, 1, 0, failed),
            reason=STRINGS[2],
            link=lambda suite, task: f"/runs/x?{len(task)}",
        ),
        "sealed": view.view_page("sealed", STRINGS[3], task=STRINGS[0], splits=STRINGS[1], nonce=STRINGS[2]),
        "trace": view.trace(opened, STRINGS[0]),
    }


def test_no_hostile_text_acts(browser: Any, tmp_path: Path) -> None:
    for name, text in hostile_pages().items():
        path = tmp_path / f"{name}.html"
        path.write_text(text, encoding="utf-8")
        page = Opened(browser, path)
        page.tab.mouse.move(400, 300)
        assert set(page.tab.evaluate(f"{ELEMENTS}.map(element => element.tagName)")) <= {
            "SCRIPT",
            "A",
            "FORM",
        }
        links = page.tab.evaluate("[...document.querySelectorAll('a')].map(link => link.protocol)")
        assert set(links) == {"file:"}, name
        assert page.tab.evaluate("window.hacked") is None, name
        shown = page.tab.evaluate("document.body.innerText")
        assert not set(shown) & set("\u202e\u202c\u2066\u2069\u200f\x1b\x9b\x00\x01\u2028"), name
        assert page.tab.evaluate("document.documentElement.scrollWidth") <= 1280, name
        if name != "board":  # which waits for events of its server
            assert page.complaints == [], name
        assert [url for url in page.requests if not url.startswith("file:")] == [], name
        page.tab.close()
