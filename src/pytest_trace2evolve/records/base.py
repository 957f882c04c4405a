"""Base classes of records. Our own records reject unknown fields; tau2's keep them."""

from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=0, le=1 << 53)]
"""A whole number that JSON, floats and 64-bit integers can all hold, with room for sums."""


_T = TypeVar("_T")

Later = Annotated[_T | None, Field(exclude_if=lambda value: value is None)]
"""A field of a later version. It is left out of the JSON if it is None, so older content keeps its digest."""

LaterTuple = Annotated[tuple[_T, ...], Field(exclude_if=lambda value: not value)]
"""A tuple of a later version, which is left out of the JSON if it is empty."""


class Record(BaseModel):
    """A record of our own format: frozen, unknown fields rejected, finite numbers only."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Tau2Record(BaseModel):
    """A record in tau2's JSON shape: frozen, unknown fields kept, so that a file survives a round trip."""

    model_config = ConfigDict(frozen=True, extra="allow", allow_inf_nan=False)
