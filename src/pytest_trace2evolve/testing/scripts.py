"""Scripts that play whole τ² conversations: an agent that performs the gold actions, and its user."""

import re
from collections.abc import Mapping

from pytest_trace2evolve.records.task import Action, Task
from pytest_trace2evolve.testing.server import ChatRequest, Reply, Script

DONE = "That is done."
_TASK = re.compile(r"\(task <(.*?)>\)")


def gold_script(tasks: Mapping[str, Task], scenarios: Mapping[str, str]) -> Script:
    """A script that solves every task, for agent and user alike.

    Args:
        tasks: The tasks by id.
        scenarios: The text of each task's scenario as the user's prompt holds it.

    A request whose system prompt holds a `<scenario>` is the user's. The user names its task in its first
    message; the agent reads it there. A request whose prompt ends with a `<ticket>` is of solo mode: the
    agent knows its task by the ticket, and plays the first of several tasks that share one.
    """

    def reply(request: ChatRequest) -> Reply:
        if "<scenario>" in request.system:
            return _user(request, tasks, scenarios)
        if request.system.endswith("</ticket>"):
            return _alone(request, tasks)
        return _agent(request, tasks)

    return reply


def _user(request: ChatRequest, tasks: Mapping[str, Task], scenarios: Mapping[str, str]) -> Reply:
    told = request.system.partition("<scenario>")[2]
    task_id = next((name for name, text in scenarios.items() if text and text in told), None)
    if task_id is None:
        return Reply("###OUT-OF-SCOPE###")
    own = [message for message in request.messages if message["role"] == "assistant"]
    if not own:
        return Reply(f"Hello, I need help. (task <{task_id}>)")
    last = request.messages[-1]
    if last["role"] == "tool":
        return Reply(DONE)
    asked = _asked(tasks[task_id].actions, str(last.get("content") or ""), len(_calls(own)))
    if asked is not None:
        return Reply(tool_calls=((asked.name, asked.arguments),))
    return Reply("Thank you. ###STOP###")


def _asked(actions: list[Action], text: str, performed: int) -> Action | None:
    """The user's next gold action, where the agent asks for it."""
    own = [action for action in actions if action.requestor == "user"]
    if performed < len(own) and f"Please use {own[performed].name}." in text:
        return own[performed]
    return None


def _agent(request: ChatRequest, tasks: Mapping[str, Task]) -> Reply:
    heard = [str(message.get("content") or "") for message in request.messages if message["role"] == "user"]
    named = next((match.group(1) for text in heard if (match := _TASK.search(text))), None)
    if named is None or named not in tasks:
        return Reply("I do not know what you need.")
    task = tasks[named]
    own = [message for message in request.messages if message["role"] == "assistant"]
    step = len(_calls(own)) + sum(text == DONE for text in heard)
    if step < len(task.actions):
        action = task.actions[step]
        if action.requestor == "user":
            return Reply(f"Please use {action.name}.")
        return Reply(tool_calls=((action.name, action.arguments),))
    criteria = task.evaluation_criteria
    said = (criteria.communicate_info or []) if criteria else []
    return Reply("\n".join(["Everything is done.", *said]))


def _alone(request: ChatRequest, tasks: Mapping[str, Task]) -> Reply:
    """The next gold action of either side; what must be said goes with the last, since `done` has no text."""
    ticket = request.system.rpartition("<ticket>\n")[2].removesuffix("\n</ticket>")
    task = next((one for one in tasks.values() if one.ticket == ticket), None)
    step = len(_calls([message for message in request.messages if message["role"] == "assistant"]))
    if task is None or step >= len(task.actions):
        return Reply(tool_calls=(("done", {}),))
    action, criteria = task.actions[step], task.evaluation_criteria
    said = (criteria.communicate_info or []) if criteria and step == len(task.actions) - 1 else []
    return Reply("\n".join(said) or None, tool_calls=((action.name, action.arguments),))


def _calls(messages: list[dict[str, object]]) -> list[object]:
    calls: list[object] = []
    for message in messages:
        found = message.get("tool_calls")
        calls += found if isinstance(found, list) else []
    return calls
