"""Checks of one's own: their declaration, the view of a trace, and the meaning of their results."""

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pytest_trace2evolve as t2e
from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.records.message import Message, ToolCall
from pytest_trace2evolve.records.trace import Simulation
from pytest_trace2evolve.records.trace_check import CheckOutcome, TraceCheck, checks_in
from pytest_trace2evolve.scoring.trace_checks import CheckResult, EndState, Trace, run_checks
from tests.fake_world import TASKS, FakeWorld


def call(name: str, key: str, by: Any = "assistant", **arguments: object) -> ToolCall:
    return ToolCall(id=key, name=name, arguments=arguments, requestor=by)


MESSAGES = [
    Message(role="assistant", content="Hi!"),
    Message(role="user", content="Close T1, please."),
    Message(
        role="assistant",
        content="One moment.",
        tool_calls=[call("get_ticket", "a", ticket_id="T1"), call("close_ticket", "b", ticket_id="T1")],
    ),
    Message(role="tool", id="a", content='{"status": "open"}', requestor="assistant"),
    Message(role="tool", id="b", content="Error: no", requestor="assistant", error=True),
    Message(role="assistant", content="", tool_calls=[call("write_note", "c", ticket_id="T1", text="x")]),
    Message(role="user", content=None, tool_calls=[call("restart_phone", "d", by="user")]),
    Message(role="tool", id="d", content="Restarted", requestor="user"),
    Message(role="assistant", content="Shall I close it?"),
]


def simulation(messages: list[Message] = MESSAGES) -> Simulation:
    record = {
        "id": "s",
        "task_id": "close",
        "termination_reason": "user_stop",
        "messages": [message.model_dump(exclude_unset=True) for message in messages],
    }
    return Simulation.model_validate(record)


def run(function: Callable[..., Any], messages: list[Message] = MESSAGES) -> CheckResult:
    declared: Any = t2e.check(id="one")(function)
    check: TraceCheck = declared.t2e_check
    return run_checks([check], simulation(messages), TASKS["close"], FakeWorld())["one"]


def test_a_check_that_never_returns_is_an_error_and_is_not_called_again() -> None:
    release, calls = threading.Event(), []

    def stuck(trace: t2e.Trace) -> bool:
        calls.append(len(trace))
        release.wait()
        return True

    declared: Any = t2e.check(stuck)
    check: TraceCheck = replace(declared.t2e_check, timeout=0.01)
    try:
        results = [run_checks([check], simulation(), TASKS["close"], FakeWorld())["stuck"] for _ in range(2)]
    finally:
        release.set()
    assert [result.outcome for result in results] == [CheckOutcome.ERROR] * 2
    assert results[0].reason.startswith("it did not return within 0.01 seconds (check_timeout")
    assert "for an earlier simulation" in results[1].reason
    assert calls == [len(MESSAGES)]


# The view of a trace.


@pytest.mark.parametrize("n_messages", [1, 3_000])
def test_each_call_has_the_answer_of_its_own_turn(n_messages: int) -> None:
    """Ids may repeat in later turns, and a long trace has as many calls as messages."""
    keys = [str(number) for number in range(6_000 // n_messages)]
    messages = []
    for turn in range(n_messages):
        messages.append(Message(role="assistant", tool_calls=[call("think", key) for key in keys]))
        messages += [
            Message(role="tool", id=key, content=f"{turn}: {key}", requestor="assistant")
            for key in reversed(keys[1:])
        ]
    messages.append(Message(role="user", content="So?"))
    messages.append(Message(role="tool", id=keys[0], content="too late", requestor="assistant"))
    results = [(made.index // len(keys), made.result) for made in Trace(messages).calls()]
    assert results == [
        (turn, f"{turn}: {key}" if key != keys[0] else None) for turn in range(n_messages) for key in keys
    ]


def test_the_view_shows_calls_with_their_results() -> None:
    trace = Trace(MESSAGES)
    assert (len(trace), trace[0].content, trace[-1].content) == (9, "Hi!", "Shall I close it?")
    assert [one.name for one in trace.calls()] == ["get_ticket", "close_ticket", "write_note"]
    [first] = trace.calls("get_ticket")
    assert (first.index, first.arguments, first.result) == (2, {"ticket_id": "T1"}, '{"status": "open"}')
    assert trace.calls("close_ticket")[0].error
    assert trace.calls("write_note")[0].result is None
    assert [one.name for one in trace.calls(by="user")] == ["restart_phone"]
    assert trace.said("SHALL I", "may I")
    assert not trace.before(8).said("shall i")
    assert trace.said("close t1", by="user")
    assert not trace.said("close t1")
    assert len(trace.before(0)) == len(trace.before(-3)) == 0
    assert trace[1:3] == tuple(MESSAGES[1:3])


@given(st.integers(-2, 12), st.integers(-2, 12))
def test_before_keeps_positions(first: int, second: int) -> None:
    trace = Trace(MESSAGES)
    assert list(trace.before(first).before(second)) == list(trace.before(min(first, second)))
    kept = trace.before(first)
    assert [one.index for one in kept.calls()] == [
        one.index for one in trace.calls() if one.index < len(kept)
    ]


# The results.


@pytest.mark.parametrize(
    ("value", "outcome", "reason"),
    [
        (True, CheckOutcome.KEPT, ""),
        (False, CheckOutcome.BROKEN, ""),
        (None, CheckOutcome.NOT_APPLICABLE, ""),
        ("it\n did not", CheckOutcome.BROKEN, "it did not"),
        (1, CheckOutcome.ERROR, "it returned int"),
        (0.0, CheckOutcome.ERROR, "it returned float"),
        (" ", CheckOutcome.ERROR, "it returned an empty text"),
        ([], CheckOutcome.ERROR, "it returned list"),
        ("\ud800" * 600, CheckOutcome.BROKEN, "\\ud800"),
    ],
)
def test_what_a_result_means(value: object, outcome: CheckOutcome, reason: str) -> None:
    result = run(lambda trace: value)
    assert result.outcome is outcome
    assert result.reason.startswith(reason)
    assert len(result.reason) <= 500


class SilentError(Exception):
    def __str__(self) -> str:
        raise ValueError


@pytest.mark.parametrize(
    "error",
    [
        KeyError("room"),
        SystemExit(1),
        AssertionError("x"),
        RecursionError(),
        SilentError(),
        pytest.skip.Exception,
    ],
)
def test_an_exception_is_no_result_and_names_the_line(error: Any) -> None:
    def raising(trace: Trace) -> bool:
        raise error

    result = run(raising)
    line = raising.__code__.co_firstlineno + 1
    assert result.outcome is CheckOutcome.ERROR
    assert f"test_trace_checks.py:{line})" in result.reason
    assert "room" not in result.cause


def test_a_check_cannot_change_what_others_see() -> None:
    def vandal(trace: Trace, database: Any) -> bool:
        trace[2].tool_calls[0].arguments.clear()  # type: ignore[index]
        database.clear()
        return True

    def witness(database: Any, trace: Trace) -> bool:
        return bool(database["tickets"]) and trace.calls()[0].arguments == {"ticket_id": "T1"}

    declared: list[Any] = [t2e.check(vandal), t2e.check(witness)]
    checks = [function.t2e_check for function in declared]
    results = run_checks(checks, simulation(), TASKS["close"], FakeWorld())
    assert {name: result.outcome for name, result in results.items()} == {"vandal": "kept", "witness": "kept"}


def test_the_database_is_the_end_state() -> None:
    """Calls with a result are replayed, the others are not."""
    state = EndState(simulation(), TASKS["close"], FakeWorld()).database()
    assert state["tickets"]["T1"] == {"status": "closed", "note": ""}
    assert state["phone"] == {"on": True, "restarts": 1}


# The declaration.


def test_declarations_keep_the_function() -> None:
    @t2e.check
    def plain(trace: Trace) -> bool:
        return True

    @t2e.check(kind="consent", id="other-name")
    def named(database: Any) -> bool:
        return True

    assert plain(Trace([])) is True
    assert (plain.t2e_check.id, plain.t2e_check.kind) == ("plain", "plain")  # type: ignore[attr-defined]
    assert (named.t2e_check.id, named.t2e_check.kind) == ("other-name", "consent")  # type: ignore[attr-defined]


async def waiting(trace: Trace) -> bool:
    return True


@pytest.mark.parametrize(
    ("declare", "text"),
    [
        (lambda: t2e.check(lambda traces: True), "check id '<lambda>'"),
        (lambda: t2e.check(id="x")(lambda traces: True), "check 'x' takes 'traces'"),
        (lambda: t2e.check(id="x")(lambda trace, /: True), "check 'x' takes 'trace'"),
        (lambda: t2e.check(id="x")(lambda *trace: True), "check 'x' takes '*trace'"),
        (lambda: t2e.check(id="a b")(lambda trace: True), "check id 'a b'"),
        (lambda: t2e.check(id="x", kind="own checks")(lambda trace: True), "check kind 'own checks'"),
        (lambda: t2e.check(waiting), "is async"),
        (lambda: t2e.check(print), "apply it to a function"),
        (lambda: t2e.judged_check("tone", rubric=" "), "the rubric must be a text"),
        (lambda: t2e.judged_check("to ne", rubric="x"), "check id 'to ne'"),
    ],
)
def test_invalid_declarations_are_named(declare: Callable[[], object], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        declare()
    assert text in str(caught.value)


def test_modules_list_their_checks_and_imported_ones_once(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_a.py").write_text(
        "import pytest_trace2evolve as t2e\n"
        "@t2e.check\ndef one(trace):\n    return True\n"
        't2e.judged_check("two", rubric="x")\n'
        'three = t2e.judged_check("three", rubric="x")\n'
    )
    (tmp_path / "own_b.py").write_text("from own_a import *\n")
    import own_a  # type: ignore[import-not-found]
    import own_b  # type: ignore[import-not-found]

    assert [check.id for check in checks_in(own_a)] == ["one", "two", "three"]
    assert [check.id for check in checks_in(own_b)] == ["one", "three"]
    assert checks_in(own_a)[0] is checks_in(own_b)[0]


def test_the_example_of_the_page_works() -> None:
    page = (Path(__file__).parents[2] / "docs" / "extending.md").read_text(encoding="utf-8")
    namespace: dict[str, Any] = {"__name__": "page"}
    exec(
        page.partition("## Checks of your own")[2].partition("```python\n")[2].partition("```")[0], namespace
    )
    asks, overbooks = namespace["asks_before_cancelling"], namespace["never_overbooks"]
    cancel = Message(role="assistant", tool_calls=[call("cancel_booking", "a", booking_id="B1")])
    question = Message(role="assistant", content="Shall I cancel it?")
    assert asks(Trace([])) is None
    assert asks(Trace([question, cancel])) is True
    assert asks(Trace([cancel, question])) == "cancelled B1 without asking"
    assert overbooks({"rooms": {"1": {"guests": 2, "beds": 2}}})
