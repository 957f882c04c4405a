"""Agents of many manners, for tests of the scripted customer: all of them do the right thing."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pytest_trace2evolve.cases.case import Case
from pytest_trace2evolve.engine.conversation import Limits, converse
from pytest_trace2evolve.records.message import Message, ToolCall
from pytest_trace2evolve.records.protocols import Agent, World, rules_of
from pytest_trace2evolve.records.task import Action, Slot, Turn
from pytest_trace2evolve.records.trace import Simulation
from pytest_trace2evolve.scoring.invariants import find_breaches
from pytest_trace2evolve.scoring.reward import score
from pytest_trace2evolve.users.scripted import ScriptedUser

LIMITS = Limits(max_steps=60)
"""The suite's own."""

READS = ("find_user", "get_", "list_", "calculate")


@dataclass(frozen=True)
class Manner:
    """How an agent speaks.

    Attributes:
        identify: What it says, one message each, before it does anything.
        questions: What it asks for a detail of a request.
        proposal: What it says before a write, with `{what}`, `{order}`, `{details}` and `{listed}` filled in.
        done: What it says when a turn is done.
        refused: What it says of what cannot be done.
        both: What it says where a part is done and a part refused; empty puts the two above together.
        before_calls: Announced before it calls tools.
        between: What it says, without a question, after a write to which another follows.
        at_once: Whether all questions go into one message.
    """

    name: str
    identify: tuple[str, ...]
    questions: dict[Slot, str]
    proposal: str
    done: str
    refused: str
    both: str = ""
    before_calls: str = ""
    between: str = ""
    at_once: bool = False


class Mannered:
    """Does what the case's gold actions say, in a manner.

    Args:
        leave_out: Says all the same and makes no call for these tools.
    """

    name = "mannered"

    def __init__(
        self, case: Case, manner: Manner, leave_out: Callable[[str], bool] = lambda _: False
    ) -> None:
        self._case = case
        self._manner = manner
        self._leave_out = leave_out

    async def respond(self, history: Sequence[Message]) -> Message:
        """The next thing of the plan for what the customer brought up last; then its last words again."""
        place, since = self._turn(history)
        own = [item for item in history[since:] if item.role == "assistant"]
        plan = list(self._plan(place))
        step = plan[min(len(own), len(plan) - 1)]
        if isinstance(step, str):
            return Message(role="assistant", content=step)
        call = ToolCall(id=f"call_{len(history)}", name=step.name, arguments=step.arguments)
        return Message(role="assistant", tool_calls=[call])

    def _turn(self, history: Sequence[Message]) -> tuple[int, int]:
        turns, place, since = self._case.script.turns, 0, 1
        for at, message in enumerate(history):
            if message.role == "user":
                for later in range(place + 1, len(turns)):
                    if message.content == turns[later].says:
                        place, since = later, at
                        break
        return place, since

    def _plan(self, place: int) -> Iterator[str | Action]:
        turns, manner = self._case.script.turns, self._manner
        start = sum(turn.actions for turn in turns[:place])
        actions = self._case.task.actions[start : start + turns[place].actions]
        if place == 0:
            yield from manner.identify
        yield from self._questions(turns[place])
        if actions and manner.before_calls:
            yield manner.before_calls
        for at, action in enumerate(actions):
            if not action.name.startswith(READS):
                yield self._proposal(action)
            if self._leave_out(action.name):
                continue
            yield action
            if manner.between and not action.name.startswith(READS) and at + 1 < len(actions):
                yield manner.between
        yield self._outcome(turns[place])

    def _questions(self, turn: Turn) -> Iterator[str]:
        slots = dict.fromkeys(slot for item in turn.requests for slot in item.details)
        asked = [self._manner.questions[slot] for slot in slots if slot in self._manner.questions]
        yield from ([" ".join(asked)] if asked and self._manner.at_once else asked)

    def _proposal(self, action: Action) -> str:
        return self._manner.proposal.format(
            what=action.name.replace("_", " "),
            order=action.arguments.get("order_id", "in your profile"),
            details=", ".join(f"{name} {_spoken(value)}" for name, value in action.arguments.items()),
            listed="\n".join(
                f"- **{name.replace('_', ' ').capitalize()}:** {_spoken(value)}"
                for name, value in action.arguments.items()
            ),
        )

    def _outcome(self, turn: Turn) -> str:
        manner = self._manner
        answers = " ".join(f"It is {item.answer}." for item in turn.requests if item.answer)
        said = manner.done if turn.has_allowed_request else manner.refused
        if turn.has_allowed_request and turn.has_forbidden_request:
            said = manner.both or f"{manner.refused} {manner.done}"
        return f"{answers} {said}".strip()


def _spoken(value: object) -> str:
    return " and ".join(map(str, value)) if isinstance(value, list) else str(value)


class Says:
    """Says the same texts in turn, for ever, and calls nothing."""

    name = "says"

    def __init__(self, *texts: str) -> None:
        self._texts = texts

    async def respond(self, history: Sequence[Message]) -> Message:
        """The next text."""
        own = sum(message.role == "assistant" for message in history)
        return Message(role="assistant", content=self._texts[(own - 1) % len(self._texts)])


_DETAILS = {
    Slot.ORDER: "Could you please provide the **order number**?",
    Slot.REASON: 'May I ask for the reason: "no longer needed" or "ordered by mistake"?',
    Slot.PAYMENT: "Which payment method would you like to use for the refund or any price difference?",
    Slot.OPTIONS: "What options would you like for the new item?",
    Slot.ADDRESS: "What is the full address (street, city, state, zip code) it should go to?",
}

TERSE = Manner(
    name="terse",
    identify=("Email?",),
    questions={Slot.ORDER: "Order number?", Slot.REASON: "Reason?", Slot.PAYMENT: "Payment method?"},
    proposal="{what}: {details}. OK?",
    done="Done.",
    refused="Not possible.",
)
CHATTY = Manner(
    name="chatty",
    identify=(
        (
            "I'm sorry to hear that! I'd be happy to help you with this. To get started, I need to verify "
            "your identity. Could you please provide your **email address**, or your first name, last name "
            "and zip code?"
        ),
    ),
    questions=_DETAILS,
    proposal="Thank you! Here is what I am about to do ({what}):\n\n{listed}\n\nThe refund, if any, will be "
    "processed to your original payment method within 5-7 business days. Please note that this cannot be "
    "undone.\n\nDo you confirm that you would like me to proceed? (yes/no)",
    done="Great news! Your request has been successfully processed. 🎉 You will receive an email shortly. "
    "Is there anything else I can help you with today?",
    refused="I understand your frustration, and I'm truly sorry, but unfortunately our policy doesn't allow "
    "that. Is there anything else I can help you with today?",
)
AT_ONCE = Manner(
    name="at once",
    identify=(
        (
            "To assist you further, I will need the following:\n1. Your email, or full name and zip code\n"
            "2. Your order ID\n3. The reason for your request\nPlease share these details."
        ),
    ),
    questions=_DETAILS,
    at_once=True,
    proposal="To confirm, you want me to {what} with {details}. Is that correct? If so, please reply with "
    '"yes" and also let me know if you have any other questions.',
    done="That has been taken care of. If you have any other questions, feel free to ask!",
    refused="I regret to inform you that this request is not eligible under our policy. If you have any "
    "other questions, feel free to ask!",
)
STATEMENTS = Manner(
    name="statements",
    identify=("I need your email address to find you.", "Your name and zip code, please."),
    questions={
        Slot.ORDER: "Please tell me the order id.",
        Slot.REASON: "I need to know the reason.",
        Slot.PAYMENT: "Kindly specify the refund method.",
    },
    proposal="I will {what} now with {details}. Please reply 'yes' to proceed.",
    done="I have completed everything.",
    refused="Our rules do not permit this. It has to be declined.",
)
DETAILED = Manner(
    name="detailed",
    identify=("Welcome! Before we begin: what is the e-mail on your account?",),
    questions={},
    proposal="I found order {order}. It was placed on 2024-05-01. It contains 3 items. "
    "The total was $1,234.50. The tracking number is 840887978435. Your customer id is known to us. "
    "A change like this one ({what}) takes 5 to 7 business days. Its details are these: {details}. "
    "Shall I go ahead with it?",
    done="Everything you asked for is done as of today. The total was $1,234.50. Have a wonderful day!",
    refused="I looked at it again. It was placed on 2024-05-01. For that reason I am unable to do what you "
    "ask. I apologize for the inconvenience.",
)
ANNOUNCING = Manner(
    name="announcing",
    identify=(
        "Let me check that for you.",
        "What is your email?",
        "Thank you, I have verified your identity.",
    ),
    questions={},
    before_calls="One moment please, I'll look into your orders.",
    between="I have completed the first part of it. Next, I will look at the other one.",
    proposal="Would you like me to proceed? This is what I would do: {what}, {details}.",
    done="All set! Your request has been processed.",
    refused="I'm afraid that won't be possible. I can transfer you to a human agent if you wish.",
)
OFFERING = Manner(
    name="offering",
    identify=(
        "Could you share your email? If you don't have it, I can also use your name and zip code.",
        (
            "I found your account. If you don't have the order number, I can help you look up your orders. "
            "Would you like me to do that?"
        ),
        "I have your orders here now.",
    ),
    questions={Slot.REASON: "Please confirm the reason for the cancellation so I can proceed."},
    proposal="Are you okay with this: {what}, {details}?",
    done="That is complete and everything is in order. Is there something else you need?",
    refused="Regrettably this is outside of our policy. Would you like to keep things as they are instead, "
    "or is there anything else I can do?",
)
COURTEOUS = Manner(
    name="courteous",
    identify=(
        "Good day, and thank you for reaching out. How may I help you today?",
        "Certainly. May I have your email address, please?",
    ),
    questions={Slot.ORDER: "Would you be so kind as to tell me which order this is about?"},
    proposal="Kindly confirm the following before I {what}:\n{listed}\n\nOnce you confirm, I will proceed.",
    done="It is my pleasure to tell you that this was done. Thank you for your patience.",
    refused="We must respectfully decline this. It is against our policy.",
    both="I was able to do the one part. We must respectfully decline the other, it is against our policy. "
    "Anything else?",
)
RIGHT = (TERSE, CHATTY, AT_ONCE, STATEMENTS, DETAILED, ANNOUNCING, OFFERING, COURTEOUS)
"""Manners of agents that do the right thing."""


def talk(case: Case, world: World, agent: Agent, seed: int = 0) -> Simulation:
    user = ScriptedUser(case.script, seed=seed)
    return asyncio.run(converse(case.task, world, agent, user, limits=LIMITS))


def finding(case: Case, world: World, simulation: Simulation) -> str:
    """What is wrong with a simulation of an agent that does the right thing; empty where nothing is."""
    rules = rules_of(world)
    assert rules is not None
    if simulation.termination_reason != "user_stop":
        return f"{case.id}: {simulation.termination_reason}"
    if found := find_breaches(simulation.trace, rules):
        return f"{case.id}: {found[0].why}"
    return "" if score(simulation, case.task, world).reward == 1 else f"{case.id}: reward is not 1"
