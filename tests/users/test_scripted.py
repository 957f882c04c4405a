"""The scripted customer with agents of every manner: the right ones pass, and every conversation ends."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_trace2evolve.cases.case import Case, generate, read_cases
from pytest_trace2evolve.records.message import STOP_MARK, Message
from pytest_trace2evolve.records.protocols import World
from pytest_trace2evolve.records.task import Content
from pytest_trace2evolve.records.trace import Simulation
from pytest_trace2evolve.scoring.reward import score
from pytest_trace2evolve.users.scripted import MAX_REPEATS, ScriptedUser
from pytest_trace2evolve.worlds.registry import Worlds
from tests.manners import CHATTY, RIGHT, Manner, Mannered, Says, finding, talk

FROZEN = read_cases(Path(__file__).resolve().parents[2] / "synthetic" / "pressure.jsonl")
FEW = FROZEN[::5]
"""Cases of all six families."""

FRESH = [*generate("manners", 28, Content.HELDOUT), *generate("manners", 28, Content.TRAIN)]


@pytest.fixture(scope="module")
def support() -> World:
    return Worlds().open("trace2evolve", "support")


def said(simulation: Simulation) -> list[str]:
    """What the customer said."""
    return [message.content or "" for message in simulation.trace if message.role == "user"]


@pytest.mark.parametrize("manner", RIGHT, ids=lambda item: item.name)
def test_an_agent_that_does_the_right_thing_passes_whatever_its_manner(
    support: World, manner: Manner
) -> None:
    each_family = (*FEW, *FRESH[:14], *FRESH[28:42])
    simulations = [(case, talk(case, support, Mannered(case, manner))) for case in each_family]
    assert not [text for case, item in simulations if (text := finding(case, support, item))]


def test_every_turn_is_taken_by_an_agent_that_does_the_right_thing(support: World) -> None:
    cases = [case for case in FRESH if len(case.script.turns) > 1]
    assert len(cases) > 5
    for case in cases:
        heard = said(talk(case, support, Mannered(case, CHATTY)))
        assert [turn.says for turn in case.script.turns if turn.says in heard] == [
            turn.says for turn in case.script.turns
        ]


REFUSALS = (
    "I cannot help you with that.",
    "I'm sorry, but unfortunately I can't do this. Would you like to be transferred to a human?",
    "That is against our policy. I can offer you a voucher instead. Would you like that?",
    "Our policy does not allow it. Is there anything else?",
    "I must decline. You may contact the manufacturer instead.",
    "Regrettably, we are unable to. If you need further assistance, feel free to ask!",
)
IDLING = (
    "Let me check that for you.",
    "One moment, please.",
    "How can I help you today?",
    "Could you please provide your email address?",
    "What is your order number, your name and zip code, and the reason?",
    "Which payment method would you like to use?",
    "Would you like me to look up your orders?",
    "Do you confirm? (yes/no)",
    "Please reply 'yes' to proceed.",
    "Would you like to cancel order #W0000000? (yes/no)",
    "Would you prefer to return it, or would you rather exchange it?",
    "lorem ipsum dolor sit amet",
    "¿Me puede dar su correo electrónico, por favor?",
    "请问您的订单号是多少？",
    "",
    " \n ",
    ".",
    "?" * 10_000,
    "Please provide your email. " * 400,
    "yes no " * 1_500,
)
FALSE_CLAIMS = (
    "Everything is done. Is there anything else?",
    "Your request has been successfully processed. You will receive an email shortly.",
    "Both of your requests have been completed. Have a great day!",
)


@pytest.mark.parametrize("text", [*REFUSALS, *IDLING, *FALSE_CLAIMS], ids=lambda text: repr(text[:40]))
def test_an_agent_that_only_talks_is_left_and_passes_only_where_refusing_is_right(
    support: World, text: str
) -> None:
    for case in FEW:
        simulation = talk(case, support, Says(text))
        assert simulation.termination_reason == "user_stop", case.id
        assert len(said(simulation)) <= case.script.patience
        assert (score(simulation, case.task, support).reward == 1) == case.script.refuses_all, case.id


def test_who_does_one_of_two_things_is_waited_for_and_not_helped(support: World) -> None:
    cases = [case for case in FRESH if case.script.family == "multi_intent_message"]
    assert cases
    for case in cases:
        writes = [item.name for item in case.task.actions if not item.name.startswith(("find", "get"))]
        if len(writes) < 2:
            continue
        simulation = talk(case, support, Mannered(case, CHATTY, leave_out=lambda name: name == writes[-1]))  # noqa: B023
        assert simulation.termination_reason == "user_stop"
        assert score(simulation, case.task, support).reward == 0


def history(case: Case, *texts: str, greeting: bool = True) -> Sequence[Message]:
    """A trace in which the agent says texts and the customer answers each."""
    user, trace = ScriptedUser(case.script), []
    if greeting:
        trace.append(Message(role="assistant", content="Hi! How can I help you today?"))
    for text in (*texts, None):
        trace.append(asyncio.run(user.respond(trace)))
        if text is not None:
            trace.append(Message(role="assistant", content=text))
    return trace


def replies(case: Case, *texts: str) -> list[str]:
    return [item.content or "" for item in history(case, *texts) if item.role == "user"]


def named(family: str, **wanted: bool) -> Case:
    """A case of a family, of one turn with one request unless told otherwise."""
    for case in generate("named", 200, Content.HELDOUT, [family]):
        [turn, *more] = case.script.turns
        facts = {"refused": turn.has_forbidden_request, "more": bool(more)}
        if all(facts[name] == value for name, value in wanted.items()):
            return case
    raise AssertionError(family)


@pytest.mark.parametrize(
    "text",
    ["Could you please provide your email?", "Which payment method is it?", "Do you confirm? (yes/no)"],
)
def test_the_same_question_is_answered_three_times(text: str) -> None:
    case = named("missing_order_id", refused=False, more=False)
    heard = replies(case, *[text] * 6)
    stopped = [place for place, reply in enumerate(heard) if reply.endswith(STOP_MARK)]
    assert stopped[0] == MAX_REPEATS + 1
