"""The reward of one simulation, by the rules of tau2-bench 1.0.1.

ACTION compares a trace's tool calls with the gold actions, and with the calls that a written task forbids
(an addition to τ²'s rules, without effect on τ²'s own tasks). In a project's own world, every expected call
needs a different call that did not raise. COMMUNICATE checks that the agent gave the required information.
DB compares the end state of a simulation with the end state of the gold actions. ENV_ASSERTION runs
assertions on the end state of the simulation.
"""

import contextlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from typing import Any

from pytest_trace2evolve.errors import JudgeError, TraceError, WorldError
from pytest_trace2evolve.records.message import Message, ToolCall
from pytest_trace2evolve.records.protocols import (
    Judge,
    SupportsExpectedCalls,
    SupportsScore,
    World,
    WorldSession,
)
from pytest_trace2evolve.records.rules import Finding
from pytest_trace2evolve.records.score import (
    NO_JUDGE_NOTE,
    RECORDED_VERDICTS,
    UNKNOWN_TOOL,
    ActionCheck,
    Check,
    JudgeUse,
    Score,
    Status,
)
from pytest_trace2evolve.records.task import Action, EvaluationCriteria, ForbiddenCall, RewardBasis, Task
from pytest_trace2evolve.records.trace import FULL_DUPLEX, REGULAR_ENDS, Simulation, TerminationReason
from pytest_trace2evolve.scoring.collateral import agent_database, find_collateral, fixes_records
from pytest_trace2evolve.scoring.matchers import assign, contains_matcher, satisfies


def score(simulation: Simulation, task: Task, world: World, judge: Judge | None = None) -> Score:
    """Score one simulation of `task`.

    A world may score simulations itself. By default, the reward is the product of the components in the
    task's reward basis. Components outside it are computed as diagnostics, except NL_ASSERTION, which costs a
    call of the judge.

    Args:
        simulation: The simulation, with its trace.
        task: The simulated task; its `reward_basis` decides which components count.
        world: The domain, with the databases on which the tool calls are replayed.
        judge: Judge of natural-language assertions. Without one, the verdicts that the simulation records
            are used if they are on exactly the task's assertions.

    Returns:
        A score whose status is `measured` if and only if a reward could be determined; otherwise its note
        gives the reason.
    """
    reason = simulation.termination_reason
    if simulation.is_full_duplex:
        return Score(status=Status.NOT_MEASURED, note=FULL_DUPLEX)
    if reason == TerminationReason.INFRASTRUCTURE_ERROR:
        return Score(
            status=Status.INFRASTRUCTURE_ERROR,
            note=simulation.error_text or "the simulation was lost to infrastructure",
        )
    if simulation.redrawn_reason:
        return Score(status=Status.NOT_MEASURED, note=simulation.redrawn_reason)
    if isinstance(world, SupportsScore) and (reason in REGULAR_ENDS or reason == TerminationReason.MAX_STEPS):
        try:
            return world.score(simulation, task)
        except (TraceError, WorldError) as error:
            return Score(status=Status.NOT_MEASURED, note=str(error))
    if reason not in REGULAR_ENDS:
        collateral = collateral_changes(task, simulation.trace, world)
        note = f"ended early: {reason}"
        return Score(status=Status.MEASURED, reward=0.0, note=note, collateral=collateral)
    criteria = task.evaluation_criteria
    if criteria is None:
        return Score(status=Status.MEASURED, reward=1.0, note="the task has no evaluation criteria")
    try:
        return _score_criteria(simulation, task, criteria, world, judge)
    except (TraceError, WorldError, JudgeError) as error:
        return Score(status=Status.NOT_MEASURED, basis=criteria.basis, note=str(error))


def _score_criteria(
    simulation: Simulation, task: Task, criteria: EvaluationCriteria, world: World, judge: Judge | None
) -> Score:
    trace = simulation.trace
    if not trace:
        raise TraceError("the simulation ended regularly, but has no messages")
    db_match, env_assertions, collateral = check_state(task, trace, world)
    communicate = check_communication(task, trace)
    actions = check_actions(task, trace, world)
    forbidden_calls = check_forbidden_calls(task, trace, world)
    components = {
        RewardBasis.DB: float(db_match),
        RewardBasis.ENV_ASSERTION: _score_all_met(env_assertions),
        RewardBasis.COMMUNICATE: _score_all_met(communicate),
        RewardBasis.ACTION: float(all(check.matched for check in actions)) * _score_all_met(forbidden_calls),
    }
    nl_checks: Sequence[Check] = ()
    judge_use: JudgeUse | None = None
    note = ""
    if RewardBasis.NL_ASSERTION in criteria.basis:
        assertions = criteria.nl_assertions or []
        is_zero = 0.0 in (components.get(component) for component in criteria.basis)
        if judge is None:
            nl_checks = recorded_verdicts(simulation, task)
            note = RECORDED_VERDICTS if nl_checks else "" if is_zero or not assertions else NO_JUDGE_NOTE
        elif assertions and not is_zero:  # a reward of 0 stays 0, whatever the judge finds
            nl_checks, judge_use = judge.judge(assertions, trace)
        if nl_checks or not assertions:
            components[RewardBasis.NL_ASSERTION] = _score_all_met(nl_checks)
    reward = 1.0
    for component in criteria.basis:
        reward *= components.get(component, 1.0)
    is_measured = not reward or all(component in components for component in criteria.basis)
    return Score(
        status=Status.MEASURED if is_measured else Status.NOT_MEASURED,
        reward=reward if is_measured else None,
        basis=criteria.basis,
        components=components,
        db_match=db_match,
        env_assertions=env_assertions,
        communicate=communicate,
        actions=actions,
        forbidden_calls=forbidden_calls,
        nl_assertions=tuple(nl_checks),
        judge=judge_use,
        collateral=collateral,
        note=note,
    )


def _score_all_met(checks: Iterable[Check]) -> float:
    return float(all(check.met for check in checks))


def recorded_verdicts(simulation: Simulation, task: Task) -> tuple[Check, ...]:
    """The verdicts that a simulation records on the task's natural-language assertions.

    Empty unless all verdicts are valid, and their texts are exactly the assertions, in any order.
    """
    criteria = task.evaluation_criteria
    assertions = criteria.nl_assertions or [] if criteria else []
    verdicts: Any = (simulation.reward_info or {}).get("nl_assertions")
    checks = tuple(
        Check(wanted=item.get("nl_assertion"), met=item["met"], note=str(item.get("justification") or ""))
        for item in (verdicts if isinstance(verdicts, list) else ())
        if isinstance(item, dict) and isinstance(item.get("met"), bool)
    )
    is_same = sorted(repr(check.wanted) for check in checks) == sorted(map(repr, assertions))
    return checks if checks and is_same and len(checks) == len(verdicts) else ()


def is_solo(trace: Sequence[Message]) -> bool:
    """Whether a trace is in solo mode, which has no user messages."""
    return not any(message.role == "user" for message in trace)


def matches(action: Action, call: ToolCall, own_world: SupportsExpectedCalls | None = None) -> bool:
    """Whether a tool call carries out a gold action.

    The tool names must agree, and so must the arguments named by `compare_args`. If `compare_args` is None,
    the arguments of the *call* must agree. An empty `compare_args` matches any call of the tool. The caller
    does not matter. A project's own world compares the arguments itself.
    """
    if action.name != call.name:
        return False
    names = call.arguments.keys() if action.compare_args is None else action.compare_args
    expected = {name: value for name, value in action.arguments.items() if name in names}
    if own_world is not None:
        return own_world.has_arguments(call.name, call.arguments, expected)
    actual = {name: value for name, value in call.arguments.items() if name in names}
    return satisfies(expected, actual)


def check_actions(task: Task, trace: Sequence[Message], world: World) -> tuple[ActionCheck, ...]:
    """One check per gold action, with the type of its tool."""
    types = world.tool_types()
    return tuple(
        ActionCheck(
            action=action.model_dump(mode="json", exclude_unset=True),
            tool_type=types.get(action.name, UNKNOWN_TOOL),
            matched=call is not None,
        )
        for action, call in zip(task.actions, matched_calls(task, trace, world), strict=True)
    )


def matched_calls(task: Task, trace: Sequence[Message], world: World) -> list[ToolCall | None]:
    """The call that carries out each gold action; None for an action that no call carries out.

    By τ²'s rule, one call may carry out several actions. In a project's own world, each action needs a
    different call, which did not raise and is not part of the task's history. As many actions as possible get
    one, and earlier actions come first.
    """
    if not isinstance(world, SupportsExpectedCalls):
        calls = list(tool_calls(trace))
        return [next((call for call in calls if matches(action, call)), None) for action in task.actions]
    calls = [call for call, result in _answered_calls(_without_history(task, trace)) if not result.error]
    candidates = [
        [index for index, call in enumerate(calls) if matches(action, call, world)] for action in task.actions
    ]
    call_of = assign(candidates)
    return [calls[call_of[action]] if action in call_of else None for action in range(len(candidates))]


def check_forbidden_calls(task: Task, trace: Sequence[Message], world: World) -> tuple[Check, ...]:
    """One check per forbidden call, which is met if the agent did not make the call.

    A call counts even if its tool raised an error. Calls of the task's message history do not count, because
    they are not the agent's. If arguments are forbidden, a call counts if it has all of them.
    """
    criteria = task.evaluation_criteria
    return tuple(
        _forbidden_check(forbidden, is_made=any(made_forbidden_calls(forbidden, task, trace, world)))
        for forbidden in (criteria.forbidden_calls or [] if criteria else [])
    )


def made_forbidden_calls(
    forbidden: ForbiddenCall, task: Task, trace: Sequence[Message], world: World
) -> Iterator[ToolCall]:
    """Yield the calls of the agent that a task forbids."""
    arguments = forbidden.arguments or {}
    action = Action(name=forbidden.name, arguments=arguments, compare_args=list(arguments))
    own_world = world if isinstance(world, SupportsExpectedCalls) else None
    for call in tool_calls(_without_history(task, trace)):
        if call.requestor == "assistant" and matches(action, call, own_world):
            yield call


def _without_history(task: Task, trace: Sequence[Message]) -> Sequence[Message]:
    """The messages after the task's history, which a trace of another program may lack."""
    history = task.history
    has_history = len(trace) >= len(history) and all(
        (own.role, own.content) == (earlier.role, earlier.content)
        for own, earlier in zip(trace, history, strict=False)
    )
    return trace[len(history) :] if has_history else trace


def _forbidden_check(forbidden: ForbiddenCall, *, is_made: bool) -> Check:
    return Check(
        wanted=forbidden.model_dump(mode="json", exclude_none=True),
        met=not is_made,
        note="the agent must not make this call" if is_made else "",
    )


def tool_calls(trace: Sequence[Message]) -> Iterator[ToolCall]:
    """The tool calls of the agent and the user, in order."""
    for message in trace:
        if message.role in ("assistant", "user"):
            yield from message.tool_calls or ()


def calls_with_results(trace: Iterable[Message]) -> list[tuple[int, ToolCall, int | None]]:
    """The tool calls of a trace in order, each between the positions of its message and of its result.

    A result belongs to the first call with its id, in the last message before the results, that has none yet.
    The position of a result is None if there is none.
    """
    found: list[tuple[int, ToolCall, int | None]] = []
    unanswered: dict[str | None, deque[int]] = {}  # the numbers of the calls of the last message, by id
    for index, message in enumerate(trace):
        if message.role != "tool":
            unanswered = {}
            for call in message.tool_calls or ():
                unanswered.setdefault(call.id, deque()).append(len(found))
                found.append((index, call, None))
        elif numbers := unanswered.get(message.id):
            number = numbers.popleft()
            found[number] = (*found[number][:2], index)
    return found


def check_communication(task: Task, trace: Sequence[Message]) -> tuple[Check, ...]:
    """One check per `communicate_info` string.

    A check is met if the lower-cased string occurs in the lower-cased, comma-stripped text of an assistant
    message. The string itself keeps its commas, so a string with commas is never met (as in tau2).
    """
    criteria = task.evaluation_criteria
    expected = (criteria.communicate_info or []) if criteria else []
    if not expected:
        return ()
    agent_texts = [
        message.text.lower().replace(",", "")
        for message in trace
        if message.role == "assistant" and message.text is not None
    ]
    return tuple(
        Check(wanted=info, met=any(info.lower() in text for text in agent_texts)) for info in expected
    )


def check_state(
    task: Task, trace: Sequence[Message], world: World
) -> tuple[bool, tuple[Check, ...], tuple[Finding, ...] | None]:
    """Replay a trace and the gold actions; compare the databases and run the assertions.

    Follows `EnvironmentEvaluator` of tau2-bench 1.0.1. Only calls of known tools that change state are
    replayed, including calls whose recorded result was an error. Gold actions run in a separate session,
    without syncing, and their errors are ignored.

    Returns:
        Whether both databases match, one check per assertion, and the collateral changes (None if the task
        does not say which records may change, or the world does not show them).

    Raises:
        TraceError: the tool calls and results of the trace do not correspond.
        WorldError: the task's initial state or an assertion does not fit the world.
    """
    criteria = task.evaluation_criteria
    if criteria is None or not compares_state(task):
        return True, (), None
    further_calls = _further_calls(task, trace, world)
    with contextlib.ExitStack() as stack:
        replayed_session, gold_session, initial = replay_sessions(
            task, trace, world, stack, keeps_initial=bool(further_calls)
        )
        # A server may hide its database. This matters only if the reward depends on the database.
        is_comparable = getattr(replayed_session, "is_comparable", True) or RewardBasis.DB in criteria.basis
        has_same_state = replayed_session.same_state(gold_session) if is_comparable else True
        checks = tuple(
            Check(
                wanted=assertion.model_dump(mode="json", exclude_unset=True),
                met=replayed_session.check(assertion),
                note=assertion.message or "",
            )
            for assertion in criteria.env_assertions or []
        )
        collateral: tuple[Finding, ...] | None = None
        if is_comparable and fixes_records(criteria):
            with contextlib.suppress(Exception):  # the code of a project's own world may raise anything
                collateral = (
                    find_collateral(criteria, further_calls, replayed_session, gold_session, initial)
                    if further_calls and not has_same_state
                    else ()
                )
        return has_same_state, checks, collateral


def collateral_changes(task: Task, trace: Sequence[Message], world: World) -> tuple[Finding, ...] | None:
    """The collateral changes of a trace, as in `check_state`; None if the trace cannot be replayed."""
    with contextlib.suppress(Exception):  # the code of a project's own world may raise anything
        return check_state(task, trace, world)[2] if _further_calls(task, trace, world) else None
    return None


def _further_calls(task: Task, trace: Sequence[Message], world: World) -> list[tuple[int, ToolCall]]:
    """The calls that may change a database and are no gold actions, with the positions of their messages."""
    own_part = _without_history(task, trace)
    gold_calls = [(action.name, action.arguments) for action in task.actions]
    further_calls = []
    for index, message in enumerate(own_part, len(trace) - len(own_part)):
        for call in tool_calls([message]):
            if (call.name, call.arguments) in gold_calls:
                gold_calls.remove((call.name, call.arguments))
            elif world.has_tool(call.name) and world.changes_state(call.name):
                further_calls.append((index, call))
    return further_calls


def compares_state(task: Task) -> bool:
    """Whether the end state of a task's simulations is checked."""
    criteria = task.evaluation_criteria
    return criteria is not None and not (criteria.actions is None and criteria.env_assertions is None)


def open_session(world: World, stack: contextlib.ExitStack, *, solo: bool = False) -> WorldSession:
    """Open a session. If it must be closed, for example because it holds a process, the stack closes it."""
    session = world.open(solo=solo)
    if callable(close := getattr(session, "close", None)):
        stack.callback(close)
    return session


def replay_sessions(
    task: Task,
    trace: Sequence[Message],
    world: World,
    stack: contextlib.ExitStack,
    *,
    keeps_initial: bool = False,
) -> tuple[WorldSession, WorldSession, Any]:
    """Return a session after the calls of a trace, one after the gold actions, and the initial database.

    The agent's initial database is None unless `keeps_initial` is set and the world shows it.

    Args:
        task: The task of the trace.
        trace: The messages whose calls are replayed.
        world: The world of the task.
        stack: Closes the sessions.

    Raises:
        TraceError: the tool calls and results of the trace do not correspond.
        WorldError: the task's initial state does not fit the world.
    """
    replayed_session = open_session(world, stack, solo=is_solo(trace))
    gold_session = open_session(world, stack)
    replayed_session.initialise(task.initial_state)
    _replay(replayed_session, trace, world)
    gold_session.initialise(task.initial_state)
    _replay(gold_session, task.history, world)
    initial = None
    with contextlib.suppress(Exception):
        initial = agent_database(gold_session) if keeps_initial else None
    for action in task.actions:
        if not contains_matcher(action.arguments):
            gold_session.perform(action.model_copy(deep=True))
    return replayed_session, gold_session, initial


def _replay(session: WorldSession, trace: Sequence[Message], world: World) -> None:
    for call, _ in _answered_calls(trace):
        if world.has_tool(call.name) and world.changes_state(call.name):
            session.call(call.name, deepcopy(call.arguments), call.requestor)
    session.sync()


def _answered_calls(trace: Sequence[Message]) -> list[tuple[ToolCall, Message]]:
    """The tool calls in order, with their results, which must follow them, as tau2's replay requires."""
    calls: list[tuple[ToolCall, Message]] = []
    pending: list[ToolCall] = []
    for index, message in enumerate(trace):
        if message.role == "tool":
            if not pending:
                raise TraceError(f"message {index} is a tool result without a tool call")
            call = pending.pop(0)
            if message.id != call.id:
                raise TraceError(f"message {index} answers call {message.id!r}, expected {call.id!r}")
            calls.append((call, message))
            continue
        if pending:
            raise TraceError(f"message {index} follows call {pending[0].id!r}, which has no result")
        if message.role in ("assistant", "user"):
            pending = list(message.tool_calls or ())
    if pending:
        raise TraceError(f"the trace ends before call {pending[0].id!r} has a result")
    return calls
