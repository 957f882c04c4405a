"""The reward of one simulation, by the rules of tau2-bench 1.0.1."""

from collections.abc import Iterable, Sequence

from pytest_trace2evolve.errors import JudgeError, TraceError, WorldError
from pytest_trace2evolve.records.protocols import Judge, World
from pytest_trace2evolve.records.score import Check, JudgeUse, Score, Status
from pytest_trace2evolve.records.task import EvaluationCriteria, RewardBasis, Task
from pytest_trace2evolve.records.trace import REGULAR_ENDS, Simulation, TerminationReason
from pytest_trace2evolve.scoring.actions import check_actions
from pytest_trace2evolve.scoring.communicate import check_communication
from pytest_trace2evolve.scoring.state import check_state

SCORER_VERSION = 1
"""Raised whenever the same trace could get another reward; part of every lock."""

NO_JUDGE = "the task's reward needs a judge of natural-language assertions, and none was given"
"""The note of a simulation that could be measured, had a judge been asked for."""


def score(simulation: Simulation, task: Task, world: World, judge: Judge | None = None) -> Score:
    """Score one simulation of `task`.

    The reward is the product of the components in the task's reward basis. Components outside it are
    computed as diagnostics, except NL_ASSERTION, which costs a judge's call.

    Args:
        simulation: The simulation, with its trace.
        task: The task it ran; its `reward_basis` decides what counts.
        world: The domain, whose databases the tool calls are replayed on.
        judge: Judge of natural-language assertions; without one a task that needs it is not measured.

    Returns:
        A score whose status is `measured` exactly where a reward could be determined; otherwise its note
        says why not.
    """
    reason = simulation.termination_reason
    if reason == TerminationReason.INFRASTRUCTURE_ERROR:
        return Score(
            status=Status.INFRASTRUCTURE_ERROR,
            note=simulation.trouble or "the simulation was lost to infrastructure",
        )
    if simulation.redrawn:
        return Score(status=Status.NOT_MEASURED, note=simulation.redrawn)
    if reason not in REGULAR_ENDS:
        return Score(status=Status.MEASURED, reward=0.0, note=f"ended early: {reason}")
    criteria = task.evaluation_criteria
    if criteria is None:
        return Score(status=Status.MEASURED, reward=1.0, note="the task has no evaluation criteria")
    try:
        return _score_checked(simulation, task, criteria, world, judge)
    except (TraceError, WorldError, JudgeError) as error:
        return Score(status=Status.NOT_MEASURED, basis=criteria.basis, note=str(error))


def _score_checked(
    simulation: Simulation, task: Task, criteria: EvaluationCriteria, world: World, judge: Judge | None
) -> Score:
    trace = simulation.trace
    if not trace:
        full_duplex = bool(getattr(simulation, "ticks", None))
        raise TraceError(
            "a full-duplex simulation keeps ticks, and only messages can be scored"
            if full_duplex
            else "the simulation ended regularly and has no messages"
        )
    db_match, env_assertions = check_state(task, trace, world)
    communicate = check_communication(task, trace)
    actions = check_actions(task, trace, world.tool_types())
    components = {
        RewardBasis.DB: float(db_match),
        RewardBasis.ENV_ASSERTION: _all_met(env_assertions),
        RewardBasis.COMMUNICATE: _all_met(communicate),
        RewardBasis.ACTION: float(all(check.matched for check in actions)),
    }
    nl_checks: Sequence[Check] = ()
    use: JudgeUse | None = None
    note = ""
    if RewardBasis.NL_ASSERTION in criteria.basis:
        if not criteria.nl_assertions:
            components[RewardBasis.NL_ASSERTION] = 1.0
        elif judge is None:
            note = NO_JUDGE
        else:
            nl_checks, use = judge.judge(criteria.nl_assertions, trace)
            components[RewardBasis.NL_ASSERTION] = _all_met(nl_checks)
    reward = 1.0
    for component in criteria.basis:
        reward *= components.get(component, 1.0)
    measured = all(component in components for component in criteria.basis)
    return Score(
        status=Status.MEASURED if measured else Status.NOT_MEASURED,
        reward=reward if measured else None,
        basis=criteria.basis,
        components=components,
        db_match=db_match,
        env_assertions=env_assertions,
        communicate=communicate,
        actions=actions,
        nl_assertions=tuple(nl_checks),
        judge=use,
        note=note,
    )


def _all_met(checks: Iterable[Check]) -> float:
    return float(all(check.met for check in checks))
