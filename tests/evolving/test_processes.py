"""Processes of an evolution: their logs, their failures, and who holds the lock."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_trace2evolve.errors import ConfigError, ResultsError, TrainingError
from pytest_trace2evolve.improve.processes import Work, run_all
from pytest_trace2evolve.improve.state import STATE, free, locked, read_state, write_state
from pytest_trace2evolve.records.improvement import Stage
from tests.patience import until


def python(name: str, code: str, log: Path) -> Work:
    return Work(name, ["-c", code], log)


def test_what_is_said_goes_into_a_log_and_is_told(tmp_path: Path) -> None:
    heard: list[tuple[str, str]] = []
    works = [
        python(name, f"print('{name} says'); print(); print('ünï')", tmp_path / f"{name}.log")
        for name in "ab"
    ]
    with locked(tmp_path / "own") as lock:
        run_all(works, tmp_path, lock, at_once=2, told=lambda *line: heard.append(line))
    assert sorted(heard) == [("a", "a says"), ("a", "ünï"), ("b", "b says"), ("b", "ünï")]
    assert (tmp_path / "a.log").read_text(encoding="utf-8") == "a says\n\nünï\n"


def test_one_that_fails_is_told_with_its_last_lines_and_ends_what_was_not_begun(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    works = [
        python("a", "print('one'); print('two'); raise SystemExit(3)", log),
        python("b", "open('begun', 'w')", tmp_path / "b.log"),
    ]
    with (
        locked(tmp_path / "own") as lock,
        pytest.raises(TrainingError, match=rf"^a ended with status 3: one / two; see {log}$"),
    ):
        run_all(works, tmp_path, lock, at_once=1, told=lambda *line: None)
    assert not (tmp_path / "begun").exists()


def test_one_that_cannot_be_started_or_followed_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with (
        locked(tmp_path / "own") as lock,
        pytest.raises(TrainingError, match=r"^a was lost: FileExistsError: .*; see .*/taken/log$"),
    ):
        run_all([python("a", "pass", tmp_path / "taken" / "log")], tmp_path, lock, at_once=1, told=print)

    def deaf(*line: str) -> None:
        raise OSError("no room")

    code = "import time; print('up', flush=True); time.sleep(3600)"
    with (
        locked(tmp_path / "own") as lock,
        pytest.raises(TrainingError, match=rf"^b was lost: OSError: no room; see {tmp_path / 'log'}$"),
    ):
        run_all([python("b", code, tmp_path / "log")], tmp_path, lock, at_once=1, told=deaf)


def test_two_do_not_work_on_one_evolution(tmp_path: Path) -> None:
    told = rf"^{tmp_path}: another process works on it, or one that it started; wait for it to end$"
    with locked(tmp_path), pytest.raises(ConfigError, match=told), locked(tmp_path):
        pass
    with locked(tmp_path):
        pass


def test_a_process_that_outlives_a_killed_evolution_holds_its_lock(tmp_path: Path) -> None:
    code = (
        "import sys, os, signal\n"
        "from pathlib import Path\n"
        "from pytest_trace2evolve.improve.state import locked\n"
        "from pytest_trace2evolve.improve.processes import Work, run_all\n"
        "here = Path(sys.argv[1])\n"
        "code = 'import os, time; print(\"up\", flush=True)\\n' + sys.argv[2]\n"
        "work = Work('a', ['-c', code], here / 'log')\n"
        "def die(*line):\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "with locked(here) as lock:\n"
        "    run_all([work], here, lock, at_once=1, told=die)\n"
    )
    end = tmp_path / "end"
    outlives = f"while not os.path.exists({str(end)!r}): time.sleep(0.01)"
    subprocess.run([sys.executable, "-c", code, str(tmp_path), outlives], check=False, env=dict(os.environ))
    with pytest.raises(ConfigError, match="another process works on it"), locked(tmp_path):
        pass
    end.touch()

    def may_go_on() -> bool:
        try:
            with locked(tmp_path):
                return True
        except ConfigError:
            return False

    until(may_go_on)


def test_a_state_is_kept_and_a_damaged_one_refused(tmp_path: Path) -> None:
    begun = read_state(tmp_path, "v6", "digest")
    assert (begun.candidate, begun.minutes) == ("v6", {})
    write_state(tmp_path, begun.model_copy(update={"minutes": {Stage.RUN: 2.5}, "folder": "r1"}))
    assert read_state(tmp_path, "v6", "digest").minutes == {Stage.RUN: 2.5}
    with pytest.raises(ResultsError, match=r"state.json: is of another evolution, digest; move"):
        read_state(tmp_path, "v6", "other")
    (tmp_path / STATE).write_text('{"candidate": 1}', encoding="utf-8")
    with pytest.raises(ResultsError, match=r"state.json: damaged at .*; move the folder away$"):
        read_state(tmp_path, "v6", "digest")


def test_a_taken_path_gets_a_number(tmp_path: Path) -> None:
    assert free(tmp_path / "run") == tmp_path / "run"
    (tmp_path / "run").mkdir()
    (tmp_path / "run-2").mkdir()
    assert free(tmp_path / "run") == tmp_path / "run-3"
