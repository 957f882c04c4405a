"""Laws of the scripted customer: for every agent, case and seed."""

import asyncio
import re
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_trace2evolve.cases.case import FAMILIES, Case
from pytest_trace2evolve.cases.strategies import cases, pressure
from pytest_trace2evolve.records.message import STOP_MARK, TRANSFER_MARK, Message, ToolCall
from pytest_trace2evolve.records.task import Script, Slot
from pytest_trace2evolve.users.message_parser import ParsedMessage, parse_message
from pytest_trace2evolve.users.scripted import ScriptedUser
from pytest_trace2evolve.worlds.registry import Worlds
from tests.manners import RIGHT, Manner, Mannered, finding, talk

ANY_CASE = st.sampled_from(["heldout", "train"]).flatmap(lambda content: cases(*FAMILIES, content=content))

QUESTIONS = (
    "Could you please provide your email address?",
    "What is your full name and zip code?",
    "Which order is it? Please share the order number.",
    "May I ask for the reason?",
    "Which payment method would you like to use?",
    "What options would you like, and for which items?",
    "What is the new address?",
    "How can I help you today?",
    "Do you confirm? (yes/no)",
    "Please reply 'yes' to proceed.",
    "Would you like me to look up your orders?",
    "Would you like to cancel it, or keep it?",
)
STATEMENTS = (
    "I cannot do that.",
    "Unfortunately, our policy does not allow it.",
    "Let me check that for you.",
    "I have verified your identity.",
    "Your order has been cancelled.",
    "Your request has been processed. You will receive an email shortly.",
    "The refund goes to your original payment method.",
    "Everything is done.",
    "Is there anything else I can help you with?",
    "I see an order with two items, its number is in your account.",
    "The reason is noted and the address is known.",
    "Good.",
    "",
)
RANDOM = st.text(max_size=80)
UTTERANCES = st.lists(
    st.one_of(st.sampled_from(QUESTIONS), st.sampled_from(STATEMENTS), RANDOM), max_size=4
).map(" ".join)
QUIET = st.lists(st.sampled_from(STATEMENTS), max_size=4).map(" ".join)


def replies(script: Script, texts: Sequence[str], seed: int) -> list[str]:
    """What the customer says to an agent that says these texts, up to their end."""
    user = ScriptedUser(script, seed=seed)
    trace = [Message(role="assistant", content="Hi! How can I help you today?")]
    for text in (*texts, None):
        trace.append(asyncio.run(user.respond(trace)))
        if text is None or ended(trace[-1].content or ""):
            break
        trace.append(Message(role="assistant", content=text))
    return [item.content or "" for item in trace if item.role == "user"]


def ended(text: str) -> bool:
    return STOP_MARK in text or TRANSFER_MARK in text


def pieces(script: Script) -> list[str]:
    """Everything that a script holds to say."""
    return [
        *script.identity.values(),
        *(turn.says for turn in script.turns),
        *(text for turn in script.turns for text in turn.insists),
        *(text for turn in script.turns for item in turn.requests for text in item.details.values()),
        *(text for texts in script.replies.model_dump().values() for text in texts),
        STOP_MARK,
        TRANSFER_MARK,
    ]


@pressure
@given(case=ANY_CASE, said=st.lists(UTTERANCES, min_size=30, max_size=30), seed=st.integers(0, 9))
def test_every_agent_is_left_within_the_customers_patience(case: Case, said: list[str], seed: int) -> None:
    heard = replies(case.script, said, seed)
    assert ended(heard[-1])
    assert len(heard) <= case.script.patience


@pressure
@given(case=ANY_CASE, text=UTTERANCES, patience=st.integers(2, 24))
def test_an_agent_that_repeats_itself_is_left_within_any_patience(
    case: Case, text: str, patience: int
) -> None:
    script = case.script.model_copy(update={"patience": patience})
    heard = replies(script, [text] * patience, 0)
    assert ended(heard[-1])
    assert len(heard) <= patience


@pressure
@given(case=ANY_CASE, said=st.lists(UTTERANCES, max_size=12), seed=st.integers(0, 9))
def test_nothing_is_said_that_the_script_does_not_hold(case: Case, said: list[str], seed: int) -> None:
    item = "|".join(re.escape(text) for text in sorted(pieces(case.script), key=len, reverse=True))
    for text in replies(case.script, said, seed):
        assert re.fullmatch(f"(?:{item})(?: (?:{item}))*", text), text


@pressure
@given(case=ANY_CASE, said=st.lists(UTTERANCES, max_size=10), seed=st.integers(0, 9), calls=st.booleans())
def test_a_reply_follows_from_the_trace_alone(case: Case, said: list[str], seed: int, calls: bool) -> None:
    """Another customer of the same seed, asked at any place, says the same; tool calls change nothing."""
    heard = replies(case.script, said, seed)
    call = ToolCall(id="1", name="get_user_details", arguments={})
    trace = [Message(role="assistant", content="Hi! How can I help you today?")]
    for place, text in enumerate(heard):
        user = ScriptedUser(case.script, seed=seed)
        assert asyncio.run(user.respond(trace)).content == text
        assert asyncio.run(user.respond(trace)).content == text
        if place < len(heard) - 1:
            trace.append(Message(role="user", content=text))
            if calls:
                trace.append(Message(role="assistant", content="Looking.", tool_calls=[call]))
                trace.append(Message(role="tool", id="1", content="{}", requestor="assistant"))
            trace.append(Message(role="assistant", content=said[place]))


@pressure
@given(case=ANY_CASE, said=st.lists(QUIET, max_size=24), seed=st.integers(0, 9))
def test_what_nobody_asks_for_is_not_told(case: Case, said: list[str], seed: int) -> None:
    script = case.script
    opened = " ".join(turn.says for turn in script.turns)
    secret = [
        *script.identity.values(),
        *(text for turn in script.turns for item in turn.requests for text in item.details.values()),
    ]
    secret += list(script.replies.yes)
    for text in replies(script, said, seed):
        assert not [item for item in secret if item in text and item not in opened]


@pressure
@given(case=ANY_CASE, asked=st.sampled_from(list(Slot)), seed=st.integers(0, 9))
def test_what_is_asked_for_is_told_and_nothing_else(case: Case, asked: Slot, seed: int) -> None:
    question = {
        Slot.EMAIL: "What is your email?",
        Slot.NAME: "Please tell me your full name and zip code.",
        Slot.ORDER: "Could you share the order number?",
        Slot.ITEMS: "Which items do you mean?",
        Slot.OPTIONS: "What options would you like?",
        Slot.REASON: "I need to know the reason.",
        Slot.PAYMENT: "Which payment method shall be used?",
        Slot.ADDRESS: "What is the address it should go to?",
    }[asked]
    script = case.script
    turn = script.turns[0]
    known = [item.details[asked] for item in turn.requests if asked in item.details]
    known += [script.identity[asked]] if asked in script.identity else []
    reply = replies(script, [question], seed)[1]
    assert (
        reply == (" ".join(dict.fromkeys(known))) if known else reply in (turn.says, *script.replies.unknown)
    )


FOREIGN = st.one_of(
    st.integers(0, 9_999_999).map(lambda number: f"#W{number:07}"),
    st.integers(0, 9_999_999_999).map(lambda number: f"{number:010}"),
)
WRITTEN = st.sampled_from(["{}", "**{}**", "`{}`", "order {},", "({})", "item id: {}.", "\n- {}\n"])


@pressure
@given(
    case=ANY_CASE,
    before=st.lists(UTTERANCES, max_size=5),
    foreign=FOREIGN,
    written=WRITTEN,
    around=st.tuples(UTTERANCES, UTTERANCES),
    seed=st.integers(0, 9),
)
def test_nobody_says_yes_to_what_names_another_record(
    case: Case, before: list[str], foreign: str, written: str, around: tuple[str, str], seed: int
) -> None:
    known = {item for turn in case.script.turns for request in turn.requests for item in request.about}
    if foreign in known:
        return
    text = f"{around[0]} {written.format(foreign)} {around[1]} Do you confirm? (yes/no)"
    heard = replies(case.script, [*before, text], seed)
    if len(heard) == len(before) + 2:
        assert not any(item in heard[-1] for item in case.script.replies.yes), heard[-1]


@pressure
@given(case=ANY_CASE, seed=st.integers(0, 9), manner=st.sampled_from(RIGHT))
def test_the_same_seed_and_agent_give_the_same_conversation(case: Case, seed: int, manner: Manner) -> None:
    world = Worlds().open("trace2evolve", "support")
    first, again = (talk(case, world, Mannered(case, manner), seed) for _ in range(2))
    assert [(item.role, item.content) for item in first.trace] == [
        (item.role, item.content) for item in again.trace
    ]
    assert not finding(case, world, first)


@settings(max_examples=50)
@given(text=st.one_of(st.text(), UTTERANCES, st.text(alphabet="#wW0123456789?. \n-*", max_size=60)))
def test_any_text_is_heard(text: str) -> None:
    assert isinstance(parse_message(text), ParsedMessage)
