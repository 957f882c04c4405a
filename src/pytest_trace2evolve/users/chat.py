"""The simulated user: a model that plays a task's scenario by the benchmark's own guidelines."""

import textwrap
from collections.abc import Sequence
from typing import Any

from pytest_trace2evolve.errors import ParticipantError, RequestRefusedError
from pytest_trace2evolve.records.completion import from_completion, to_wire, uncommon_part
from pytest_trace2evolve.records.message import Message
from pytest_trace2evolve.records.protocols import Model, ToolSchema

_HEADINGS = {
    "reason_for_call": "Reason for call:\n{}",
    "known_info": "Known info:\n{}",
    "unknown_info": "Unknown info:\n{}",
    "task_instructions": "Task instructions:\n{}",
}


def system_prompt(guidelines: str, scenario: Any) -> str:
    """τ²'s prompt of the user simulator."""
    return f"{guidelines}\n\n<scenario>\n{render_scenario(scenario)}\n</scenario>"


def render_scenario(scenario: Any) -> str:
    """A task's user scenario as text, laid out as τ² lays it out."""
    if not isinstance(scenario, dict):
        return str(scenario)
    lines = []
    if scenario.get("persona") is not None:
        lines += ["Persona:", textwrap.indent(str(scenario["persona"]), "\t")]
    lines += ["Instructions:", textwrap.indent(_instructions(scenario.get("instructions")), "\t")]
    return "\n".join(lines)


def _instructions(instructions: Any) -> str:
    if not isinstance(instructions, dict):
        return str(instructions)
    lines = [f"Domain: {instructions.get('domain')}"]
    for name, heading in _HEADINGS.items():
        if instructions.get(name) is not None:
            lines.append(heading.format(textwrap.indent(str(instructions[name]), "\t")))
    return "\n".join(lines)


class ChatUser:
    """Plays the customer by a model. One of them serves one simulation."""

    def __init__(self, model: Model, prompt: str, tools: Sequence[ToolSchema], *, trial: int = 0) -> None:
        self._model = model
        self._system = {"role": "system", "content": prompt}
        self._tools = tools
        self._trial = trial

    async def respond(self, history: Sequence[Message]) -> Message:
        """The model's next message, as the user's.

        Raises:
            ParticipantError: the model answered with neither text nor a tool call, or the endpoint refuses
                the conversation after the model wrote what not every endpoint takes back.
            InfrastructureError: no answer could be had.
        """
        messages = [self._system, *(_flipped(message) for message in history if _heard(message))]
        try:
            completion = await self._model.complete(messages, self._tools, trial=self._trial)
        except RequestRefusedError as error:
            if part := uncommon_part(history, "user"):
                raise ParticipantError(f"the user simulator's model wrote {part}: {error}") from None
            raise
        message = from_completion(completion, "user")
        if message.text is None and not message.tool_calls:
            raise ParticipantError("the user simulator's model answered with neither text nor a tool call")
        return message


def _heard(message: Message) -> bool:
    """Whether the user sees a message: the agent's tool calls and their results stay with the agent."""
    if message.role == "tool":
        return message.requestor == "user"
    return message.role == "user" or not message.tool_calls


def _flipped(message: Message) -> dict[str, Any]:
    """A message from the model's point of view, which speaks as the assistant."""
    if message.role == "tool":
        return to_wire(message)
    return to_wire(message, "assistant" if message.role == "user" else "user")
