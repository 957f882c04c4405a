"""The scripted user of written tasks: reactions in five domains, and laws for any agent and any script."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_trace2evolve.records.message import GREETING, STOP_MARK, TRANSFER_MARK, USER_STOP_MARKS, Message
from pytest_trace2evolve.records.task import SlotScript
from pytest_trace2evolve.users.slots import SlotUser
from tests.users.slot_messages import DEVELOPED, HELD_OUT, SCRIPTS


def reaction(domain: str, text: str) -> str:
    """The kind of the user's answer to an agent's first message."""
    script = SCRIPTS[domain]
    trace = [
        Message(role="assistant", content=GREETING),
        Message(role="user", content=script.opening),
        Message(role="assistant", content=text),
    ]
    answer = SlotUser(script).reply(trace).content or ""
    if answer == TRANSFER_MARK:
        return "transfer"
    if STOP_MARK in answer:
        return "end"
    facts = [name for name, value in script.knows.items() if f"{name.replace('_', ' ')}: {value}" in answer]
    if facts:
        return " ".join(facts)
    starts = {
        "Yes": "yes",
        "No": "no",
        "Are you sure": "insist",
        "I do not know": "unknown",
        "All right": "wait",
    }
    kinds = [kind for start, kind in starts.items() if answer.startswith(start)]
    return kinds[0] if kinds else "goal" if script.goal in answer else answer


def accuracy(messages: tuple[tuple[str, str, str], ...]) -> float:
    return sum(reaction(domain, text) == wanted for domain, text, wanted in messages) / len(messages)


def test_the_reactions_fit_the_messages() -> None:
    assert len(DEVELOPED) == 60
    assert accuracy(DEVELOPED) == 1.0


def test_the_reactions_fit_messages_that_the_rules_were_not_made_from() -> None:
    assert len(HELD_OUT) == 30
    assert accuracy(HELD_OUT) >= 0.9


@pytest.mark.parametrize(
    ("goal", "proposal", "agrees"),
    [
        ("Move my booking B4 to Monday.", "Shall I change booking B4 to Monday?", True),
        ("Move my booking B4 to Monday.", "Shall I reschedule your booking B4 to Monday?", True),
        ("Move my booking B4 to Monday.", "Shall I change booking B4 to Tuesday?", False),
        ("Move my booking B4 to Monday.", "Shall I change booking B5 to Monday?", False),
        ("Move my booking B4 to Monday.", "Shall I change booking B4?", False),
        ("Move my booking B4 to Monday.", "Shall I change booking B4 to a suite on Monday?", False),
        ("Move my booking B4 to Monday.", "Shall I cancel booking B4 on Monday?", False),
        ("I want to move B4 to 2025-06-03.", "Shall I change B4 to 2025-06-03?", True),
        ("I want to move B4 to 2025-06-03.", "Shall I change B4 to 2025-06-04?", False),
        ("I want to move B4 to June 3.", "Shall I change B4 to June 4?", False),
        ("Cancel my booking B4.", "Shall I call off booking B4?", True),
        ("Cancel my booking B4.", "Shall I move booking B4?", False),
        ("Reserve a table for two on Friday.", "Shall I make a reservation for two on Friday?", True),
        ("Make a booking for two on Friday.", "Shall I reserve a table for two on Friday?", True),
        ("Make a booking for two on Friday.", "Shall I reserve a table for two on Saturday?", False),
        ("Upgrade my plan to Plus.", "Shall I downgrade your plan to Plus?", False),
    ],
)
def test_synonyms_of_the_same_action_are_agreed_to(goal: str, proposal: str, agrees: bool) -> None:
    assert agrees_to(SlotScript(goal=goal, opening=goal), proposal) is agrees


def test_a_proposal_with_a_second_action_is_refused() -> None:
    goal = "Move my booking B4 to Monday."
    script = SlotScript(goal=goal, opening=goal, knows={"new day": "Monday"})
    assert agrees_to(script, "Shall I change B4 to Monday?")
    assert not agrees_to(script, "Shall I cancel B4 and change Monday?")


def agrees_to(script: SlotScript, proposal: str) -> bool:
    greeting, opening = Message(role="assistant", content=GREETING), Message(role="user", content=script.goal)
    reply = SlotUser(script).reply([greeting, opening, Message(role="assistant", content=proposal)])
    return (reply.content or "").startswith("Yes")


def talk(script: SlotScript, texts: list[str]) -> list[str]:
    """The user's messages to an agent that says these texts, again and again, until the user ends."""
    user, trace = SlotUser(script), [Message(role="assistant", content=GREETING)]
    said: list[str] = []
    while not said or not any(mark in said[-1] for mark in USER_STOP_MARKS):
        assert len(said) <= script.patience, "the user does not end"
        message = user.reply(trace)
        said.append(message.content or "")
        trace += [message, Message(role="assistant", content=texts[len(said) % len(texts)])]
    return said


WORDS = st.sampled_from(
    """
    please provide your name booking id number email date of birth shall i cancel B17 B18 confirm yes no ? . :
    cannot done has been cancelled anything else wait one moment the and refund upgrade you would like to me
    transfer human agent which what when $20 4471 9902 proceed order W9921 W9922 policy friday monday
    """.split()  # noqa: SIM905
)
TEXTS = st.lists(st.lists(WORDS, max_size=14).map(" ".join) | st.text(max_size=60), min_size=1, max_size=4)
ANY_SCRIPT = st.sampled_from(sorted(SCRIPTS)).map(SCRIPTS.__getitem__)
FIXED = """
No That that is all Thank you I do not know that All right thank you Are you sure Yes please
No that is not what I want This leads nowhere Goodbye give up have to go now
""".split()  # noqa: SIM905


@settings(max_examples=40)
@given(ANY_SCRIPT, TEXTS)
def test_the_user_always_ends_within_their_patience(script: SlotScript, texts: list[str]) -> None:
    assert len(talk(script, texts)) <= script.patience


@settings(max_examples=40)
@given(ANY_SCRIPT, TEXTS)
def test_the_same_agent_gets_the_same_user(script: SlotScript, texts: list[str]) -> None:
    assert talk(script, texts) == talk(script, texts)


@settings(max_examples=40)
@given(ANY_SCRIPT, TEXTS)
def test_the_user_says_nothing_that_the_script_does_not_say(script: SlotScript, texts: list[str]) -> None:
    names = [name.replace("_", " ") for name in script.knows]
    known = " ".join([script.goal, script.opening, *script.knows.values(), *names, *FIXED])
    known_words = {*re.findall(r"\w+", known), "STOP", "TRANSFER"}
    for text in talk(script, texts):
        assert {*re.findall(r"\w+", text)} <= known_words, text


PROPOSALS = st.sampled_from(
    [
        "Shall I cancel booking {}?",
        "I found booking {}. Do you want me to cancel it and refund it?",
        "Please confirm that I should cancel {} for Ann Lee (yes/no).",
        "To confirm: booking {}, guest Ann Lee, B17. Is that correct?",
        "May I go ahead and cancel **{}**?",
        "Are you sure you want to cancel {} with a refund of 240 EUR?",
        "Your booking is {}, right?",
    ]
)


@given(PROPOSALS, st.integers(0, 999), st.booleans())
def test_the_user_never_agrees_to_another_id_of_the_same_shape(text: str, number: int, lower: bool) -> None:
    name = f"B{number}"
    answer = first_answer("hotel", text.format(name.lower() if lower else name))
    assert answer.startswith("Yes") == (name == "B17")


def first_answer(domain: str, text: str) -> str:
    trace = [
        Message(role="assistant", content=GREETING),
        Message(role="user", content=SCRIPTS[domain].opening),
        Message(role="assistant", content=text),
    ]
    return SlotUser(SCRIPTS[domain]).reply(trace).content or ""


@pytest.mark.parametrize(
    ("words", "proposal", "agrees"),
    [
        ((), "Shall I cancel booking B17?", False),
        ((), "I will cancel booking B17. Shall I go ahead?", False),
        ((), "Is your name Ann Lee?", True),
        ((), "Is your name Bob Ray?", False),
        (("keep",), "Shall I cancel booking B17?", False),
        (("keep",), "Shall I keep booking B17 as it is?", True),
        (("keep",), "Shall I keep booking B18 as it is?", False),
        (("move",), "I will reschedule B17 to Monday. Is that right?", True),
        (("move",), "I will cancel B17. Is that right?", False),
    ],
)
def test_a_user_with_words_of_their_own_agrees_to_nothing_else(
    words: tuple[str, ...], proposal: str, agrees: bool
) -> None:
    goal = "I changed my mind: keep booking B17 as it is."
    script = SlotScript(
        goal=goal, opening="Cancel booking B17.", knows={"name": "Ann Lee"}, agrees_only=words
    )
    assert agrees_to(script, proposal) is agrees
    if not agrees and "name" not in proposal:
        trace = [
            Message(role="user", content="Cancel booking B17."),
            Message(role="assistant", content=proposal),
        ]
        assert SlotUser(script).reply(trace).content == f"No, that is not what I want. {goal}"


def test_scripts_of_earlier_versions_are_read() -> None:
    record = {"kind": "slots", "goal": "g", "opening": "o", "agrees_to": ["hold"]}
    assert SlotScript.model_validate(record).agrees_only == ("hold",)


def test_a_continued_conversation_starts_after_its_history() -> None:
    script = SCRIPTS["hotel"]
    history = [
        Message(role="user", content="Hi"),
        *[Message(role="assistant", content="One moment."), Message(role="user", content="ok")] * 9,
        Message(role="assistant", content="What is your booking id?"),
    ]
    answer = SlotUser(script, history=len(history)).reply(history)
    assert answer.content == "booking id: B17"
    ends_with_user = [
        *history,
        Message(role="user", content="B17"),
        Message(role="assistant", content="Wait."),
    ]
    answer = SlotUser(script, history=len(history) + 1).reply(ends_with_user)
    assert answer.content == "All right."
    greeting_only = [Message(role="assistant", content="Hello!")]
    assert SlotUser(script, history=1).reply(greeting_only).content == script.opening
