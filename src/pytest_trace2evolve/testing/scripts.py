"""Scripts of whole conversations: agents that solve every task, and the user of τ²'s tasks."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pytest_trace2evolve.agents.reference import spoken
from pytest_trace2evolve.records.message import STOP
from pytest_trace2evolve.records.task import Action, Slot, Task, Turn, script_of
from pytest_trace2evolve.records.task import Script as Customer
from pytest_trace2evolve.testing.server import ChatRequest, Reply, Script

Wire = Mapping[str, Any]
"""A message in the shape of the chat-completions API."""

_DONE = "That is done."
_TASK = re.compile(r"\(task <(.*?)>\)")


def gold_script(tasks: Mapping[str, Task], scenarios: Mapping[str, str]) -> Script:
    """A script that solves every task with its gold actions, for agent and user alike.

    Args:
        tasks: The tasks by id.
        scenarios: The text of each task's scenario in the user's prompt.

    A request with a `<scenario>` in its system prompt is the user's. The user names its task in its first
    message, where the agent reads it. A request whose system prompt ends with a `<ticket>` belongs to solo
    mode. The ticket identifies the task; if several tasks share the ticket, the first task counts.
    """

    def reply(request: ChatRequest) -> Reply:
        if "<scenario>" in request.system:
            return _user(request, tasks, scenarios)
        if request.system.endswith("</ticket>"):
            return _solo_agent(request, tasks)
        return _agent(request, tasks)

    return reply


def _user(request: ChatRequest, tasks: Mapping[str, Task], scenarios: Mapping[str, str]) -> Reply:
    prompt = request.system.partition("<scenario>")[2]
    task_id = next((name for name, text in scenarios.items() if text and text in prompt), None)
    if task_id is None:
        return Reply("###OUT-OF-SCOPE###")
    if not any(message["role"] == "assistant" for message in request.messages):
        return Reply(f"Hello, I need help. (task <{task_id}>)")
    last = request.messages[-1]
    if last["role"] == "tool":
        return Reply(_DONE)
    own = [action for action in tasks[task_id].actions if action.requestor == "user"]
    done = _calls_of_model(request)
    if done < len(own) and f"Please use {own[done].name}." in str(last.get("content") or ""):
        return _call(own[done])
    return Reply(f"Thank you. {STOP}")


def _agent(request: ChatRequest, tasks: Mapping[str, Task]) -> Reply:
    heard = _said_by_user(request.messages)
    task_id = next((match.group(1) for text in heard if (match := _TASK.search(text))), None)
    if task_id is None or task_id not in tasks:
        return Reply("I do not know what you need.")
    task = tasks[task_id]
    step = _calls_of_model(request) + sum(text == _DONE for text in heard)
    if step >= len(task.actions):
        return Reply("\n".join(["Everything is done.", *_to_communicate(task)]))
    action = task.actions[step]
    return Reply(f"Please use {action.name}.") if action.requestor == "user" else _call(action)


def _solo_agent(request: ChatRequest, tasks: Mapping[str, Task]) -> Reply:
    """The next gold action of either side; the last action carries the final text, since `done` has none."""
    ticket = request.system.rpartition("<ticket>\n")[2].removesuffix("\n</ticket>")
    task = next((task for task in tasks.values() if task.ticket == ticket), None)
    step = _calls_of_model(request)
    if task is None or step >= len(task.actions):
        return Reply(tool_calls=(("done", {}),))
    said = _to_communicate(task) if step == len(task.actions) - 1 else []
    return _call(task.actions[step], "\n".join(said) or None)


def _to_communicate(task: Task) -> list[str]:
    criteria = task.evaluation_criteria
    return (criteria.communicate_info or []) if criteria else []


def _said_by_user(messages: Sequence[Wire]) -> list[str]:
    return [str(message.get("content") or "") for message in messages if message["role"] == "user"]


def _calls_of_model(request: ChatRequest) -> int:
    """The number of tool calls that the model has made."""
    own = [message for message in request.messages if message["role"] == "assistant"]
    return sum(len(message.get("tool_calls") or ()) for message in own)


def _call(action: Action, content: str | None = None) -> Reply:
    return Reply(content, tool_calls=((action.name, action.arguments),))


_READS = ("find_", "get_", "list_", "calculate")
"""Prefixes of the names of tools that change nothing."""

_WHO = (
    "I'd be happy to help you with that! To get started, I need to verify your identity. Could you please "
    "provide your **email address**, or your first name, last name and zip code?"
)
_LOOKING = "Thank you! Let me look into that for you."
_CLOSING = "Your request has been taken care of. Is there anything else I can help you with today?"
_REFUSAL = (
    "I understand that this is not what you were hoping for, but unfortunately our policy does not allow it. "
    "Is there anything else I can help you with today?"
)
_QUESTIONS = {
    Slot.ORDER: "Which order is this about? Please share the order number if you have it.",
    Slot.REASON: "Could you also tell me the reason?",
    Slot.PAYMENT: "Which payment method would you like to use?",
    Slot.OPTIONS: "What options would you like for the new item?",
}


def case_script(tasks: Iterable[Task]) -> Script:
    """A script for the agent alone that solves every synthetic case like a talkative model.

    Args:
        tasks: The cases' tasks; those without a customer's script are ignored.

    The customer's first message identifies the case. If several cases open alike, the customer's identity
    decides. The answer to a request depends only on the request's messages.

    Raises:
        CaseError: a customer's script is damaged.
    """
    cases = [(task, customer) for task in tasks if (customer := script_of(task)) is not None]

    def reply(request: ChatRequest) -> Reply:
        heard = _said_by_user(request.messages)
        alike = [case for case in cases if heard and case[1].turns[0].says == heard[0]]
        known = [
            case for case in alike if any(who in text for who in case[1].identity.values() for text in heard)
        ]
        if not alike:
            return Reply("I am sorry, I did not get that. How can I help you?")
        task, customer = (known or alike)[0]
        place, sent = _progress(request.messages, customer)
        plan = list(_plan(task, customer, place))
        return plan[min(sent, len(plan) - 1)]

    return reply


def _progress(messages: Sequence[Wire], customer: Customer) -> tuple[int, int]:
    """The customer's current turn, and the number of the agent's messages in it."""
    place = sent = 0
    opened = False
    for message in messages:
        if message["role"] == "user":
            opened = True
            for turn in range(place + 1, len(customer.turns)):
                if message.get("content") == customer.turns[turn].says:
                    place, sent = turn, 0
                    break
        elif message["role"] == "assistant" and opened:
            sent += 1
    return place, sent


def _plan(task: Task, customer: Customer, place: int) -> Iterator[Reply]:
    """The agent's messages in one turn."""
    turn = customer.turns[place]
    start = sum(earlier.actions for earlier in customer.turns[:place])
    if place == 0:
        yield Reply(_WHO)
    slots = dict.fromkeys(slot for request in turn.requests for slot in request.details)
    if asked := " ".join(_QUESTIONS[slot] for slot in slots if slot in _QUESTIONS):
        yield Reply(asked)
    for action in task.actions[start : start + turn.actions]:
        if action.name.startswith(_READS):
            yield _call(action, _LOOKING)
        else:
            yield Reply(_proposal(action))
            yield _call(action)
    yield Reply(_outcome(turn))


def _proposal(action: Action) -> str:
    lines = [
        f"- **{name.replace('_', ' ').capitalize()}:** {spoken(value, ', ')}"
        for name, value in action.arguments.items()
        if value
    ]
    intro = f"Thank you for your patience. I am going to **{action.name.replace('_', ' ')}**:"
    question = "Do you confirm that you would like me to proceed? (yes/no)"
    return "\n".join([intro, "", *lines, "", question])


def _outcome(turn: Turn) -> str:
    answers = [request.answer for request in turn.requests if request.answer]
    lines = [f"Here is what you asked for: **{answer}**." for answer in answers]
    return "\n\n".join([*lines, _REFUSAL if turn.refused else _CLOSING])
