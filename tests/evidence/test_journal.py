"""Journals of simulations: taken in order, held by one process, and every edit is reported."""

import multiprocessing
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_trace2evolve.errors import ResultsError, StorageError
from pytest_trace2evolve.evidence.draws import DrawStore, SimulationStore
from pytest_trace2evolve.evidence.journal import Journal, read_journal
from pytest_trace2evolve.records.completion import Answer, Completion, JournalEntry, Usage
from tests.evidence.test_draws import opened, simulation, store

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


def test_answers_are_taken_in_order_and_the_rest_is_asked(killed: Path, tmp_path: Path) -> None:
    again = opened(tmp_path, run="run-2")
    with begun(again, again.draw_key("a")) as journal:
        assert journal.seconds == 6.0
        assert [journal.take(one) for one in "123"] == [entry(one) for one in "123"]
        assert journal.take("4") is None
        assert not journal.is_redrawn


def test_a_stored_simulation_has_no_journal(killed: Path, tmp_path: Path, store: DrawStore) -> None:
    key = store.draw_key("a")
    with begun(store, key):
        store.put(key, simulation())
    assert not killed.exists()
    assert store.begin_journal(key) is None
    assert opened(tmp_path).begin_journal(key) is None
    assert list(opened(tmp_path).find_problems()) == []


def test_another_request_leaves_the_rest_unused_for_ever(killed: Path, store: DrawStore) -> None:
    with begun(store, store.draw_key("a")) as journal:
        assert journal.take("1") == entry("1")
        assert journal.take("other") is None
        journal.add(entry("other"))
        assert journal.is_redrawn
    with begun(store, store.draw_key("a")) as journal:
        assert journal.is_redrawn
        assert [journal.take(one) for one in ("1", "other")] == [entry("1"), entry("other")]
        assert journal.take("2") is None
    assert list(store.find_problems()) == []


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


@pytest.mark.parametrize(
    ("edit", "line"),
    [
        (lambda lines: [lines[0].replace(b"answer to 1", b"answer to 9"), *lines[1:]], 1),
        (lambda lines: [*lines[:2], lines[2].replace(b"answer to 3", b"answer to 9")], 3),
        (lambda lines: lines[1:], 1),
        (lambda lines: [lines[0], lines[2]], 2),
        (lambda lines: [lines[1], lines[0], lines[2]], 1),
        (lambda lines: [*lines, lines[0]], 4),
        (lambda lines: [*lines, b"nonsense\n"], 4),
        (lambda lines: [*lines, b'0 {"redrawn": -1}\n'], 4),
        (lambda lines: [*lines, b"\xff " + b"[" * 100_000 + b"\n"], 4),
    ],
)
def test_an_edited_journal_is_named(killed: Path, tmp_path: Path, edit: object, line: int) -> None:
    killed.write_bytes(b"".join(edit(killed.read_bytes().splitlines(keepends=True))))  # type: ignore[operator]
    store = opened(tmp_path)
    (told,) = store.find_problems()
    assert told.startswith(f"{killed}: was changed at line {line}; restore it, use --t2e-fresh, or begin")
    assert told.endswith(
        f"deleting {store.path.name} in {store.path.parent}; the ledger counts either as a further draw"
    )
    with pytest.raises(ResultsError, match=f"was changed at line {line}"):
        store.begin_journal(store.draw_key("a"))


def test_a_journal_in_the_place_of_another_is_named(killed: Path, store: DrawStore) -> None:
    with begun(store, store.draw_key("b"), "1") as other:
        pass
    shutil.copy(killed, other.path)
    assert [line.partition("; ")[0] for line in store.find_problems()] == [
        f"{other.path}: was changed at line 1"
    ]


def test_a_deleted_journal_is_named(killed: Path, tmp_path: Path) -> None:
    killed.unlink()
    store = opened(tmp_path)
    (told,) = store.find_problems()
    assert told.startswith(f"{killed}: was deleted, but the account of its draw names it; restore it")
    with pytest.raises(ResultsError, match="was deleted, but the account"):
        store.begin_journal(store.draw_key("a"))


def test_a_journal_added_by_hand_is_named(killed: Path, tmp_path: Path) -> None:
    store = opened(tmp_path)
    lines = store.path.read_bytes().splitlines(keepends=True)
    store.path.write_bytes(b"".join(lines[:1]))  # the draw, without the simulation that was begun
    with pytest.raises(ResultsError, match="was added by hand; delete it"):
        store.begin_journal(opened(tmp_path).draw_key("a"))
    killed.write_bytes(b"")
    begun(store, store.draw_key("a")).close()  # as after a kill between the two writes


def test_a_folder_in_the_place_of_a_journal_is_an_error_of_one_line(killed: Path, tmp_path: Path) -> None:
    killed.unlink()
    killed.mkdir()
    (told,) = opened(tmp_path).find_problems()
    assert told.startswith(f"{killed}: cannot be read (")


def test_one_process_at_a_time_makes_a_simulation(tmp_path: Path, store: DrawStore) -> None:
    key = store.draw_key("a")
    with begun(store, key, "1") as journal:
        with pytest.raises(BlockingIOError):
            opened(tmp_path).begin_journal(key)
        store.put(key, simulation())
        assert not journal.is_linked
    assert opened(tmp_path).begin_journal(key) is None


def test_a_full_disk_ends_the_run(store: DrawStore, monkeypatch: pytest.MonkeyPatch) -> None:
    with begun(store, store.draw_key("a")) as journal:
        monkeypatch.setattr(os, "write", lambda handle, line: len(line) // 2)
        with pytest.raises(
            StorageError, match=r"\.journal: cannot be written .*; make room or allow writing"
        ):
            journal.add(entry("1"))


def test_scratch_simulations_have_journals_too(tmp_path: Path) -> None:
    store = SimulationStore(tmp_path / "scratch")
    with begun(store, "aabb", "1"), pytest.raises(BlockingIOError):
        store.begin_journal("aabb")
    with begun(store, "aabb") as journal:
        assert journal.take("1") == entry("1")
        store.put("aabb", simulation())
    assert store.begin_journal("aabb") is None
    assert not list(tmp_path.rglob("*.journal"))


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


def journal_at(path: Path) -> Journal:
    return Journal(path, KEY, must_exist=False, remedy="restore it")


@given(operations)
def test_what_was_drawn_stays_drawn(operations: list[tuple[Any, ...]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "one.journal"
        journal = journal_at(path)
        held: list[JournalEntry] = []
        # After each whole line: the size of the file, the answers that are held, whether some are unused.
        lines: list[tuple[int, list[JournalEntry], bool]] = [(0, [], False)]
        place = 0
        for name, *given_ in operations:
            if name == "ask":
                (asked,) = given_
                kept = journal.take(asked.request)
                if place < len(held) and held[place].request == asked.request:
                    assert kept == held[place]
                else:
                    assert kept is None
                    if place < len(held):
                        held = held[:place]
                        lines.append((lines[-1][0], held, True))
                    journal.add(asked)
                    held = [*held, asked]
                    lines.append((path.stat().st_size, held, journal.is_redrawn))
                place += 1
                continue
            journal.close()
            if name == "cut":
                size = max(0, path.stat().st_size - given_[0])
                os.truncate(path, size)
                whole = read_journal(path, KEY, "restore it")
                lines = [line for line in lines if line[0] <= whole.size]
                assert whole.entries in [line[1] for line in lines]
                held = whole.entries
            journal = journal_at(path)
            assert path.read_bytes().endswith(b"\n") or not path.stat().st_size
            assert journal.is_redrawn == read_journal(path, KEY, "restore it").is_redrawn
            place = 0
        journal.close()
        assert read_journal(path, KEY, "restore it").entries == held
