"""Environment of `account_address_inference`: find an address in the records, and copy it in full."""

from dataclasses import replace

from pytest_trace2evolve.cases.content import draw_one
from pytest_trace2evolve.cases.scene import Scene
from pytest_trace2evolve.cases.store import JsonRecord
from pytest_trace2evolve.environments.environment import EASIEST
from pytest_trace2evolve.environments.generators.support import (
    Draft,
    SupportGenerator,
    Trajectory,
    opening_text,
    single_request_draft,
    with_arguments,
)
from pytest_trace2evolve.records.task import Action, Slot, Task
from pytest_trace2evolve.users.message_parser import parse_message

MAX_NAMED_STREET_DIFFICULTY = 2
"""The highest difficulty at which the customer names the street of the account's address."""

KINDS = ("account", "named", "street")
LATER_KINDS = ("account", *KINDS, *("named", "street") * 2)
"""Sources of the address, at the first and at later difficulties. None may be right half of the time."""


class AccountAddressInference(SupportGenerator):
    """An order must go to the address of the account, or to that of another order.

    The customer names the other order, or only the street of its address. For the account's address,
    the customer names only the street up to difficulty 2, and no part of it at higher difficulties. The grade
    depends on the first change that the agent tries:

    | grade | trajectory |
    | --- | --- |
    | 0 | no change; or a wrong tool or order; or the agent asked the customer for the address |
    | 0.2 | the record with the address read on the agent's turn, no change; or at least one part right |
    | 0.5 | half or more of the parts right |
    | 0.8 | all parts right but one |
    | 1 | the right address, in full |

    The parts are street, flat, city, state, zip code and country. A part counts only if the right address
    differs in it from the order's own address. The street does not count if the customer named it.
    """

    capability = "account_address_inference"
    version = 2
    pays = "takes the address from the account or the named order, and asks nobody for it"

    def make_draft(self, scene: Scene) -> Draft:
        """Draw a pending order with a wrong address."""
        home_address = scene.user["address"]
        wrong_address = _draw_address_elsewhere(scene, home_address)
        order = scene.add_order("pending", 1, address=wrong_address)
        kind = draw_one(scene.choices, KINDS if self.difficulty == EASIEST else LATER_KINDS)
        third_address = _draw_address_elsewhere(scene, home_address, wrong_address)
        other_order = scene.add_order(
            draw_one(scene.choices, ("processed", "delivered")), 1, address=third_address
        )
        scene.store.add_distractors(scene.user, self.distractors)
        if kind == "named":
            request = scene.say("same_address", order=order["order_id"], other=other_order["order_id"])
            intent = scene.ship_to(order, third_address, other_orders=(other_order["order_id"],))
        elif kind == "street":
            # To find the order with that address, the agent must read one order after another.
            other_order_ids = [order_id for order_id in scene.user["orders"] if order_id != order["order_id"]]
            order_ids_to_read = tuple(other_order_ids[: other_order_ids.index(other_order["order_id"]) + 1])
            request = scene.say("ship_to", order=order["order_id"], address=third_address["address1"])
            intent = scene.ship_to(order, third_address, other_orders=order_ids_to_read)
        elif self.difficulty <= MAX_NAMED_STREET_DIFFICULTY:
            request = scene.say("ship_to", order=order["order_id"], address=home_address["address1"])
            intent = scene.ship_to(order, home_address)
        else:
            request = scene.say("home_address", order=order["order_id"])
            intent = scene.ship_to(order, home_address)
        # If asked for the address, the customer repeats the request, because they do not know the address.
        details = {slot: request if slot is Slot.ADDRESS else text for slot, text in intent.details.items()}
        intent = replace(intent, details=details)
        return single_request_draft(scene, scene.opening_message(request), intent, reads_account=True)

    def grade_trajectory(self, trajectory: Trajectory, solved: bool) -> float:
        """Return the grade according to the table in the class docstring."""
        if _has_asked(trajectory):
            return 0.0
        if not trajectory.changes:
            return 0.2 if _has_read_address(trajectory) else 0.0
        if not trajectory.first_change_fits:
            return 0.0
        if solved:
            return 1.0
        gold_arguments, arguments = trajectory.gold_changes[0].arguments, trajectory.changes[0].arguments
        current_address = trajectory.task.tables["orders"][gold_arguments["order_id"]]["address"]
        parts = [part for part, value in current_address.items() if gold_arguments[part] != value]
        if gold_arguments["address1"] in opening_text(trajectory.task):
            parts = [part for part in parts if part != "address1"]
        right_count = sum(arguments.get(part) == gold_arguments[part] for part in parts)
        if right_count >= len(parts) - 1:
            return 0.8
        return 0.5 if 2 * right_count >= len(parts) else 0.2 if right_count else 0.0

    def is_decided(self, trajectory: Trajectory) -> bool:
        """Whether the agent tried a change, or asked the customer for the address."""
        return super().is_decided(trajectory) or _has_asked(trajectory)

    def wrong_change(self, task: Task, gold: Action) -> Action:
        """A change that sets the order's address to its current value."""
        return with_arguments(gold, **task.tables["orders"][gold.arguments["order_id"]]["address"])


def _draw_address_elsewhere(scene: Scene, *other_addresses: JsonRecord) -> JsonRecord:
    """Draw an address in a city that none of the other addresses has."""
    while True:
        address = scene.store.draw_address()
        if address["city"] not in {other["city"] for other in other_addresses}:
            return address


def _has_asked(trajectory: Trajectory) -> bool:
    """Whether the agent asked the customer for the address, which the customer does not know."""
    return any(Slot.ADDRESS in parse_message(text).asked_slots for _, text in trajectory.texts)


def _has_read_address(trajectory: Trajectory) -> bool:
    """Whether the agent read a record with the right address on its turn."""
    [gold] = trajectory.gold_changes
    return any(
        trajectory.has_discovered(record_id)
        for table in ("users", "orders")
        for record_id, record in trajectory.task.tables[table].items()
        if record["address"]["address1"] == gold.arguments["address1"]
        and record_id != gold.arguments["order_id"]
    )
