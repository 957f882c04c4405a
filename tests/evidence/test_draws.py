"""The store of first simulations: nothing replaces one, and each edit by hand is named."""

import json
import multiprocessing
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_trace2evolve.evidence.draws import DrawStore, open_draws
from pytest_trace2evolve.records.trace import Simulation
from pytest_trace2evolve.utils.files import remove_abandoned_files

WHO = ("candidate", "agent", "conditions")


def simulation(note: str = "") -> Simulation:
    return Simulation.model_validate(
        {"id": f"s{note}", "task_id": "t", "termination_reason": "user_stop", "messages": []}
    )


@pytest.fixture
def store(tmp_path: Path) -> DrawStore:
    return opened(tmp_path)


def opened(folder: Path, who: tuple[str, str, str] = WHO, run: str = "run-1") -> DrawStore:
    return DrawStore(folder / "finished", folder / "draws", who, run)


def file_of(folder: Path) -> Path:
    (path,) = (folder / "finished").rglob("*.json")
    return path


def test_the_first_simulation_of_a_key_stays(tmp_path: Path, store: DrawStore) -> None:
    key = store.draw_key("a")
    store.put(key, simulation("first"))
    store.put(key, simulation("second"))
    opened(tmp_path, run="run-2").put(key, simulation("third"))
    found = opened(tmp_path).get(key)
    assert found is not None
    assert found.id == "sfirst"
    assert not list((tmp_path / "finished").rglob("*.part"))
    assert not list((tmp_path / "finished").rglob("*.tmp"))


@pytest.mark.parametrize(("line", "text"), [(0, ""), (1, "{}"), (2, '{"made"'), (3, '{"made": 1}')])
def test_a_damaged_account_is_named(tmp_path: Path, store: DrawStore, line: int, text: str) -> None:
    for name in "abc":
        store.put(store.draw_key(name), simulation(name))
    lines = store.path.read_text().splitlines()
    lines[line] = text
    store.path.write_text("\n".join([*lines, ""]))
    problems = list(opened(tmp_path).find_problems())
    assert len(problems) == 1
    assert f"was changed at line {line + 1}; restore it, or delete it to begin a new draw" in problems[0]


def test_an_account_of_an_earlier_version_is_read_and_continued(tmp_path: Path, store: DrawStore) -> None:
    """Its lines also hold "chain", a digest of all lines before."""
    key = store.draw_key("a")
    store.put(key, simulation("a"))
    lines = [{**json.loads(line), "chain": "0" * 32} for line in store.path.read_text().splitlines()]
    store.path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    later = opened(tmp_path, run="run-2")
    assert later.id == store.id
    assert later.has(key)
    later.put(later.draw_key("b"), simulation("b"))
    assert list(opened(tmp_path).find_problems()) == []


@pytest.mark.parametrize("last", ["staged", "account", "file"])
def test_a_kill_between_two_writes_is_no_accusation(
    tmp_path: Path, store: DrawStore, monkeypatch: pytest.MonkeyPatch, last: str
) -> None:
    """A process that dies before, between and after the writes of one simulation."""
    key = store.draw_key("a")
    reach = {"staged": 1, "file": 2, "account": 3}[last]
    pid = os.fork()
    if pid == 0:  # this process is really killed, after the chosen write
        done = 0

        def killing(real: Callable[..., object]) -> Callable[..., object]:
            def call(*arguments: object) -> object:
                nonlocal done
                found = real(*arguments)
                done += 1
                if done == reach:
                    os.kill(os.getpid(), 9)
                return found

            return call

        monkeypatch.setattr(Path, "replace", killing(Path.replace))
        monkeypatch.setattr(os, "fsync", killing(os.fsync))
        opened(tmp_path).put(key, simulation("killed"))
        os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert os.WTERMSIG(status) == 9
    after = opened(tmp_path)
    assert after.has(key) == (last != "staged")
    after.put(key, simulation("again"))
    found = after.get(key)
    assert found is not None
    assert found.id == ("sagain" if last == "staged" else "skilled")
    remove_abandoned_files(file_of(tmp_path).parent)
    assert [path.name for path in (tmp_path / "finished").rglob(".*")] == []
    assert list(after.find_problems()) == []


def test_a_line_that_was_not_written_whole_is_taken_away(tmp_path: Path, store: DrawStore) -> None:
    store.put(store.draw_key("a"), simulation())
    with store.path.open("a") as file:
        file.write('{"made": "0123')
    other = opened(tmp_path)
    other.put(other.draw_key("b"), simulation())
    assert list(opened(tmp_path).find_problems()) == []
    assert len([json.loads(line) for line in store.path.read_text().splitlines()]) == 3


def test_a_full_disk_leaves_nothing_behind(
    tmp_path: Path, store: DrawStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = store.draw_key("a")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as there:
        there.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            store.put(key, simulation())
    assert not opened(tmp_path).has(key)
    store.put(key, simulation())
    assert list(opened(tmp_path).find_problems()) == []


def many(folder: Path, number: int) -> None:
    store = opened(folder, run=f"run-{number}")

    def put(thread: int) -> None:
        for name in range(6):
            store.put(store.draw_key(str(name)), simulation(f"{number}-{thread}"))

    threads = [threading.Thread(target=put, args=(one,)) for one in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_processes_and_threads_write_one_draw_together(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=many, args=(tmp_path, one)) for one in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    (store,) = open_draws(tmp_path / "finished", tmp_path / "draws")
    assert list(store.find_problems()) == []
    assert len(list((tmp_path / "finished").rglob("*.json"))) == 6


def test_an_ended_draw_is_followed_by_a_new_one(tmp_path: Path, store: DrawStore) -> None:
    store.put(store.draw_key("a"), simulation())
    concurrent = opened(tmp_path, run="run-2")
    concurrent.put(concurrent.draw_key("b"), simulation())
    store.end()
    # The runs that use the draw continue with it, also in another process.
    assert opened(tmp_path).id == opened(tmp_path, run="run-2").id == store.id
    later = opened(tmp_path, run="run-3")
    assert later.id != store.id
    assert not later.has(later.draw_key("a"))
    later.put(later.draw_key("a"), simulation())
    assert opened(tmp_path, run="run-4").id == later.id
    later.end()
    assert opened(tmp_path, run="run-4").id not in (store.id, later.id)
    assert [*concurrent.find_problems(), *later.find_problems()] == []
