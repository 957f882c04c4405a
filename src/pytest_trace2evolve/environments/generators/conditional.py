"""Environment of `conditional_detail_retrieval`: a figure is looked up, and what it says is told or done."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pytest_trace2evolve.cases.content import one_of
from pytest_trace2evolve.cases.expert import RETURN
from pytest_trace2evolve.cases.families import written_one_way
from pytest_trace2evolve.cases.scene import Scene, Sketch, UserTurn
from pytest_trace2evolve.environments.generators.scenario import Drawn, SupportGenerator
from pytest_trace2evolve.environments.generators.trajectory import (
    Deeds,
    ahead,
    call_of,
    is_write,
    reads_ahead,
)
from pytest_trace2evolve.records.message import Message
from pytest_trace2evolve.records.task import Action, Task

SEVERAL_FROM = 2
"""The difficulty from which on an order has two items, and so more than one price."""

_LEFT = re.compile(
    r"\b(?:stays?|remains?|unchanged|kept|keep (?:it|the|your)|less than|below"
    r"|(?:no|not|nothing)\b.{0,20}\b(?:return|chang|more than)|n't\b.{0,20}\bmore than)"
)
"""That something is left as it is, or why."""


class ConditionalDetailRetrieval(SupportGenerator):
    """A figure of an order is asked for; or an item goes back if it cost more than some amount, else stays.

    Of the second kind half did cost more. A question is graded by the first message that holds a figure of
    the order, a wish by the first change, or by the first message that says that all stays as it is:

    | grade | what was done |
    | --- | --- |
    | 0 | nothing; a figure told that was not asked for, or beside others; changed unread or wrongly; left |
    | 0.2 | the order read since the agent's turn, and neither told nor changed anything |
    | 0.5 | the right change of the right order tried, for another item, or refused |
    | 0.8 | the right item sent back, with another refund than was asked for |
    | 1 | the figure told and no other; or, after reading, the item sent back as asked, or said to stay |
    """

    capability = "conditional_detail_retrieval"
    version = 1
    pays = "the figure that decides is read, and just that one is told, or what follows from it is done"

    def draw(self, scene: Scene) -> Drawn:
        """A delivered order of one item or two."""
        order = scene.order("delivered", 1 if self.difficulty < SEVERAL_FROM else 2)
        scene.store.surroundings(scene.user, self.most)
        item = scene.one_item(order)
        # A small model that always changes something meets more questions at the first difficulty.
        kinds = ("ask", "ask", "ask", "if") if self.difficulty == 1 else ("ask", "ask", "if")
        if one_of(scene.draws, kinds) == "if":
            stays = scene.chance()
            amount = round(item["price"]) + (3 if stays else -3)
            says = scene.say("if_price", product=item["name"], order=order["order_id"], amount=amount)
            wish = scene.ask(order, "") if stays else scene.send_back(order, [item])
            return Drawn(Sketch(scene, [UserTurn(scene.opening(says), [wish])]), reads=order["order_id"])
        total = float(order["payment_history"][0]["amount"])
        answers = {
            "price": item["price"],
            "tracking": order["fulfillments"][0]["tracking_id"][0],
            **({"total": total} if written_one_way(total) and len(order["items"]) > 1 else {}),
        }
        question = one_of(scene.draws, list(answers))
        says = scene.say(question, product=item["name"], order=order["order_id"])
        wish = scene.ask(order, answers[question])
        return Drawn(Sketch(scene, [UserTurn(scene.opening(says), [wish])]), reads=order["order_id"])

    def paid(self, deeds: Deeds, solved: bool) -> float:
        """See the table."""
        order_id = _order(deeds.task)
        looked = deeds.found(order_id)
        if not deeds.open:
            if deeds.writes:
                return 0.0
            answer = _answer(deeds.task)
            if not answer:
                return 1.0 if solved and _left(deeds) else 0.2 if looked else 0.0
            told = _told(deeds)
            if told is None:
                return 0.2 if looked else 0.0
            return 1.0 if told == {answer} and solved else 0.0
        if _left(deeds):
            return 0.0
        if not deeds.writes:
            return 0.2 if looked else 0.0
        first, [wanted] = deeds.writes[0], deeds.open
        fits = first.name == wanted.name and first.arguments.get("order_id") == order_id
        if not fits or not deeds.read(order_id, first.place):
            return 0.0
        if solved:
            return 1.0
        same = first.arguments.get("item_ids") == wanted.arguments["item_ids"]
        return 0.8 if same and not first.failed else 0.5

    def decided(self, deeds: Deeds) -> bool:
        """After a change; after the first figure where one was asked for, else after leaving it."""
        if deeds.writes:
            return True
        return _told(deeds) is not None if _answer(deeds.task) else _left(deeds)

    def shortcut(self, task: Task) -> Sequence[Message]:
        """All figures at once, one of which will be the right one; or the change, unread or not compared."""
        left = ahead(task)
        if any(is_write(one.name) for one in left):
            return [call_of(one, at) for at, one in enumerate(left) if one.name != "get_order_details"]
        if not _answer(task):
            return [*reads_ahead(task), call_of(_return(task), 90)]
        figures = ", ".join(sorted(_figures(task)))
        return [*reads_ahead(task), Message(role="assistant", content=f"The figures are {figures}.")]


def _order(task: Task) -> str:
    return next(str(one.arguments["order_id"]) for one in task.actions if one.name == "get_order_details")


def _item(task: Task) -> Mapping[str, Any]:
    """The item that the customer names."""
    says = task.user_scenario["script"]["turns"][0]["says"]
    items: list[Mapping[str, Any]] = task.tables["orders"][_order(task)]["items"]
    return max((one for one in items if one["name"] in says), key=lambda one: len(one["name"]))


def _return(task: Task) -> Action:
    """To send back the item that the customer names."""
    order = task.tables["orders"][_order(task)]
    arguments = {
        "order_id": order["order_id"],
        "item_ids": [_item(task)["item_id"]],
        "payment_method_id": order["payment_history"][0]["payment_method_id"],
    }
    return Action(name=RETURN, arguments=arguments)


def _left(deeds: Deeds) -> bool:
    """Whether it was said, after reading and before a change, that all stays, and no other figure."""
    order_id, price = _order(deeds.task), str(_item(deeds.task)["price"])
    first = deeds.writes[0].place if deeds.writes else len(deeds.trace)
    for place, text in deeds.texts:
        sentences = re.split(r"(?<=[.!?])\s+", text.lower())
        if place < first and any(_LEFT.search(one) for one in sentences if not one.endswith("?")):
            return deeds.read(order_id, place) and _numbers(deeds.task, text) <= {price}
    return False


def _answer(task: Task) -> str:
    """The figure that was asked for; empty where none was."""
    criteria = task.evaluation_criteria
    return next(iter((criteria.communicate_info or []) if criteria else []), "")


def _figures(task: Task) -> set[str]:
    """Every figure of the order that could be asked for."""
    order = task.tables["orders"][_order(task)]
    prices = [item["price"] for item in order["items"]]
    amounts = [one["amount"] for one in order["payment_history"]]
    tracking = [number for one in order["fulfillments"] for number in one["tracking_id"]]
    return {str(one) for one in (*prices, *amounts, *tracking)}


def _told(deeds: Deeds) -> set[str] | None:
    """The figures in the first message that holds one; None where none does."""
    return next((found for _, text in deeds.texts if (found := _numbers(deeds.task, text))), None)


def _numbers(task: Task, text: str) -> set[str]:
    """The order's figures in a text, and others of their kind."""
    known = _figures(task)
    numbers = set(re.findall(r"\d+(?:\.\d+)?", text.replace(",", "")))
    return {one for one in known if one in numbers} | {
        one for one in numbers - known if "." in one or len(one) == len("123456789012")
    }
