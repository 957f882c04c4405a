"""Environment of `multi_step_task_completion`: the work continues after its first part, to its end."""

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
"""The kinds of request; and the pairs up to difficulty 2, most of them such that a small model reaches the
second request now and then: a group whose rewards are all 0 teaches nothing."""

ANY_PAIR_FROM, THREE_FROM = 3, 4
"""The difficulty from which on any two requests come in any order, and that from which on there are three."""


class MultiStepTaskCompletion(SupportGenerator):
    """Two requests, from difficulty 4 on three, brought up one after another.

    The first is never paid: up to difficulty 4 it is done before the agent's turn or nearly so, and an agent
    that does no more has not completed anything. The second and what comes after it are graded, up to the
    first change that is not as asked:

    | grade | what was done |
    | --- | --- |
    | 0 | nothing after the first, whatever was claimed; or a change that nobody asked for |
    | 0.2 | the record of the next request read; or its change tried, and rejected by the tool |
    | 0.5 | the next change made on the right record, with a wrong argument |
    | 0.8 | of two requests after the first, one done as asked, and the other not |
    | 1 | everything done as asked |
    """

    capability = "multi_step_task_completion"
    version = 1
    pays = "completes the requests after the first one too, to the last"

    def draw(self, scene: Scene) -> Draft:
        """Different requests, in any order."""
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
        # The account is read before it is changed.
        return Draft(Sketch(scene, turns), turn=1, reads_account="profile" in kinds, asks_first=True)

    def grade_trajectory(self, trajectory: Trajectory, solved: bool) -> float:
        """See the table."""
        if solved:
            return 1.0
        gold, made = trajectory.gold_changes, trajectory.changes
        if _is_first_open(trajectory.task):
            if not made or made[0].failed or not made[0].does(gold[0]):
                return 0.0
            gold, made = gold[1:], made[1:]
        done = _done_as_asked(made, gold)
        if done == len(gold) or len(made) > len(gold):
            return 0.0  # everything was done, and then something else: it is not solved
        if done:
            return 0.8
        if made:
            if not _is_about_same_record(made[0], gold[0]):
                return 0.0
            # A rejected change is not worth half: otherwise a call that is cut short is the easiest way.
            return 0.2 if made[0].failed else 0.5
        return 0.2 if trajectory.has_discovered(_record_of(gold[0].arguments)) else 0.0

    def is_decided(self, trajectory: Trajectory) -> bool:
        """After a change that is not the next one as asked."""
        return _done_as_asked(trajectory.changes, trajectory.gold_changes) < len(trajectory.changes)

    def shortcut(self, task: Task) -> Sequence[Message]:
        """What belongs to the first request, and then the claim that everything is done."""
        messages: list[Message] = []
        if _is_first_open(task):
            for number, action in enumerate(remaining_actions(task)):
                messages.append(call_message(action, number))
                if is_write(action.name):
                    break
        return [*messages, *[say(f"{teacher.CLAIM} {teacher.MORE}")] * 3]


def _draw_request(scene: Scene, kind: str) -> tuple[str, Intent]:
    """One request: how the customer says it, and what it is."""
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
    """Whether the history holds no change yet."""
    remaining = remaining_actions(task)
    return not any(is_write(action.name) for action in task.actions[: len(task.actions) - len(remaining)])


def _done_as_asked(made: Sequence[MadeCall], gold: Sequence[Action]) -> int:
    """How many changes from the first on are the expert's and took effect."""
    done = 0
    for call, action in zip(made, gold, strict=False):
        if call.failed or not call.does(action):
            break
        done += 1
    return done


def _record_of(arguments: dict[str, object]) -> str:
    """What a change is about: an order, or the customer."""
    return str(arguments.get("order_id") or arguments.get("user_id"))


def _is_about_same_record(call: MadeCall, gold: Action) -> bool:
    return call.name == gold.name and _record_of(call.arguments) == _record_of(gold.arguments)
