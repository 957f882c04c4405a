"""Simulations (one run of one task) with their traces, in tau2's JSON shape."""

import sys
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, field_validator

from pytest_trace2evolve.records.base import Tau2Record
from pytest_trace2evolve.records.message import Message


class TerminationReason(StrEnum):
    """The reason why a simulation ended. Files may name further reasons, which count as premature ends."""

    USER_STOP = "user_stop"
    AGENT_STOP = "agent_stop"
    MAX_STEPS = "max_steps"
    TIMEOUT = "timeout"
    TOO_MANY_ERRORS = "too_many_errors"
    AGENT_ERROR = "agent_error"
    USER_ERROR = "user_error"
    INFRASTRUCTURE_ERROR = "infrastructure_error"
    CONTEXT_WINDOW_EXCEEDED = "context_window_exceeded"
    UNEXPECTED_ERROR = "unexpected_error"


REGULAR_ENDS = frozenset({TerminationReason.AGENT_STOP, TerminationReason.USER_STOP})
"""The ends after which a simulation is checked; any other end gives reward 0 without checks."""


FULL_DUPLEX = "full-duplex (voice); only simulations whose events are all messages can be read"
"""The reason why a full-duplex simulation is never scored or imported, not even if it has some messages."""


def _to_text_id(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


TextId = Annotated[str, BeforeValidator(_to_text_id)]
"""An id. A number in a file counts as its decimal text."""


@dataclass(frozen=True)
class AgentError:
    """An error of an agent, which ended its simulation.

    Attributes:
        text: The error in one line, such as `Type: message` for an exception.
        cause: The beginning of the text, which quotes nothing from a trace. Empty if it was not recorded.
        frames: The frames of the exception's traceback, as text; empty if the agent raised none.
    """

    text: str
    cause: str = ""
    frames: str = ""

    def shown_text(self, *, is_sealed: bool) -> str:
        """The text, or only its cause if the task is in a sealed split."""
        return (self.cause or "an error whose cause was not recorded") if is_sealed else self.text


class Simulation(Tau2Record):
    """One run of one task: its trace, the reason why it ended, and further recorded facts."""

    id: TextId
    task_id: TextId
    termination_reason: Annotated[str, Field(min_length=1)]
    messages: list[Message] | None = None
    trial: Annotated[int, Field(ge=0, le=1 << 53, strict=True)] | None = None
    seed: Annotated[int, Field(strict=True)] | None = None
    agent_cost: float | None = None
    user_cost: float | None = None
    reward_info: dict[str, Any] | None = None

    @field_validator("reward_info")
    @classmethod
    def _check_reward(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        reward = (value or {}).get("reward")
        if isinstance(reward, int) and abs(reward) > sys.float_info.max:
            raise ValueError("the reward is not a finite number")
        return value

    @property
    def trace(self) -> list[Message]:
        return self.messages or []

    @property
    def is_full_duplex(self) -> bool:
        """Whether both participants spoke at once (τ²'s voice mode): its events are ticks, not messages."""
        return getattr(self, "mode", None) == "full_duplex" or bool(getattr(self, "ticks", None))

    @property
    def error_text(self) -> str:
        """The recorded error that ended the simulation early, in one line; empty if there is none."""
        return " ".join(self._recorded_text("error").split())

    @property
    def agent_error(self) -> AgentError | None:
        """The recorded error of the agent that ended the simulation; None if no error was recorded."""
        if self.termination_reason != TerminationReason.AGENT_ERROR or not self.error_text:
            return None
        cause, frames = (self._recorded_text(name) for name in ("cause", "traceback"))
        if frames and not cause:  # recorded by an older version
            cause = self.error_text.partition(":")[0]
        return AgentError(self.error_text, " ".join(cause.split()), frames)

    @property
    def redrawn_reason(self) -> str:
        """The reason why some of its answers are not from its first draw; empty if all are."""
        return self._recorded_text("redrawn")

    @property
    def losses(self) -> int:
        """The number of earlier runs that lost the simulation (`lost`); 0 if none is recorded."""
        info = getattr(self, "info", None)
        value = info.get("lost") if isinstance(info, dict) else None
        return value if type(value) is int and value > 0 else 0

    def mark(self, **facts: str | int) -> "Simulation":
        """Return a copy with further facts: `redrawn` and `lost`, which the properties above explain."""
        return self.model_copy(update={"info": {**(getattr(self, "info", None) or {}), **facts}})

    def _recorded_text(self, name: str) -> str:
        info = getattr(self, "info", None)
        value = info.get(name) if isinstance(info, dict) else None
        return value if isinstance(value, str) else ""

    @property
    def recorded_reward(self) -> float | None:
        """The reward in the file; None if the file has none."""
        reward = (self.reward_info or {}).get("reward")
        return float(reward) if isinstance(reward, int | float) and not isinstance(reward, bool) else None
