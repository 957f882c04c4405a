"""The answers of a judge of capabilities: which can be trusted, and how proposals are merged."""

import json

import pytest

from pytest_trace2evolve.judges.capabilities import (
    merge_proposals,
    read_groups,
    read_labels,
)
from pytest_trace2evolve.records.capability import Capability, Presence
from pytest_trace2evolve.records.message import Message, ToolCall

TRACE = [
    Message(role="assistant", content="Hi!"),
    Message(role="user", content="Cancel #W1"),
    Message(role="assistant", tool_calls=[ToolCall(id="c", name="cancel", arguments={"order_id": "#W1"})]),
    Message(role="tool", id="c", content="Error: Order not found", error=True),
]


SKILLS = [Capability(name="reading", description="It reads."), Capability(name="asking", description="Asks.")]


def answer(*labels: tuple[str, str, int | None]) -> str:
    return json.dumps(
        {
            "labels": [
                {"capability": name, "presence": presence, "message": message, "reason": "so"}
                for name, presence, message in labels
            ]
        }
    )


def test_good_answers_become_labels() -> None:
    found = read_labels(answer(("asking", "na", None), ("reading", "lacking", 2)), "t", TRACE, SKILLS)
    assert [(item.capability, item.presence, item.message) for item in found] == [
        ("reading", Presence.LACKING, 2),
        ("asking", Presence.NA, None),
    ]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "does not match its schema"),
        ("", "does not match its schema"),
        ("The agent did well.", "does not match its schema"),
        ('{"labels": 3}', "does not match its schema"),
        ('{"labels": [{"capability": "reading"}]}', "does not match its schema"),
        (answer(("reading", "maybe", 2)), "does not match its schema"),
        ("[" * 5_000, "does not match its schema"),
        (answer(("reading", "lost", 2)), "does not match its schema"),
        (answer(("reading", "lacking", 99)), "cites message 99, but the trace has 4 messages"),
        (answer(("reading", "lacking", -1)), "cites message -1, but the trace has 4 messages"),
        (answer(("reading", "present", None)), "cites message None, but the trace has 4 messages"),
        (answer(("reading", "lacking", 1)), "cites message 1, which is the user's"),
        (answer(("reading", "lacking", 3)), "cites message 3, which is the tool's"),
        (answer(("reading", "lacking", 2), ("reading", "present", 2)), "answered 2 times"),
        (answer(("reading", "present", 2), ("reading", "present", 2)), "answered 2 times"),
        (answer(("writing", "lacking", 2)), "did not label it"),
    ],
)
def test_what_cannot_be_trusted_is_lost_and_never_filled_in(content: str | None, why: str) -> None:
    found = read_labels(content, "t", TRACE, SKILLS[:1])
    assert [(item.capability, item.presence, item.message) for item in found] == [
        ("reading", Presence.LOST, None)
    ]
    assert why in found[0].why


def test_proposals_of_one_thing_are_merged_and_the_other_names_kept() -> None:
    proposed = [
        Capability(name="reading", description="It reads.", tasks=("a",)),
        Capability(name="asking", description="It asks."),
        Capability(name="looking_first", description="It looks.", tasks=("b",)),
        Capability(name="reading", description="It reads well.", tasks=("c",)),
    ]
    groups = read_groups(
        '{"groups": [["asking"], ["reading", "looking_first"]]}', ["reading", "asking", "looking_first"]
    )
    found = merge_proposals(proposed, groups)
    assert found[0] == Capability(
        name="reading", description="It reads.", tasks=("a", "c", "b"), merged=("looking_first",)
    )
    assert found[1].name == "asking"


@pytest.mark.parametrize(
    "content", ["nonsense", '{"groups": [["a"]]}', '{"groups": [["a", "b"], ["b"]]}', "{}"]
)
def test_groups_that_are_no_partition_merge_nothing(content: str) -> None:
    assert read_groups(content, ["a", "b"]) == [["a"], ["b"]]
