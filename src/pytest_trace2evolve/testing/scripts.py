"""Scripts for whole conversations: agents that solve every task, and the simulated user of τ² tasks."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pytest_trace2evolve.agents.reference import format_argument
from pytest_trace2evolve.records.message import STOP_MARK
from pytest_trace2evolve.records.task import Action, Slot, Task, Turn, script_of
from pytest_trace2evolve.records.task import Script as Customer
from pytest_trace2evolve.testing.server import ChatRequest, Reply, Script

WireMessage = Mapping[str, Any]
"""A message in the shape of the chat-completions API."""

_DONE_TEXT = "That is done."
_TASK_MENTION = re.compile(r"\(task <(.*?)>\)")


def gold_script(tasks: Mapping[str, Task], scenarios: Mapping[str, str]) -> Script:
    """Return a script that plays both the agent and the user, and solves every task with its gold actions.

    Args:
        tasks: The tasks by id.
        scenarios: The text of each task's scenario in the user's prompt.

    A request with a `<scenario>` in its system prompt is the user's. The user names its task in its first
    message, where the agent reads it. A request whose system prompt ends with a `<ticket>` belongs to solo
    mode. The ticket identifies the task; if several tasks share the ticket, the first task counts.
    """

    def reply(request: ChatRequest) -> Reply:
        if "<scenario>" in request.system:
            return _user_reply(request, tasks, scenarios)
        if request.system.endswith("</ticket>"):
            return _solo_agent_reply(request, tasks)
        return _agent_reply(request, tasks)

    return reply


def _user_reply(request: ChatRequest, tasks: Mapping[str, Task], scenarios: Mapping[str, str]) -> Reply:
    prompt = request.system.partition("<scenario>")[2]
    task_id = next((name for name, text in scenarios.items() if text and text in prompt), None)
    if task_id is None:
        return Reply("###OUT-OF-SCOPE###")
    if not any(message["role"] == "assistant" for message in request.messages):
        return Reply(f"Hello, I need help. (task <{task_id}>)")
    last_message = request.messages[-1]
    if last_message["role"] == "tool":
        return Reply(_DONE_TEXT)
    user_actions = [action for action in tasks[task_id].actions if action.requestor == "user"]
    call_count = _count_model_calls(request)
    if call_count < len(user_actions) and f"Please use {user_actions[call_count].name}." in str(
        last_message.get("content") or ""
    ):
        return _call_reply(user_actions[call_count])
    return Reply(f"Thank you. {STOP_MARK}")


def _agent_reply(request: ChatRequest, tasks: Mapping[str, Task]) -> Reply:
    user_texts = _user_texts(request.messages)
    task_id = next((match.group(1) for text in user_texts if (match := _TASK_MENTION.search(text))), None)
    if task_id is None or task_id not in tasks:
        return Reply("I do not know what you need.")
    task = tasks[task_id]
    step = _count_model_calls(request) + sum(text == _DONE_TEXT for text in user_texts)
    if step >= len(task.actions):
        return Reply("\n".join(["Everything is done.", *_required_texts(task)]))
    action = task.actions[step]
    return Reply(f"Please use {action.name}.") if action.requestor == "user" else _call_reply(action)


def _solo_agent_reply(request: ChatRequest, tasks: Mapping[str, Task]) -> Reply:
    """Return the next gold action of the agent or the user.

    The last action carries the final text, because a call of `done` has no text.
    """
    ticket = request.system.rpartition("<ticket>\n")[2].removesuffix("\n</ticket>")
    task = next((task for task in tasks.values() if task.ticket == ticket), None)
    step = _count_model_calls(request)
    if task is None or step >= len(task.actions):
        return Reply(tool_calls=(("done", {}),))
    final_texts = _required_texts(task) if step == len(task.actions) - 1 else []
    return _call_reply(task.actions[step], "\n".join(final_texts) or None)


def _required_texts(task: Task) -> list[str]:
    criteria = task.evaluation_criteria
    return (criteria.communicate_info or []) if criteria else []


def _user_texts(messages: Sequence[WireMessage]) -> list[str]:
    return [str(message.get("content") or "") for message in messages if message["role"] == "user"]


def _count_model_calls(request: ChatRequest) -> int:
    """Return the number of tool calls that the model has made."""
    model_messages = [message for message in request.messages if message["role"] == "assistant"]
    return sum(len(message.get("tool_calls") or ()) for message in model_messages)


def _call_reply(action: Action, content: str | None = None) -> Reply:
    return Reply(content, tool_calls=((action.name, action.arguments),))


_READ_PREFIXES = ("find_", "get_", "list_", "calculate")
"""Prefixes of the names of tools that change nothing."""

_IDENTITY_QUESTION = (
    "I'd be happy to help you with that! To get started, I need to verify your identity. Could you please "
    "provide your **email address**, or your first name, last name and zip code?"
)
_LOOKUP_TEXT = "Thank you! Let me look into that for you."
_CLOSING_TEXT = "Your request has been taken care of. Is there anything else I can help you with today?"
_REFUSAL_TEXT = (
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
    """Return a script for the agent alone that solves every synthetic case like a talkative model.

    Args:
        tasks: The cases' tasks; those without a customer's script are ignored.

    The customer's first message identifies the case. If several cases have the same first message, the
    customer's identity decides. The answer to a request depends only on the request's messages.

    Raises:
        CaseError: a customer's script is invalid.
    """
    cases = [(task, customer) for task in tasks if (customer := script_of(task)) is not None]

    def reply(request: ChatRequest) -> Reply:
        user_texts = _user_texts(request.messages)
        same_opening = [case for case in cases if user_texts and case[1].turns[0].says == user_texts[0]]
        same_customer = [
            case
            for case in same_opening
            if any(identifier in text for identifier in case[1].identity.values() for text in user_texts)
        ]
        if not same_opening:
            return Reply("I am sorry, I did not get that. How can I help you?")
        task, customer = (same_customer or same_opening)[0]
        turn_index, sent_count = _find_progress(request.messages, customer)
        replies = list(_turn_replies(task, customer, turn_index))
        return replies[min(sent_count, len(replies) - 1)]

    return reply


def _find_progress(messages: Sequence[WireMessage], customer: Customer) -> tuple[int, int]:
    """Return the customer's current turn, and the number of the agent's messages in it."""
    turn_index = sent_count = 0
    has_opened = False
    for message in messages:
        if message["role"] == "user":
            has_opened = True
            for later_index in range(turn_index + 1, len(customer.turns)):
                if message.get("content") == customer.turns[later_index].says:
                    turn_index, sent_count = later_index, 0
                    break
        elif message["role"] == "assistant" and has_opened:
            sent_count += 1
    return turn_index, sent_count


def _turn_replies(task: Task, customer: Customer, turn_index: int) -> Iterator[Reply]:
    """Yield the agent's messages in one turn."""
    turn = customer.turns[turn_index]
    start = sum(earlier_turn.actions for earlier_turn in customer.turns[:turn_index])
    if turn_index == 0:
        yield Reply(_IDENTITY_QUESTION)
    slots = dict.fromkeys(slot for request in turn.requests for slot in request.details)
    if question := " ".join(_QUESTIONS[slot] for slot in slots if slot in _QUESTIONS):
        yield Reply(question)
    for action in task.actions[start : start + turn.actions]:
        if action.name.startswith(_READ_PREFIXES):
            yield _call_reply(action, _LOOKUP_TEXT)
        else:
            yield Reply(_proposal_text(action))
            yield _call_reply(action)
    yield Reply(_outcome_text(turn))


def _proposal_text(action: Action) -> str:
    lines = [
        f"- **{name.replace('_', ' ').capitalize()}:** {format_argument(value, ', ')}"
        for name, value in action.arguments.items()
        if value
    ]
    intro = f"Thank you for your patience. I am going to **{action.name.replace('_', ' ')}**:"
    question = "Do you confirm that you would like me to proceed? (yes/no)"
    return "\n".join([intro, "", *lines, "", question])


def _outcome_text(turn: Turn) -> str:
    answers = [request.answer for request in turn.requests if request.answer]
    lines = [f"Here is what you asked for: **{answer}**." for answer in answers]
    return "\n\n".join([*lines, _REFUSAL_TEXT if turn.has_forbidden_request else _CLOSING_TEXT])
