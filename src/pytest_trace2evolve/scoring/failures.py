"""Explains failed trials: how the databases differ, which checks failed, and how the conversation ended."""

import contextlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest

from pytest_trace2evolve.errors import TraceError, shorten
from pytest_trace2evolve.records.failure import Difference, Divergence, FailedCheck, Failure
from pytest_trace2evolve.records.message import Message, ToolCall
from pytest_trace2evolve.records.protocols import (
    SupportsComparedDatabases,
    SupportsDatabases,
    SupportsSameValue,
    SupportsScore,
    World,
    WorldSession,
)
from pytest_trace2evolve.records.score import Check, Score, ToolType
from pytest_trace2evolve.records.task import Action, Assertion, EvaluationCriteria, RewardBasis, Task
from pytest_trace2evolve.records.trace import REGULAR_ENDS, Simulation, TerminationReason
from pytest_trace2evolve.scoring.differences import find_differences, has_same_json
from pytest_trace2evolve.scoring.reward import (
    check_communication,
    compares_state,
    made_forbidden_calls,
    matched_calls,
    replay_sessions,
    tool_calls,
)

MAX_DIFFERENCES = 10
"""Maximum number of differences that are kept; further differences are only counted."""

MAX_CHECKS = 10
"""Maximum number of failed checks that are kept."""

MAX_MESSAGES = 6
"""Maximum number of messages that are kept from the end of a trace."""

MAX_TEXT_LENGTH = 400
"""Maximum number of characters in the text of a failed check."""


def explain_failure(
    simulation: Simulation, task: Task, world: World, nl_assertions: Iterable[Check] = ()
) -> Failure:
    """Explain why a simulation failed its task.

    The simulation and the gold actions are replayed once more, so this is for failed simulations only. If the
    world raises an exception, the explanation names it and is incomplete.

    Args:
        simulation: The simulation, with its trace.
        task: The simulated task.
        world: The world in which it was scored.
        nl_assertions: The judged natural-language assertions.
    """
    trial, trace = simulation.trial or 0, simulation.trace
    last_messages = tuple(trace[-MAX_MESSAGES:])
    failed_checks = list(_calls_in_text(trace))
    criteria = task.evaluation_criteria
    ends = {*REGULAR_ENDS, TerminationReason.MAX_STEPS} if isinstance(world, SupportsScore) else REGULAR_ENDS
    if criteria is None or simulation.termination_reason not in ends:
        # An error of the agent is shown apart, for all splits.
        error_text = "" if simulation.agent_error else simulation.error_text
        reason = f"ended early: {simulation.termination_reason}" + (f": {error_text}" if error_text else "")
        return Failure(
            trial, reason=_cut(reason), failed_checks=tuple(failed_checks), last_messages=last_messages
        )
    differences: list[Difference] = []
    problem = ""
    if isinstance(world, SupportsScore):
        failed_checks += _missed_milestones(world.score(simulation, task))
        return Failure(trial, failed_checks=tuple(failed_checks[:MAX_CHECKS]), last_messages=last_messages)
    try:
        differences, failed_assertions = _check_end_state(task, criteria, trace, world)
        failed_checks += failed_assertions
    except Exception as error:  # the code of a project's own world may raise anything
        text = f"the databases cannot be compared again: {type(error).__name__}: {error}"
        problem = _cut(" ".join(text.split()))
    with contextlib.suppress(TraceError):  # the calls and results do not pair up, as the problem says
        failed_checks += _missing_calls(task, criteria, trace, world)
    failed_checks += _forbidden_calls(task, criteria, trace, world)
    failed_checks += _missing_texts(task, criteria, trace)
    failed_checks += (
        FailedCheck(_cut(f"not true: {check.wanted}"), _cut(check.note))
        for check in nl_assertions
        if not check.met
    )
    return Failure(
        trial,
        differences=tuple(differences[:MAX_DIFFERENCES]),
        difference_count=len(differences),
        failed_checks=tuple(failed_checks[:MAX_CHECKS]),
        last_messages=last_messages,
        problem=problem,
    )


def _missed_milestones(result: Score) -> Iterator[FailedCheck]:
    """Yield the kind of the failure, the minefields that were hit, and the milestones that were missed."""
    if result.note:
        yield FailedCheck(_cut(result.note))
    for hit in result.minefields or ():
        if hit.similarity:
            yield FailedCheck(_cut(f"minefield {hit.index}: {hit.about}"), f"hit at message {hit.message}")
    for match in result.milestones or ():
        if match.similarity < 1.0:
            text = f"milestone {match.index}: {match.about}"
            yield FailedCheck(
                _cut(text), f"similarity {match.similarity:.3f}, best at message {match.message}"
            )


def _check_end_state(
    task: Task, criteria: EvaluationCriteria, trace: Sequence[Message], world: World
) -> tuple[list[Difference], list[FailedCheck]]:
    """Return the differences of the databases and the failed assertions that the reward depends on."""
    needs_database = RewardBasis.DB in criteria.basis
    assertions = criteria.env_assertions or [] if RewardBasis.ENV_ASSERTION in criteria.basis else []
    if not compares_state(task) or not (needs_database or assertions):
        return [], []
    with contextlib.ExitStack() as stack:
        session, gold_session, _ = replay_sessions(task, trace, world, stack)
        differences: list[Difference] = []
        failed_checks: list[FailedCheck] = []
        if needs_database and not session.same_state(gold_session):
            differences = list(_database_differences(gold_session, session))
            if not differences:
                failed_checks.append(FailedCheck("the databases differ, but the world does not show where"))
        for assertion in assertions:
            if session.check(assertion):
                continue
            assertion_differences = list(_assertion_differences(session, assertion))
            differences += assertion_differences
            if not assertion_differences or assertion.message:
                failed_checks.append(_failed_assertion(assertion))
        return list(_without_repetitions(differences)), failed_checks


def _database_differences(gold_session: WorldSession, session: WorldSession) -> Iterator[Difference]:
    if not isinstance(gold_session, SupportsDatabases) or not isinstance(session, SupportsDatabases):
        return
    expected, actual = gold_session.databases(), session.databases()
    is_same = session.is_same_value if isinstance(session, SupportsSameValue) else has_same_json
    for side, database in expected.items():
        shown_side = side if len(expected) > 1 else ""
        yield from find_differences(database, actual.get(side), shown_side, is_same=is_same)


def _assertion_differences(session: WorldSession, assertion: Assertion) -> Iterator[Difference]:
    """Yield the differences from the database that an assertion expects, if it expects one."""
    if (
        not assertion.assert_value
        or not isinstance(session, SupportsDatabases)
        or not isinstance(session, SupportsComparedDatabases)
    ):
        return
    compared = session.compared_databases(assertion)
    if compared is not None:
        is_same = session.is_same_value if isinstance(session, SupportsSameValue) else has_same_json
        yield from find_differences(
            *compared, "agent" if len(session.databases()) > 1 else "", is_same=is_same
        )


def _failed_assertion(assertion: Assertion) -> FailedCheck:
    expected = "" if assertion.assert_value else "not "
    text = f"assertion failed: {expected}{call_text(assertion.func_name, assertion.arguments)}"
    return FailedCheck(_cut(text), _cut(assertion.message or ""))


def _without_repetitions(differences: Iterable[Difference]) -> Iterator[Difference]:
    """Yield the first difference at each place, because several checks may compare the same database."""
    seen_places = set()
    for difference in differences:
        if (place := (difference.side, difference.path)) not in seen_places:
            seen_places.add(place)
            yield difference


def _missing_calls(
    task: Task, criteria: EvaluationCriteria, trace: Sequence[Message], world: World
) -> Iterator[FailedCheck]:
    """Yield the gold calls that were not made, if the reward depends on them.

    If the reward does not depend on the actions, calls of read tools are left out.
    """
    if not {RewardBasis.ACTION, RewardBasis.DB} & {*criteria.basis}:
        return
    types = world.tool_types()
    matched = matched_calls(task, trace, world)
    matched_ids = {id(call) for call in matched}  # such a call satisfies another expectation
    calls = [call for call in tool_calls(trace) if id(call) not in matched_ids]
    raised_ids = {message.id for message in trace if message.role == "tool" and message.error}
    for action, match in zip(task.actions, matched, strict=True):
        is_read = types.get(action.name) in (ToolType.READ, ToolType.THINK)
        if is_read and RewardBasis.ACTION not in criteria.basis:
            continue
        if match is not None:
            continue
        caller = " of the user" if action.requestor == "user" else ""
        nearest = _nearest_call(action, calls)
        raised = " (it raised)" if nearest is not None and nearest.id in raised_ids else ""
        detail = "" if nearest is None else _cut(f"nearest call{raised}: {_text_of(nearest)}")
        yield FailedCheck(_cut(f"missing call{caller}: {_text_of(action)}"), detail)


def _nearest_call(action: Action, calls: Sequence[ToolCall]) -> ToolCall | None:
    """Return the call of a gold call's tool, or else of any, with most of its arguments; None without any."""

    def rank(call: ToolCall) -> tuple[bool, int]:
        equal = (call.arguments.get(name) == value for name, value in action.arguments.items())
        return call.name == action.name, sum(equal)

    nearest = max(calls, key=rank, default=None)
    return nearest if nearest is not None and any(rank(nearest)) else None


def _forbidden_calls(
    task: Task, criteria: EvaluationCriteria, trace: Sequence[Message], world: World
) -> Iterator[FailedCheck]:
    """Yield the calls that the task forbids and that the agent made."""
    for forbidden in criteria.forbidden_calls or ():
        for call in made_forbidden_calls(forbidden, task, trace, world):
            yield FailedCheck(_cut(f"forbidden call: {call_text(call.name, call.arguments)}"))


def _missing_texts(
    task: Task, criteria: EvaluationCriteria, trace: Sequence[Message]
) -> Iterator[FailedCheck]:
    """Yield the required texts that the agent did not say, if the reward depends on them."""
    if RewardBasis.COMMUNICATE not in criteria.basis:
        return
    for check in check_communication(task, trace):
        if not check.met:
            yield FailedCheck(_cut(f"not said by the agent: {check.wanted!r}"))


_CALL_IN_TEXT = re.compile(
    r"<tool_calls?>|<function[=_]|\[TOOL_CALLS\]|<\|python_tag\|>|<[|｜]tool[_▁]calls?|to=functions\.\w"
    r'|\{\s*"name"\s*:\s*"[\w.-]+"\s*,\s*"(arguments|parameters)"\s*:'
)
"""Beginnings of calls in the formats of Hermes, Llama, Mistral, DeepSeek, Kimi and gpt-oss, or as JSON."""


def _calls_in_text(trace: Iterable[Message]) -> Iterator[FailedCheck]:
    """Yield the first text of the agent that looks like a call that its endpoint could not read."""
    for message in trace:
        text = message.content or ""
        if message.role == "assistant" and (match := _CALL_IN_TEXT.search(text)):
            yield FailedCheck(
                _cut(f"text that looks like a call, which nothing executes: {text[match.start() :]!r}"),
                "check the endpoint's parser of tool calls",
            )
            return


def find_divergence(baseline: Sequence[Message], candidate: Sequence[Message]) -> Divergence | None:
    """Return the first call of the agent that differs; if no call does, the first text that differs."""
    for kind, texts_of in (("call", _agent_calls), ("message", _agent_texts)):
        pairs = zip_longest(texts_of(baseline), texts_of(candidate), fillvalue=f"(no further {kind})")
        for old, new in pairs:
            if old != new:
                return Divergence(_cut(old), _cut(new))
    return None


def _agent_calls(trace: Sequence[Message]) -> Iterator[str]:
    calls = (call for message in trace if message.role == "assistant" for call in message.tool_calls or ())
    return map(_text_of, calls)


def _agent_texts(trace: Sequence[Message]) -> Iterator[str]:
    return (message.text for message in trace if message.role == "assistant" and message.text is not None)


def call_text(name: str, arguments: Mapping[str, object]) -> str:
    """Write a call as Python does, with its arguments as JSON."""
    parts = (
        f"{argument}={json.dumps(value, ensure_ascii=False, default=str)}"
        for argument, value in arguments.items()
    )
    return f"{name}({', '.join(parts)})"


def _text_of(call: Action | ToolCall) -> str:
    return call_text(call.name, call.arguments)


def _cut(text: str) -> str:
    return shorten(text, MAX_TEXT_LENGTH)
