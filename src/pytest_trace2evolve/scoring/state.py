"""DB and ENV_ASSERTION: the end state of a simulation against that of the gold actions."""

from collections.abc import Sequence

from pytest_trace2evolve.records.message import Message
from pytest_trace2evolve.records.protocols import World, WorldSession
from pytest_trace2evolve.records.score import Check
from pytest_trace2evolve.records.task import Task
from pytest_trace2evolve.scoring.trace import answered_calls, is_solo


def check_state(task: Task, trace: Sequence[Message], world: World) -> tuple[bool, tuple[Check, ...]]:
    """Replay a trace and the gold actions; compare the databases and run the assertions.

    Follows `EnvironmentEvaluator` of tau2-bench 1.0.1: only calls of known tools that change state are
    replayed; a call whose recorded result was an error is replayed like any other; gold actions run on a
    session of their own, without syncing, and their errors are ignored.

    Returns:
        Whether both databases match, and one check an assertion.

    Raises:
        TraceError: the trace is not whole.
        WorldError: the task's initial state or an assertion does not fit the world.
    """
    criteria = task.evaluation_criteria
    if criteria is None or (criteria.actions is None and criteria.env_assertions is None):
        return True, ()
    predicted = world.open(solo=is_solo(trace))
    predicted.initialise(task.initial_state)
    _replay(predicted, trace, world)
    matched = predicted.same_state(_gold(task, world))
    checks = tuple(
        Check(
            wanted=assertion.model_dump(mode="json", exclude_unset=True),
            met=predicted.check(assertion),
            note=assertion.message or "",
        )
        for assertion in criteria.env_assertions or []
    )
    return matched, checks


def _gold(task: Task, world: World) -> WorldSession:
    gold = world.open()
    gold.initialise(task.initial_state)
    _replay(gold, task.history, world)
    for action in task.actions:
        gold.perform(action)
    return gold


def _replay(session: WorldSession, trace: Sequence[Message], world: World) -> None:
    for call in answered_calls(trace):
        if world.has_tool(call.name) and world.changes_state(call.name):
            session.call(call.name, call.arguments, call.requestor)
    session.sync()
