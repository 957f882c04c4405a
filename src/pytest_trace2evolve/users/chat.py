"""The simulated user: a model that plays a task's scenario under the benchmark's own guidelines."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from pytest_trace2evolve.agents.chat import ChatParticipant
from pytest_trace2evolve.records.completion import to_wire
from pytest_trace2evolve.records.message import STOP_MARK, Message
from pytest_trace2evolve.records.protocols import Model, ToolSchema
from pytest_trace2evolve.records.task import Task

_HEADINGS = {
    "reason_for_call": "Reason for call",
    "known_info": "Known info",
    "unknown_info": "Unknown info",
    "task_instructions": "Task instructions",
}


def system_prompt(guidelines: str, scenario: Any) -> str:
    """Return τ²'s system prompt of the user simulator."""
    return f"{guidelines}\n\n<scenario>\n{render_scenario(scenario)}\n</scenario>"


def render_scenario(scenario: Any) -> str:
    """Render a task's user scenario as text, in τ²'s layout."""
    if not isinstance(scenario, dict):
        return str(scenario)
    lines = []
    if scenario.get("persona") is not None:
        lines += ["Persona:", _indent(scenario["persona"])]
    lines += ["Instructions:", _indent(_render_instructions(scenario.get("instructions")))]
    return "\n".join(lines)


def _render_instructions(instructions: Any) -> str:
    if not isinstance(instructions, dict):
        return str(instructions)
    lines = [f"Domain: {instructions.get('domain')}"] if "domain" in instructions else []
    for name, heading in _HEADINGS.items():
        if instructions.get(name) is not None:
            lines.append(f"{heading}:\n{_indent(instructions[name])}")
    return "\n".join(lines)


def _indent(text: object) -> str:
    return textwrap.indent(str(text), "\t")


class ChatUser(ChatParticipant):
    """Plays the customer with a model, in one simulation."""

    role = "user"

    def visible_messages(self, history: Sequence[Message]) -> list[dict[str, Any]]:
        return [_swap_roles(message) for message in history if _is_visible(message)]


class PromptedUser(ChatUser):
    """Plays a user whose task has prompts of its own: a system message and conversations as examples.

    The user's only tool ends the conversation, as in ToolSandbox.
    """

    def __init__(
        self,
        model: Model,
        prompts: Sequence[Mapping[str, str]],
        tools: Sequence[ToolSchema],
        *,
        trial: int = 0,
    ) -> None:
        first, *examples = (
            {"role": _PROMPT_ROLES[part["from"]], "content": part["content"]} for part in prompts
        )
        super().__init__(model, first["content"], tools, trial=trial)
        self._examples = examples

    def visible_messages(self, history: Sequence[Message]) -> list[dict[str, Any]]:
        return [*self._examples, *super().visible_messages(history)]

    async def respond(self, history: Sequence[Message]) -> Message:
        """The model's next message, with a tool call replaced by the stop mark."""
        message = await super().respond(history)
        if message.tool_calls:
            return message.model_copy(update={"content": STOP_MARK, "tool_calls": None})
        return message


_PROMPT_ROLES = {"system": "system", "user": "assistant", "agent": "user"}
"""The roles of prompts for the user's model, which speaks in the role of the assistant."""


def prompts_of(task: Task) -> Sequence[Mapping[str, str]]:
    """The prompts of a task's user, the system message first; empty if the task has a scenario instead."""
    scenario = task.user_scenario
    messages = scenario.get("prompts") if isinstance(scenario, dict) else None
    return messages if isinstance(messages, list) else ()


def _is_visible(message: Message) -> bool:
    """Return whether the user sees a message; the agent's tool calls and their results are hidden."""
    if message.role == "tool":
        return message.requestor == "user"
    return message.role == "user" or not message.tool_calls


def _swap_roles(message: Message) -> dict[str, Any]:
    """Convert a message for the user's model, which speaks in the role of the assistant."""
    if message.role == "tool":
        return to_wire(message)
    return to_wire(message, "assistant" if message.role == "user" else "user")
