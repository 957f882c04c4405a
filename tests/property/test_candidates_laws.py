"""What holds of any candidate's file."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_trace2evolve.errors import CandidateError
from pytest_trace2evolve.project.candidates import Candidate, Candidates, read_candidate
from tests.gate_helpers import write_candidate

LAW = settings(deadline=None, max_examples=80)
NEW_LINES = "\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
NUL = "\0"  # the reader rejects it
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters=NEW_LINES + NUL), max_size=60)
WORD = st.text(st.sampled_from("abc:,#-'é码."), min_size=1, max_size=6).filter(
    lambda word: word[0] not in "#-'"
)
PART = st.text("abcde_|.é", min_size=1, max_size=5)
PLACES = st.lists(st.tuples(PART, PART, st.none() | PART), max_size=4)
IDS = st.text(st.sampled_from("abcXYZ019._-"), min_size=1, max_size=6).filter(
    lambda name: name[0] not in "._-"
)


def read(name: str, *header: str, text: str = "") -> Candidate:
    with tempfile.TemporaryDirectory() as folder:
        return read_candidate(write_candidate(Path(folder), name, *header, text=text))


def entry(place: tuple[str, str, str | None]) -> str:
    return "::".join(part for part in place if part is not None)


@LAW
@given(TEXT)
def test_an_instruction_reaches_the_agent_as_it_was_written(text):
    candidate = read("v1", "hypothesis: h", text=text)
    assert candidate.instruction == text.strip()
    assert candidate.digest == Candidate(id="other", instruction=text.strip()).digest


@LAW
@given(TEXT, TEXT)
def test_digests_are_equal_exactly_where_instructions_are(first, second):
    one, other = Candidate(id="v1", instruction=first), Candidate(id="v1", instruction=second)
    assert (one.digest == other.digest) is (first == second)


@LAW
@given(IDS, IDS)
def test_an_id_is_the_name_of_its_file(name, other):
    if name == other:
        assert read(name).id == name
        return
    with tempfile.TemporaryDirectory() as folder:
        path = write_candidate(Path(folder), name)
        with pytest.raises(CandidateError, match="its id is "):
            read_candidate(path.rename(path.with_name(f"{other}.md")))


@LAW
@given(PLACES.filter(bool))
def test_both_forms_of_a_list_say_the_same(places):
    entries = [entry(place) for place in places]
    inline = read("v1", f"informed_by: [{', '.join(entries)}]")
    block = read("v1", "informed_by:", *(f"  - {one}" for one in entries))
    assert inline.informed_by == block.informed_by == tuple(entries)


@LAW
@given(st.lists(WORD, min_size=1, max_size=6), st.data())
def test_a_text_broken_between_any_words_reads_as_one_line(words, data):
    joins = [data.draw(st.sampled_from([" ", "\n  "])) for _ in words[1:]]
    broken = words[0] + "".join(join + word for join, word in zip(joins, words[1:], strict=True))
    whole = " ".join(words)
    assert read("v1", f"hypothesis: a {broken}").hypothesis == f"a {whole}"


@LAW
@given(PLACES, PART, PART)
def test_a_split_was_seen_exactly_where_an_entry_lies_in_it(places, suite, split):
    candidate = Candidate(id="v1", informed_by=tuple(entry(place) for place in places))
    for where in {(suite, split), *((place[0], place[1]) for place in places)}:
        assert candidate.saw(*where) is any((place[0], place[1]) == where for place in places)


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
            with pytest.raises(CandidateError, match=r"turn in a circle|unknown parent"):
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
