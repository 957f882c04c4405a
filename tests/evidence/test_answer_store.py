"""The file of models' answers: shared by processes, whole after a kill, and reported if it is damaged."""

import asyncio
import multiprocessing
import sqlite3
import time
from pathlib import Path

import pytest

from pytest_trace2evolve.errors import ConfigError, InfrastructureError
from pytest_trace2evolve.evidence.answer_store import AnswerFile, remove_answer_file
from pytest_trace2evolve.records.completion import Answer, Completion, Usage


def completion(text: str) -> Completion:
    usage = Usage(prompt_tokens=3, cost=0.5)
    return Completion(content=text, finish_reason="stop", usage=usage, seconds=2.0)


@pytest.fixture
def store(tmp_path: Path) -> AnswerFile:
    return AnswerFile(tmp_path / "answers.sqlite", "delete it")


def _write(path: Path, worker: int, count: int) -> None:
    store = AnswerFile(path, "")
    for number in range(count):
        answer = Answer(trial=worker, side="agent", model="m", completion=completion(f"{number} by {worker}"))
        asyncio.run(store.put(f"k{number}", answer))
    store.close()


def test_many_processes_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "answers.sqlite"
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write, args=(path, worker, 200)) for worker in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0] * 3
    store = AnswerFile(path, "")
    kept = dict(store.items())
    store.close()
    assert len(kept) == 200
    assert all(
        (answer.completion or completion("")).content == f"{key[1:]} by {answer.trial}"
        for key, answer in kept.items()
    )
    remove_answer_file(path)
    assert list(path.parent.iterdir()) == []


def test_a_killed_writer_loses_and_breaks_nothing(tmp_path: Path) -> None:
    path = tmp_path / "answers.sqlite"
    seen = 0
    for _ in range(2):
        writer = multiprocessing.get_context("fork").Process(target=_write, args=(path, 0, 100_000))
        writer.start()
        reader = AnswerFile(path, "")
        while writer.is_alive() and len(list(reader.items())) <= seen:
            time.sleep(0.001)
        seen = len(list(reader.items()))
        writer.kill()
        writer.join()
        assert len(list(reader.items())) >= seen > 0
        reader.close()
    AnswerFile(path, "").close()


def test_a_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    path = tmp_path / "answers.sqlite"
    path.write_bytes(b"nothing of the kind" * 99)
    with pytest.raises(
        ConfigError, match=r"answers\.sqlite: is damaged or unreadable \(file is not a database\); do"
    ):
        AnswerFile(path, "do this")
    path.unlink()
    AnswerFile(path, "").close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 9")
    connection.close()
    with pytest.raises(
        ConfigError, match=r"answers\.sqlite: has format 9, but this version reads format 1; do this"
    ):
        AnswerFile(path, "do this")
    with pytest.raises(ConfigError, match="cannot be opened"):
        AnswerFile(path / "below", "do this")


def test_a_damaged_answer_is_named_and_is_infrastructure(store: AnswerFile) -> None:
    with sqlite3.connect(store.path) as connection:
        connection.execute("INSERT INTO answers VALUES ('k', '{\"trial\": 0}')")
    connection.close()
    with pytest.raises(InfrastructureError, match=r"answer k: side: Field required\); delete it"):
        asyncio.run(store.get("k"))
    store.close()
