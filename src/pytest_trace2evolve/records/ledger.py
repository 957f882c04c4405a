"""Entries of the ledger: accesses, draws of sealed splits, traces, verdicts, saved baselines, and repairs.

An entry is named by the digest of its content and names the entries before it. So a changed entry is found,
and so is a missing one that others name.
"""

from datetime import date, datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, AwareDatetime, Field, TypeAdapter, model_validator

from pytest_trace2evolve.records.base import Count, Record
from pytest_trace2evolve.records.verdict import Decision, Goal, Label
from pytest_trace2evolve.utils.canonical import digest

LEDGER_SCHEMA: Final = 1
"""Version of the format of entries; an entry of another version is reported and not read."""

ENTRY_NAME = r"^[0-9a-f]{32}$"
"""The pattern of an entry's name, a `utils.canonical.digest`."""

Name = Annotated[str, Field(pattern=ENTRY_NAME)]
Text = Annotated[str, Field(min_length=1)]


def _check_utc(value: datetime) -> datetime:
    if value.utcoffset() != timedelta(0):
        raise ValueError("a time is written in UTC")
    return value


UtcTime = Annotated[AwareDatetime, AfterValidator(_check_utc)]


class Entry(Record):
    """Base of all entries."""

    schema_version: Literal[1] = LEDGER_SCHEMA

    @property
    def name(self) -> str:
        return digest(self.to_json())

    def to_json(self) -> dict[str, Any]:
        """The entry's content as its file holds it."""
        return self.model_dump(mode="json")


class Root(Entry):
    """The beginning of a ledger, which distinguishes its entries from those of another project.

    `origin` is derived from the repository's first commit, so that two branches that both begin the ledger
    begin the same one; without such a commit it is random.
    """

    kind: Literal["root"] = "root"
    origin: Text


class Dated(Entry):
    """Base of all entries but the root.

    Attributes:
        root: The name of the ledger's root.
        parents: The names of the entries that no other entry named when this one was written, sorted.
        at: When it was written, in UTC.
        ahead: Parents that are dated well after this entry: the clock of their machine, or of this one, was
            wrong.
        earliest: The earliest time at which it can have been written, if an entry after it lists it as
            `ahead`. Derived when the ledger is read, and not part of the entry's file.
    """

    root: Name
    parents: tuple[Name, ...] = Field(min_length=1)
    at: UtcTime
    ahead: tuple[Name, ...] = ()
    earliest: UtcTime | None = Field(default=None, exclude=True)

    def to_json(self) -> dict[str, Any]:
        """The entry's content as its file holds it; `ahead` is left out if it is empty."""
        content = super().to_json()
        return content if self.ahead else {name: value for name, value in content.items() if name != "ahead"}


class Access(Dated):
    """Traces of a task were opened.

    Attributes:
        domain: The task's domain, by which later suites that hold the task are found.
        suite, split: Where the task belonged at that time.
        trials: The trials whose traces were shown.
        run: The name of the run or file that holds the traces.
        who, day: The person's account and the day on that machine's calendar, which may differ from `at`.
    """

    kind: Literal["look"] = "look"
    domain: Text
    suite: Text
    split: Text
    task: Text
    trials: tuple[int, ...]
    run: Text
    who: Text
    day: date

    @model_validator(mode="after")
    def _day_of_its_time(self) -> Self:
        if abs(self.day - self.at.date()) > timedelta(days=1):
            raise ValueError(f"the day {self.day} is not that of {self.at:%Y-%m-%d}")
        return self

    @property
    def first_day(self) -> date:
        """The earliest of its days: a candidate frozen on it may have been changed afterwards."""
        days = [self.day, self.at.date()]
        return min(days if self.earliest is None else [*days, self.earliest.date()])


class Version(Record):
    """Something that may be changed under its name, a candidate or a baseline, with its digest."""

    id: Text
    digest: Text


class BaselineSave(Dated):
    """A baseline was saved, updated, grown or promoted.

    Attributes:
        baseline: Its name, and the digest of all its evidence: see `baselines.evidence_digest`.
        replaces: The digest of the evidence that it replaced.
        run: The run that measured it, or the last of several.
    """

    kind: Literal["baseline"] = "baseline"
    suite: Text
    baseline: Version
    replaces: Text | None = None
    run: Text


class Repair(Dated):
    """A person accepted damage to the ledger. Exactly these problems no longer count.

    Attributes:
        who, day: As in `Access`.
        problems: The problems, as `trace2evolve ledger` printed them.
        files: Digests of the damaged files, by the names of their entries; None if a file is missing.
        lost: How many entries may have been tests and cannot be read. Each counts as a test.
        locks: The locks of suites under which they may have been tests.
    """

    kind: Literal["repair"] = "repair"
    who: Text
    day: date
    problems: tuple[Text, ...] = Field(min_length=1)
    files: dict[str, Text | None] = Field(default_factory=dict)
    lost: Count = 0
    locks: tuple[Text, ...] = ()

    def accepts(self, name: str, file: str | None) -> bool:
        """Whether it accepted the damage of an entry whose file has this digest; None if it is missing."""
        return name in self.files and self.files[name] == file


class Origin(StrEnum):
    """How the simulations of a draw were made, and so which later runs may read them."""

    KEPT = "kept"
    """The first of a store: every run without `--t2e-fresh` reads them."""
    FRESH = "fresh"
    """By `--t2e-fresh` or `--t2e-record`, apart from those of the store."""
    CACHED = "cached"
    """As `fresh`, with answers that later runs may take from the cache."""
    PLAYED = "played"
    """From a cassette."""
    UNSTORED = "unstored"
    """By an agent whose simulations are not stored: each run makes its own."""


class Draw(Dated):
    """Simulations of a candidate on a sealed split were made, and could be seen.

    A draw is one set of simulations of one candidate and one agent. It is recorded before its first
    simulation is stored or shown, once for every lock, whether or not a gate judges it.

    Attributes:
        lock, candidate, agent: As in `Evaluation`.
        draw: The id of the draw. A draw that several runs complete keeps its id.
        run: The run that began it.
        gated: Whether that run has a gate and a baseline.
        whole: Whether it selected all tasks of the split.
    """

    kind: Literal["draw"] = "draw"
    suite: Text
    split: Text
    lock: Text
    candidate: Version
    agent: Text
    draw: Name
    made: Origin
    gated: bool
    whole: bool
    run: Text


class Traces(Dated):
    """A run that drew a sealed split ended, and left the traces of a suite in its folder.

    A run that was killed has no such entry, nor have runs of older versions.

    Attributes:
        digest: Digest of the folder's results: see `results.traces_digest`.
        draw: The draw of the store that it read and completed; None if its simulations are not stored.
        account: The digest that all lines of the draw's account had then.
    """

    kind: Literal["traces"] = "traces"
    suite: Text
    run: Text
    digest: Text
    draw: Name | None = None
    account: Text | None = None


_ADDED_LATER = ("baseline_identity", "analysis", "baseline_evidence", "evidence", "verdict", "draw")
"""Fields of an evaluation that the first version did not have."""


class Evaluation(Dated):
    """A candidate was judged on a whole split that decides.

    Fields that are None without another reason are missing from entries of older versions.

    Attributes:
        lock: The digest of the suite's lock.
        candidate, ancestors: The candidate, and its ancestors, nearest first.
        agent: Digest of the settings of the agent that carried out the candidate's instruction.
        baseline: What it was compared with; its digest is that of the split's evidence.
        baseline_identity: Digest of the candidate, agent and lock of the baseline: it stays the same if the
            baseline is measured again. The digest of its evidence if they were not recorded.
        policy, goal: By which rule, and what was claimed.
        trials: The candidate's trials of a task; the smallest number if tasks differ.
        decision, label: The gate's answer, and what kind of evidence it rests on.
        look: The number of the test that this clean claim is of the split; None without a clean claim.
        analysis: The number of the analysis within the test: each has more trials than those before. None
            without a clean claim. An entry without it has spent the whole level of its test.
        alpha: The level of the checks; None if the policy states none, or if none was spent: too little was
            measured for a promotion, or the goal is `no-regression`.
        repeats: The entry of the same claim whose verdict stood when this run repeated it. A repeat spends no
            level, and its decision is the worse of that verdict and of its own figures.
        baseline_evidence: Digest of all evidence of the baseline, in all splits.
        evidence: Digest of the run's evidence on the suite, in all splits.
        verdict: Digest of the run's `verdict.json`.
        draw: The draw that was judged; None if it is not known, too.
    """

    kind: Literal["evaluation"] = "evaluation"
    suite: Text
    split: Text
    lock: Text
    candidate: Version
    ancestors: tuple[Version, ...] = ()
    agent: Text
    baseline: Version
    baseline_identity: Text | None = None
    policy: Text
    goal: Goal
    trials: Count
    decision: Decision
    label: Label
    look: Annotated[int, Field(ge=1)] | None = None
    analysis: Annotated[int, Field(ge=1)] | None = None
    alpha: Annotated[float, Field(gt=0, lt=1)] | None = None
    repeats: Name | None = None
    run: Text
    baseline_evidence: Text | None = None
    evidence: Text | None = None
    verdict: Text | None = None
    draw: Name | None = None

    @model_validator(mode="after")
    def _numbered_if_it_claims(self) -> Self:
        if (self.look is not None) != self.claims_clean:
            raise ValueError(f"look {self.look!r} with goal {self.goal.value} and label {self.label.value}")
        if self.analysis is not None and self.look is None:
            raise ValueError(f"analysis {self.analysis} of no test: look is not set")
        if self.goal is Goal.NO_REGRESSION and self.label is Label.CLEAN:
            raise ValueError(f"label {self.label.value} with goal {self.goal.value}, which claims nothing")
        return self

    def to_json(self) -> dict[str, Any]:
        """The entry's content as its file holds it.

        Fields that were added later are left out if they are not set: an entry's name is the digest of its
        content, so that of an older entry stays the same.
        """
        content = super().to_json()
        absent = {name for name in _ADDED_LATER if content[name] is None}
        return {name: value for name, value in content.items() if name not in absent}

    @property
    def claims_clean(self) -> bool:
        """Whether it claims an improvement on clean evidence: only such claims are counted."""
        return self.goal is Goal.IMPROVE and self.label is Label.CLEAN

    @property
    def has_verdict(self) -> bool:
        """Whether the run measured enough for a verdict; if not, it has spent nothing.

        An inconclusive verdict of a policy without a level counts as one for lack of data.
        """
        return self.alpha is not None or self.decision is not Decision.INCONCLUSIVE

    @property
    def versions(self) -> tuple[Version, ...]:
        return (self.candidate, *self.ancestors)


AnyEntry = Root | Access | Draw | Traces | Evaluation | BaselineSave | Repair
ENTRIES: TypeAdapter[AnyEntry] = TypeAdapter(Annotated[AnyEntry, Field(discriminator="kind")])
"""Reads an entry of any kind."""
