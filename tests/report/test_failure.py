"""The lines of an explanation: compact, of bounded width, and unable to control a terminal."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from pytest_trace2evolve.records.failure import ABSENT, Difference, FailedCheck, Failure
from pytest_trace2evolve.records.message import Message, ToolCall
from pytest_trace2evolve.report.trace import (
    MAX_COLUMNS,
    failure_lines,
    fit_lines,
    message_lines,
)

TEXTS = st.text(st.characters(exclude_categories=()), max_size=300)
PATHS = st.lists(TEXTS | st.integers(0, 99), max_size=4).map(tuple)
VALUES = st.none() | TEXTS | st.floats() | st.just(ABSENT) | st.lists(TEXTS, max_size=3)
DIFFERENCES = st.builds(Difference, PATHS, VALUES, VALUES, TEXTS)
MESSAGES = st.builds(
    Message,
    role=st.sampled_from(["user", "assistant", "tool"]),
    content=st.none() | TEXTS,
    error=st.none() | st.booleans(),
    tool_calls=st.lists(
        st.builds(ToolCall, name=TEXTS, arguments=st.dictionaries(TEXTS, TEXTS, max_size=2)), max_size=2
    ),
)
FAILURES = st.builds(
    Failure,
    st.integers(0, 9),
    reason=TEXTS,
    differences=st.lists(DIFFERENCES, max_size=3).map(tuple),
    difference_count=st.integers(0, 20),
    failed_checks=st.lists(st.builds(FailedCheck, TEXTS, TEXTS), max_size=3).map(tuple),
    last_messages=st.lists(MESSAGES, max_size=3).map(tuple),
    problem=TEXTS,
)


def line(path: tuple[str | int, ...], expected: object, actual: object, side: str = "") -> str:
    failure = Failure(0, differences=(Difference(path, expected, actual, side),), difference_count=1)
    heading, text = failure_lines(failure)
    assert heading == "database (expected != actual):"
    return text


def test_a_difference_is_one_line() -> None:
    assert line(("bookings", "B17", "status"), "cancelled", "confirmed") == (
        "E   bookings.B17.status: 'cancelled' != 'confirmed'"
    )
    assert line(("bookings", "B18"), ABSENT, {"nights": 2, "rooms": ["R1"]}) == (
        "E   bookings.B18: (absent) != {nights: 2, rooms: ['R1']}"
    )
    assert line(("on",), True, None, "user") == "E   user: on: True != None"
    assert line((), 1, 2) == "E   (the database): 1 != 2"


def test_long_values_are_cut_so_that_they_still_differ() -> None:
    start = "The guest arrives late and asks for a room that is far from the lift, "
    text = line(("bookings", "B17", "note"), f"{start}please.", f"{start}thanks.")
    assert text == "E   bookings.B17.note: …lift, please.' != …lift, thanks.'"
    text = line(("note",), "x", "y" * 300)
    assert text.startswith("E   note: 'x' != 'yyy")
    assert (len(text), text[-1]) == (MAX_COLUMNS, "…")


def test_messages_are_shown_with_their_calls_and_errors() -> None:
    call = ToolCall(name="close", arguments={"id": "T1"})
    messages = (
        Message(role="assistant", content="One\n moment", tool_calls=[call]),
        Message(role="tool", content="Error: none", error=True),
        Message(role="user", content="Hm " * 60),
    )
    *lines, long_line = message_lines(Failure(0, last_messages=messages))
    assert lines == [
        "last messages:",
        "    assistant: One moment",
        '    assistant: → close(id="T1")',
        "    tool: (error) Error: none",
    ]
    assert len(long_line) <= MAX_COLUMNS
    assert long_line.endswith("…")


@given(FAILURES)
def test_no_line_is_wide_or_controls_a_terminal(failure: Failure) -> None:
    for text in (*failure_lines(failure), *message_lines(failure)):
        assert cell_len(text) <= MAX_COLUMNS
        assert not text.lstrip().startswith("::")
        assert "##[" not in text
        assert all(unicodedata.category(item) not in ("Cc", "Cf", "Cs", "Zl", "Zp") for item in text)
        text.encode("utf-8")


@pytest.mark.parametrize(("size", "kept"), [(8, 2), (7, 1), (100, 3), (0, 0)])
def test_a_text_is_cut_at_whole_lines(size: int, kept: int) -> None:
    lines = ["ab", "cd", "ef"]
    cut = [] if kept == 3 else [f"… {3 - kept} more line{'' if kept == 2 else 's'}"]
    assert fit_lines(lines, size).split("\n") == [*lines[:kept], *cut]
