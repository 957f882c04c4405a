"""Environment of `conditional_detail_retrieval`: look up a figure, then report it or act on it."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pytest_trace2evolve.cases.content import draw_one
from pytest_trace2evolve.cases.expert import RETURN
from pytest_trace2evolve.cases.families import has_one_spelling
from pytest_trace2evolve.cases.scene import Scene
from pytest_trace2evolve.environments.environment import EASIEST
from pytest_trace2evolve.environments.generators.support import (
    Draft,
    SupportGenerator,
    Trajectory,
    call_message,
    gold_order_id,
    messages_without_order_reads,
    opening_text,
    read_messages_before_change,
    remaining_changes,
    say,
    single_request_draft,
)
from pytest_trace2evolve.records.message import Message
from pytest_trace2evolve.records.task import Action, Task

MIN_TWO_ITEMS_DIFFICULTY = 2
"""The lowest difficulty at which an order has two items, and so more than one price."""

_KEPT_PATTERN = re.compile(
    r"\b(?:stays?|remains?|unchanged|kept|keep (?:it|the|your)|less than|below"
    r"|(?:no|not|nothing)\b.{0,20}\b(?:return|chang|more than)|n't\b.{0,20}\bmore than)"
)
"""Matches a sentence that says that nothing is changed."""

_NUMBER_PATTERN = re.compile(r"\d+(?:\.\d+)?")

_TRACKING_DIGITS = 12


class ConditionalDetailRetrieval(SupportGenerator):
    """The customer asks for a figure in an order, or wants to return an item if it cost more than an amount.

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
    version = 2
    pays = "reads the figure that decides, and reports that one alone or acts on it"

    def make_draft(self, scene: Scene) -> Draft:
        """Draw a delivered order of one or two items."""
        order = scene.add_order("delivered", 1 if self.difficulty < MIN_TWO_ITEMS_DIFFICULTY else 2)
        scene.store.add_distractors(scene.user, self.distractors)
        item = scene.draw_item(order)
        # The first difficulty has more questions, because small models tend to change something every time.
        kinds = ("ask", "ask", "ask", "if") if self.difficulty == EASIEST else ("ask", "ask", "if")
        if draw_one(scene.choices, kinds) == "if":
            is_kept = scene.draw_bool()
            amount = round(item["price"]) + (3 if is_kept else -3)
            request = scene.say("if_price", product=item["name"], order=order["order_id"], amount=amount)
            intent = scene.ask(order, "") if is_kept else scene.send_back(order, [item])
        else:
            total = float(order["payment_history"][0]["amount"])
            answers = {
                "price": item["price"],
                "tracking": order["fulfillments"][0]["tracking_id"][0],
                **({"total": total} if has_one_spelling(total) and len(order["items"]) > 1 else {}),
            }
            question = draw_one(scene.choices, list(answers))
            request = scene.say(question, product=item["name"], order=order["order_id"])
            intent = scene.ask(order, answers[question])
        return single_request_draft(
            scene, scene.opening_message(request), intent, decisive_record=order["order_id"]
        )

    def grade_trajectory(self, trajectory: Trajectory, solved: bool) -> float:
        """Return the grade according to the table in the class docstring."""
        order_id, first_change = gold_order_id(trajectory.task), next(iter(trajectory.changes), None)
        idle_grade = 0.2 if trajectory.has_discovered(order_id) else 0.0
        if not trajectory.gold_changes:
            if first_change is not None:
                return 0.0
            answer = _required_figure(trajectory.task)
            if not answer:
                return 1.0 if solved and _leaves_unchanged(trajectory) else idle_grade
            reported_figures = _reported_figures(trajectory)
            if reported_figures is None:
                return idle_grade
            return 1.0 if reported_figures == {answer} and solved else 0.0
        if _leaves_unchanged(trajectory):
            return 0.0
        if first_change is None:
            return idle_grade
        if not (trajectory.first_change_fits and trajectory.has_read(order_id, first_change.index)):
            return 0.0
        if solved:
            return 1.0
        is_right_item = (
            first_change.arguments.get("item_ids") == trajectory.gold_changes[0].arguments["item_ids"]
        )
        return 0.8 if is_right_item and not first_change.has_failed else 0.5

    def is_decided(self, trajectory: Trajectory) -> bool:
        """Whether the agent tried a change, answered the question with a figure, or kept the item."""
        if super().is_decided(trajectory):
            return True
        if _required_figure(trajectory.task):
            return _reported_figures(trajectory) is not None
        return _leaves_unchanged(trajectory)

    def shortcut(self, task: Task) -> Sequence[Message]:
        """Report all figures at once, or make the change without reading or comparing."""
        if remaining_changes(task):
            return messages_without_order_reads(task)
        if not _required_figure(task):
            return [*read_messages_before_change(task), call_message(_named_item_return(task), 90)]
        return [
            *read_messages_before_change(task),
            say(f"The figures are {', '.join(sorted(_order_figures(task)))}."),
        ]


def _order(task: Task) -> Mapping[str, Any]:
    order: Mapping[str, Any] = task.tables["orders"][gold_order_id(task)]
    return order


def _named_item(task: Task) -> Mapping[str, Any]:
    """The order's item that the customer names."""
    opening = opening_text(task)
    items: list[Mapping[str, Any]] = [item for item in _order(task)["items"] if item["name"] in opening]
    return max(items, key=lambda item: len(item["name"]))


def _named_item_return(task: Task) -> Action:
    order = _order(task)
    arguments = {
        "order_id": order["order_id"],
        "item_ids": [_named_item(task)["item_id"]],
        "payment_method_id": order["payment_history"][0]["payment_method_id"],
    }
    return Action(name=RETURN, arguments=arguments)


def _leaves_unchanged(trajectory: Trajectory) -> bool:
    """Whether the agent said, after reading and before a change, that nothing changes.

    The message may contain no figure except the item's price.
    """
    task = trajectory.task
    end_index = trajectory.changes[0].index if trajectory.changes else len(trajectory.trace)
    for index, text in trajectory.texts:
        sentences = re.split(r"(?<=[.!?])\s+", text.lower())
        says_unchanged = any(
            _KEPT_PATTERN.search(sentence) for sentence in sentences if not sentence.endswith("?")
        )
        if index < end_index and says_unchanged:
            price = str(_named_item(task)["price"])
            return trajectory.has_read(gold_order_id(task), index) and _figures_in(task, text) <= {price}
    return False


def _required_figure(task: Task) -> str:
    """The figure that the customer asks for; empty if they ask for none."""
    criteria = task.evaluation_criteria
    return next(iter((criteria.communicate_info or []) if criteria else []), "")


def _order_figures(task: Task) -> set[str]:
    """All figures of the order that a customer could ask for."""
    order = _order(task)
    prices = [item["price"] for item in order["items"]]
    amounts = [payment["amount"] for payment in order["payment_history"]]
    tracking_numbers = [
        number for fulfillment in order["fulfillments"] for number in fulfillment["tracking_id"]
    ]
    return {str(figure) for figure in (*prices, *amounts, *tracking_numbers)}


def _reported_figures(trajectory: Trajectory) -> set[str] | None:
    """The figures in the agent's first text that contains any; None if no text does."""
    figure_sets = (_figures_in(trajectory.task, text) for _, text in trajectory.texts)
    return next((figures for figures in figure_sets if figures), None)


def _figures_in(task: Task, text: str) -> set[str]:
    """The order's figures in a text, and all numbers that look like prices or tracking numbers."""
    numbers = set(_NUMBER_PATTERN.findall(text.replace(",", "")))
    lookalikes = {number for number in numbers if "." in number or len(number) == _TRACKING_DIGITS}
    return numbers & _order_figures(task) | lookalikes
