"""Entries of the ledger: accesses, draws of sealed splits, traces, verdicts, saved baselines, and repairs.

The name of an entry is the digest of its content, and the entry lists the names of the entries before it.
This reveals a changed entry, and a missing entry that others name.
"""

from datetime import date, datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, AwareDatetime, Field, TypeAdapter, model_validator

from pytest_trace2evolve.records.base import Count, Later, LaterTuple, Record
from pytest_trace2evolve.records.verdict import Decision, Goal, Label
from pytest_trace2evolve.utils.canonical import digest

LEDGER_SCHEMA: Final = 1
"""Version of the format of entries; an entry of a different version is reported and not read."""

ENTRY_NAME_PATTERN = r"^[0-9a-f]{32}$"
"""The pattern of an entry's name, which is a digest (see `utils.canonical.digest`)."""

EntryName = Annotated[str, Field(pattern=ENTRY_NAME_PATTERN)]
NonEmptyText = Annotated[str, Field(min_length=1)]


def _check_utc(time: datetime) -> datetime:
    if time.utcoffset() != timedelta(0):
        raise ValueError("a time must be in UTC")
    return time


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
    """The beginning of a ledger, which distinguishes its entries from those of a different project.

    `origin` is derived from the repository's first commit, so two branches that both begin a ledger begin the
    same one. Without such a commit, `origin` is random.
    """

    kind: Literal["root"] = "root"
    origin: NonEmptyText


class DatedEntry(Entry):
    """Base of all entries but the root.

    Attributes:
        root: The name of the ledger's root.
        parents: The names of the entries that no other entry named when this entry was written, sorted.
        at: The time when the entry was written, in UTC.
        ahead: Parents that are dated well after this entry, because of a wrong clock; in older files.
    """

    root: EntryName
    parents: tuple[EntryName, ...] = Field(min_length=1)
    at: UtcTime
    ahead: LaterTuple[EntryName] = ()


class Access(DatedEntry):
    """Records that traces of a task were opened.

    Attributes:
        domain: The task's domain, by which later suites that hold the task are found.
        suite, split: The suite and the split of the task at that time.
        trials: The trials whose traces were shown.
        run: The name of the run or file that holds the traces.
        who: The person's account.
        day: The day on that machine's calendar, which may differ from the day of `at`.
    """

    kind: Literal["look"] = "look"
    domain: NonEmptyText
    suite: NonEmptyText
    split: NonEmptyText
    task: NonEmptyText
    trials: tuple[int, ...]
    run: NonEmptyText
    who: NonEmptyText
    day: date

    @model_validator(mode="after")
    def _check_day(self) -> Self:
        if abs(self.day - self.at.date()) > timedelta(days=1):
            raise ValueError(f"the day {self.day} does not match the date {self.at:%Y-%m-%d}")
        return self

    @property
    def first_day(self) -> date:
        """The earliest possible day of the access; a candidate frozen on that day may have changed later."""
        return min(self.day, self.at.date())


class ContentVersion(Record):
    """A candidate or a baseline, with the digest of its content, which may change under the same id."""

    id: NonEmptyText
    digest: NonEmptyText


class BaselineSave(DatedEntry):
    """Records that a baseline was saved, updated, extended or promoted.

    Attributes:
        baseline: The baseline's name, and the digest of all its evidence (see `baselines.evidence_digest`).
        replaces: The digest of the evidence that the new evidence replaced.
        run: The run that measured the baseline, or the last of several runs.
    """

    kind: Literal["baseline"] = "baseline"
    suite: NonEmptyText
    baseline: ContentVersion
    replaces: NonEmptyText | None = None
    run: NonEmptyText


class Repair(DatedEntry):
    """Records that a person accepted damage to the ledger. Exactly the listed problems no longer count.

    Attributes:
        who, day: As in `Access`.
        problems: The problems, as `trace2evolve ledger` printed them.
        files: Digests of the damaged files, by the names of their entries; None if a file is missing.
        lost: The number of unreadable entries that may have been tests. Each counts as a test.
        locks: The locks of suites under which the lost entries may have been tests.
    """

    kind: Literal["repair"] = "repair"
    who: NonEmptyText
    day: date
    problems: tuple[NonEmptyText, ...] = Field(min_length=1)
    files: dict[str, NonEmptyText | None] = Field(default_factory=dict)
    lost: Count = 0
    locks: tuple[NonEmptyText, ...] = ()

    def accepts(self, name: str, file_digest: str | None) -> bool:
        """Whether the repair accepted the damage of an entry.

        Args:
            name: The entry's name.
            file_digest: The digest of the entry's file; None if the file is missing.
        """
        return name in self.files and self.files[name] == file_digest


class DrawOrigin(StrEnum):
    """How the simulations of a draw were made. This determines which later runs may read them."""

    KEPT = "kept"
    """The first draw of a store, which every run without `--t2e-fresh` reads."""
    FRESH = "fresh"
    """Made by `--t2e-fresh` or `--t2e-record`, apart from the simulations of the store."""
    CACHED = "cached"
    """Like `fresh`, with answers that later runs may take from the cache."""
    PLAYED = "played"
    """Played from a cassette."""
    RESUMABLE = "resumable"
    """Made by the project's own agent, and read only by runs that resume an interrupted run."""
    UNSTORED = "unstored"
    """Made by an agent whose simulations are not stored, so each run makes its own."""


class Draw(DatedEntry):
    """Records that simulations of a candidate on a sealed split were made and could be seen.

    A draw is one set of simulations of one candidate and one agent. It is recorded before its first
    simulation is stored or shown, once for every lock and number of trials, whether or not a gate judges it.

    Attributes:
        lock, candidate, agent: As in `Evaluation`.
        draw: The id of the draw. A draw that several runs complete keeps its id.
        run: The run that began the draw.
        gated: Whether the run that began the draw has a gate and a baseline.
        whole: Whether the run that began the draw selected all tasks of the split.
        trials: The run's trials per task, up to its last stage; None in entries of older versions.
    """

    kind: Literal["draw"] = "draw"
    suite: NonEmptyText
    split: NonEmptyText
    lock: NonEmptyText
    candidate: ContentVersion
    agent: NonEmptyText
    draw: EntryName
    made: DrawOrigin
    gated: bool
    whole: bool
    run: NonEmptyText
    trials: Later[Count] = None


class TracesEntry(DatedEntry):
    """Records the traces of a suite that a run left in its folder, after it drew a sealed split.

    Killed runs and runs of older versions have no such entry.

    Attributes:
        digest: Digest of the folder's results (see `results.traces_digest`).
        draw, account: The draw of the store that the run completed, and the digest of its account's lines;
            set by earlier versions.
    """

    kind: Literal["traces"] = "traces"
    suite: NonEmptyText
    run: NonEmptyText
    digest: NonEmptyText
    draw: EntryName | None = None
    account: NonEmptyText | None = None


class Evaluation(DatedEntry):
    """Records the gate's decision on a candidate, on a whole split that decides.

    Fields that older versions did not record are None in their entries.

    Attributes:
        lock: The digest of the suite's lock.
        candidate: The judged candidate.
        ancestors: The candidate's ancestors, nearest first.
        agent: Digest of the settings of the agent that carried out the candidate's instruction.
        baseline: The baseline, with the digest of its evidence on the split.
        baseline_identity: Digest of the candidate, agent and lock of the baseline. It stays the same if the
            baseline is measured again. If one of the three was not recorded, this is the digest of the
            baseline's evidence.
        policy: The policy of the gate.
        goal: The claim.
        trials: The candidate's trials of a task; the smallest number if tasks differ.
        decision: The gate's answer.
        label: The kind of evidence that the answer rests on.
        look: The test number of this clean claim on the split; None without a clean claim.
        analysis: The number of the analysis within the test. Each analysis has more trials than the one
            before. None without a clean claim. A clean claim without this number has spent the whole level of
            its test.
        alpha: The level of the checks; None if the policy states none, or if no level was spent, because too
            little was measured for a promotion or the goal is `no-regression`.
        repeats: The earlier entry of the same claim, whose verdict stood when this run repeated it. A repeat
            spends no level. Its decision is the worse of that verdict and the verdict on its own figures.
        baseline_evidence: Digest of all evidence of the baseline, in all splits.
        evidence: Digest of the run's evidence on the suite, in all splits.
        verdict: Digest of the run's `verdict.json`.
        draw: The draw that was judged; None if there was none or if it is not known.
        figures: The measured figures of both sides, by name, and the numbers of fixed and broken tasks.
    """

    kind: Literal["evaluation"] = "evaluation"
    suite: NonEmptyText
    split: NonEmptyText
    lock: NonEmptyText
    candidate: ContentVersion
    ancestors: tuple[ContentVersion, ...] = ()
    agent: NonEmptyText
    baseline: ContentVersion
    baseline_identity: Later[NonEmptyText] = None
    policy: NonEmptyText
    goal: Goal
    trials: Count
    decision: Decision
    label: Label
    look: Annotated[int, Field(ge=1)] | None = None
    analysis: Later[Annotated[int, Field(ge=1)]] = None
    alpha: Annotated[float, Field(gt=0, lt=1)] | None = None
    repeats: EntryName | None = None
    run: NonEmptyText
    baseline_evidence: Later[NonEmptyText] = None
    evidence: Later[NonEmptyText] = None
    verdict: Later[NonEmptyText] = None
    draw: Later[EntryName] = None
    figures: Later[dict[str, float]] = None

    @model_validator(mode="after")
    def _check_test_number(self) -> Self:
        if (self.look is not None) != self.claims_clean:
            raise ValueError(
                f"look {self.look!r} does not match goal {self.goal.value} and label {self.label.value}"
            )
        if self.analysis is not None and self.look is None:
            raise ValueError(f"analysis {self.analysis} is set, but look is not")
        if self.goal is Goal.NO_REGRESSION and self.label is Label.CLEAN:
            raise ValueError(f"label {self.label.value} with goal {self.goal.value}, which claims nothing")
        return self

    @property
    def claims_clean(self) -> bool:
        """Whether it claims an improvement on clean evidence. Only such claims are counted as tests."""
        return self.goal is Goal.IMPROVE and self.label is Label.CLEAN

    @property
    def has_verdict(self) -> bool:
        """Whether the run measured enough for a verdict; if not, it has spent no level.

        An inconclusive verdict of a policy without a level counts as a lack of data.
        """
        return self.alpha is not None or self.decision is not Decision.INCONCLUSIVE

    @property
    def versions(self) -> tuple[ContentVersion, ...]:
        return (self.candidate, *self.ancestors)


AnyEntry = Root | Access | Draw | TracesEntry | Evaluation | BaselineSave | Repair
ENTRY_ADAPTER: TypeAdapter[AnyEntry] = TypeAdapter(Annotated[AnyEntry, Field(discriminator="kind")])
"""Validates entries of any kind."""
