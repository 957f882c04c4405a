"""Proposers change a candidate one rule at a time, and a candidate's file holds what they proposed."""

from datetime import date
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.improve.proposers import (
    AblateProposer,
    Draft,
    ParametersProposer,
    Proposer,
    Request,
    TableProposer,
    rules_of,
)
from pytest_trace2evolve.improve.search import Row, Status
from pytest_trace2evolve.models.settings import ModelParameters
from pytest_trace2evolve.project.candidates import Candidate, parse_candidate, read_candidate, render_child
from tests.ci_files import REPOSITORY

V0 = Candidate(id="v0")
V8 = read_candidate(REPOSITORY / "candidates" / "v8.md")


def drafts(proposer: Proposer, parent: Candidate) -> list[Draft]:
    """All drafts of a proposer for one parent."""
    tried, found = [parent.digest], list[Draft]()
    while (draft := proposer.propose(Request(parent, tried))) is not None:
        found.append(draft)
        tried.append(draft.apply(parent, "new").digest)
        assert len(found) < 50
    return found


def test_a_table_adds_each_sentence_once() -> None:
    table = TableProposer({"Be brief.": "h1", "Confirm first.": "h2"})
    assert [draft.instruction for draft in drafts(table, V0)] == ["\n- Be brief.", "\n- Confirm first."]
    child = drafts(table, V0)[0].apply(V0, "v0-1")
    assert child.instruction == "- Be brief."
    assert [draft.apply(child, "n").instruction for draft in drafts(table, child)] == [
        "- Be brief.\n- Confirm first."
    ]


def test_a_table_tries_the_most_promising_sentence_first_on_a_new_parent() -> None:
    table = TableProposer({"A.": "ha", "B.": "hb", "C.": "hc"})
    parent = Candidate(id="v0-3", parent="v0", instruction="- C.")
    history = [
        (Candidate(id=f"v0-{h}", hypothesis=h), Row(f"v0-{h}", "v0", gain, 0.1, 9, "", Status.DISCARD))
        for h, gain in (("ha", -0.2), ("hb", 0.3))
    ]
    draft = table.propose(Request(parent, history=history))
    assert draft is not None
    assert draft.hypothesis == "hb"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "has no list of sentences"),
        ("sentences = []", "has no list of sentences"),
        ("sentences = 'one'", "has no list of sentences"),
        ("sentences = ['a', 3]", "sentence 2 is no text"),
        ("sentences = ['a', ' ']", "sentence 2 is no text"),
        ("sentences = ['a', 'a']", "repeats 'a'"),
        ("[[sentences]]\ntext = 'a'\nwhy = 'b'", "sentence 1 is no text"),
        ("sentences = ['a']\nother = 1", "has no list of sentences"),
        ("sentences = [", "table.toml"),
    ],
)
def test_a_broken_table_is_an_error_that_names_the_file(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "table.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"table\.toml") as error:
        TableProposer.read(path)
    assert problem in str(error.value)


def test_ablation_drops_each_rule_once() -> None:
    found = drafts(AblateProposer(), V8)
    assert len(found) == V8.instruction.count("\n- ") + 1
    for draft in found:
        dropped = draft.hypothesis.removeprefix("Without: ")
        assert dropped in V8.instruction
        assert dropped not in draft.instruction
        assert len(rules_of(draft.instruction)) == len(found) - 1


def test_parameters_change_one_at_a_time_and_never_add_a_reasoning_effort() -> None:
    parent = Candidate(id="v", parameters=ModelParameters(temperature=0.3))
    assert [draft.parameters.given for draft in drafts(ParametersProposer(), parent)] == [
        {"temperature": value} for value in (0.0, 0.7, 1.0)
    ]
    thinking = Candidate(id="v", parameters=ModelParameters(reasoning_effort="low"))
    efforts = {draft.parameters.reasoning_effort for draft in drafts(ParametersProposer(), thinking)}
    assert efforts == {"low", "medium", "high"}


PARENT = """\
---
id: v1
parent: v0
hypothesis: >
  Several
  lines.
claim: hold
prompt: prompts/v1.md
model: gpt
tools:
  find:
    description: Finds it.
informed_by: [a::b]
---
Be kind.
"""

TEXTS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=60)


@given(TEXTS.map(lambda text: " ".join(text.split())).filter(bool), TEXTS, st.none() | st.floats(0, 2))
def test_the_file_of_a_child_reads_as_what_was_proposed(
    hypothesis: str, instruction: str, temperature: float | None
) -> None:
    parent = parse_candidate(PARENT, Path("v1.md"), lambda name: name)
    draft = Draft(hypothesis, instruction, ModelParameters(temperature=temperature))
    child = draft.apply(parent, "v1-1", frozen_at=date(2026, 1, 2), informed_by=("a::b", "small::discovery"))
    read = parse_candidate(render_child(PARENT, child), Path("v1-1.md"), lambda name: name)
    assert read == child
    assert (read.prompt, read.model, read.tools) == (parent.prompt, parent.model, parent.tools)
    assert read.claim is None
