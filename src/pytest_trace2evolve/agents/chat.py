"""The agent `chat`: a model with τ²'s system prompt, the candidate's instruction after the policy."""

from collections.abc import Sequence

from pytest_trace2evolve.errors import ParticipantError, RequestRefusedError
from pytest_trace2evolve.records.message import Message
from pytest_trace2evolve.records.protocols import Model, ToolSchema
from pytest_trace2evolve.records.wire import from_completion, to_wire, uncommon_part

# τ²'s own wording: part of the benchmark's protocol, without which runs of two tools would not compare.
_INSTRUCTIONS = """\
You are a customer service agent that helps the user according to the <policy> provided below.
In each turn you can either:
- Send a message to the user.
- Make a tool call.
You cannot do both at the same time.

Try to be helpful and always follow the policy. Always make sure you generate valid JSON only."""


def system_prompt(policy: str, instruction: str = "", extra: str = "") -> str:
    """τ²'s system prompt.

    Args:
        policy: The domain's policy.
        instruction: The candidate's instruction; empty adds nothing, so that `v0` is τ²'s own agent.
        extra: A further instruction from the environment.
    """
    return "\n".join(prompt_parts(_INSTRUCTIONS, policy, instruction, extra))


def prompt_parts(instructions: str, policy: str, instruction: str, extra: str) -> list[str]:
    """The parts of a system prompt up to the candidate's, each in its tag; empty ones are left out."""
    parts = [f"<instructions>\n{instructions}\n</instructions>", f"<policy>\n{policy}\n</policy>"]
    parts += [
        f"<additional_instructions>\n{text}\n</additional_instructions>"
        for text in (instruction, extra)
        if text
    ]
    return parts


class ChatAgent:
    """Answers by a model. One of them serves one simulation."""

    name = "chat"

    def __init__(
        self,
        model: Model,
        prompt: str,
        tools: Sequence[ToolSchema],
        *,
        trial: int = 0,
        tool_choice: str = "auto",
    ) -> None:
        self._model = model
        self._system = {"role": "system", "content": prompt}
        self._tools = tools
        self._trial = trial
        self._tool_choice = tool_choice

    async def respond(self, history: Sequence[Message]) -> Message:
        """The model's next message.

        Raises:
            ParticipantError: the model answered with neither text nor a tool call, or the endpoint refuses
                the conversation after the model wrote what not every endpoint takes back.
            InfrastructureError: no answer could be had.
        """
        messages = [self._system, *(to_wire(message) for message in history if heard(message))]
        try:
            completion = await self._model.complete(
                messages, self._tools, trial=self._trial, tool_choice=self._tool_choice
            )
        except RequestRefusedError as error:
            if part := uncommon_part(history, "assistant"):
                raise ParticipantError(f"the agent's model wrote {part}: {error}") from None
            raise
        message = from_completion(completion, "assistant")
        if message.text is None and not message.tool_calls:
            raise ParticipantError("the agent's model answered with neither text nor a tool call")
        return message


def heard(message: Message) -> bool:
    """Whether the agent sees a message: what the user does with tools of their own stays with the user."""
    if message.role == "tool":
        return message.requestor != "user"
    return message.role == "assistant" or not message.tool_calls
