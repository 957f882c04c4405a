"""A model that refuses every request, and fails with a network error on demand."""

from collections.abc import Mapping, Sequence
from typing import Any

from pytest_trace2evolve.errors import InfrastructureError
from pytest_trace2evolve.records.completion import Completion
from pytest_trace2evolve.records.protocols import ToolSchema


class RefusingModel:
    """Refuses.

    Args:
        requests: After how many nobody answers any more; None for never.
        lost_trials: The trials before this one are lost.
    """

    def __init__(self, *, requests: int | None = None, lost_trials: int = 0) -> None:
        self._left = requests
        self._lost_trials = lost_trials

    async def complete(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[ToolSchema],
        *,
        trial: int = 0,
        tool_choice: str = "auto",
    ) -> Completion:
        """Refuse, or be lost."""
        if self._left is not None:
            self._left -= 1
        if trial < self._lost_trials or (self._left is not None and self._left < 0):
            raise InfrastructureError("nobody answers")
        return Completion(content="I cannot do that. Anything else?")
