"""Environment of `multi_step_task_completion`: complete all of several requests, not only the first."""

from collections.abc import Sequence

from pytest_trace2evolve.cases import teacher
from pytest_trace2evolve.cases.content import one_of, some_of
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

ANY_PAIR_FROM, THREE_FROM = 3, 4
"""The lowest difficulties at which requests have any kinds in any order, and at which there are three."""


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
    version = 1
    pays = "completes the requests after the first one too, to the last"

    def draw(self, scene: Scene) -> Draft:
        """Draw two or three different requests."""
        if self.difficulty < ANY_PAIR_FROM:
            kinds = list(one_of(scene.draws, EASY_PAIRS))
        else:
            kinds = some_of(scene.draws, KINDS, 3 if self.difficulty >= THREE_FROM else 2)
        requests = [_draw_request(scene, kind) for kind in kinds]
        scene.store.surroundings(scene.user, min(self.distractors, 1))
        turns = [
            UserTurn(scene.say("then", request=says) if place else scene.opening(says), [wish])
            for place, (says, wish) in enumerate(requests)
        ]
        # The expert reads the account before it changes the account.
        return Draft(Sketch(scene, turns), turn=1, reads_account="profile" in kinds, asks_first=True)

    def grade_trajectory(self, trajectory: Trajectory, solved: bool) -> float:
        """The grade by the table of the class."""
        if solved:
            return 1.0
        gold, made = trajectory.gold_changes, trajectory.changes
        if _is_first_open(trajectory.task):
            if not made or made[0].failed or not made[0].does(gold[0]):
                return 0.0
            gold, made = gold[1:], made[1:]
        done = _done_as_asked(made, gold)
        if done == len(gold) or len(made) > len(gold):
            return 0.0  # unsolved, because a further change followed the last request
        if done:
            return 0.8
        if made:
            if not _is_about_same_record(made[0], gold[0]):
                return 0.0
            # A rejected change gets less than 0.5, which a truncated call would otherwise earn most easily.
            return 0.2 if made[0].failed else 0.5
        return 0.2 if trajectory.has_discovered(_record_of(gold[0].arguments)) else 0.0

    def is_decided(self, trajectory: Trajectory) -> bool:
        """Whether the agent tried a change that failed or differs from the next requested one."""
        return _done_as_asked(trajectory.changes, trajectory.gold_changes) < len(trajectory.changes)

    def shortcut(self, task: Task) -> Sequence[Message]:
        """Complete the first request, then claim that everything is done."""
        messages: list[Message] = []
        if _is_first_open(task):
            for number, action in enumerate(remaining_actions(task)):
                messages.append(call_message(action, number))
                if is_write(action.name):
                    break
        return [*messages, *[say(f"{teacher.CLAIM} {teacher.MORE}")] * 3]


def _draw_request(scene: Scene, kind: str) -> tuple[str, Intent]:
    """Draw one request, and return the customer's words and the intent."""
    if kind == "profile":
        new = scene.store.address(exclude=[scene.user["address"]])
        return scene.say("profile", address=address_text(new)), scene.live_at(new)
    order = scene.order("delivered" if kind == "return" else "pending", 1)
    if kind == "return":
        [item] = order["items"]
        says = scene.say("return", products=item["name"], order=order["order_id"])
        return says, scene.send_back(order, [item])
    if kind == "cancel":
        return scene.say("cancel", order=order["order_id"]), scene.cancel(order)
    new = scene.store.address(exclude=[order["address"], scene.user["address"]])
    says = scene.say("ship_to", order=order["order_id"], address=address_text(new))
    return says, scene.ship_to(order, new)


def _is_first_open(task: Task) -> bool:
    """Whether the first request is still open, with no change in the history."""
    remaining = remaining_actions(task)
    return not any(is_write(action.name) for action in task.actions[: len(task.actions) - len(remaining)])


def _done_as_asked(made: Sequence[MadeCall], gold: Sequence[Action]) -> int:
    """Count the leading changes that match the expert's and took effect."""
    done = 0
    for call, action in zip(made, gold, strict=False):
        if call.failed or not call.does(action):
            break
        done += 1
    return done


def _record_of(arguments: dict[str, object]) -> str:
    """The id of the record that a change concerns: an order, or else the customer."""
    return str(arguments.get("order_id") or arguments.get("user_id"))


def _is_about_same_record(call: MadeCall, gold: Action) -> bool:
    return call.name == gold.name and _record_of(call.arguments) == _record_of(gold.arguments)
