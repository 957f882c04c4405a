"""Candidates that set more than an instruction: prompt, tools, model, parameters, agent, commit."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_trace2evolve.errors import CandidateError
from pytest_trace2evolve.project.candidates import Candidate, ModelParameters, ToolText, read_candidate
from pytest_trace2evolve.records.protocols import ToolSchema

Write = Callable[..., Path]

TOOL = ToolSchema(
    name="cancel_booking",
    description="Cancel a booking.",
    parameters={"type": "object", "properties": {"booking_id": {"type": "string"}}},
)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a candidate's file with further front matter."""

    def written(*lines: str, text: str = "") -> Path:
        path = tmp_path / "candidates" / "v6.md"
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(["---", "id: v6", *lines, "---", text]))
        return path

    return written


def test_every_setting_is_read(write: Write, tmp_path: Path) -> None:
    (tmp_path / "prompt.md").write_text("Be kind.\n")
    candidate = read_candidate(
        write(
            "prompt: prompt.md",
            "tools:",
            "  cancel_booking:",
            '    description: "Cancel: ask first."',
            "    parameters: {booking_id: Such as B17.}",
            "model: gpt-x",
            "parameters: {temperature: 0.5, extra_body: {top_p: 1}}",
            "agent: app.bot:make",
            "ref: 3f2a91c",
            "hypothesis: fewer: turns",
            text="Be brief.",
        )
    )
    assert candidate.prompt == "Be kind."
    assert candidate.tools == {
        "cancel_booking": ToolText(
            description="Cancel: ask first.", parameters={"booking_id": "Such as B17."}
        )
    }
    assert candidate.parameters == ModelParameters(temperature=0.5, extra_body={"top_p": 1})
    assert (candidate.model, candidate.agent, candidate.ref) == ("gpt-x", "app.bot:make", "3f2a91c")
    assert (candidate.hypothesis, candidate.instruction) == ("fewer: turns", "Be brief.")
    assert candidate.declared_changes == {"agent", "model", "parameters"}


@given(
    st.sampled_from(
        [
            {"prompt": "Be kind."},
            {"tools": {"a": ToolText(description="x")}},
            {"tools": {"a": ToolText(parameters={"b": "x"})}},
            {"model": "m"},
            {"parameters": ModelParameters(temperature=0.0)},
            {"parameters": ModelParameters(reasoning_effort="low")},
            {"parameters": ModelParameters(max_completion_tokens=9)},
            {"parameters": ModelParameters(tool_choice="required")},
            {"agent": "a:b"},
            {"ref": "1234567"},
        ]
    )
)
def test_every_setting_is_part_of_the_digest(setting: dict[str, object]) -> None:
    plain = Candidate(id="v6", instruction="x")
    changed = Candidate.model_validate({**plain.model_dump(), **setting})
    assert changed.digest != plain.digest
    assert changed.with_adapters("a", []).settings == changed.settings


def test_descriptions_replace_those_of_the_world() -> None:
    candidate = Candidate(
        id="v6",
        tools={"cancel_booking": ToolText(description="Ask first.", parameters={"booking_id": "Id."})},
    )
    (tool,) = candidate.describe_tools([TOOL])
    assert tool.description == "Ask first."
    assert tool.parameters["properties"] == {"booking_id": {"type": "string", "description": "Id."}}
    assert TOOL.parameters["properties"] == {"booking_id": {"type": "string"}}
    assert Candidate(id="v6").describe_tools([TOOL]) == [TOOL]


@pytest.mark.parametrize(
    ("tools", "problem"),
    [
        ({"cancel": ToolText(description="x")}, "describes tool 'cancel', which does not exist; "),
        (
            {"cancel_booking": ToolText(parameters={"id": "x"})},
            "describes parameter 'id' of tool 'cancel_booking', which does not exist; ",
        ),
    ],
)
def test_a_tool_that_does_not_exist_is_an_error(tools: dict[str, ToolText], problem: str) -> None:
    with pytest.raises(CandidateError, match=problem):
        Candidate(id="v6", tools=tools).describe_tools([TOOL])


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (["prompt: missing.md"], "missing.md: cannot be read"),
        (["prompt: ../prompt.md"], "prompt '../prompt.md' lies outside the project; name a file inside it"),
        (["prompt: empty.md"], "prompt 'empty.md' is empty; write the agent's prompt into it"),
        (["model: "], None),
        (["parameters: {temperature: 3}"], "parameters.temperature: Input should be less than or equal to 2"),
        (
            ["parameters: {max_tokens: 0}"],
            "parameters.max_tokens: Input should be greater than or equal to 1",
        ),
        (["parameters: {seed: x}"], "parameters.seed: Input should be a valid integer"),
        (["parameters: {top_k: 5}"], "parameters: unknown key 'top_k'; "),
        (["parameters: {stream: true}"], "parameters: unknown key 'stream'; "),
        (["parameters: [x]"], "parameters: Input should be a valid dictionary"),
        (["tools: {a: {b: c}}"], "tools.a: unknown key 'b'; known are description, parameters"),
        (["tools:", "  a: {description: x}", "tools:", "  b: {description: y}"], "line 5 repeats 'tools'"),
        (["tools:", "  a: {description: x}", "  a: {description: y}"], "line 5: 'a' occurs twice"),
        (["tools:", "  a: {"], "line 4: is not YAML: "),
        (["tools:x"], "line 3 is not 'key: value': 'tools:x'"),
        (["agent: bot"], "agent: String should match pattern"),
        (["ref: main"], "ref: String should match pattern"),
    ],
)
def test_a_setting_that_is_wrong_is_one_line(
    write: Write, tmp_path: Path, lines: list[str], problem: str | None
) -> None:
    (tmp_path / "empty.md").write_text("\n")
    path = write(*lines)
    if problem is None:
        assert read_candidate(path).settings == {}
        return
    with pytest.raises(CandidateError) as caught:
        read_candidate(path)
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)
