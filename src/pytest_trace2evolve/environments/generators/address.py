"""Environment of `account_address_inference`: find an address in the records, and copy it in full."""

from dataclasses import replace

from pytest_trace2evolve.cases.content import one_of
from pytest_trace2evolve.cases.scene import Scene
from pytest_trace2evolve.cases.store import Data
from pytest_trace2evolve.environments.environment import EASIEST
from pytest_trace2evolve.environments.generators.support import (
    Draft,
    SupportGenerator,
    Trajectory,
    one_request,
    opening_of,
    with_arguments,
)
from pytest_trace2evolve.records.task import Action, Slot, Task
from pytest_trace2evolve.users.message_parser import parse_message

STREET_NAMED_UNTIL = 2
"""The highest difficulty at which the customer names the street of the account's address."""

KINDS = ("account", "named", "street")
LATER_KINDS = ("account", *KINDS, *("named", "street") * 2)
"""The sources of the address, at the first and at later difficulties; none may be right half of the time."""


class AccountAddressInference(SupportGenerator):
    """An order must go to the address of the account, or to that of another order.

    The customer names the other order, or only the street of its address. For the account's address, they
    name only the street up to difficulty 2, and nothing above. The grade depends on the first change that the
    agent tries:

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
    version = 1
    pays = "takes the address from the account or the named order, and asks nobody for it"

    def draw(self, scene: Scene) -> Draft:
        """Draw a pending order with a wrong address."""
        home = scene.user["address"]
        wrong = _address_far_from(scene, home)
        order = scene.order("pending", 1, address=wrong)
        kind = one_of(scene.draws, KINDS if self.difficulty == EASIEST else LATER_KINDS)
        third = _address_far_from(scene, home, wrong)
        other = scene.order(one_of(scene.draws, ("processed", "delivered")), 1, address=third)
        scene.store.surroundings(scene.user, self.distractors)
        if kind == "named":
            says = scene.say("same_address", order=order["order_id"], other=other["order_id"])
            wish = scene.ship_to(order, third, other_orders=(other["order_id"],))
        elif kind == "street":
            # To find the order with that address, the agent must read one order after another.
            owned = [order_id for order_id in scene.user["orders"] if order_id != order["order_id"]]
            read = tuple(owned[: owned.index(other["order_id"]) + 1])
            says = scene.say("ship_to", order=order["order_id"], address=third["address1"])
            wish = scene.ship_to(order, third, other_orders=read)
        elif self.difficulty <= STREET_NAMED_UNTIL:
            says = scene.say("ship_to", order=order["order_id"], address=home["address1"])
            wish = scene.ship_to(order, home)
        else:
            says = scene.say("home_address", order=order["order_id"])
            wish = scene.ship_to(order, home)
        # If asked for the address, the customer repeats the request, because they do not know the address.
        details = {slot: says if slot is Slot.ADDRESS else text for slot, text in wish.details.items()}
        wish = replace(wish, details=details)
        return one_request(scene, scene.opening(says), wish, reads_account=True)

    def grade_trajectory(self, trajectory: Trajectory, solved: bool) -> float:
        """The grade by the table of the class."""
        if _has_asked(trajectory):
            return 0.0
        if not trajectory.changes:
            return 0.2 if _has_read_address(trajectory) else 0.0
        if not trajectory.first_change_fits:
            return 0.0
        if solved:
            return 1.0
        gold, given = trajectory.gold_changes[0].arguments, trajectory.changes[0].arguments
        own = trajectory.task.tables["orders"][gold["order_id"]]["address"]
        parts = [part for part, value in own.items() if gold[part] != value]
        if gold["address1"] in opening_of(trajectory.task):
            parts = [part for part in parts if part != "address1"]
        right = sum(given.get(part) == gold[part] for part in parts)
        if right >= len(parts) - 1:
            return 0.8
        return 0.5 if 2 * right >= len(parts) else 0.2 if right else 0.0

    def is_decided(self, trajectory: Trajectory) -> bool:
        """Whether the agent tried a change, or asked the customer for the address."""
        return super().is_decided(trajectory) or _has_asked(trajectory)

    def wrong_change(self, task: Task, gold: Action) -> Action:
        """A change that sets the order's address to its current value."""
        return with_arguments(gold, **task.tables["orders"][gold.arguments["order_id"]]["address"])


def _address_far_from(scene: Scene, *others: Data) -> Data:
    """Draw an address in a city that none of the other addresses has."""
    while True:
        address = scene.store.address()
        if address["city"] not in {other["city"] for other in others}:
            return address


def _has_asked(trajectory: Trajectory) -> bool:
    """Whether the agent asked the customer for the address, which the customer does not know."""
    return any(Slot.ADDRESS in parse_message(text).asks for _, text in trajectory.texts)


def _has_read_address(trajectory: Trajectory) -> bool:
    """Whether the agent read a record with the right address on its turn."""
    [gold] = trajectory.gold_changes
    return any(
        trajectory.has_discovered(key)
        for table in ("users", "orders")
        for key, record in trajectory.task.tables[table].items()
        if record["address"]["address1"] == gold.arguments["address1"] and key != gold.arguments["order_id"]
    )
