"""Environment of `precondition_verification`: read a record before changing it."""

from collections.abc import Sequence

from pytest_trace2evolve.cases.content import draw_one
from pytest_trace2evolve.cases.scene import Scene
from pytest_trace2evolve.environments.generators.support import (
    Draft,
    SupportGenerator,
    Trajectory,
    gold_order_id,
    messages_without_order_reads,
    remaining_changes,
    say,
    single_request_draft,
)
from pytest_trace2evolve.records.message import Message
from pytest_trace2evolve.records.task import Task
from pytest_trace2evolve.users.message_parser import parse_message

RETURN_REQUESTS = (5, 3, 2, 2, 1)
"""Return requests per ten scenarios, by difficulty. Agents tend to read the order before a return."""

CANCEL_OR_RETURN_STATES = (*["pending"] * 3, *["delivered"] * 3, *["processed"] * 2)
RETURN_STATES = ("delivered", "delivered", "pending", "processed")
"""The states of an order for requests to cancel or else return, and for requests to return.

An agent that always makes the same change, or always the first requested change, must be wrong more often
than right.
"""


class PreconditionVerification(SupportGenerator):
    """The state of an order decides what may be done with it, and only its record shows the state.

    The customer asks either to cancel an order if possible and return it otherwise, or to return an item of
    an order that may not have arrived yet. Easier scenarios use the second request more often. Orders are
    pending, delivered, or on their way; an order on its way can be neither cancelled nor returned. The grade
    depends on the first change that the agent tries:

    | grade | trajectory |
    | --- | --- |
    | 0 | nothing read; or any change before reading; or a change or refusal that contradicts the record |
    | 0.2 | the order read, and nothing changed or refused |
    | 0.5 | the right change of that order tried, and rejected by the tool |
    | 0.8 | the right change of that order made, but with a wrong reason, item or refund |
    | 1 | the right change made as requested; or, if no change is possible, a refusal after reading |
    """

    capability = "precondition_verification"
    version = 2
    pays = "reads the order before changing it, and does what its record allows"

    def make_draft(self, scene: Scene) -> Draft:
        """Draw an order of one item, in one of three states."""
        is_cancel_or_return = scene.choices.draw_number(1, 10) > RETURN_REQUESTS[self.difficulty - 1]
        order = scene.add_order(
            draw_one(scene.choices, CANCEL_OR_RETURN_STATES if is_cancel_or_return else RETURN_STATES), 1
        )
        scene.store.add_distractors(scene.user, self.distractors)
        [item] = order["items"]
        if is_cancel_or_return:
            request = scene.say("if_shipped", product=item["name"], order=order["order_id"])
        else:
            request = scene.say("return", products=item["name"], order=order["order_id"])
        if order["status"] == "delivered" or not is_cancel_or_return:
            intent = scene.send_back(order, [item])
        else:
            intent = scene.cancel(order, reason="no longer needed")
        return single_request_draft(
            scene, scene.opening_message(request), intent, decisive_record=order["order_id"]
        )

    def grade_trajectory(self, trajectory: Trajectory, solved: bool) -> float:
        """Return the grade according to the table in the class docstring."""
        order_id = gold_order_id(trajectory.task)
        if not trajectory.changes:
            if not trajectory.has_read(order_id):
                return 0.0
            if not _has_refused(trajectory):
                return 0.2
            return 1.0 if solved and not trajectory.gold_changes else 0.0
        first_change = trajectory.changes[0]
        if not (trajectory.first_change_fits and trajectory.has_read(order_id, first_change.index)):
            return 0.0
        if first_change.has_failed:
            return 0.5
        return 1.0 if solved else 0.8

    def is_decided(self, trajectory: Trajectory) -> bool:
        """Whether the agent tried a change, or refused after reading."""
        return super().is_decided(trajectory) or _has_refused(trajectory)

    def shortcut(self, task: Task) -> Sequence[Message]:
        """Make the right change, or refuse if no change is possible, without reading the order."""
        calls = messages_without_order_reads(task)
        return calls if remaining_changes(task) else [*calls, say("I am sorry, I cannot do that.")]


def _has_refused(trajectory: Trajectory) -> bool:
    """Whether the agent refused after reading the order."""
    order_id = gold_order_id(trajectory.task)
    return any(
        parse_message(text).is_refusal and trajectory.has_read(order_id, index)
        for index, text in trajectory.texts
    )
