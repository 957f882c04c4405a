"""The agent `chat`: a model with τ²'s system prompt, and the candidate's instruction after the policy.

In solo mode, the agent works on a ticket in the prompt. It has the tools of both sides and a tool that ends
the work.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from pytest_trace2evolve.errors import ContextWindowError, ParticipantError, RequestRefusedError
from pytest_trace2evolve.records.completion import from_completion, provider_fields, rejection_risk, to_wire
from pytest_trace2evolve.records.message import STOP_MARK, Message, Requestor
from pytest_trace2evolve.records.protocols import Model, ToolSchema

# τ²'s own text is part of the benchmark's protocol, and keeps runs of different tools comparable.
_INSTRUCTIONS = """\
You are a customer service agent that helps the user according to the <policy> provided below.
In each turn you can either:
- Send a message to the user.
- Make a tool call.
You cannot do both at the same time.

Try to be helpful and always follow the policy. Always make sure you generate valid JSON only."""

_SOLO_INSTRUCTIONS = """\
You are a customer service agent that helps the user according to the <policy> provided below.
You will be provided with a ticket that contains the user's request.
You will need to plan and call the appropriate tools to solve the ticket.

You cannot communicate with the user, only make tool calls.
Stop when you consider that you have solved the ticket.
To do so, send a message containing a single tool call to the `done` tool. \
Do not include any other tool calls in this last message.

Always follow the policy. Always make sure you generate valid JSON only."""

DONE_TOOL = ToolSchema(
    name="done",
    description="Call this function when you are done with the task.",
    parameters={"properties": {}, "title": "parameters", "type": "object"},
)
"""The tool of τ²'s solo agent that ends its work."""


def system_prompt(policy: str, instruction: str = "", extra: str = "") -> str:
    """τ²'s system prompt for a domain's policy.

    An empty instruction of the candidate adds nothing, so `v0` is τ²'s own agent. `extra` is an additional
    instruction from the environment.
    """
    return _render_prompt(_INSTRUCTIONS, policy, instruction, extra)


def solo_prompt(policy: str, ticket: str, instruction: str = "", extra: str = "") -> str:
    """τ²'s system prompt for solo mode, built like `system_prompt` and followed by the ticket."""
    return (
        f"{_render_prompt(_SOLO_INSTRUCTIONS, policy, instruction, extra)}\n{_wrap_in_tag('ticket', ticket)}"
    )


def _render_prompt(instructions: str, policy: str, *extra_instructions: str) -> str:
    parts = [_wrap_in_tag("instructions", instructions), _wrap_in_tag("policy", policy)]
    parts += [_wrap_in_tag("additional_instructions", text) for text in extra_instructions if text]
    return "\n".join(parts)


def _wrap_in_tag(tag: str, text: str) -> str:
    return f"<{tag}>\n{text}\n</{tag}>"


MIN_PROMPT_SHARE = 0.95
"""The share of the earlier prompt's tokens below which a longer conversation was cut.

A gateway that changes the provider counts a few tokens more or less.
"""


class ChatParticipant(ABC):
    """One side of one simulation, played by a model."""

    role: Requestor

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
        self._prompt_tokens = 0

    @abstractmethod
    def visible_messages(self, history: Sequence[Message]) -> list[dict[str, Any]]:
        """The messages that the side sees, in the API's format."""

    async def respond(self, history: Sequence[Message]) -> Message:
        """The model's next message.

        Raises:
            ParticipantError: the model answered with neither text nor a tool call, or the endpoint rejects
                the conversation after the model wrote a part that some endpoints do not accept.
            InfrastructureError: there was no answer.
        """
        side = "agent" if self.role == "assistant" else "user simulator"
        messages = [self._system, *self.visible_messages(history)]
        try:
            completion = await self._model.complete(
                messages, self._tools, trial=self._trial, tool_choice=self._tool_choice
            )
        except RequestRefusedError as error:
            if part := rejection_risk(history, self.role):
                raise ParticipantError(f"the {side}'s model wrote {part}: {error}") from None
            raise
        if not completion.usage.cached_tokens:  # which some gateways leave out of the prompt's
            self._raise_if_truncated(completion.usage.prompt_tokens, history)
        message = from_completion(completion, self.role, history)
        if message.text is None and not message.tool_calls:
            reason = f" (finish reason {completion.finish_reason!r})" if completion.finish_reason else ""
            raise ParticipantError(f"the {side}'s model answered with neither text nor a tool call{reason}")
        return message

    def _raise_if_truncated(self, prompt_tokens: int, history: Sequence[Message]) -> None:
        """Raise `ContextWindowError` if the endpoint has dropped messages from a longer conversation.

        Chat templates may drop the reasoning of earlier turns, so such conversations are not checked.
        """
        earlier_tokens, self._prompt_tokens = self._prompt_tokens, prompt_tokens
        if 0 < prompt_tokens < earlier_tokens * MIN_PROMPT_SHARE and not any(
            provider_fields(message).keys() - {"id"} for message in history
        ):
            raise ContextWindowError(
                f"the endpoint drops messages that do not fit: the prompt fell from {earlier_tokens} to "
                f"{prompt_tokens} tokens while the conversation grew"
            )


class ChatAgent(ChatParticipant):
    """The agent's side of one simulation, answered by a model."""

    name = "chat"
    role = "assistant"

    def visible_messages(self, history: Sequence[Message]) -> list[dict[str, Any]]:
        return [to_wire(message) for message in history if is_visible(message)]


def is_visible(message: Message) -> bool:
    """Whether the agent sees a message; the user's own tool calls and their results are hidden."""
    if message.role == "tool":
        return message.requestor != "user"
    return message.role == "assistant" or not message.tool_calls


class SoloChatAgent(ChatAgent):
    """Works on a ticket with a model and the tools of both sides, in one simulation."""

    def __init__(self, model: Model, prompt: str, tools: Sequence[ToolSchema], *, trial: int = 0) -> None:
        super().__init__(model, prompt, [*tools, DONE_TOOL], trial=trial, tool_choice="required")

    async def respond(self, history: Sequence[Message]) -> Message:
        """The model's next message, with a call of `done` replaced by the stop mark, as in τ²."""
        message = await super().respond(history)
        if any(call.name == DONE_TOOL.name for call in message.tool_calls or ()):
            return message.model_copy(update={"content": STOP_MARK, "tool_calls": None})
        return message
