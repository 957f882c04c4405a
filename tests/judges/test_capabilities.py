"""The answers of a judge of capabilities: which can be trusted, and how proposals are merged."""

import json

import pytest

from pytest_trace2evolve.judges.capabilities import (
    labels_format,
    merge_proposals,
    read_groups,
    read_labels,
    read_proposals,
    render_conversation,
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
    assert [(one.capability, one.presence, one.message) for one in found] == [
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
    assert [(one.capability, one.presence, one.message) for one in found] == [
        ("reading", Presence.LOST, None)
    ]
    assert why in found[0].why


def test_proposals_are_cut_and_unknown_tasks_dropped() -> None:
    expected = [
        {"name": f"skill_{n}", "definition": f"Skill\n {n}.", "tasks": ["a", "z", "a"]} for n in range(12)
    ]
    found = read_proposals(json.dumps({"capabilities": expected}), {"a", "b"})
    assert len(found) == 10
    assert found[0] == Capability(name="skill_0", description="Skill 0.", tasks=("a",))
    assert read_proposals("no JSON", {"a"}) == []
    assert read_proposals(json.dumps({"capabilities": [{**expected[0], "name": "Not Snake"}]}), {"a"}) == []


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


def test_the_schema_names_the_three_labels_and_has_no_references() -> None:
    schema = labels_format()["json_schema"]["schema"]
    item = schema["properties"]["labels"]["items"]
    assert item["properties"]["presence"] == {"type": "string", "enum": ["present", "lacking", "na"]}
    assert item["additionalProperties"] is False
    assert "$ref" not in json.dumps(schema)


def test_a_conversation_is_shown_with_its_numbers_and_long_results_cut() -> None:
    long = [*TRACE[:3], Message(role="tool", id="c", content="x" * 2_000)]
    lines = render_conversation(long).splitlines()
    assert lines[1] == "[1] user: Cancel #W1"
    assert lines[2] == '[2] assistant: cancel({"order_id": "#W1"})'
    assert lines[3].endswith("… (500 more letters)")
    assert render_conversation(TRACE).splitlines()[3] == "[3] tool (error): Error: Order not found"
