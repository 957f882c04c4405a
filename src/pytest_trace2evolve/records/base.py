"""The base classes of records: our own reject unknown fields, tau2's keep them."""

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """A record of our own format: frozen, unknown fields rejected, finite numbers only."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Tau2Record(BaseModel):
    """A record in tau2's JSON shape: frozen, unknown fields kept, so that a file survives a round trip."""

    model_config = ConfigDict(frozen=True, extra="allow", allow_inf_nan=False)
