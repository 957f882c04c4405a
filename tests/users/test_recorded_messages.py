"""The message parser on messages of real agents: recorded τ² retail runs.

What an agent asked for is read off the answer of the user who was simulated then, where the agent's message
names the thing at all. Such labels are rough: a user may answer what nobody asked. The floors below lie a
little under what was measured on 4,250 messages of 662 simulations.
"""

import gzip
import json
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from pytest_trace2evolve.records.task import Slot
from pytest_trace2evolve.scoring.language import says_yes
from pytest_trace2evolve.users.message_parser import ParsedMessage, parse_message

Exchange = tuple[str, ParsedMessage, str]


@pytest.fixture(scope="module")
def exchanges(recorded: Path) -> list[Exchange]:
    """What agents said after the customer had opened, as text and parsed, each with the answer."""
    found = []
    for path in sorted(recorded.glob("retail-*.json.gz")):
        for simulation in json.loads(gzip.decompress(path.read_bytes()))["simulations"]:
            messages = simulation["messages"]
            for item, answer in pairwise(messages[1:]):
                if item["role"] == "assistant" and item["content"] and answer["role"] == "user":
                    found.append((item["content"], parse_message(item["content"]), answer["content"] or ""))
    assert len(found) > 4_000
    return found


def both(named: str, answered: str) -> Callable[[str, str], bool]:
    """Whether the agent's message names a thing, and the answer tells it."""
    return lambda text, answer: bool(re.search(named, text, re.I) and re.search(answered, answer, re.I))


def agreed(text: str, answer: str) -> bool:
    """Whether the answer is a clear yes to a proposal, and nothing about who the customer is."""
    yes = says_yes(answer) and re.search(r"\byes\b", answer, re.I) and "STOP" not in answer
    what = re.search(
        r"proceed|go ahead|confirm|correct|please (?:cancel|return|exch|upd|chang|modif)", answer, re.I
    )
    who = re.search(r"e-?mail|\bzip|\bname\b|order (?:id|number)", answer, re.I)
    return bool(yes and what and not who)


HEARD: dict[str, tuple[Callable[[ParsedMessage], bool], Callable[[str, str], bool], float]] = {
    "a request for a yes": (lambda heard: heard.asks_for_confirmation, agreed, 0.96),
    "email": (
        lambda heard: Slot.EMAIL in heard.asked_slots,
        both("e-?mail", r"\S+@\S+\.\w+|(?:remember|sure|which|know|have).{0,25}e-?mail"),
        0.96,
    ),
    "name": (
        lambda heard: Slot.NAME in heard.asked_slots,
        both(r"\bzip|\bname", r"\bzip.{0,12}\d{5}|\bmy (?:full |first |last )?name(?: is|'s)"),
        0.96,
    ),
    "order": (
        lambda heard: Slot.ORDER in heard.asked_slots,
        both(
            r"order'?s? (?:id|number)|which .*order",
            r"order (?:id|number|#) is|don.t have (?:the|my|that|an|any|those) order"
            r"|(?:remember|have|know|sure).{0,20}order (?:id|number)",
        ),
        0.95,
    ),
    "reason": (
        lambda heard: Slot.REASON in heard.asked_slots,
        lambda text, answer: (
            both(r"\breason", r"no longer need|by mistake|\breason")(text, answer) and not says_yes(answer)
        ),
        0.9,
    ),
    "closing": (lambda heard: heard.is_closing, lambda _, answer: "###STOP###" in answer, 0.97),
    "transfer": (
        lambda heard: heard.is_transfer,
        lambda text, answer: "###TRANSFER###" in answer and not text.rstrip().endswith("?"),
        0.85,
    ),
}


@pytest.mark.parametrize("name", HEARD)
def test_what_real_users_answered_was_parsed(exchanges: list[Exchange], name: str) -> None:
    is_parsed, is_answered, floor = HEARD[name]
    asked = [(text, parsed) for text, parsed, answer in exchanges if is_answered(text, answer)]
    assert len(asked) >= 10
    missed = [text for text, parsed in asked if not is_parsed(parsed)]
    assert 1 - len(missed) / len(asked) >= floor, missed[:5]


def test_what_is_parsed_as_a_request_for_a_yes_mostly_got_one(exchanges: list[Exchange]) -> None:
    """The rest got a no, other wishes, or an answer to another question: 30 of 36 that were read."""
    answers = [answer for _, parsed, answer in exchanges if parsed.asks_for_confirmation]
    assert sum(map(says_yes, answers)) / len(answers) >= 0.78


def test_a_question_for_the_identity_is_not_parsed_as_one_for_a_yes(exchanges: list[Exchange]) -> None:
    """First answers that tell an email or a zip code answer no proposal."""
    identity = re.compile(r"\S+@\S+\.\w+|\bzip code is \d{5}")
    asked = [parsed for _, parsed, answer in exchanges if identity.search(answer)]
    assert len(asked) > 300
    # What is left asks for a yes as well: "If you have no email, shall I look you up by your name?"
    assert sum(parsed.asks_for_confirmation for parsed in asked) / len(asked) <= 0.05


def test_payment_methods_that_are_asked_for_are_parsed(exchanges: list[Exchange]) -> None:
    asks = re.compile(
        r"(?:which|what|preferred|provide (?:the|your)|specify (?:the|your|which)) (?:\w+ )?"
        r"(?:payment|refund) method",
        re.I,
    )
    asked = [(text, parsed) for text, parsed, _ in exchanges if asks.search(text)]
    assert len(asked) > 50
    missed = [text for text, parsed in asked if Slot.PAYMENT not in parsed.asked_slots]
    assert len(missed) / len(asked) <= 0.06, missed[:5]
