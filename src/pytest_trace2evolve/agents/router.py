"""The agent `chat` with adapters: a router names the capability that the customer's messages need.

The router is a model whose first token is a label, with the log-probabilities of all labels; see
`serving/router.py`.
"""

import math
from collections.abc import Mapping, Sequence

from pytest_trace2evolve.records.adapter import NO_CAPABILITY, Routing
from pytest_trace2evolve.records.message import Message
from pytest_trace2evolve.records.protocols import Agent, FirstTokens

MIN_MARGIN = 0.25
"""How much more probable than any other the chosen adapter must be. If the router is less sure, the base
answers."""


def choose_adapter(logprobs: Mapping[str, float], owners: Mapping[str, str]) -> Routing:
    """Return the routing that results from a router's answer.

    Args:
        logprobs: The log-probability of each label.
        owners: The adapter of each label. Labels without an adapter belong to `NO_CAPABILITY`, the base.

    Returns:
        The adapter whose labels together are more probable than any other's by `MIN_MARGIN`, or else
        `NO_CAPABILITY`.
    """
    shares = dict.fromkeys([NO_CAPABILITY, *sorted(set(owners.values()))], 0.0)
    for label, logprob in logprobs.items():
        shares[owners.get(label, NO_CAPABILITY)] += math.exp(logprob)
    total = math.fsum(shares.values()) or 1.0
    shares = {name: min(share / total, 1.0) for name, share in shares.items()}
    best, *others = sorted(shares, key=lambda name: -shares[name])
    is_sure = shares[best] - max((shares[name] for name in others), default=0.0) >= MIN_MARGIN
    return Routing(chosen=best if is_sure else NO_CAPABILITY, shares=shares)


class RoutedAgent:
    """Chooses an agent at each message of the customer, from all of the customer's messages so far.

    Args:
        router: Names the capability.
        owners: The adapter of each capability.
        agents: The agents by adapter; the agent of `NO_CAPABILITY` uses the base model.
    """

    name = "chat"

    def __init__(self, router: FirstTokens, owners: Mapping[str, str], agents: Mapping[str, Agent]) -> None:
        self._router = router
        self._owners = owners
        self._agents = agents
        self._chosen = NO_CAPABILITY

    async def respond(self, history: Sequence[Message]) -> Message:
        """The chosen agent's next message, with the `routing` if a choice was made for this message.

        Raises:
            EndpointError: the router sends no log-probabilities.
            ParticipantError: the chosen agent's model answered with neither text nor a tool call.
            InfrastructureError: there was no answer.
        """
        texts = [message.text for message in history if message.role == "user" and message.text]
        if not texts or history[-1].role != "user":
            return await self._agents[self._chosen].respond(history)
        logprobs = await self._router.first_tokens([{"role": "user", "content": text} for text in texts])
        routing = choose_adapter(logprobs, self._owners)
        self._chosen = routing.chosen
        message = await self._agents[self._chosen].respond(history)
        return message.model_copy(update={"routing": routing.model_dump(mode="json")})
