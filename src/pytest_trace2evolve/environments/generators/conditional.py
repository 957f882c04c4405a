"""Environment of `conditional_detail_retrieval`: look up a figure, then report it or act on it."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pytest_trace2evolve.cases.content import one_of
from pytest_trace2evolve.cases.expert import RETURN
from pytest_trace2evolve.cases.families import written_one_way
from pytest_trace2evolve.cases.scene import Scene
from pytest_trace2evolve.environments.environment import EASIEST
from pytest_trace2evolve.environments.generators.support import (
    Draft,
    SupportGenerator,
    Trajectory,
    call_message,
    one_request,
    opening_of,
    order_id_of,
    reads_before_change,
    remaining_changes,
    say,
    without_reading_orders,
)
from pytest_trace2evolve.records.message import Message
from pytest_trace2evolve.records.task import Action, Task

TWO_ITEMS_FROM = 2
"""The lowest difficulty at which an order has two items, and so more than one price."""

_STAYS = re.compile(
    r"\b(?:stays?|remains?|unchanged|kept|keep (?:it|the|your)|less than|below"
    r"|(?:no|not|nothing)\b.{0,20}\b(?:return|chang|more than)|n't\b.{0,20}\bmore than)"
)
"""Matches a sentence that says, or explains, that nothing is changed."""

_NUMBER = re.compile(r"\d+(?:\.\d+)?")

_TRACKING_DIGITS = 12


class ConditionalDetailRetrieval(SupportGenerator):
    """The customer asks for a figure of an order, or to return an item if it cost more than an amount.

    In half of the return requests, the item costs more than the amount. A question is graded by the first
    message with a figure of the order. A request to return is graded by the first change, or by the first
    message that says that the item is kept:

    | grade | trajectory |
    | --- | --- |
    | 0 | nothing; a wrong or extra figure; a wrong change, or any without reading; an item wrongly kept |
    | 0.2 | the order read on the agent's turn, and nothing reported or changed |
    | 0.5 | the right change of the right order tried, but for a wrong item, or rejected by the tool |
    | 0.8 | the right item returned, with a wrong refund |
    | 1 | only the requested figure reported; or, after reading, the item returned as asked or rightly kept |
    """

    capability = "conditional_detail_retrieval"
    version = 1
    pays = "reads the figure that decides, and reports that one alone or acts on it"

    def draw(self, scene: Scene) -> Draft:
        """Draw a delivered order of one or two items."""
        order = scene.order("delivered", 1 if self.difficulty < TWO_ITEMS_FROM else 2)
        scene.store.surroundings(scene.user, self.distractors)
        item = scene.one_item(order)
        # The first difficulty has more questions, because small models tend to change something every time.
        kinds = ("ask", "ask", "ask", "if") if self.difficulty == EASIEST else ("ask", "ask", "if")
        if one_of(scene.draws, kinds) == "if":
            stays = scene.chance()
            amount = round(item["price"]) + (3 if stays else -3)
            says = scene.say("if_price", product=item["name"], order=order["order_id"], amount=amount)
            wish = scene.ask(order, "") if stays else scene.send_back(order, [item])
        else:
            total = float(order["payment_history"][0]["amount"])
            answers = {
                "price": item["price"],
                "tracking": order["fulfillments"][0]["tracking_id"][0],
                **({"total": total} if written_one_way(total) and len(order["items"]) > 1 else {}),
            }
            question = one_of(scene.draws, list(answers))
            says = scene.say(question, product=item["name"], order=order["order_id"])
            wish = scene.ask(order, answers[question])
        return one_request(scene, scene.opening(says), wish, decisive_record=order["order_id"])

    def grade_trajectory(self, trajectory: Trajectory, solved: bool) -> float:
        """The grade by the table of the class."""
        order_id, first = order_id_of(trajectory.task), next(iter(trajectory.changes), None)
        idle_grade = 0.2 if trajectory.has_discovered(order_id) else 0.0
        if not trajectory.gold_changes:
            if first is not None:
                return 0.0
            answer = _answer(trajectory.task)
            if not answer:
                return 1.0 if solved and _is_left(trajectory) else idle_grade
            reported = _reported_figures(trajectory)
            if reported is None:
                return idle_grade
            return 1.0 if reported == {answer} and solved else 0.0
        if _is_left(trajectory):
            return 0.0
        if first is None:
            return idle_grade
        if not (trajectory.first_change_fits and trajectory.has_read(order_id, first.index)):
            return 0.0
        if solved:
            return 1.0
        is_right_item = first.arguments.get("item_ids") == trajectory.gold_changes[0].arguments["item_ids"]
        return 0.8 if is_right_item and not first.failed else 0.5

    def is_decided(self, trajectory: Trajectory) -> bool:
        """Whether the agent tried a change, answered the question with a figure, or kept the item."""
        if super().is_decided(trajectory):
            return True
        if _answer(trajectory.task):
            return _reported_figures(trajectory) is not None
        return _is_left(trajectory)

    def shortcut(self, task: Task) -> Sequence[Message]:
        """Report all figures at once, or make the change without reading or comparing."""
        if remaining_changes(task):
            return without_reading_orders(task)
        if not _answer(task):
            return [*reads_before_change(task), call_message(_return_of_item(task), 90)]
        return [*reads_before_change(task), say(f"The figures are {', '.join(sorted(_figures(task)))}.")]


def _order(task: Task) -> Mapping[str, Any]:
    order: Mapping[str, Any] = task.tables["orders"][order_id_of(task)]
    return order


def _named_item(task: Task) -> Mapping[str, Any]:
    """The order's item that the customer names."""
    says = opening_of(task)
    items: list[Mapping[str, Any]] = [item for item in _order(task)["items"] if item["name"] in says]
    return max(items, key=lambda item: len(item["name"]))


def _return_of_item(task: Task) -> Action:
    order = _order(task)
    arguments = {
        "order_id": order["order_id"],
        "item_ids": [_named_item(task)["item_id"]],
        "payment_method_id": order["payment_history"][0]["payment_method_id"],
    }
    return Action(name=RETURN, arguments=arguments)


def _is_left(trajectory: Trajectory) -> bool:
    """Whether the agent said, after reading and before a change, that nothing changes.

    The message may contain no figure except the item's price.
    """
    task = trajectory.task
    end = trajectory.changes[0].index if trajectory.changes else len(trajectory.trace)
    for index, text in trajectory.texts:
        sentences = re.split(r"(?<=[.!?])\s+", text.lower())
        says_so = any(_STAYS.search(sentence) for sentence in sentences if not sentence.endswith("?"))
        if index < end and says_so:
            price = str(_named_item(task)["price"])
            return trajectory.has_read(order_id_of(task), index) and _figures_in(task, text) <= {price}
    return False


def _answer(task: Task) -> str:
    """The figure that the customer asks for; empty if they ask for none."""
    criteria = task.evaluation_criteria
    return next(iter((criteria.communicate_info or []) if criteria else []), "")


def _figures(task: Task) -> set[str]:
    """All figures of the order that a customer could ask for."""
    order = _order(task)
    prices = [item["price"] for item in order["items"]]
    amounts = [payment["amount"] for payment in order["payment_history"]]
    tracking = [number for fulfillment in order["fulfillments"] for number in fulfillment["tracking_id"]]
    return {str(figure) for figure in (*prices, *amounts, *tracking)}


def _reported_figures(trajectory: Trajectory) -> set[str] | None:
    """The figures in the first text that contains any; None if no text does."""
    found = (_figures_in(trajectory.task, text) for _, text in trajectory.texts)
    return next((figures for figures in found if figures), None)


def _figures_in(task: Task, text: str) -> set[str]:
    """The order's figures in a text, and all numbers that look like prices or tracking numbers."""
    numbers = set(_NUMBER.findall(text.replace(",", "")))
    alike = {number for number in numbers if "." in number or len(number) == _TRACKING_DIGITS}
    return numbers & _figures(task) | alike
