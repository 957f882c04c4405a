"""The two kinds of record: ours, which reject what they do not know, and tau2's, which keep it."""

from pydantic import BaseModel, ConfigDict, ValidationError

from pytest_trace2evolve.errors import shortened


def complaint(error: ValidationError, whole: str = "file") -> str:
    """The first thing that pydantic complains of, in one line: place, cause and, where it is short, value.

    Args:
        error: What validation raised.
        whole: What to call the place where the complaint is about the record itself.
    """
    first = error.errors(include_url=False)[0]
    place = shortened(".".join(str(part) for part in first["loc"]), 200) or whole
    given = "" if isinstance(first["input"], dict | list) else f", not {shortened(repr(first['input']), 200)}"
    return f"{place}: {shortened(first['msg'], 400)}{given}"


class Record(BaseModel):
    """A record of our own format: frozen, unknown fields rejected, finite numbers only."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Tau2Record(BaseModel):
    """A record in tau2's JSON shape: frozen, unknown fields kept, so that a file survives a round trip."""

    model_config = ConfigDict(frozen=True, extra="allow", allow_inf_nan=False)
