"""The agent `chat` with adapters: the base model decides which capability a task needs.

The model answers with the letter of a label, once for each of several orders. Each label has each position
in exactly one order, so a preference for a position or a letter favours no label. The probabilities are
normalized over the letters of each order, and then averaged over the orders. So all orders have equal weight,
even if the model would not have answered with a letter.
"""

import math
import random
import string
from collections.abc import Mapping, Sequence

from pytest_trace2evolve.records.adapter import NO_CAPABILITY, Routing, Skill
from pytest_trace2evolve.records.message import Message
from pytest_trace2evolve.records.protocols import Agent, FirstTokens

LETTERS = string.ascii_uppercase

SHARE_TOLERANCE = 1e-9
"""Difference up to which two shares count as equal, because the order of a sum changes its last digits."""

LabelOrder = tuple[str, ...]
"""Labels in the order of their letters."""


def label_orders(names: Sequence[str], seed: int = 0) -> list[LabelOrder]:
    """Shuffle the capabilities and `NO_CAPABILITY`, and return all rotations of the shuffled labels.

    Raises:
        ValueError: there are more labels than letters, or two labels are equal.
    """
    labels = [*names, NO_CAPABILITY]
    if len(labels) > len(LETTERS) or len(set(labels)) < len(labels):
        raise ValueError(f"{len(labels)} labels; expected at most {len(LETTERS)}, all different")
    labels.sort()
    random.Random(seed).shuffle(labels)
    return [tuple(labels[start:] + labels[:start]) for start in range(len(labels))]


def question_messages(skills: Sequence[Skill], order: LabelOrder, opening: str) -> list[dict[str, str]]:
    """The messages of one question, whose answer is a letter.

    Args:
        skills: The choices apart from `NO_CAPABILITY`.
        order: The labels in the order of their letters, from A.
        opening: The customer's first message.
    """
    texts = {skill.name: f"{skill.description} For instance: {skill.example}" for skill in skills}
    texts[NO_CAPABILITY] = "None of the others is needed."
    lines = [f"{letter}) {texts[label]}" for letter, label in zip(LETTERS, order, strict=False)]
    system = (
        "You sort customer requests. Read the request, and answer with the letter of the skill that it calls "
        "for most, and nothing else.\n\n" + "\n".join(lines)
    )
    return [
        {"role": "system", "content": system},
        {"role": "user", "content": f"Request: {opening}\n\nLetter:"},
    ]


def average_answers(answers: Sequence[tuple[LabelOrder, Mapping[str, float]]]) -> Routing:
    """Average a model's answers over the orders, and return the routing that results.

    Args:
        answers: Each order with the log-probabilities of the likeliest first tokens, by token text.

    Returns:
        The label with the highest mean share; `NO_CAPABILITY` if several labels share that mean, or if the
        model gave no letter.

    Raises:
        ValueError: there are no answers, or their labels differ.
    """
    if not answers or len({frozenset(order) for order, _ in answers}) != 1:
        raise ValueError("expected one or more orders of the same labels")
    labels = sorted(answers[0][0])
    shares = dict.fromkeys(labels, 0.0)
    n_silent = 0
    for order, tokens in answers:
        letter_shares = _letter_shares(tokens, len(order))
        n_silent += letter_shares is None
        for i, label in enumerate(order):
            shares[label] += (1 / len(order) if letter_shares is None else letter_shares[i]) / len(answers)
    max_share = max(shares.values())
    best_labels = [label for label in labels if shares[label] >= max_share - SHARE_TOLERANCE]
    return Routing(
        chosen=best_labels[0] if len(best_labels) == 1 else NO_CAPABILITY,
        shares={label: min(share, 1.0) for label, share in shares.items()},
        silent=n_silent,
    )


def _letter_shares(tokens: Mapping[str, float], count: int) -> list[float] | None:
    """The normalized probabilities of the first `count` letters; None if no token is a letter.

    Several tokens may represent the same letter, with a space or in lower case. A letter without a token is
    less likely than all listed tokens, so it gets the log-probability of the least likely token.
    """
    logprobs = dict.fromkeys(LETTERS[:count], -math.inf)
    for text, logprob in tokens.items():
        letter = text.strip().strip("().:").upper()
        if letter in logprobs:
            logprobs[letter] = _log_sum(logprobs[letter], logprob)
    if max(logprobs.values()) == -math.inf:
        return None
    min_logprob = min(tokens.values())
    filled_logprobs = [logprob if logprob > -math.inf else min_logprob for logprob in logprobs.values()]
    max_logprob = max(filled_logprobs)
    weights = [math.exp(logprob - max_logprob) for logprob in filled_logprobs]
    return [weight / sum(weights) for weight in weights]


def _log_sum(a: float, b: float) -> float:
    """log(exp(a) + exp(b))."""
    maximum = max(a, b)
    if maximum == -math.inf:
        return maximum
    return maximum + math.log(math.exp(a - maximum) + math.exp(b - maximum))


class Router:
    """Asks a model for a letter in each order of the labels.

    Args:
        model: The base model, without an adapter.
        skills: The choices apart from `NO_CAPABILITY`. Without skills, the choice is `NO_CAPABILITY` and the
            model is not asked.
        seed: The seed of the order of labels.
    """

    def __init__(self, model: FirstTokens, skills: Sequence[Skill], seed: int = 0) -> None:
        self._model = model
        self._skills = skills
        self._orders = label_orders([skill.name for skill in skills], seed)

    async def route(self, opening: str) -> Routing:
        """The routing of a task whose first customer message is `opening`.

        Raises:
            EndpointError: the endpoint gives no log-probabilities.
            InfrastructureError: there was no answer.
        """
        answers: list[tuple[LabelOrder, Mapping[str, float]]] = []
        for order in self._orders:
            tokens: Mapping[str, float] = {}
            if self._skills:
                tokens = await self._model.first_tokens(question_messages(self._skills, order, opening))
            answers.append((order, tokens))
        return average_answers(answers)


class RoutedAgent:
    """Chooses an agent at the first message, and delegates the conversation to that agent.

    Args:
        router: Makes the choice.
        agents: The agents by capability; the agent of `NO_CAPABILITY` uses the base model.
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
        texts = [message.text for message in history if message.role == "user" and message.text]
        routing = None
        if self._routing is None or (self._each_turn and history and history[-1].role == "user"):
            openings = (texts[-1:] if self._each_turn else texts[:1]) or [""]
            routing = self._routing = await self._router.route(openings[0])
        message = await self._agents[self._routing.chosen].respond(history)
        if routing is None:
            return message
        return message.model_copy(update={"routing": routing.model_dump(mode="json")})
