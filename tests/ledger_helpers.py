"""Builders shared by the tests of the ledger, of labels and of the numbers of tests."""

from datetime import UTC, date, datetime, timedelta
from typing import Any

from hypothesis import strategies as st

from pytest_trace2evolve.records.ledger import Access, ContentVersion, DatedEntry, Evaluation, Root
from pytest_trace2evolve.records.verdict import Decision, Goal, Label

ROOT = Root(origin="a project")
START = datetime(2026, 11, 20, 10, 0, tzinfo=UTC)


def at(minutes: float = 0, days: int = 0) -> datetime:
    """A time after the start."""
    return START + timedelta(minutes=minutes, days=days)


def seen(
    moment: datetime = START,
    *,
    parents: tuple[str, ...] = (),
    root: str = ROOT.name,
    day: date | None = None,
    **further: Any,
) -> Access:
    """A look at task `close` of desk::heldout."""
    fields = {
        "domain": "desk",
        "suite": "desk",
        "split": "heldout",
        "task": "close",
        "trials": (0,),
        "run": "run-1",
        "who": "ann",
    }
    return Access(
        root=root, parents=parents or (root,), at=moment, day=day or moment.date(), **{**fields, **further}
    )


def judged(
    moment: datetime = START,
    *,
    name: str = "v1",
    text: str | None = None,
    parents: tuple[str, ...] = (),
    root: str = ROOT.name,
    **further: Any,
) -> Evaluation:
    """A clean claim on desk::heldout, promoted in the first analysis of test 1 under a policy with α."""
    fields: dict[str, Any] = {
        "suite": "desk",
        "split": "heldout",
        "lock": "lock-1",
        "candidate": ContentVersion(id=name, digest=text or f"text of {name}"),
        "agent": "agent",
        "baseline": ContentVersion(id="v0", digest="evidence of v0"),
        "baseline_identity": "who v0 is",
        "policy": "calibrated",
        "goal": Goal.IMPROVE,
        "trials": 4,
        "decision": Decision.PROMOTE,
        "label": Label.CLEAN,
        "look": 1,
        "analysis": 1,
        "alpha": 0.03,
        "run": f"run of {name} at {moment}",
    }
    fields |= further
    if fields["goal"] is Goal.NO_REGRESSION and fields["label"] is Label.CLEAN:
        fields["label"] = Label.DEVELOPMENT
    if fields["goal"] is not Goal.IMPROVE or fields["label"] is not Label.CLEAN:
        fields |= {"look": None, "analysis": None}
    return Evaluation(root=root, parents=parents or (root,), at=moment, **fields)


def chained(*makes: Any) -> list[DatedEntry]:
    """Entries of `seen` and `judged` calls given as (function, keywords), each after the one before."""
    entries: list[DatedEntry] = []
    for number, (make, fields) in enumerate(makes):
        parents = (entries[-1].name,) if entries else ()
        entries.append(make(at(number), parents=parents, **fields))
    return entries


@st.composite
def ledgers(draw: st.DrawFn) -> list[DatedEntry]:
    """Entries whose parents are any of those before them: chains, branches and merges."""
    entries: list[DatedEntry] = []
    for number in range(draw(st.integers(1, 7))):
        known = [entry.name for entry in entries]
        wanted = draw(st.lists(st.sampled_from(known), max_size=3, unique=True)) if known else []
        parents = tuple(sorted(wanted or [ROOT.name]))
        moment = at(number, days=draw(st.integers(0, 1)) if not known else 0)
        moment = max([moment, *(at(0.001) - at() + entry.at for entry in entries if entry.name in wanted)])
        if draw(st.booleans()):
            task = draw(st.sampled_from(["close", "other"]))
            entries.append(seen(moment, parents=parents, task=task, run=f"run-{number}"))
            continue
        entries.append(
            judged(
                moment,
                parents=parents,
                name=draw(st.sampled_from(["v1", "v2", "v3"])),
                text=draw(st.sampled_from(["text of v1", "another", "a third"])),
                run=f"run-{number}",
                look=draw(st.integers(1, 4)),
                analysis=draw(st.sampled_from([None, 1, 2])),
                baseline_identity=draw(st.sampled_from([None, "who v0 is"])),
                decision=draw(st.sampled_from(Decision)),
                trials=draw(st.sampled_from([1, 2, 4])),
                alpha=draw(st.sampled_from([None, 0.03])),
                goal=draw(st.sampled_from(Goal)),
                label=draw(st.sampled_from([Label.CLEAN, Label.DEVELOPMENT])),
            )
        )
    return entries
