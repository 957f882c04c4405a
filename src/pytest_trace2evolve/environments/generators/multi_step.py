"""Environment of `multi_step_task_completion`: the work goes on after its first part, to its end."""

from collections.abc import Sequence

from pytest_trace2evolve.cases import teacher as speech
from pytest_trace2evolve.cases.content import one_of, some_of
from pytest_trace2evolve.cases.expert import Intent
from pytest_trace2evolve.cases.scene import Scene, Sketch, UserTurn, address_text
from pytest_trace2evolve.environments.generators.scenario import Drawn, SupportGenerator
from pytest_trace2evolve.environments.generators.trajectory import Deeds, ahead, call_of, is_write
from pytest_trace2evolve.records.message import Message
from pytest_trace2evolve.records.task import Action, Task

KINDS = ("ship", "return", "cancel", "profile")
EASY = (
    *[("return", "return")] * 2,
    ("cancel", "return"),
    ("ship", "return"),
    *[("profile", "cancel")] * 3,
    ("return", "cancel"),
    ("ship", "profile"),
    ("return", "profile"),
)
"""What there is to do; and up to difficulty 2 in this order, most of them such that a small model comes to
the second now and then: a group whose rewards are all 0 teaches nothing."""

ANY_FROM, MANY_FROM = 3, 4
"""The difficulty from which on any two come in any order, and that from which on there are three things."""


class MultiStepTaskCompletion(SupportGenerator):
    """Two things to do, from difficulty 4 on three, brought up one after another.

    The first is never paid: up to difficulty 4 it is done before the agent's turn or nearly so, and who does
    no more has not completed anything. What is graded is the second and what comes after it, up to the first
    change that is not as asked:

    | grade | what was done |
    | --- | --- |
    | 0 | nothing after the first, whatever was claimed; or a change that nobody asked for |
    | 0.2 | the record read that the next thing is about; or its change tried, and the tool refused it |
    | 0.5 | the next change made on the right record, with a wrong argument |
    | 0.8 | of two things that come after the first, one done as asked, and the other not |
    | 1 | everything done as asked |
    """

    capability = "multi_step_task_completion"
    version = 1
    pays = "what is asked for after the first thing is done too, to the last"

    def draw(self, scene: Scene) -> Drawn:
        """Different things to do, in any order."""
        if self.difficulty < ANY_FROM:
            kinds = list(one_of(scene.draws, EASY))
        else:
            kinds = some_of(scene.draws, KINDS, 3 if self.difficulty >= MANY_FROM else 2)
        made = [_request(scene, kind) for kind in kinds]
        scene.store.surroundings(scene.user, min(self.most, 1))
        turns = [
            UserTurn(scene.say("then", request=says) if place else scene.opening(says), [wish])
            for place, (says, wish) in enumerate(made)
        ]
        # The account is read before it is changed.
        return Drawn(Sketch(scene, turns), turn=1, account="profile" in kinds, asked=True)

    def paid(self, deeds: Deeds, solved: bool) -> float:
        """See the table."""
        if solved:
            return 1.0
        first_open = len(_changes(deeds.task)) == len(deeds.open)
        wanted = deeds.open[1:] if first_open else deeds.open
        made = deeds.writes
        if first_open:
            if not made or made[0].failed or not made[0].does(deeds.open[0]):
                return 0.0
            made = made[1:]
        done = 0
        for call, action in zip(made, wanted, strict=False):
            if call.failed or not call.does(action):
                break
            done += 1
        if done == len(wanted) or len(made) > len(wanted):
            return 0.0  # all was done, and then something else was: it is not solved
        if done:
            return 0.8
        if made:
            # Half of it is not for a call that is cut short: no easier way to it would be left.
            near = _near(made[0].name, made[0].arguments, wanted[0])
            return 0.0 if not near else 0.2 if made[0].failed else 0.5
        return 0.2 if deeds.found(_record(wanted[0])) else 0.0

    def decided(self, deeds: Deeds) -> bool:
        """After a change that is not the next one as asked."""
        return not deeds.on_course()

    def shortcut(self, task: Task) -> Sequence[Message]:
        """Whatever belongs to the first thing, and then the claim that all is done."""
        said: list[Message] = []
        left = ahead(task)
        if len(_changes(task)) == sum(is_write(one.name) for one in left):
            for number, action in enumerate(left):
                said.append(call_of(action, number))
                if is_write(action.name):
                    break
        claim = Message(role="assistant", content=f"{speech.CLAIM} {speech.MORE}")
        return [*said, claim, claim, claim]


def _request(scene: Scene, kind: str) -> tuple[str, Intent]:
    """One thing to do: how it is said, and what it is."""
    if kind == "profile":
        new = scene.store.address(besides=[scene.user["address"]])
        return scene.say("profile", address=address_text(new)), scene.live_at(new)
    order = scene.order("delivered" if kind == "return" else "pending", 1)
    if kind == "return":
        [item] = order["items"]
        says = scene.say("return", products=item["name"], order=order["order_id"])
        return says, scene.send_back(order, [item])
    if kind == "cancel":
        return scene.say("cancel", order=order["order_id"]), scene.cancel(order)
    new = scene.store.address(besides=[order["address"], scene.user["address"]])
    says = scene.say("ship_to", order=order["order_id"], address=address_text(new))
    return says, scene.ship_to(order, new)


def _changes(task: Task) -> list[Action]:
    return [one for one in task.actions if is_write(one.name)]


def _record(action: Action) -> str:
    """What a change is about: an order, or the customer."""
    return str(action.arguments.get("order_id") or action.arguments.get("user_id"))


def _near(name: str, arguments: dict[str, object], wanted: Action) -> bool:
    """Whether a change is the wanted one on the right record, whatever its further arguments."""
    about = arguments.get("order_id") or arguments.get("user_id")
    return name == wanted.name and about == _record(wanted)
