"""The hotel's bot. It follows rules, so that evaluations are fast, free and repeatable."""

import re
from collections.abc import Sequence
from pathlib import Path

from hotel.planning import Planner
from hotel.user import Guest
from pytest_trace2evolve.project.candidates import Candidate
from pytest_trace2evolve.records.message import Message
from pytest_trace2evolve.records.protocols import Agent, User, World
from pytest_trace2evolve.records.task import Task

PROMPT = Path(__file__).with_name("prompt.md")


class Bot:
    """Serves guests with the skills that its instruction lists, one `- skill` a line."""

    name = "bot"

    def __init__(self, instruction: str) -> None:
        self._skills = re.findall(r"^- (\w+)$", instruction, re.MULTILINE)
        sections = PROMPT.read_text(encoding="utf-8").split("\n## ")[1:]
        parts = (section.partition("\n") for section in sections)
        self._phrases = {name: text.strip() for name, _, text in parts}

    async def respond(self, history: Sequence[Message]) -> Message:
        return self.answer(history)

    def answer(self, history: Sequence[Message]) -> Message:
        """The next message of the plan. The history alone decides how far the plan has come."""
        plan = Planner(self._skills, self._phrases).serve()
        message = next(plan)
        for heard in history:
            if heard.role in ("user", "tool"):
                try:
                    message = plan.send(heard)
                except StopIteration:
                    return Message(role="assistant", content=self._phrases["refer"])
        return message


class Idle:
    """Does nothing: it refers every guest to the front desk."""

    name = "idle"

    async def respond(self, history: Sequence[Message]) -> Message:
        return Message(role="assistant", content="Please ask our front desk.")


def make_bot(task: Task, world: World, candidate: Candidate, trial: int) -> tuple[Agent, User]:
    return Bot(candidate.instruction), Guest(task)


def make_idle(task: Task, world: World, candidate: Candidate, trial: int) -> tuple[Agent, User]:
    return Idle(), Guest(task)
