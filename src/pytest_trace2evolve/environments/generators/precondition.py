"""Environment of `precondition_verification`: the record is read before anything about it is changed."""

from collections.abc import Sequence

from pytest_trace2evolve.cases.content import one_of
from pytest_trace2evolve.cases.scene import Scene, Sketch, UserTurn
from pytest_trace2evolve.environments.generators.scenario import Drawn, SupportGenerator
from pytest_trace2evolve.environments.generators.trajectory import Deeds, ahead, call_of, is_write
from pytest_trace2evolve.records.message import Message
from pytest_trace2evolve.records.task import Task
from pytest_trace2evolve.users.message_parser import parse_message

RETURNS = (5, 3, 2, 2, 1)
"""Of ten scenarios, by difficulty, those in which a return is asked for: for that, agents read an order."""


EITHER = (*["pending"] * 3, *["delivered"] * 3, *["processed"] * 2)
RETURNED = ("delivered", "delivered", "pending", "processed")
"""The states of an order that is to be cancelled or returned, and of one that is to be returned.

Whoever always does the same, or always what was asked for first, must be wrong more often than right.
"""


class PreconditionVerification(SupportGenerator):
    """What may be done with an order hangs on its state, which only its record tells.

    Either an order is to be cancelled if it can be and else returned, or an item is to be returned, of an
    order that may not have come yet; the easier the scenario, the more often the second. Orders are pending,
    delivered, or on their way, where neither can be done. What is graded is the first change that the agent
    tries:

    | grade | what was done |
    | --- | --- |
    | 0 | nothing read; or changed before reading, rightly or not; or changed or refused against the record |
    | 0.2 | the order read, and nothing changed or refused |
    | 0.5 | the right change of that order tried, and the tool refused it |
    | 0.8 | the right change of that order made, with another reason, item or refund than was asked for |
    | 1 | the right change made as asked; where none is possible, that said after reading |
    """

    capability = "precondition_verification"
    version = 1
    pays = "the order is read before it is changed, and what its record allows is done"

    def draw(self, scene: Scene) -> Drawn:
        """One order of one item, in one of three states."""
        either = scene.draws.number(1, 10) > RETURNS[self.difficulty - 1]
        order = scene.order(one_of(scene.draws, EITHER if either else RETURNED), 1)
        scene.store.surroundings(scene.user, self.most)
        [item] = order["items"]
        if either:
            says = scene.say("if_shipped", product=item["name"], order=order["order_id"])
        else:
            says = scene.say("return", products=item["name"], order=order["order_id"])
        if order["status"] == "delivered" or not either:
            wish = scene.send_back(order, [item])
        else:
            wish = scene.cancel(order, reason="no longer needed")
        return Drawn(Sketch(scene, [UserTurn(scene.opening(says), [wish])]), reads=order["order_id"])

    def paid(self, deeds: Deeds, solved: bool) -> float:
        """See the table."""
        order_id = _order(deeds.task)
        if not deeds.writes:
            if not deeds.read(order_id):
                return 0.0
            if not _refused(deeds, order_id):
                return 0.2
            return 1.0 if solved and not deeds.open else 0.0
        first = deeds.writes[0]
        fits = deeds.open and first.name == deeds.open[0].name and first.arguments.get("order_id") == order_id
        if not fits or not deeds.read(order_id, first.place):
            return 0.0
        if first.failed:
            return 0.5
        return 1.0 if solved else 0.8

    def decided(self, deeds: Deeds) -> bool:
        """After the first change, or a refusal after reading."""
        return bool(deeds.writes) or _refused(deeds, _order(deeds.task))

    def shortcut(self, task: Task) -> Sequence[Message]:
        """The right change, by luck: nobody looked. Where none is possible: a refusal, unseen."""
        left = ahead(task)
        blind = [call_of(one, place) for place, one in enumerate(left) if one.name != "get_order_details"]
        if any(is_write(one.name) for one in left):
            return blind
        return [*blind, Message(role="assistant", content="I am sorry, I cannot do that.")]


def _order(task: Task) -> str:
    """The order that the customer means: the one that the expert reads last."""
    reads = [one for one in task.actions if one.name == "get_order_details"]
    return str(reads[-1].arguments["order_id"])


def _refused(deeds: Deeds, order_id: str) -> bool:
    """Whether the customer was told no once the order had been read."""
    return any(parse_message(text).refusal and deeds.read(order_id, place) for place, text in deeds.texts)
