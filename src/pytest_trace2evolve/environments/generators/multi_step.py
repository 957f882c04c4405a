"""Environment of `multi_step_task_completion`: complete all of several requests, not only the first."""

from collections.abc import Sequence

from pytest_trace2evolve.cases import teacher
from pytest_trace2evolve.cases.content import draw_one, draw_some
from pytest_trace2evolve.cases.expert import Intent
from pytest_trace2evolve.cases.scene import Scene, Sketch, UserTurn, address_text
from pytest_trace2evolve.environments.generators.support import (
    Draft,
    MadeCall,
    SupportGenerator,
    Trajectory,
    call_message,
    is_write,
    remaining_actions,
    say,
)
from pytest_trace2evolve.records.message import Message
from pytest_trace2evolve.records.task import Action, Task

KINDS = ("ship", "return", "cancel", "profile")
EASY_PAIRS = (
    *[("return", "return")] * 2,
    ("cancel", "return"),
    ("ship", "return"),
    *[("profile", "cancel")] * 3,
    ("return", "cancel"),
    ("ship", "profile"),
    ("return", "profile"),
)
"""The kinds of request, and the pairs of kinds up to difficulty 2.

Most pairs let a small model reach the second request now and then, because a group whose rewards are all 0
teaches nothing.
"""

MIN_ANY_PAIR_DIFFICULTY, MIN_THREE_DIFFICULTY = 3, 4
"""The lowest difficulties with requests of any kinds in any order, and with three requests."""


class MultiStepTaskCompletion(SupportGenerator):
    """The customer makes two requests, or three from difficulty 4, one after another.

    The first request earns no reward. Up to difficulty 4 it is done, or nearly done, before the agent's turn,
    so an agent that does no more has completed nothing. The requests after it are graded, up to the first
    change that differs from the request:

    | grade | trajectory |
    | --- | --- |
    | 0 | nothing done after the first request, whatever the agent claims; or a change that nobody requested |
    | 0.2 | the record of the next request read; or its change tried, and rejected by the tool |
    | 0.5 | the next change made on the right record, with a wrong argument |
    | 0.8 | one of two requests after the first done as requested, and the other not |
    | 1 | everything done as requested |
    """

    capability = "multi_step_task_completion"
    version = 2
    pays = "completes the requests after the first one too, to the last"

    def make_draft(self, scene: Scene) -> Draft:
        """Draw two or three different requests."""
        if self.difficulty < MIN_ANY_PAIR_DIFFICULTY:
            kinds = list(draw_one(scene.choices, EASY_PAIRS))
        else:
            kinds = draw_some(scene.choices, KINDS, 3 if self.difficulty >= MIN_THREE_DIFFICULTY else 2)
        requests = [_draw_request(scene, kind) for kind in kinds]
        scene.store.add_distractors(scene.user, min(self.distractors, 1))
        turns = [
            UserTurn(
                scene.say("then", request=request) if index else scene.opening_message(request), [intent]
            )
            for index, (request, intent) in enumerate(requests)
        ]
        # The expert reads the account before it changes the account.
        return Draft(Sketch(scene, turns), turn_index=1, reads_account="profile" in kinds, asks_first=True)

    def grade_trajectory(self, trajectory: Trajectory, solved: bool) -> float:
        """Return the grade according to the table in the class docstring."""
        if solved:
            return 1.0
        gold_changes, changes = trajectory.gold_changes, trajectory.changes
        if _is_first_request_open(trajectory.task):
            if not changes or changes[0].has_failed or not changes[0].matches(gold_changes[0]):
                return 0.0
            gold_changes, changes = gold_changes[1:], changes[1:]
        done_count = _count_done_changes(changes, gold_changes)
        if done_count == len(gold_changes) or len(changes) > len(gold_changes):
            return 0.0  # unsolved, because a further change followed the last request
        if done_count:
            return 0.8
        if changes:
            if not _is_about_same_record(changes[0], gold_changes[0]):
                return 0.0
            # A rejected change gets less than 0.5; else a truncated call would be the easiest way to 0.5.
            return 0.2 if changes[0].has_failed else 0.5
        return 0.2 if trajectory.has_discovered(_record_id(gold_changes[0].arguments)) else 0.0

    def is_decided(self, trajectory: Trajectory) -> bool:
        """Whether the agent tried a change that failed or differs from the next requested one."""
        return _count_done_changes(trajectory.changes, trajectory.gold_changes) < len(trajectory.changes)

    def shortcut(self, task: Task) -> Sequence[Message]:
        """Complete the first request, then claim that everything is done."""
        messages: list[Message] = []
        if _is_first_request_open(task):
            for number, action in enumerate(remaining_actions(task)):
                messages.append(call_message(action, number))
                if is_write(action.name):
                    break
        return [*messages, *[say(f"{teacher.CLAIM_DONE} {teacher.ANYTHING_ELSE}")] * 3]


def _draw_request(scene: Scene, kind: str) -> tuple[str, Intent]:
    """Draw one request, and return the customer's words and the intent."""
    if kind == "profile":
        new_address = scene.store.draw_address(exclude=[scene.user["address"]])
        return scene.say("profile", address=address_text(new_address)), scene.change_profile_address(
            new_address
        )
    order = scene.add_order("delivered" if kind == "return" else "pending", 1)
    if kind == "return":
        [item] = order["items"]
        request = scene.say("return", products=item["name"], order=order["order_id"])
        return request, scene.send_back(order, [item])
    if kind == "cancel":
        return scene.say("cancel", order=order["order_id"]), scene.cancel(order)
    new_address = scene.store.draw_address(exclude=[order["address"], scene.user["address"]])
    request = scene.say("ship_to", order=order["order_id"], address=address_text(new_address))
    return request, scene.ship_to(order, new_address)


def _is_first_request_open(task: Task) -> bool:
    """Whether the first request is still open, with no change in the history."""
    remaining = remaining_actions(task)
    return not any(is_write(action.name) for action in task.actions[: len(task.actions) - len(remaining)])


def _count_done_changes(changes: Sequence[MadeCall], gold_actions: Sequence[Action]) -> int:
    """Count the leading changes that match the expert's and took effect."""
    count = 0
    for call, action in zip(changes, gold_actions, strict=False):
        if call.has_failed or not call.matches(action):
            break
        count += 1
    return count


def _record_id(arguments: dict[str, object]) -> str:
    """The id of the record that a change concerns: an order, or else the customer."""
    return str(arguments.get("order_id") or arguments.get("user_id"))


def _is_about_same_record(call: MadeCall, gold: Action) -> bool:
    return call.name == gold.name and _record_id(call.arguments) == _record_id(gold.arguments)
