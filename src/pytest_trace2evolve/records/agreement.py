"""The agreement of a judge with hand labels on one judged check."""

from pydantic import Field

from pytest_trace2evolve.records.base import Count, Record
from pytest_trace2evolve.records.verdict import Interval
from pytest_trace2evolve.utils.canonical import digest

AGREEMENT_SCHEMA = 1
"""Version of the file; a file of a different version is rejected."""

MIN_KAPPA = 0.6
"""The smallest lower bound of Cohen's kappa with which a judged check may decide. Landis and Koch (1977) call
agreement above this value substantial."""


class JudgeIdentity(Record):
    """The judge model, prompt and rubric that an agreement holds for.

    Attributes:
        model: The judge's model.
        prompt: The version of the judge's prompt.
        rubric: The digest of the check's rubric.
    """

    model: str
    prompt: str
    rubric: str


class Agreement(Record):
    """The measured agreement of a judge with hand labels.

    The counts are of traces. In their names, `kept` and `broken` are answers of the judge, and `right` means
    that the label agrees.

    Attributes:
        labels: Digest of the labels and of their traces.
        measured_at: Time of the measurement (ISO 8601).
        without_answer: Traces for which the judge gave no usable answer. They count as disagreements.
        accuracy: The share of labels that the judge agrees with, and its 95 % interval.
        kappa: Cohen's kappa and its 95 % interval; None if it is undefined, because all labels and answers
            are the same.
        false_kept: The share of broken traces (by their labels) that the judge calls kept; None without any.
        false_broken: The share of kept traces that the judge calls broken; None without any.
    """

    judge: JudgeIdentity
    labels: str
    measured_at: str
    kept_right: Count
    kept_wrong: Count
    broken_right: Count
    broken_wrong: Count
    without_answer: Count = 0
    accuracy: Interval
    kappa: Interval | None
    false_kept: Interval | None
    false_broken: Interval | None

    @property
    def total(self) -> int:
        """The number of labels."""
        return self.kept_right + self.kept_wrong + self.broken_right + self.broken_wrong + self.without_answer

    @property
    def is_sufficient(self) -> bool:
        """Whether the agreement is high enough for the judged check to decide."""
        return self.kappa is not None and self.kappa.low >= MIN_KAPPA


class AgreementFile(Record):
    """The agreements of one judged check, one for each judge and rubric.

    `digest` is the digest of all other fields, which reveals edits.
    """

    schema_version: int = AGREEMENT_SCHEMA
    check: str
    agreements: tuple[Agreement, ...] = Field(default=())
    digest: str = ""

    @property
    def content_digest(self) -> str:
        """The digest of the content without the field `digest`."""
        return digest(self.model_dump(mode="json", exclude={"digest"}))

    def sealed(self) -> "AgreementFile":
        """Return the file with the digest of its content."""
        return self.model_copy(update={"digest": self.content_digest})
