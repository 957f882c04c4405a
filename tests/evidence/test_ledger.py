"""The ledger's folder: what is found wrong with it, many writers at once, and branches."""

import errno
import json
import multiprocessing
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import filelock
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_trace2evolve.evidence.ledger import Ledger, render_entry
from pytest_trace2evolve.records.ledger import DatedEntry, Entry, Root
from tests.ledger_helpers import ROOT, at, chained, judged, ledgers, seen
from tests.patience import HANG_SECONDS


def write(folder: Path, *entries: Entry) -> Path:
    """Write entries as they are, and the root."""
    folder.mkdir(exist_ok=True)
    for entry in (ROOT, *entries):
        (folder / f"{entry.name}.json").write_text(render_entry(entry), encoding="utf-8")
    return folder


def problems(folder: Path) -> list[str]:
    return list(Ledger(folder).read().problems)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "ledger"


@pytest.fixture
def three(folder: Path) -> list[DatedEntry]:
    """A look and two evaluations, each after the one before."""
    entries = chained((seen, {}), (judged, {}), (judged, {"name": "v2", "look": 2}))
    write(folder, *entries)
    return entries


def add(folder: Path, make: Callable[..., DatedEntry] = judged, **fields: Any) -> DatedEntry:
    """Append an entry as the plugin does."""
    return Ledger(folder).append(
        lambda root, parents, moment: make(moment, root=root, parents=parents, **fields)
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace("promote", "discard"), "was edited or renamed: its content is that of "),
        (
            lambda text: text.replace('"look": 1', '"look": null'),
            "is not a valid entry (evaluation: Value error, ",
        ),
        (lambda text: text.replace('"kind"', '"sort"'), "is not a valid entry ("),
        (lambda text: text.replace("0.03", "NaN"), "is not a valid entry ("),
        (lambda text: text[:80], "is not a valid entry ("),
        (lambda text: "", "is not a valid entry ("),
        (lambda text: "[]", "is not a valid entry ("),
        (
            lambda text: text.replace('version": 1', 'version": 2'),
            "has format 2, but this version reads format 1; ",
        ),
    ],
)
def test_an_edited_entry_is_named(
    folder: Path, three: list[DatedEntry], change: Callable[[str], str], message: str
) -> None:
    path = folder / f"{three[1].name}.json"
    path.write_text(change(path.read_text(encoding="utf-8")), encoding="utf-8")
    (line,) = problems(folder)
    assert line.startswith(f"ledger/{path.name}: {message}")
    assert "\n" not in line


def test_line_ends_that_git_changed_are_no_edit(folder: Path, three: list[DatedEntry]) -> None:
    for path in folder.iterdir():
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert problems(folder) == []


def test_an_entry_of_another_project_is_named(folder: Path, three: list[DatedEntry]) -> None:
    root = Root(origin="another project")
    foreign = judged(at(5), name="v9", root=root.name)
    write(folder, foreign)
    roots = f"root {root.name}, but this project's root is {ROOT.name}; remove it"
    assert problems(folder) == [f"ledger/{foreign.name}.json: belongs to the ledger of {roots}"]
    write(folder, root)
    message = f"is the root of a different ledger, but this project's root is {ROOT.name}; remove it"
    assert f"ledger/{root.name}.json: {message}" in problems(folder)
    assert foreign not in Ledger(folder).read().entries_by_time


def test_who_writes_while_the_folder_is_listed_damages_nothing(
    folder: Path, three: list[DatedEntry], monkeypatch: pytest.MonkeyPatch
) -> None:
    listings = [[name for name in os.listdir(folder) if three[0].name not in name]]  # noqa: PTH208
    real = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: listings.pop() if listings else real(path))
    assert problems(folder) == []
    assert listings == []


def test_an_entry_of_an_earlier_version_that_lists_wrong_dates_is_read(folder: Path) -> None:
    fast = seen(at(days=2_000))
    after = judged(at(3), parents=(fast.name,), ahead=(fast.name,))
    write(folder, fast, after)
    assert problems(folder) == []
    assert Ledger(folder).read().entries[after.name] == after


def append_five(folder: Path, writer: int, has_locks: bool) -> None:
    if not has_locks:

        def lock(*_: object, **__: object) -> bool:
            raise OSError(errno.ENOTSUP, "Operation not supported")

        filelock.lock_descriptor = lock
    for number in range(5):
        add(folder, run=f"{writer}-{number}")


@pytest.mark.parametrize("has_locks", [True, False])
def test_six_writers_at_once_lose_nothing(folder: Path, has_locks: bool) -> None:
    if has_locks:
        folder.mkdir()
    else:
        write(folder)  # without locks, two writers could begin two ledgers at the same moment
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=append_five, args=(folder, one, has_locks)) for one in range(6)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(HANG_SECONDS)
    assert [writer.exitcode for writer in writers] == [0] * 6
    history = Ledger(folder).read()
    assert history.problems == ()
    runs = sorted(entry.run for entry in history.entries_by_time)  # type: ignore[attr-defined]
    assert runs == sorted(f"{one}-{number}" for one in range(6) for number in range(5))
    if has_locks:
        assert len(history.heads) == 1


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=t", "-c", "user.email=t@example.invalid", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q", "-b", "main")
    (tmp_path / "one.txt").write_text("one", encoding="utf-8")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "one")
    return tmp_path


def commit(repository: Path) -> None:
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "an entry")


@pytest.mark.parametrize("begun", [True, False])
def test_branches_that_both_judged_merge_without_conflict(repository: Path, begun: bool) -> None:
    folder = repository / "ledger"
    if begun:
        add(folder, name="v1")
        commit(repository)
    git(repository, "switch", "-qc", "other")
    theirs = add(folder, name="v2", look=2)
    commit(repository)
    git(repository, "switch", "-q", "main")
    ours = add(folder, name="v3", look=2)
    add_seen = add(folder, seen)
    commit(repository)
    git(repository, "merge", "-q", "--no-edit", "other")
    history = Ledger(folder).read()
    assert history.problems == ()
    assert len(history.entries) == 3 + begun
    assert set(history.heads) == {theirs.name, add_seen.name}
    after = add(folder, name="v4", look=4)
    assert after.parents == tuple(sorted((theirs.name, add_seen.name)))
    assert ours.root == theirs.root == after.root


def test_a_shallow_clone_begins_a_ledger_of_its_own(repository: Path, tmp_path_factory: Any) -> None:
    (repository / "two.txt").write_text("two", encoding="utf-8")
    commit(repository)
    clone = tmp_path_factory.mktemp("clone")
    git(clone, "clone", "-q", "--depth", "1", f"file://{repository}", "c")
    roots = {add(folder / "ledger").root for folder in (clone / "c", repository)}
    assert len(roots) == 2


@contextmanager
def written(entries: Sequence[DatedEntry]) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield write(Path(name), *entries)


LAW = settings(max_examples=25)


@LAW
@given(ledgers())
def test_what_was_written_in_order_is_sound_and_comes_back(entries: list[DatedEntry]) -> None:
    with written(entries) as folder:
        history = Ledger(folder).read()
        assert history.problems == ()
        assert sorted(entry.name for entry in history.entries_by_time) == sorted(
            entry.name for entry in entries
        )
        assert [entry.at for entry in history.entries_by_time] == sorted(entry.at for entry in entries)


@LAW
@given(ledgers(), st.data())
def test_any_changed_field_is_found(entries: list[DatedEntry], data: st.DataObject) -> None:
    with written(entries) as folder:
        path = folder / f"{data.draw(st.sampled_from(entries)).name}.json"
        record = json.loads(path.read_text(encoding="utf-8"))
        field = data.draw(st.sampled_from(sorted(record)))
        value = data.draw(
            st.sampled_from([None, "x", 7, "discard", "hold"]).filter(lambda v: v != record[field])
        )
        path.write_text(json.dumps({**record, field: value}, indent=1, sort_keys=True), encoding="utf-8")
        assert any(line.startswith(f"{folder.name}/{path.name}: ") for line in problems(folder))
