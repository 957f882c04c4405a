"""The agent `chat` with adapters: the base model says which capability a task calls for."""

from collections.abc import Mapping, Sequence

from pytest_trace2evolve.records.message import Message
from pytest_trace2evolve.records.protocols import Agent, FirstTokens
from pytest_trace2evolve.records.routing import Routing, Skill
from pytest_trace2evolve.routing.letters import orders_of, question, routing_of


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
