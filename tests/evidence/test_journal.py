"""Journals of simulations: each answer is taken once, by one process, and damage is reported."""

import multiprocessing
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_trace2evolve.errors import ResultsError
from pytest_trace2evolve.evidence.draws import DrawStore, SimulationStore
from pytest_trace2evolve.evidence.journal import Journal, read_journal
from pytest_trace2evolve.records.completion import Answer, Completion, JournalEntry, Usage
from tests.evidence.test_draws import opened, store

__all__ = ["store"]


def entry(request: str) -> JournalEntry:
    completion = Completion(content=f"answer to {request}", seconds=2.0)
    return JournalEntry(request, Answer(trial=0, side="agent", model="m", completion=completion))


def begun(store: DrawStore | SimulationStore, key: str, *requests: str) -> Journal:
    """An open journal to which these requests were answered."""
    journal = store.begin_journal(key)
    assert journal is not None
    for request in requests:
        assert journal.take(request) is None
        journal.add(entry(request))
    return journal


@pytest.fixture
def killed(tmp_path: Path, store: DrawStore) -> Path:
    """The journal of a simulation with three answers, whose process ended."""
    with begun(store, store.draw_key("a"), "1", "2", "3") as journal:
        return journal.path


def test_the_account_names_a_simulation_after_its_journal_is_there_and_before_any_answer(
    tmp_path: Path, store: DrawStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = store.draw_key("a")
    before = store.path.read_bytes()
    real = Path.open

    def full(self: Path, mode: str = "r", **further: Any) -> Any:
        if self == store.path and "+" in mode:
            raise OSError(28, "No space left on device")
        return real(self, mode, **further)

    with monkeypatch.context() as context:
        context.setattr(Path, "open", full)
        with pytest.raises(OSError, match="No space"):
            store.begin_journal(key)
    assert [path.read_bytes() for path in tmp_path.rglob("*.journal")] == [b""]
    for _ in range(2):
        begun(store, key).close()
        added = store.path.read_bytes().removeprefix(before)
        assert added.count(b"\n") == added.count(b'"begun"') == 1


def test_a_part_of_a_line_is_cut_off(killed: Path, store: DrawStore) -> None:
    text = killed.read_bytes()
    killed.write_bytes(text[:-9])
    with begun(store, store.draw_key("a")) as journal:
        assert [journal.take(one) for one in "12"] == [entry("1"), entry("2")]
        assert journal.take("3") is None
        journal.add(entry("3"))
    assert killed.read_bytes() == text


@pytest.mark.parametrize("line", [b"nonsense\n", b'{"request": "1"}\n', b"\xff " + b"[" * 100_000 + b"\n"])
def test_a_damaged_journal_is_named(killed: Path, tmp_path: Path, line: bytes) -> None:
    killed.write_bytes(killed.read_bytes() + line)
    store = opened(tmp_path)
    (problem,) = store.find_problems()
    assert problem.startswith(f"{killed}: is damaged at line 4; restore it, use --t2e-fresh, or begin")
    assert problem.endswith(
        f"deleting {store.path.name} in {store.path.parent}; the ledger counts either as a further draw"
    )
    with pytest.raises(ResultsError, match="is damaged at line 4"):
        store.begin_journal(store.draw_key("a"))


def test_a_journal_of_an_earlier_version_is_read(killed: Path, store: DrawStore) -> None:
    lines = killed.read_text(encoding="utf-8").splitlines(keepends=True)
    old = [f"0123abcd {line}" for line in [*lines, '{"redrawn": 1}\n', *lines[1:2]]]
    killed.write_text("".join(old), encoding="utf-8")
    with begun(store, store.draw_key("a")) as journal:
        assert journal.entries == [entry("1"), entry("2")]
        assert journal.is_redrawn


def test_a_deleted_journal_is_named(killed: Path, tmp_path: Path) -> None:
    killed.unlink()
    store = opened(tmp_path)
    (problem,) = store.find_problems()
    assert problem.startswith(f"{killed}: was deleted, but the account of its draw names it; restore it")
    with pytest.raises(ResultsError, match="was deleted, but the account"):
        store.begin_journal(store.draw_key("a"))


def answered(folder: Path, number: int) -> None:
    """Begin the same simulations as others, and answer one request more in each that is free."""
    store = opened(folder, run=f"run-{number}")
    for name in "abcdef" * 5:
        try:
            journal = store.begin_journal(store.draw_key(name))
        except BlockingIOError:
            continue
        assert journal is not None
        with journal:
            place = 0
            while journal.take(str(place)) is not None:
                place += 1
            journal.add(entry(str(place)))


def test_processes_write_the_journals_of_a_draw_together(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=answered, args=(tmp_path, one)) for one in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert list(opened(tmp_path).find_problems()) == []
    assert opened(tmp_path).path.read_text().count('"begun"') == 6


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
drawn_entries = st.builds(JournalEntry, request=st.sampled_from("abc"), answer=answers) | st.builds(
    JournalEntry,
    request=st.sampled_from("abc"),
    first_tokens=st.dictionaries(st.text(max_size=3), st.floats(max_value=0, allow_nan=False), max_size=3),
)
operations = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), drawn_entries),
        st.tuples(st.just("resume")),
        st.tuples(st.just("cut"), st.integers(0, 400)),
    ),
    max_size=30,
)


@given(operations)
def test_what_was_drawn_stays_drawn(operations: list[tuple[Any, ...]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "one.journal"
        held: list[JournalEntry] = []
        journal, untaken = Journal(path, must_exist=False, remedy="restore it"), held.copy()
        for name, *given_ in operations:
            if name == "ask":
                (asked,) = given_
                expected = next((one for one in untaken if one.request == asked.request), None)
                assert journal.take(asked.request) == expected
                if expected is None:
                    journal.add(asked)
                    held.append(asked)
                else:
                    untaken.remove(expected)
                assert journal.is_redrawn == bool(untaken)
                continue
            journal.close()
            if name == "cut":
                os.truncate(path, max(0, path.stat().st_size - given_[0]))
                held = held[: path.read_bytes().count(b"\n")]
            journal, untaken = Journal(path, must_exist=False, remedy="restore it"), held.copy()
            assert path.read_bytes().endswith(b"\n") or not path.stat().st_size
            assert journal.entries == held
        journal.close()
        assert read_journal(path, "restore it").entries == held
