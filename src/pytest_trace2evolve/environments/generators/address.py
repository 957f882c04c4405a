"""Environment of `account_address_inference`: an address is found where it stands, and taken over whole."""

from collections.abc import Sequence

from pytest_trace2evolve.cases.content import one_of
from pytest_trace2evolve.cases.scene import Scene, Sketch, UserTurn
from pytest_trace2evolve.cases.store import Data
from pytest_trace2evolve.environments.generators.scenario import Drawn, SupportGenerator
from pytest_trace2evolve.environments.generators.trajectory import (
    Deeds,
    ahead,
    call_of,
    is_write,
    reads_ahead,
)
from pytest_trace2evolve.records.message import Message
from pytest_trace2evolve.records.task import Slot, Task
from pytest_trace2evolve.users.message_parser import parse_message

STREET_TOLD_UNTIL = 2
"""Up to which difficulty the customer names the street, where it is that of the account."""

KINDS = ("account", "named", "street")
LATER = ("account", *KINDS, *("named", "street") * 2)
"""Where the address stands, at the first difficulty and later: no place may be right for half of them."""


class AccountAddressInference(SupportGenerator):
    """An order must go to the address of the account, or to that of another order.

    The customer names that other order, or only the street where it goes. For the account's address they name
    the street, and nothing else, up to difficulty 2; then nothing of it.
    What is graded is the first change that the agent tries:

    | grade | what was done |
    | --- | --- |
    | 0 | no change; or another one, or of another order; or the customer asked for the address |
    | 0.2 | the record with the address fetched on the agent's turn, nothing changed; or one part right |
    | 0.5 | half or more of the parts right |
    | 0.8 | all parts right but one |
    | 1 | the right address, whole |

    The parts are street, flat, city, state, zip code and country, so far as the right address differs in them
    from the one that the order has and the customer has not said them: to write those again is worth nothing.
    """

    capability = "account_address_inference"
    version = 1
    pays = (
        "the address is taken from the account, or from the order that is named, and nobody is asked for it"
    )

    def draw(self, scene: Scene) -> Drawn:
        """A pending order that goes to the wrong place."""
        home = scene.user["address"]
        elsewhere = _far_from(scene, home)
        order = scene.order("pending", 1, address=elsewhere)
        kind = one_of(scene.draws, KINDS if self.difficulty == 1 else LATER)
        third = _far_from(scene, home, elsewhere)
        status = one_of(scene.draws, ("processed", "delivered"))
        other = scene.order(status, 1, address=third)
        scene.store.surroundings(scene.user, self.most)
        if kind == "named":
            says = scene.say("same_address", order=order["order_id"], other=other["order_id"])
            wish = scene.ship_to(order, third, looks=(other["order_id"],))
        elif kind == "street":
            # Which order goes there is found by reading one after another.
            owned = [one for one in scene.user["orders"] if one != order["order_id"]]
            looks = tuple(owned[: owned.index(other["order_id"]) + 1])
            says = scene.say("ship_to", order=order["order_id"], address=third["address1"])
            wish = scene.ship_to(order, third, looks=looks)
        else:
            told = self.difficulty <= STREET_TOLD_UNTIL
            place = {"address": home["address1"]} if told else {}
            says = scene.say("ship_to" if told else "home_address", order=order["order_id"], **place)
            wish = scene.ship_to(order, home)
        # Asked for the address, the customer says the same again: they have none to give.
        details = {slot: says if slot is Slot.ADDRESS else text for slot, text in wish.details.items()}
        return Drawn(
            Sketch(scene, [UserTurn(scene.opening(says), [scene.with_details(wish, details)])]), account=True
        )

    def paid(self, deeds: Deeds, solved: bool) -> float:
        """See the table."""
        if _asked(deeds):
            return 0.0
        [wanted] = deeds.open
        if not deeds.writes:
            return 0.2 if _fetched(deeds) else 0.0
        first = deeds.writes[0]
        if first.name != wanted.name or first.arguments.get("order_id") != wanted.arguments["order_id"]:
            return 0.0
        if solved:
            return 1.0
        own = deeds.task.tables["orders"][wanted.arguments["order_id"]]["address"]
        says = deeds.task.user_scenario["script"]["turns"][0]["says"]
        parts = [part for part, value in own.items() if wanted.arguments[part] != value]
        parts = [part for part in parts if part != "address1" or wanted.arguments[part] not in says]
        right = sum(first.arguments.get(part) == wanted.arguments[part] for part in parts)
        if right >= len(parts) - 1:
            return 0.8
        return 0.5 if 2 * right >= len(parts) else 0.2 if right else 0.0

    def decided(self, deeds: Deeds) -> bool:
        """After the first change, or a question for the address."""
        return bool(deeds.writes) or _asked(deeds)

    def shortcut(self, task: Task) -> Sequence[Message]:
        """The order's own address, written again: nothing was looked up that says otherwise."""
        wanted = next(one for one in ahead(task) if is_write(one.name))
        own = task.tables["orders"][wanted.arguments["order_id"]]["address"]
        rash = wanted.model_copy(update={"arguments": {**wanted.arguments, **own}})
        return [*reads_ahead(task), call_of(rash, 90)]


def _far_from(scene: Scene, *others: Data) -> Data:
    """An address in another city than some others."""
    while True:
        made = scene.store.address()
        if made["city"] not in {one["city"] for one in others}:
            return made


def _asked(deeds: Deeds) -> bool:
    """Whether the customer was asked for the address, which they do not have."""
    return any(Slot.ADDRESS in parse_message(text).asks for _, text in deeds.texts)


def _fetched(deeds: Deeds) -> bool:
    """Whether the record with the wanted address was read since it was the agent's turn."""
    [wanted] = deeds.open
    tables = deeds.task.tables
    holds = {
        key
        for name in ("users", "orders")
        for key, record in tables[name].items()
        if record["address"]["address1"] == wanted.arguments["address1"]
        and key != wanted.arguments["order_id"]
    }
    return any(map(deeds.found, holds))
