"""A script that plays the agent of synthetic cases as a talkative model would: it solves every case."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_trace2evolve.records.task import Action, Slot, Task, Turn, script_of
from pytest_trace2evolve.records.task import Script as Customer
from pytest_trace2evolve.testing.server import ChatRequest, Reply, Script

_READS = ("find_", "get_", "list_", "calculate")
"""How the names of tools begin that change nothing."""

_WHO = (
    "I'd be happy to help you with that! To get started, I need to verify your identity. Could you please "
    "provide your **email address**, or your first name, last name and zip code?"
)
_LOOKING = "Thank you! Let me look into that for you."
_DONE = "Your request has been taken care of. Is there anything else I can help you with today?"
_REFUSED = (
    "I understand that this is not what you were hoping for, but unfortunately our policy does not allow it. "
    "Is there anything else I can help you with today?"
)
_QUESTIONS = {
    Slot.ORDER: "Which order is this about? Please share the order number if you have it.",
    Slot.REASON: "Could you also tell me the reason?",
    Slot.PAYMENT: "Which payment method would you like to use?",
    Slot.OPTIONS: "What options would you like for the new item?",
}


@dataclass(frozen=True)
class _Part:
    """The agent's part in one case."""

    task: Task
    customer: Customer


def case_script(tasks: Iterable[Task]) -> Script:
    """A script that solves every case, for the agent alone: the customer follows the case's own script.

    Args:
        tasks: The cases' tasks; those without a customer's script are passed over.

    A conversation's case is known by the customer's opening, and by who they are where several open alike.
    The answer to a request follows from its messages alone.

    Raises:
        CaseError: a customer's script is damaged.
    """
    parts = [_Part(task, customer) for task in tasks if (customer := script_of(task)) is not None]

    def reply(request: ChatRequest) -> Reply:
        heard = [str(one.get("content") or "") for one in request.messages if one["role"] == "user"]
        part = _meant(parts, heard)
        if part is None:
            return Reply("I am sorry, I did not get that. How can I help you?")
        place, made = _progress(request.messages, part.customer)
        plan = list(_plan(part, place))
        return plan[min(made, len(plan) - 1)]

    return reply


def _meant(parts: Sequence[_Part], heard: Sequence[str]) -> _Part | None:
    """The case whose customer speaks: of several who open alike, the one who said who they are."""
    if not heard:
        return None
    alike = [one for one in parts if one.customer.turns[0].says == heard[0]]
    known = [one for one in alike if any(who in text for who in _identities(one) for text in heard)]
    return next(iter(known or alike), None)


def _identities(part: _Part) -> Iterable[str]:
    return part.customer.identity.values()


def _progress(messages: Sequence[dict[str, Any]], customer: Customer) -> tuple[int, int]:
    """The customer's present turn, and how many messages the agent has sent since it began."""
    place = made = 0
    opened = False
    for message in messages:
        if message["role"] == "user":
            opened = True
            for later in range(place + 1, len(customer.turns)):
                if message.get("content") == customer.turns[later].says:
                    place, made = later, 0
                    break
        elif message["role"] == "assistant" and opened:
            made += 1
    return place, made


def _plan(part: _Part, place: int) -> Iterator[Reply]:
    """What the agent says and does in one turn, a message each."""
    turn, turns = part.customer.turns[place], part.customer.turns
    start = sum(one.actions for one in turns[:place])
    if place == 0:
        yield Reply(_WHO)
    slots = dict.fromkeys(slot for request in turn.requests for slot in request.details)
    if asked := " ".join(_QUESTIONS[slot] for slot in slots if slot in _QUESTIONS):
        yield Reply(asked)
    for action in part.task.actions[start : start + turn.actions]:
        reads = action.name.startswith(_READS)
        if not reads:
            yield Reply(_proposal(action))
        yield Reply(_LOOKING if reads else None, tool_calls=((action.name, action.arguments),))
    yield Reply(_outcome(turn))


def _proposal(action: Action) -> str:
    lines = [
        f"- **{name.replace('_', ' ').capitalize()}:** {_spoken(value)}"
        for name, value in action.arguments.items()
        if value
    ]
    return "\n".join(
        [
            f"Thank you for your patience. I am going to **{action.name.replace('_', ' ')}**:",
            "",
            *lines,
            "",
            "Do you confirm that you would like me to proceed? (yes/no)",
        ]
    )


def _outcome(turn: Turn) -> str:
    answers = [f"Here is what you asked for: **{one.answer}**." for one in turn.requests if one.answer]
    refused = [_REFUSED] if turn.refused else []
    return "\n\n".join([*answers, *(refused or [_DONE])])


def _spoken(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
