"""The agent `chat` in solo mode: a ticket in the prompt, the tools of both sides, one that ends it."""

from collections.abc import Sequence

from pytest_trace2evolve.agents.chat import ChatAgent, prompt_parts
from pytest_trace2evolve.records.message import STOP, Message
from pytest_trace2evolve.records.protocols import Model, ToolSchema

DONE = ToolSchema(
    name="done",
    description="Call this function when you are done with the task.",
    parameters={"properties": {}, "title": "parameters", "type": "object"},
)
"""The tool by which the agent says that it has finished, as τ²'s solo agent offers it."""

# τ²'s own wording: part of the benchmark's protocol, without which runs of two tools would not compare.
_INSTRUCTIONS = """\
You are a customer service agent that helps the user according to the <policy> provided below.
You will be provided with a ticket that contains the user's request.
You will need to plan and call the appropriate tools to solve the ticket.

You cannot communicate with the user, only make tool calls.
Stop when you consider that you have solved the ticket.
To do so, send a message containing a single tool call to the `done` tool. \
Do not include any other tool calls in this last message.

Always follow the policy. Always make sure you generate valid JSON only."""


def solo_prompt(policy: str, ticket: str, instruction: str = "", extra: str = "") -> str:
    """τ²'s system prompt of solo mode.

    Args:
        policy: The domain's policy of solo mode.
        ticket: What the task asks for; it ends the prompt.
        instruction: The candidate's instruction, after the policy; empty adds nothing.
        extra: A further instruction from the environment.
    """
    parts = prompt_parts(_INSTRUCTIONS, policy, instruction, extra)
    return "\n".join([*parts, f"<ticket>\n{ticket}\n</ticket>"])


class SoloChatAgent:
    """Works on a ticket by a model. One of them serves one simulation.

    Args:
        model: The model.
        prompt: Its system prompt.
        tools: The agent's and the user's tools; the one that ends the work is added.
        trial: The simulation's trial.
    """

    name = "chat"

    def __init__(self, model: Model, prompt: str, tools: Sequence[ToolSchema], *, trial: int = 0) -> None:
        self._agent = ChatAgent(model, prompt, [*tools, DONE], trial=trial, tool_choice="required")

    async def respond(self, history: Sequence[Message]) -> Message:
        """The model's next message; one that calls `done` becomes the stop mark, as in τ².

        Raises:
            ParticipantError: the model answered with neither text nor a tool call.
            InfrastructureError: no answer could be had.
        """
        message = await self._agent.respond(history)
        if any(call.name == DONE.name for call in message.tool_calls or ()):
            return message.model_copy(update={"content": STOP, "tool_calls": None})
        return message
