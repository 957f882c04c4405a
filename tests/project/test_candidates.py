"""Candidates: reading a file, what each mistake is answered with, and lineage."""

import tempfile
from datetime import date
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_trace2evolve.errors import CandidateError
from pytest_trace2evolve.project.candidates import Candidate, Candidates, read_candidate
from tests.gate_helpers import write_candidate


def read(folder: Path, text: str, name: str = "v2") -> Candidate:
    path = folder / f"{name}.md"
    path.write_text(text, encoding="utf-8")
    return read_candidate(path)


def test_every_field_is_read(tmp_path):
    candidate = read(
        tmp_path,
        "---\n"
        "# who, from what, why\n"
        "id: v2\n"
        "parent: v1\n"
        "\n"
        "hypothesis: Ask before writing: fewer wrong orders.\n"
        "frozen_at: 2026-01-10\n"
        "informed_by: [retail::heldout, airline::discovery::7]\n"
        "---\n\n"
        "# Rules\n\nAsk first.\n---\nThen act.\n\n",
    )
    assert candidate == Candidate(
        id="v2",
        parent="v1",
        hypothesis="Ask before writing: fewer wrong orders.",
        frozen_at=date(2026, 1, 10),
        informed_by=("retail::heldout", "airline::discovery::7"),
        instruction="# Rules\n\nAsk first.\n---\nThen act.",
    )


@pytest.mark.parametrize(
    "text", ["a: b", "a #b", "*a", "{a", "no", "1.0", "2026-01-10", "😀", "a\\nb", "it's"]
)
@pytest.mark.parametrize("form", ["{}", "'{}'", '"{}"'])
def test_texts_are_literal_with_and_without_quotes(tmp_path, text, form):
    assert read(tmp_path, f"---\nid: v2\nhypothesis: {form.format(text)}\n---\n").hypothesis == text


HEAD = "---\nid: v2\n"
BROKEN = [
    ("", "line 1 must be '---', the start of the front matter"),
    ("Ask first.\n", "line 1 must be '---', the start of the front matter"),
    (HEAD + "Ask first.\n", "the front matter is not closed; put '---' on a line of its own after it"),
    (HEAD + "Ask first\n---\n", "line 3 is not 'key: value': 'Ask first'"),
    (HEAD + "parent:v1\n---\n", "line 3 is not 'key: value': 'parent:v1'"),
    (HEAD + "&a parent: v1\n---\n", "line 3 is not 'key: value': '&a parent: v1'"),
    (HEAD + "!!str parent: v1\n---\n", "line 3 is not 'key: value': '!!str parent: v1'"),
    (HEAD + "*id: v1\n---\n", "line 3 is not 'key: value': '*id: v1'"),
    (HEAD + "parent: {a: b}\n---\n", "parent: "),
    (HEAD + "informed_by:\n  -\n    - a::b\n---\n", "informed_by: "),
    (HEAD + "{a: " * 2_000 + "\n---\n", "line 3 is not 'key: value'"),
    (HEAD + "? " * 2_000 + "\n---\n", "line 3 is not 'key: value'"),
    (HEAD + "parent: v1\n\nid: v3\n---\n", "line 5 repeats 'id'"),
    (HEAD + "author: me\n---\n", "unknown key 'author'; known are "),
    (HEAD + "instruction: Ask first.\n---\nAct.\n", "instruction: "),
    ("---\nparent: v1\n---\n", "id: Field required"),
    ("---\nid: v3\n---\n", "its id is 'v3'; name the file v3.md or correct the id"),
    ("---\nid: v 2\n---\n", "id: "),
    (HEAD + "parent: ../v1\n---\n", "parent: "),
    (HEAD + "frozen_at: 2026-02-30\n---\n", "frozen_at: "),
    (HEAD + "frozen_at: 0\n---\n", "frozen_at: "),
    (HEAD + "informed_by: [heldout]\n---\n", "informed_by.0: "),
    (HEAD + "informed_by: [a::b, c:d]\n---\n", "informed_by.1: "),
    (HEAD + "informed_by: a::b\n  - c::d\n---\n", "informed_by"),
    (HEAD + "parent: v2\n---\n", "a candidate cannot be its own parent"),
]


@pytest.mark.parametrize(("text", "expected"), BROKEN, ids=[expected or "empty" for _, expected in BROKEN])
def test_a_broken_file_is_answered_in_one_line_with_file_place_and_cause(tmp_path, text, expected):
    with pytest.raises(CandidateError) as caught:
        read(tmp_path, text)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'v2.md'}: ")
    assert expected in message
    assert "\n" not in message


@pytest.mark.parametrize(("field", "value"), [("frozen_at", "next week"), ("informed_by", "[held out]")])
def test_a_value_that_does_not_fit_is_named(tmp_path, field, value):
    with pytest.raises(CandidateError, match=value.strip("[]")):
        read(tmp_path, f"{HEAD}{field}: {value}\n---\n")


@pytest.fixture
def family(tmp_path):
    """v0 ← v1 ← v2, and v0 ← other."""
    for name, parent in {"v0": "null", "v1": "v0", "v2": "v1", "other": "v0"}.items():
        write_candidate(tmp_path, name, f"parent: {parent}")
    return Candidates(tmp_path)


def test_an_unknown_candidate_is_answered_with_the_nearest(family, tmp_path):
    with pytest.raises(CandidateError) as caught:
        family["v12"]
    assert str(caught.value).startswith("unknown candidate 'v12'; nearest are v2, v1")
    assert str(caught.value).endswith(f"in {tmp_path}")
    with pytest.raises(CandidateError, match="'zzz'; nearest are other, v0, v1, v2 in "):
        family["zzz"]


LAW = settings(max_examples=30)
NEW_LINES = "\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
NUL = "\0"  # the reader rejects it
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters=NEW_LINES + NUL), max_size=60)
WORD = st.text(st.sampled_from("abc:,#-'é码."), min_size=1, max_size=6).filter(
    lambda word: word[0] not in "#-'"
)
PART = st.text("abcde_|.é", min_size=1, max_size=5)
PLACES = st.lists(st.tuples(PART, PART, st.none() | PART), max_size=4)


def read_with(name: str, *header: str, text: str = "") -> Candidate:
    with tempfile.TemporaryDirectory() as folder:
        return read_candidate(write_candidate(Path(folder), name, *header, text=text))


def entry(place: tuple[str, str, str | None]) -> str:
    return "::".join(part for part in place if part is not None)


@LAW
@given(TEXT)
def test_an_instruction_reaches_the_agent_as_it_was_written(text):
    candidate = read_with("v1", "hypothesis: h", text=text)
    assert candidate.instruction == text.strip()
    assert candidate.digest == Candidate(id="other", instruction=text.strip()).digest


@LAW
@given(st.lists(WORD, min_size=1, max_size=6), st.data())
def test_a_text_broken_between_any_words_reads_as_one_line(words, data):
    joins = [data.draw(st.sampled_from([" ", "\n  "])) for _ in words[1:]]
    broken = words[0] + "".join(join + word for join, word in zip(joins, words[1:], strict=True))
    whole = " ".join(words)
    assert read_with("v1", f"hypothesis: a {broken}").hypothesis == f"a {whole}"


@LAW
@given(PLACES, PART, PART)
def test_a_split_was_seen_exactly_where_an_entry_lies_in_it(places, suite, split):
    candidate = Candidate(id="v1", informed_by=tuple(entry(place) for place in places))
    for where in {(suite, split), *((place[0], place[1]) for place in places)}:
        assert candidate.has_seen(*where) is any((place[0], place[1]) == where for place in places)


@LAW
@given(st.lists(st.integers(-1, 6), min_size=1, max_size=7))
def test_a_lineage_is_a_chain_of_parents_up_to_a_root_or_an_error(parents):
    known = {f"v{n}": None if parent < 0 else f"v{parent}" for n, parent in enumerate(parents)}
    known = {name: None if parent == name else parent for name, parent in known.items()}
    with tempfile.TemporaryDirectory() as folder:
        for name, parent in known.items():
            write_candidate(Path(folder), name, f"parent: {parent or ''}")
        candidates = Candidates(Path(folder))
        for name in known:
            wanted, ends = follow(known, name)
            if ends:
                assert [candidate.id for candidate in candidates.lineage(name)] == wanted
                continue
            with pytest.raises(CandidateError, match=r"form a cycle|unknown parent"):
                candidates.lineage(name)


def follow(parents: dict[str, str | None], name: str) -> tuple[list[str], bool]:
    """The chain of parents from a name, and whether it ends at a root."""
    chain: list[str] = []
    at: str | None = name
    while at is not None:
        if at in chain or at not in parents:
            return chain, False
        chain.append(at)
        at = parents[at]
    return chain, True
