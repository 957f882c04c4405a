"""How many of a customer's wishes were fulfilled: what a reward of all or nothing does not say."""

from collections.abc import Sequence
from itertools import groupby
from statistics import fmean

from pytest_trace2evolve.environments.generators.trajectory import Trajectory, is_write
from pytest_trace2evolve.records.message import Message
from pytest_trace2evolve.records.task import Action, Turn
from research.trace.tasks import Target


def wishes_of(target: Target, trace: Sequence[Message]) -> float:
    """The share of wishes that were fulfilled, each of one capability.

    One is fulfilled where the changes made to its records are its gold ones and no others, and what it asks
    for was told. It says nothing of other records, and a conversation without an end counts too: it is a
    second figure beside the reward, and never in its place.
    """
    deeds = Trajectory(target.case.task, trace)
    said = " ".join(one.content or "" for one in trace if one.role == "assistant").replace(",", "").lower()
    actions = list(target.case.task.actions)
    found = []
    turns = zip(target.labels, target.case.script.turns, strict=True)
    for _, group in groupby(turns, key=lambda one: one[0]):
        own = [turn for _, turn in group]
        count = sum(turn.actions for turn in own)
        gold, actions = actions[:count], actions[count:]
        found.append(_changed(deeds, own, gold) and _told(own, said))
    return fmean(found)


def _changed(deeds: Trajectory, turns: Sequence[Turn], gold: Sequence[Action]) -> bool:
    records = {one for turn in turns for request in turn.requests for one in request.about}
    wanted = [action for action in gold if is_write(action.name)]
    keys = ("order_id",) if all("order_id" in one.arguments for one in wanted) else ("order_id", "user_id")
    made = [
        call
        for call in deeds.changes
        if not call.failed and any(call.arguments.get(key) in records for key in keys)
    ]
    return len(made) == len(wanted) and all(any(call.does(one) for call in made) for one in wanted)


def _told(turns: Sequence[Turn], said: str) -> bool:
    answers = [request.answer for turn in turns for request in turn.requests if request.answer]
    return all(answer.lower() in said for answer in answers)
