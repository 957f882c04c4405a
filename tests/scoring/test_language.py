"""The words that invariants hear: what is a yes, what asks for one, what claims to be done, at what cost."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_trace2evolve.cases.content import vocabulary
from pytest_trace2evolve.records.task import Content, Replies
from pytest_trace2evolve.scoring.language import (
    MAX_SENTENCE_LENGTH,
    MAX_TEXT_LENGTH,
    asks_for_yes,
    find_claims,
    leaves_open,
    says_yes,
    sentences,
)
from pytest_trace2evolve.worlds.retail_rules import RETAIL_RULES


@pytest.mark.parametrize(
    ("text", "yes"),
    [
        ("yes", True),
        ("Um, yes… go on", True),
        ("Sure, that works for me.", True),
        ("That's correct. Please proceed.", True),
        ("OK", True),
        ("Please go ahead and cancel it.", True),
        ("No problem, go ahead.", True),
        ("The reason is “no longer needed.” Please proceed with it.", True),
        ("Yes, I don't need it any more.", True),
        ("No.", False),
        ("No, don't proceed.", False),
        ("I'm not sure.", False),
        ("Before you proceed, what is the refund?", False),
        ("That is not correct.", False),
        ("Would that be OK?", False),
        ("I want to cancel my order.", False),
        ("My zip code is 28236.", False),
        ("Do not go ahead.", False),
        ("Wait. Cancel the other one", False),
        ("", False),
        ("Of course.", True),
        ("By all means.", True),
        ("Fine", True),
        ("Approved", True),
        ("Affirmative", True),
        ("I have no objection", True),
        ("No objections, go ahead.", True),
        ("You have my approval", True),
        ("👍", True),
        ("**Yes**", True),
        ("Wait, let me check. Okay, yes, do it.", True),
        ("Yes, please. I can't wait!", True),
        ("Yes, cancel it, and could you tell me when I get the refund?", True),
        ("Okay, let me think about it.", False),
        ("Okay. Let me think about it.", False),
        ("Yes, but wait", False),
        ("Yes. Hold on!", False),
        ("Yes? What do you mean?", False),
        ("yes or no?", False),
        ("Is it correct that you can proceed", False),
        ("I said yes to the other one, not this", False),
        ("Okay, take your time.", False),
        ("Sure thing, but first tell me the refund amount.", False),
        ("Alright, what are my options", False),
        ("My email is me@ok.example", False),
        ("ok ok no stop", False),
    ],
)
def test_what_is_an_explicit_yes(text: str, yes: bool) -> None:
    assert says_yes(text) is yes


@pytest.mark.parametrize("text", ["OK", "Sure.", "Alright", "Of course.", "That's fine.", "Fine", "👍"])
def test_courtesy_is_a_yes_only_to_a_question_for_it(text: str) -> None:
    assert says_yes(text, is_asked=True)
    assert not says_yes(text, is_asked=False)


@pytest.mark.parametrize("text", ["Yes", "Go ahead.", "I confirm.", "Please do.", "By all means.", "y"])
def test_a_clear_yes_needs_no_question(text: str) -> None:
    assert says_yes(text, is_asked=False)


@pytest.mark.parametrize(
    ("text", "asks"),
    [
        ("Shall I proceed?", True),
        ("Is that okay?", True),
        ("Please confirm.", True),
        ("I would cancel it. Let me know if you agree.", True),
        ("If that is right, I would cancel it now.", True),
        ("Reply (yes/no).", True),
        ("I am looking into the return, step 4.", False),
        ("I will go ahead and cancel it now.", False),
        ("I will cancel it. Is there anything else I can do?", False),
        ("Can you confirm your zip code?", False),
        ("Thank you for your confirmation.", False),
        ("Which item shall go back?", False),
        ("May I have your email?", False),
    ],
)
def test_what_asks_for_a_yes(text: str, asks: bool) -> None:
    assert asks_for_yes(text) is asks


@pytest.mark.parametrize("content", list(Content))
def test_of_a_scripted_customers_replies_only_the_yes_is_one(content: Content) -> None:
    phrases = vocabulary(content).phrases
    announced = "I am looking into the return, step 4."
    for kind in Replies.model_fields:
        for text in phrases[kind]:
            assert says_yes(text, is_asked=asks_for_yes(announced)) is (kind == "yes"), text
    # Nor is a customer who waits taken to agree where the agent asked.
    assert not any(says_yes(text) for text in phrases["wait"])


SLOW = [
    "no ok ",
    ". ",
    "yes no ",
    "please ",
    " ",
    "not a ",
    "- ",
    "um, ",
    "refund for ",
    "has been ",
    "yes, wait ",
]
SLOW += [
    "i have now ",
    "I cancelled #W12345, and ",
    "i have made a ",
    "your a order ",
    "other not ",
    "\n",
    "?!",
    "(",
]


@given(st.sampled_from(["", "no", "i have ", "the refund has"]), st.sampled_from(SLOW))
@settings(max_examples=25, deadline=None)
def test_a_hostile_text_is_read_to_its_end(before: str, unit: str) -> None:
    """In time that grows with its length: at the square of it, this test would take days."""
    text = before + (unit * 2_000_000)[:2_000_000]
    assert says_yes(text) in (True, False)
    assert asks_for_yes(text) in (True, False)
    assert leaves_open(text) in (True, False)
    assert all(find_claims(text, RETAIL_RULES.promises))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("  One.\n\n Two  words! Three", ["One.", "Two words!", "Three"]),
        ("He said “no.” Go on… Then", ["He said “no.", "Go on…", "Then"]),
        ("so!!!!!!!!!! yes", ["so!!!", "yes"]),
        (" \n ", []),
    ],
)
def test_a_message_is_cut_into_sentences(text: str, found: list[str]) -> None:
    assert list(sentences(text)) == found


@given(st.text())
def test_sentences_are_short_and_never_empty(text: str) -> None:
    found = list(sentences(text * 50))
    assert all(0 < len(one) <= MAX_SENTENCE_LENGTH for one in found)
    assert sum(map(len, found)) <= MAX_TEXT_LENGTH


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("Your order has been cancelled.", 1),
        ("I've gone ahead. The order is now canceled!", 1),
        ("The cancellation for order #W7800651 has been successfully processed.", 1),
        ("I have submitted the return request.", 1),
        ("Great news: your address has been updated, and the refund has been issued.", 2),
        ("I cancelled your order.", 1),
        ("I went ahead and cancelled it.", 1),
        ("Your order #W7800651 is cancelled.", 1),
        ("Your return is complete.", 1),
        ("Your order is cancelled as soon as you confirm.", 0),
        ("Once your return is complete, you get an email.", 0),
        ("We have updated our policy.", 0),
        ("Prices have been updated recently.", 0),
        ("I have updated my notes.", 0),
        ("Would you like to know whether it has been cancelled?", 0),
        ("It hasn’t been cancelled.", 0),
        ("Your order has been delivered. Only orders that have been delivered can be returned.", 0),
        ("The price difference has been paid with the payment method changed before.", 0),
    ],
)
def test_what_is_a_claim(text: str, made: int) -> None:
    assert len(list(find_claims(text, RETAIL_RULES.promises))) == made
