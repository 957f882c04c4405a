"""Laws of journals: whatever is cut off after a kill, a journal holds a prefix of what was written to it."""

import os
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pytest_trace2evolve.evidence.journal import Journal, read
from pytest_trace2evolve.records.answer import Answer, JournalEntry
from pytest_trace2evolve.records.completion import Completion, Usage

KEY = "0123456789abcdef"

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
completions = st.builds(
    Completion,
    content=st.none() | texts,
    usage=st.builds(Usage, prompt_tokens=st.integers(0, 9), cost=st.none() | st.floats(0, 9)),
    seconds=st.floats(0, 9),
)
answers = st.builds(
    Answer, trial=st.just(0), side=st.sampled_from(["agent", "user"]), model=texts, completion=completions
) | st.builds(Answer, trial=st.just(0), side=st.just("agent"), model=texts, context_window=texts)
entries = st.builds(JournalEntry, request=st.sampled_from("abc"), answer=answers) | st.builds(
    JournalEntry,
    request=st.sampled_from("abc"),
    first_tokens=st.dictionaries(st.text(max_size=3), st.floats(max_value=0, allow_nan=False), max_size=3),
)
operations = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), entries),
        st.tuples(st.just("resume")),
        st.tuples(st.just("cut"), st.integers(0, 400)),
    ),
    max_size=30,
)


def opened(path: Path) -> Journal:
    return Journal(path, KEY, must_exist=False, remedy="restore it")


@given(operations)
def test_what_was_drawn_stays_drawn(operations: list[tuple[Any, ...]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "one.journal"
        journal = opened(path)
        held: list[JournalEntry] = []
        # After each whole line: the size of the file, the answers that are held, whether some are unused.
        lines: list[tuple[int, list[JournalEntry], bool]] = [(0, [], False)]
        place = 0
        for name, *given_ in operations:
            if name == "ask":
                (entry,) = given_
                kept = journal.take(entry.request)
                if place < len(held) and held[place].request == entry.request:
                    assert kept == held[place]
                else:
                    assert kept is None
                    if place < len(held):
                        held = held[:place]
                        lines.append((lines[-1][0], held, True))
                    journal.add(entry)
                    held = [*held, entry]
                    lines.append((path.stat().st_size, held, journal.redrawn))
                place += 1
                continue
            journal.close()
            if name == "cut":
                size = max(0, path.stat().st_size - given_[0])
                os.truncate(path, size)
                whole = read(path, KEY, "restore it")
                lines = [one for one in lines if one[0] <= whole.size]
                assert whole.entries in [one[1] for one in lines]
                held = whole.entries
            journal = opened(path)
            assert path.read_bytes().endswith(b"\n") or not path.stat().st_size
            assert journal.redrawn == read(path, KEY, "restore it").redrawn
            place = 0
        journal.close()
        assert read(path, KEY, "restore it").entries == held
