"""The report page: what it shows, in which order, and that nothing in it acts."""

import re
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_trace2evolve.records.evidence import Evidence, Provenance, SimulationEvidence
from pytest_trace2evolve.records.rules import Invariant
from pytest_trace2evolve.records.score import Status
from pytest_trace2evolve.records.trace import Simulation
from pytest_trace2evolve.records.verdict import CheckStatus, Decision, RunSummary, SuiteSummary, Verdict
from pytest_trace2evolve.report.page import page_html, task_rows
from pytest_trace2evolve.report.page_traces import pack_traces
from pytest_trace2evolve.session.page_data import PageFacts, PageSuite, PageTrace
from tests.hostile import HOSTILE
from tests.report.test_github_laws import SUMMARIES, TEXTS
from tests.report.test_verdict import HELDOUT, RUNS, check

ACTIVE = {"script", "style", "meta"}
"""Elements of the page that could act if a text made one of them."""


class Reader(HTMLParser):
    """Collects the elements and the texts of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


def trial(task: str, number: int, reward: float | None, **fields: object) -> SimulationEvidence:
    status = Status.INFRASTRUCTURE_ERROR if reward is None else Status.MEASURED
    return SimulationEvidence.model_validate(
        {
            "id": f"{task}-{number}",
            "task_id": task,
            "trial": number,
            "status": status,
            "reward": reward,
            "termination_reason": "user_stop",
            "task_digest": "d",
            **fields,
        }
    )


def suite(
    baseline: dict[str, list[SimulationEvidence]],
    candidate: dict[str, list[SimulationEvidence]],
    **fields: object,
) -> PageSuite:
    sides = [
        Evidence(
            provenance=Provenance(domain="desk", provider="fake"),
            simulations=tuple(record for records in side.values() for record in records),
        )
        for side in (baseline, candidate)
    ]
    return PageSuite("desk", *sides, **fields)  # type: ignore[arg-type]


def side(**rewards: tuple[float | None, ...]) -> dict[str, list[SimulationEvidence]]:
    return {
        task: [trial(task, number, reward) for number, reward in enumerate(values)]
        for task, values in rewards.items()
    }


OLD = side(a=(1, 1, 1), b=(1, 1, 0), c=(0, 0, 0), d=(1, 1, 1), e=(1, 1, 1), f=(1, 1, 1), g=(1, 0, 0))
NEW = side(a=(0, 0, 0), b=(0, 0, 0), c=(1, 1, 1), d=(1, 1, 1), e=(None,) * 3, f=(1, 1, 0), g=(1, 1, 1))
DESK = Verdict(
    **{
        **dict(HELDOUT),
        "suite": "desk",
        "decision": Decision.DISCARD,
        "broken": ("a", "b"),
        "regressions": ("a",),
        "suspected": ("b",),
        "fixed": ("c",),
    }
)


def summary(verdict: Verdict = DESK) -> RunSummary:
    suites = (SuiteSummary(name="desk", baseline="v0", verdicts=(verdict,)),)
    return RunSummary(candidate="v1", decision=verdict.decision, suites=suites)


def page(*suites: PageSuite) -> str:
    return page_html(summary(), PageFacts(suites))


def test_tasks_are_sorted_by_regression_with_the_counts_of_both_sides() -> None:
    rows = task_rows(summary(), [suite(OLD, NEW)])
    assert [(row.task, row.state, row.baseline.text, row.candidate.text) for row in rows] == [
        ("a", "confirmed", "3/3", "0/3"),
        ("b", "suspected", "2/3", "0/3"),
        ("e", "lost", "3/3", "– (3 lost)"),
        ("f", "lower", "3/3", "2/3"),
        ("d", "same", "3/3", "3/3"),
        ("g", "higher", "1/3", "3/3"),
        ("c", "fixed", "0/3", "3/3"),
    ]


@pytest.mark.parametrize(
    ("name", "fault", "fields"),
    [
        ("invariants", "authentication", {"invariants": {Invariant.AUTHENTICATION: 2}}),
        ("max_steps", "max_steps", {"termination_reason": "max_steps"}),
        ("agent_errors", "agent_error", {"termination_reason": "agent_error"}),
    ],
)
def test_a_verdict_on_faults_puts_the_tasks_first_that_have_them_newly(
    name: str, fault: str, fields: dict[str, object]
) -> None:
    new = side(**dict.fromkeys("abcdefg", (1, 1, 1)))
    new["f"] = [trial("f", number, 1, **fields) for number in range(3)]
    verdict = DESK.model_copy(
        update={
            "checks": (check(name, CheckStatus.FAIL, "0 → 3", estimate=0.1),),
            **dict.fromkeys(("broken", "regressions", "suspected", "fixed"), ()),
        }
    )
    rows = task_rows(summary(verdict), [suite(OLD, new)])
    assert (rows[0].task, rows[0].state, rows[0].faults) == ("f", "fault", (fault,))


def test_the_page_shows_verdict_checks_and_tasks() -> None:
    text = Reader(page(suite(OLD, NEW, tags={"a": ("refund", "critical")}))).text
    for expected in (
        "discard confirmed regressions: a; v1 fails the gate",
        "clean evidence · policy calibrated · goal improve · test 1, level 0.0228",
        "reward undecided −2.4 (−7.4…+2.8)",
        "a refund critical confirmed regression 3/3 → 0/3",
    ):
        assert expected in text


def test_only_the_script_and_the_style_of_the_package_are_permitted() -> None:
    text = page(suite(OLD, NEW))
    policy = next(
        attributes["content"] or ""
        for tag, attributes in Reader(text).elements
        if attributes.get("http-equiv") == "Content-Security-Policy"
    )
    assert re.fullmatch(
        r"default-src 'none'; base-uri 'none'; form-action 'none'; script-src 'sha256-[\w+/=]+'; "
        r"style-src 'sha256-[\w+/=]+'",
        policy,
    )
    assert "style=" not in text


RECORDS = st.lists(
    st.builds(trial, st.sampled_from(["a", *HOSTILE]), st.integers(0, 3), st.sampled_from([0.0, 1.0, None])),
    max_size=6,
    unique_by=(lambda record: (record.task_id, record.trial), lambda record: record.id),
)


@settings(max_examples=60)
@given(SUMMARIES, RECORDS, RECORDS, st.dictionaries(st.sampled_from(HOSTILE), st.tuples(TEXTS)))
def test_no_text_of_a_run_becomes_an_element_or_an_attribute_that_acts(
    run: RunSummary, old: list[SimulationEvidence], new: list[SimulationEvidence], tags: dict[str, tuple[str]]
) -> None:
    data = [
        PageSuite(
            item.name,
            *(
                Evidence(provenance=Provenance(domain="d", provider="p"), simulations=tuple(records))
                for records in (old, new)
            ),
            tags=tags,
        )
        for item in run.suites
    ]
    text = page_html(run, PageFacts(tuple(data)))
    text.encode("utf-8")
    elements = Reader(text).elements
    assert [tag for tag, _ in elements if tag in ACTIVE] == ["meta"] * 5 + ["style", "script"]
    names = {name for _, attributes in elements for name in attributes}
    assert not {name for name in names if name.startswith("on") or name in ("href", "src", "style", "srcset")}
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u200b-\u200f\u202a-\u202e\u2066-\u2069]", text)


def test_traces_that_do_not_fit_are_left_out_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = Simulation(id="s", task_id="a", termination_reason="user_stop", messages=[])
    shown = ([], [PageTrace(trial("a", 0, 0), simulation)])
    data = suite(OLD, NEW, traces=dict.fromkeys("abc", shown))
    size = len(pack_traces(shown))
    monkeypatch.setattr("pytest_trace2evolve.report.page.MAX_BYTES", size)
    reader = Reader(page(data))
    packed = [fields["id"] for _, fields in reader.elements if fields.get("type") == "text/plain"]
    assert packed == ["trace-0"]
    assert "The traces of 2 further tasks do not fit into the page" in reader.text


@pytest.mark.parametrize("name", RUNS)
def test_every_kind_of_run_has_a_page_with_its_claim(name: str) -> None:
    run, _ = RUNS[name]
    text = Reader(page_html(run, PageFacts(()))).text
    assert (run.decision.value if run.decision and not run.trouble else "no verdict") in text
    for item in run.suites:
        assert all(verdict.split is None or verdict.split in text for verdict in item.verdicts)
