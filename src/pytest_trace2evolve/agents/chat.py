"""The agent `chat`: a model with τ²'s system prompt, the candidate's instruction after the policy.

The agent `chat` in solo mode: a ticket in the prompt, the tools of both sides, one that ends it.

The agent `chat` with adapters: the base model says which capability a task calls for.
"""

from collections.abc import Mapping, Sequence

from pytest_trace2evolve.agents.logprob_router import orders_of, question, routing_of
from pytest_trace2evolve.errors import ParticipantError, RequestRefusedError
from pytest_trace2evolve.records.adapter import Routing, Skill
from pytest_trace2evolve.records.completion import from_completion, to_wire, uncommon_part
from pytest_trace2evolve.records.message import STOP, Message
from pytest_trace2evolve.records.protocols import Agent, FirstTokens, Model, ToolSchema

# τ²'s own wording: part of the benchmark's protocol, without which runs of two tools would not compare.
_INSTRUCTIONS_chat = """\
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
    return "\n".join(prompt_parts(_INSTRUCTIONS_chat, policy, instruction, extra))


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


class Router:
    """Asks a model for a letter in each order of the labels.

    Args:
        model: The base model, without an adapter.
        skills: What is chosen from, `NONE` aside; without any, `NONE` is chosen and nobody asked.
        seed: Of the order of labels.
    """

    def __init__(self, model: FirstTokens, skills: Sequence[Skill], seed: int = 0) -> None:
        self._model = model
        self._skills = skills
        self._orders = orders_of([one.name for one in skills], seed)

    async def route(self, opening: str) -> Routing:
        """What a task calls for that opens so.

        Raises:
            EndpointError: the endpoint tells no log-probabilities.
            InfrastructureError: no answer could be had.
        """
        told = []
        for order in self._orders:
            tokens = {}
            if self._skills:
                tokens = dict(await self._model.first_tokens(question(self._skills, order, opening)))
            told.append((order, tokens))
        return routing_of(told)


class RoutedAgent:
    """Decides once, when it is first asked, and leaves the talk to the agent of its choice.

    Args:
        router: Who decides.
        agents: By capability, and by `NONE` the base model's.
        each_turn: Whether it decides anew after each message of the customer.
    """

    name = "chat"

    def __init__(self, router: Router, agents: Mapping[str, Agent], *, each_turn: bool = False) -> None:
        self._router = router
        self._agents = agents
        self._each_turn = each_turn
        self._routing: Routing | None = None

    async def respond(self, history: Sequence[Message]) -> Message:
        """The chosen agent's next message; one before which something was decided carries it as `routing`.

        Raises:
            ParticipantError: the chosen agent's model answered with neither text nor a tool call.
            InfrastructureError: no answer could be had.
        """
        said = [one.text for one in history if one.role == "user" and one.text]
        decided = None
        if self._routing is None or (self._each_turn and history and history[-1].role == "user"):
            words = (said[-1:] if self._each_turn else said[:1]) or [""]
            decided = self._routing = await self._router.route(words[0])
        message = await self._agents[self._routing.chosen].respond(history)
        if decided is None:
            return message
        return message.model_copy(update={"routing": decided.model_dump(mode="json")})
