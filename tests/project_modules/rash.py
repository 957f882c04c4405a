"""An agent with one planted fault: it cancels orders that it never read."""

from pytest_trace2evolve.agents.reference import CaseOracle
from pytest_trace2evolve.records.task import script_of
from pytest_trace2evolve.users.scripted import ScriptedUser
from pytest_trace2evolve.worlds.support.world import SupportWorld

CANCEL, LOOK = "cancel_pending_order", "get_order_details"
WRITES = [name for name, kind in SupportWorld().tool_types().items() if kind.value == "write"]


def rash(task, world, candidate, trial):
    """The oracle, which leaves out the look at orders wherever it cancels one."""
    script = script_of(task)
    kept, turns, start = [], [], 0
    cancels = any(action.name == CANCEL for action in task.actions)
    for turn in script.turns:
        own = task.actions[start : start + turn.actions]
        start += turn.actions
        left = [action for action in own if not (cancels and action.name == LOOK)]
        kept += left
        turns.append(turn.model_copy(update={"actions": len(left)}))
    criteria = task.evaluation_criteria.model_copy(update={"actions": kept})
    message = script.model_copy(update={"turns": tuple(turns)})
    agent = CaseOracle(task.model_copy(update={"evaluation_criteria": criteria}), message, WRITES)
    return agent, ScriptedUser(script, seed=trial)
