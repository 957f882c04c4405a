"""The guest: follows the scenario of a task by simple rules."""

from collections.abc import Sequence

from pytest_trace2evolve.records.message import STOP_MARK, Message
from pytest_trace2evolve.records.task import Task


class Guest:
    """Opens with the request, gives the e-mail address, and agrees only to what the scenario names."""

    name = "guest"

    def __init__(self, task: Task) -> None:
        self._scenario: dict[str, str] = task.user_scenario["instructions"]

    async def respond(self, history: Sequence[Message]) -> Message:
        return Message(role="user", content=self.answer(history))

    def answer(self, history: Sequence[Message]) -> str:
        """The guest's next words."""
        if not any(message.role == "user" for message in history):
            return self._scenario["reason_for_call"]
        heard = history[-1].content or ""
        if "e-mail address" in heard and heard.endswith("?"):
            return self._scenario["known_info"].replace("Your", "My")
        if "yes or no" in heard:
            return "Yes, please." if self._agrees_to(heard) else "No, that is not what I want."
        return f"Thank you, goodbye. {STOP_MARK}"

    def _agrees_to(self, proposal: str) -> bool:
        wanted = self._scenario["task_instructions"].partition("Say yes only to: ")[2]
        return bool(wanted) and all(word in proposal for word in wanted.split(", "))
