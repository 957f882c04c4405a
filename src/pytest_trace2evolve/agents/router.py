"""The agent `chat` with adapters: the base model decides which capability a task needs.

The model answers with the letter of a label, once for each of several orders. Each label has each place in
exactly one of the orders, so a preference for the first place or for the letter A favours no label. In each
order, the probabilities are normalized over the letters and then averaged. So all orders have equal weight,
even if the model would not have answered with a letter.
"""

import math
import random
import string
from collections.abc import Mapping, Sequence

from pytest_trace2evolve.records.adapter import NONE, Routing, Skill
from pytest_trace2evolve.records.message import Message
from pytest_trace2evolve.records.protocols import Agent, FirstTokens

LETTERS = string.ascii_uppercase

EQUAL = 1e-9
"""Difference up to which two shares count as equal, because the order of a sum changes its last digits."""

Order = tuple[str, ...]
"""Labels in the order of their letters."""


def orders_of(names: Sequence[str], seed: int = 0) -> list[Order]:
    """Shuffle the capabilities and `NONE`, and return all rotations of the shuffled labels.

    Raises:
        ValueError: there are more labels than letters, or two labels are equal.
    """
    labels = [*names, NONE]
    if len(labels) > len(LETTERS) or len(set(labels)) < len(labels):
        raise ValueError(f"{len(labels)} labels: {len(LETTERS)} different ones at most")
    labels.sort()
    random.Random(seed).shuffle(labels)
    return [tuple(labels[place:] + labels[:place]) for place in range(len(labels))]


def question(skills: Sequence[Skill], order: Order, opening: str) -> list[dict[str, str]]:
    """The messages of one question, whose answer is a letter.

    Args:
        skills: The choices besides `NONE`.
        order: The labels in the order of their letters, from A.
        opening: The customer's first message.
    """
    texts = {skill.name: f"{skill.description} For instance: {skill.example}" for skill in skills}
    texts[NONE] = "None of the others is needed."
    lines = [f"{letter}) {texts[label]}" for letter, label in zip(LETTERS, order, strict=False)]
    system = (
        "You sort customer requests. Read the request, and answer with the letter of the skill that it calls "
        "for most, and nothing else.\n\n" + "\n".join(lines)
    )
    return [
        {"role": "system", "content": system},
        {"role": "user", "content": f"Request: {opening}\n\nLetter:"},
    ]


def routing_of(answers: Sequence[tuple[Order, Mapping[str, float]]]) -> Routing:
    """The routing that follows from a model's first tokens in each order.

    Args:
        answers: Each order with the log-probabilities of the likeliest first tokens, by token text.

    Returns:
        The label with the highest mean share; `NONE` if several labels share that mean, or if the model gave
        no letter.

    Raises:
        ValueError: there are no answers, or their labels differ.
    """
    if not answers or len({frozenset(order) for order, _ in answers}) != 1:
        raise ValueError("expected one or more orders of the same labels")
    labels = sorted(answers[0][0])
    shares = dict.fromkeys(labels, 0.0)
    silent = 0
    for order, tokens in answers:
        found = _letter_shares(tokens, len(order))
        silent += found is None
        for place, label in enumerate(order):
            shares[label] += (1 / len(order) if found is None else found[place]) / len(answers)
    most = max(shares.values())
    best = [label for label in labels if shares[label] >= most - EQUAL]
    return Routing(
        chosen=best[0] if len(best) == 1 else NONE,
        shares={label: min(share, 1.0) for label, share in shares.items()},
        silent=silent,
    )


def _letter_shares(tokens: Mapping[str, float], count: int) -> list[float] | None:
    """The normalized probabilities of the first `count` letters; None if no token is a letter.

    Several tokens may stand for the same letter, with a space or in lower case. A letter without a token is
    less likely than all listed tokens, so it gets the log-probability of the least likely token.
    """
    found = dict.fromkeys(LETTERS[:count], -math.inf)
    for text, logprob in tokens.items():
        letter = text.strip().strip("().:").upper()
        if letter in found:
            found[letter] = _log_sum(found[letter], logprob)
    if max(found.values()) == -math.inf:
        return None
    floor = min(tokens.values())
    filled = [logprob if logprob > -math.inf else floor for logprob in found.values()]
    top = max(filled)
    weights = [math.exp(logprob - top) for logprob in filled]
    return [weight / sum(weights) for weight in weights]


def _log_sum(a: float, b: float) -> float:
    """log(exp(a) + exp(b))."""
    top = max(a, b)
    if top == -math.inf:
        return top
    return top + math.log(math.exp(a - top) + math.exp(b - top))


class Router:
    """Asks a model for a letter in each order of the labels.

    Args:
        model: The base model, without an adapter.
        skills: The choices besides `NONE`. Without skills, the choice is `NONE` and the model is not asked.
        seed: The seed of the order of labels.
    """

    def __init__(self, model: FirstTokens, skills: Sequence[Skill], seed: int = 0) -> None:
        self._model = model
        self._skills = skills
        self._orders = orders_of([skill.name for skill in skills], seed)

    async def route(self, opening: str) -> Routing:
        """The routing of a task with this opening.

        Raises:
            EndpointError: the endpoint gives no log-probabilities.
            InfrastructureError: there was no answer.
        """
        answers: list[tuple[Order, Mapping[str, float]]] = []
        for order in self._orders:
            tokens: Mapping[str, float] = {}
            if self._skills:
                tokens = await self._model.first_tokens(question(self._skills, order, opening))
            answers.append((order, tokens))
        return routing_of(answers)


class RoutedAgent:
    """Chooses an agent at the first message, and delegates the conversation to that agent.

    Args:
        router: Makes the choice.
        agents: The agents by capability; the agent of `NONE` uses the base model.
        each_turn: Whether to choose again after each message of the customer.
    """

    name = "chat"

    def __init__(self, router: Router, agents: Mapping[str, Agent], *, each_turn: bool = False) -> None:
        self._router = router
        self._agents = agents
        self._each_turn = each_turn
        self._routing: Routing | None = None

    async def respond(self, history: Sequence[Message]) -> Message:
        """The chosen agent's next message, with the `routing` if a choice was made for this message.

        Raises:
            ParticipantError: the chosen agent's model answered with neither text nor a tool call.
            InfrastructureError: there was no answer.
        """
        said = [message.text for message in history if message.role == "user" and message.text]
        decided = None
        if self._routing is None or (self._each_turn and history and history[-1].role == "user"):
            words = (said[-1:] if self._each_turn else said[:1]) or [""]
            decided = self._routing = await self._router.route(words[0])
        message = await self._agents[self._routing.chosen].respond(history)
        if decided is None:
            return message
        return message.model_copy(update={"routing": decided.model_dump(mode="json")})
