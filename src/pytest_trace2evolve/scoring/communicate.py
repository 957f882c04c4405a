"""COMMUNICATE: whether the agent said what it had to say."""

from collections.abc import Sequence

from pytest_trace2evolve.records.message import Message
from pytest_trace2evolve.records.score import Check
from pytest_trace2evolve.records.task import Task


def check_communication(task: Task, trace: Sequence[Message]) -> tuple[Check, ...]:
    """One check a `communicate_info` string.

    Met where the lower-cased string occurs in the lower-cased, comma-stripped text of an assistant
    message. The string itself keeps its commas, so one that has any is never met (as in tau2).
    """
    criteria = task.evaluation_criteria
    wanted = (criteria.communicate_info or []) if criteria else []
    if not wanted:
        return ()
    said = [
        message.text.lower().replace(",", "")
        for message in trace
        if message.role == "assistant" and message.text is not None
    ]
    return tuple(Check(wanted=info, met=any(info.lower() in text for text in said)) for info in wanted)
