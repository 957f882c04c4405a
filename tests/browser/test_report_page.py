"""The report page in a real browser: what a reader clicks, and that no text of a run acts.

`make browser` installs Chromium and Playwright; elsewhere these tests are skipped. `T2E_SCREENSHOTS=FOLDER`
keeps the screenshots.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_trace2evolve.records.failure import FailedCheck, Failure
from pytest_trace2evolve.records.message import Message, ToolCall
from pytest_trace2evolve.records.rules import Finding, Invariant
from pytest_trace2evolve.records.trace import Simulation
from pytest_trace2evolve.records.verdict import CheckStatus, Decision, RunSummary, SuiteSummary, Verdict
from pytest_trace2evolve.report.page import write_page
from pytest_trace2evolve.session.page_data import PageFacts, PageTrace
from tests.hostile import HOSTILE
from tests.patience import HANG_SECONDS
from tests.report.test_page import NEW, OLD, suite, summary, trial
from tests.report.test_verdict import HELDOUT, check, reward

ATTACK = "window.hacked=1"
MARKUP = (
    f"<script>{ATTACK}</script>",
    f"</script><script>{ATTACK}</script>",
    f"</style><script>{ATTACK}</script>",
    f"</title><script>{ATTACK}</script>",
    f"</textarea><script>{ATTACK}</script>",
    f"<img src=x onerror={ATTACK}>",
    f"<svg onload={ATTACK}>",
    f"<body onload={ATTACK}>",
    f"<details open ontoggle={ATTACK}>",
    f"<input autofocus onfocus={ATTACK}>",
    f"<iframe srcdoc='<script>parent.{ATTACK}</script>'>",
    "<iframe src=https://evil.example></iframe>",
    "<link rel=stylesheet href=https://evil.example/x.css>",
    "<img src=https://evil.example/pixel.png>",
    "<meta http-equiv=refresh content='0;url=https://evil.example'>",
    "<base href=https://evil.example>",
    "<form action=https://evil.example><button>send</button></form>",
    f"<a href='javascript:{ATTACK}'>click</a>",
    "<object data=https://evil.example></object>",
    "<style>*{background:url(https://evil.example)}</style>",
    f'" onmouseover="{ATTACK}',
    f"' onmouseover='{ATTACK}",
    f"x' autofocus onfocus='{ATTACK}' y='",
    f"`${{{ATTACK}}}`",
    "{{ 7 * 7 }}{% include '/etc/passwd' %}",
    f"{{{{ cycler.__init__.__globals__ }}}}{ATTACK}",
    f"javascript:{ATTACK}",
    f"data:text/html,<script>{ATTACK}</script>",
    f"]]><script>{ATTACK}</script>",
    f"<!--<script>{ATTACK}</script>-->",
    "&lt;script&gt;&#60;script&#62;",
    "\u202egnp.exe\u202c \u2066x\u2069 \u200f",
    "\x1b[31m\x1b]0;title\x07\x9b1m",
    "\ud800 \udfff alone",
    "\u2028\u2029\u0085",
    "\x00\x01\x7f",
    "W" * 3_000,
    "<b>" * 500,
)
STRINGS = (*MARKUP, *(text for text in HOSTILE if text.strip()), "__proto__")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium, without a sandbox because CI runs as root."""
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is missing: make browser")
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("Chromium is missing: make browser")
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield opened
        opened.close()


class Opened:
    """A page in the browser, with everything that it asked for and complained about."""

    def __init__(self, browser: Any, path: Path, width: int = 1280, **settings: Any) -> None:
        self.tab = browser.new_page(viewport={"width": width, "height": 900}, **settings)
        self.tab.set_default_timeout(1000 * HANG_SECONDS)
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.tab.on("request", lambda request: self.requests.append(request.url))
        self.tab.on("console", lambda message: self.complaints.append(message.text))
        self.tab.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.tab.on("dialog", lambda dialog: self.complaints.append(dialog.message) or dialog.dismiss())
        self.url = path.as_uri()
        self.tab.goto(self.url)

    def texts(self, selector: str) -> list[str]:
        """The texts of the visible elements."""
        found = self.tab.locator(selector).filter(visible=True)
        return [" ".join(text.split()) for text in found.all_inner_texts()]

    def picture(self, name: str) -> None:
        """Take a screenshot of the whole page."""
        if folder := os.environ.get("T2E_SCREENSHOTS"):
            self.tab.screenshot(path=Path(folder) / f"{name}.png", full_page=True)


def simulation(name: str, *messages: Message, **fields: Any) -> Simulation:
    return Simulation(
        id=name,
        task_id="a",
        termination_reason="user_stop",
        messages=list(messages),
        reward_info=fields or None,
    )


def said(role: str, text: str) -> Message:
    return Message.model_validate({"role": role, "content": text})


def called(name: str, **arguments: Any) -> Message:
    return Message(role="assistant", tool_calls=[ToolCall(id=name, name=name, arguments=arguments)])


def answered(name: str, text: str) -> Message:
    return Message(role="tool", id=name, content=text)


def traces(text: str = "x") -> tuple[list[PageTrace], list[PageTrace]]:
    """Two trials on each side; the candidate reads an order before it identifies the customer."""
    opening = said("assistant", "Hi!"), said("user", text)
    passed = simulation(
        "p",
        *opening,
        called("find_user", email=text),
        answered("find_user", '{"id": "u1"}'),
        called("get_order", id="W1"),
        answered("get_order", '{"status": "open"}'),
        said("assistant", "Done."),
        reward_breakdown={"DB": 1.0},
        db_check={"db_match": True},
    )
    failed = simulation(
        "f",
        *opening,
        called("get_order", id="W1"),
        answered("get_order", text),
        said("assistant", text),
        reward_breakdown={"DB": 0.0},
        db_check={"db_match": False},
        action_checks=[{"action": {"name": "close", "arguments": {"text": text}}, "action_match": False}],
    )
    finding = Finding(invariant=Invariant.AUTHENTICATION, message=2, why=f"get_order of {text!r}")
    failure = Failure(0, failed_checks=(FailedCheck(f"missing call: {text}"),))
    old = [PageTrace(trial("a", number, 1), passed) for number in range(2)]
    new = [PageTrace(trial("a", 0, 0), failed, (finding,), failure), PageTrace(trial("a", 1, 1), passed)]
    return old, new


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Opened]:
    """The page of a run that is discarded because it breaks a rule."""
    broken = {Invariant.AUTHENTICATION: 1}
    new = {**NEW, "a": [trial("a", number, 0, invariants=broken) for number in range(3)]}
    verdict = summary().suites[0].verdicts[0]
    verdict = verdict.model_copy(
        update={"checks": (*verdict.checks, check("invariants", CheckStatus.FAIL, "authentication 0 → 3"))}
    )
    facts = PageFacts((suite(OLD, new, traces={"a": traces(), "b": traces()}, tags={"a": ("refund",)}),))
    run = summary(verdict)
    write_page(tmp_path / "page.html", run, facts)
    page = Opened(browser, tmp_path / "page.html")
    yield page
    assert page.complaints == []
    assert page.requests == [page.url]
    page.tab.close()


def test_the_first_task_opens_at_the_message_that_breaks_the_rule(opened: Opened) -> None:
    opened.tab.click(".look >> nth=0")
    opened.tab.wait_for_selector("summary:focus")
    focused = opened.tab.evaluate("document.activeElement.parentElement.innerText")
    assert "2 assistant" in focused
    assert "breaks authentication: get_order of 'x'" in focused
    assert opened.tab.get_attribute("#task-0 .open", "aria-expanded") == "true"


def test_both_traces_are_aligned_and_the_first_difference_is_marked(opened: Opened) -> None:
    cards = opened.tab.locator(".pair-grid > .message, .pair-grid > .gap")
    names = [card.get_attribute("aria-label") for card in cards.all()]
    assert names == [
        *("baseline message 0, assistant", "candidate message 0, assistant"),
        *("baseline message 1, user", "candidate message 1, user"),
        *("baseline message 2, assistant", None),
        *("baseline message 3, result of find_user", None),
        *("baseline message 4, assistant", "candidate message 2, assistant"),
        *("baseline message 5, result of get_order", "candidate message 3, result of get_order"),
        *("baseline message 6, assistant", "candidate message 4, assistant"),
    ]
    assert [text.split()[0] for text in opened.texts(".diverges > summary")] == ["2", "2"]
    assert opened.texts(".side-head .good, .side-head > .bad")[:2] == ["reward 1", "reward 0"]
    assert '✗ action check close {"text": "x"}' in opened.texts(".gold p")


def test_another_trial_can_be_chosen(opened: Opened) -> None:
    opened.tab.select_option("[aria-label='candidate trial']", label="trial 1: 1")
    assert opened.texts(".side-head > .bad") == []
    assert opened.tab.locator(".diverges").count() == 0


def test_tasks_are_filtered_and_sorted(opened: Opened) -> None:
    names = "#tasks tbody tr[id] > th bdi"
    assert opened.texts(names) == ["a", "b", "e", "f", "d", "g", "c"]
    opened.tab.click("thead button >> text=candidate")
    assert opened.texts(names) == ["e", "a", "b", "f", "d", "g", "c"]
    opened.tab.click("thead button >> text=candidate")
    assert opened.texts(names)[-1] == "e"
    assert opened.tab.get_attribute("th:has(button:text('candidate'))", "aria-sort") == "descending"
    opened.tab.select_option("#state", "fixed")
    assert opened.texts(names) == ["c"]
    assert opened.texts("#shown") == ["1 of 7 tasks"]
    opened.tab.select_option("#state", "")
    opened.tab.select_option("#tag", "refund")
    assert opened.texts(names) == ["a"]
    opened.tab.select_option("#tag", "")
    opened.tab.fill("#find", "F")
    assert opened.texts(names) == ["f"]


def test_a_task_opens_and_closes_by_keyboard(opened: Opened) -> None:
    button = opened.tab.locator("#task-1 .open")
    opened.tab.locator("#task-0 .open").focus()
    opened.tab.keyboard.press("Enter")
    assert opened.tab.get_attribute("#task-0 .open", "aria-expanded") == "false"
    opened.tab.keyboard.press("Tab")
    assert button.evaluate("element => element === document.activeElement")
    assert button.evaluate("element => getComputedStyle(element).outlineStyle") == "solid"
    opened.tab.keyboard.press("Enter")
    opened.tab.wait_for_selector(".viewer:visible .message")
    assert button.get_attribute("aria-expanded") == "true"


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "light"), (390, "dark")])
def test_nothing_is_wider_than_the_window(opened: Opened, browser: Any, width: int, scheme: str) -> None:
    page = Opened(browser, Path(opened.url.removeprefix("file://")), width, color_scheme=scheme)
    page.tab.wait_for_selector(".message")
    assert page.tab.evaluate("document.documentElement.scrollWidth") == width
    assert page.tab.evaluate("document.querySelector('.viewer').getBoundingClientRect().right") <= width
    page.picture(f"page-{width}-{scheme}")
    page.tab.close()


def test_the_printed_page_has_no_controls(opened: Opened) -> None:
    opened.tab.emulate_media(media="print")
    assert opened.texts("#filters") == []
    assert opened.texts("h1") != []


def hostile_page(path: Path) -> None:
    """Write a page whose every name and text is hostile."""
    records = [(trial(text, 0, 1), trial(text, 0, 0)) for text in STRINGS]
    sides = [{record.task_id: [record] for record in side} for side in zip(*records, strict=True)]
    data = suite(
        *sides,
        tags={text: (text,) for text in STRINGS},
        traces={text: traces(text) for text in STRINGS},
        splits={text: frozenset([text]) for text in STRINGS[:5]},
    )
    verdict = Verdict(
        **{
            **dict(HELDOUT),
            "decision": Decision.DISCARD,
            "split": None,
            "policy": STRINGS[0],
            "reason": STRINGS[1],
            "checks": tuple(
                reward(CheckStatus.FAIL, 0.1, 0.5, text).model_copy(update={"detail": text})
                for text in STRINGS
            ),
            "broken": STRINGS,
            "suspected": STRINGS,
            "left_out": STRINGS,
            "unclean": STRINGS[2],
        }
    )
    item = SuiteSummary(name="desk", baseline=STRINGS[3], verdicts=(verdict,), left_out=STRINGS)
    run = RunSummary(
        candidate=STRINGS[0],
        decision=Decision.DISCARD,
        suites=(item,),
        changes=STRINGS,
        notes=STRINGS,
        used=STRINGS[4],
        command=STRINGS,
        run_id=STRINGS[5],
        evidence=STRINGS[6],
    )
    changes = tuple((text, (f"+{text}", f"-{text}")) for text in STRINGS)
    write_page(path, run, PageFacts((data,), changes))


ELEMENTS = (
    "[...document.querySelectorAll('script:not([type]), iframe, img, link, object, base, form, a, embed')]"
)


def test_no_hostile_text_acts_or_leaves_its_cell(browser: Any, tmp_path: Path) -> None:
    assert len(STRINGS) >= 60
    hostile_page(tmp_path / "page.html")
    page = Opened(browser, tmp_path / "page.html")
    page.tab.wait_for_selector(".message")
    page.tab.evaluate(
        "document.querySelectorAll('.open[aria-expanded=false]').forEach(button => button.click())"
    )
    page.tab.wait_for_selector(f".pair-grid >> nth={len(STRINGS) - 1}", state="attached")
    page.tab.evaluate("document.querySelectorAll('details').forEach(element => { element.open = true; })")
    page.tab.mouse.move(400, 400)
    assert page.tab.evaluate(f"{ELEMENTS}.map(element => element.tagName)") == ["FORM", "SCRIPT"]
    assert page.tab.evaluate("window.hacked") is None
    assert page.tab.evaluate("location.href") == page.url
    shown = page.tab.evaluate("document.body.innerText")
    assert not set(shown) & set("\u202e\u202c\u2066\u2069\u200f\x1b\x9b\x00\x01\u2028")
    wide = page.tab.evaluate(
        "[...document.querySelectorAll('th, td, dd, li, .check > span, pre')]"
        ".filter(cell => cell.scrollWidth > cell.clientWidth + 1 && cell.offsetParent)"
        ".map(cell => cell.innerText.slice(0, 60))"
    )
    assert wide == []
    assert page.complaints == []
    assert page.requests == [page.url]
    page.tab.close()


def test_recorded_runs_open_at_the_first_unauthenticated_read(
    browser: Any, tmp_path: Path, recorded: Path
) -> None:
    from pytest_trace2evolve.cli.main import main

    sides = [str(recorded / f"retail-gpt-4.1-mini-{name}.json.gz") for name in ("base", "policy-v2")]
    assert main(["compare", *sides, "--report", str(tmp_path / "page.html")]) == 1
    page = Opened(browser, tmp_path / "page.html")
    first = page.texts(".first li")[0]
    assert "authentication" in first
    assert "before any customer was identified" in first
    page.tab.click(".look >> nth=0")
    page.tab.wait_for_selector("summary:focus")
    assert "breaks authentication" in page.tab.evaluate("document.activeElement.parentElement.innerText")
    for width in (1280, 390):
        page.tab.set_viewport_size({"width": width, "height": 900})
        assert page.tab.evaluate("document.documentElement.scrollWidth") == width
        page.picture(f"retail-{width}")
    assert page.complaints == []
    page.tab.close()
