"""Target tasks as an environment: GRPO on the target itself, with the target's own reward."""

import functools
from collections.abc import Sequence

from pytest_trace2evolve.records.message import STOP_MARK, USER_STOP_MARKS, Message
from pytest_trace2evolve.records.protocols import Offer
from pytest_trace2evolve.records.task import Content, Task
from pytest_trace2evolve.utils.canonical import digest
from research.trace.tasks import Cell, target_of

VERSION = 2
"""Version of the target tasks, which the digest of their environments holds. Raise it when the same seed
gives another task, another reward, or another answer of the customer or of a tool, and only then.
`tests/environments/test_golden.py` says when."""

CACHED_TASKS = 256
"""Tasks that a generator remembers: a group of rollouts asks for the same one many times."""


class TargetGenerator:
    """Whole target tasks of one cell; see `Generator` in `records.protocols`.

    The grade is τ²'s reward of the whole conversation, 0 or 1. Nothing is settled before its end, so a
    rollout is never cut short because it stands well."""

    def __init__(self, cell: Cell, content: Content = Content.TRAIN) -> None:
        self.capability = cell.name
        self.digest = digest(["target", cell.name, content.value, VERSION])
        self._cell, self._content = cell, content
        self.scenario = functools.lru_cache(maxsize=CACHED_TASKS)(self._scenario)

    def grade(self, task: Task, trace: Sequence[Message], *, solved: bool) -> float:
        """1 if the conversation has ended and the task is solved, else 0."""
        return float(solved and ended(trace))

    def settled(self, task: Task, trace: Sequence[Message]) -> bool:
        """Never: only the end of the conversation decides."""
        return False

    def shortcut(self, task: Task) -> Sequence[Message]:
        """One sentence and no work, like an agent that does nothing."""
        return [Message(role="assistant", content="I cannot help you with that.")]

    def _scenario(self, seed: int) -> Task:
        # No evaluated or validation task has such a name: none of them is trained on.
        return target_of(self._cell, f"training/{seed}", self._content).case.task


def ended(trace: Sequence[Message]) -> bool:
    """Whether the customer or the agent has ended the conversation."""
    last = trace[-1]
    if last.tool_calls:
        return False
    if last.role == "assistant":
        return (last.content or "").strip() == STOP_MARK
    return last.role == "user" and any(mark in (last.content or "") for mark in USER_STOP_MARKS)


def target_offers(cells: Sequence[Cell]) -> dict[str, Offer]:
    """Environments of target tasks, by the names of their cells."""
    return {
        f"target_{cell.name}": Offer(
            make=lambda difficulty, content, cell=cell: TargetGenerator(cell, content),  # type: ignore[misc]
            pays="the target's own reward of the whole task",
        )
        for cell in cells
    }
