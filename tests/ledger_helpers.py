"""Builders shared by the tests of the ledger, of labels and of the numbers of tests."""

from datetime import UTC, date, datetime, timedelta
from typing import Any

from pytest_trace2evolve.records.ledger import Dated, Evaluation, Root, Seen, Version
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
) -> Seen:
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
    return Seen(
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
        "candidate": Version(id=name, digest=text or f"text of {name}"),
        "agent": "agent",
        "baseline": Version(id="v0", digest="evidence of v0"),
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


def chained(*makes: Any) -> list[Dated]:
    """Entries of `seen` and `judged` calls given as (function, keywords), each after the one before."""
    entries: list[Dated] = []
    for number, (make, fields) in enumerate(makes):
        parents = (entries[-1].name,) if entries else ()
        entries.append(make(at(number), parents=parents, **fields))
    return entries
