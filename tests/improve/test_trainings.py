"""Trainings as processes: their logs, their failures, and who holds the lock; the state file."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pytest_trace2evolve.errors import ConfigError, ResultsError, TrainingError
from pytest_trace2evolve.improve.loop import evolution_lock, read_state, unused_path, write_state
from pytest_trace2evolve.improve.trainings import OnLine, Training, run_trainings
from pytest_trace2evolve.records.improvement import Stage
from tests.patience import until


def python(name: str, code: str, log: Path) -> Training:
    return Training(name, ["-c", code], log.parents[1], log)


def run(trainings: list[Training], here: Path, at_once: int = 1, on_line: OnLine = print) -> None:
    with evolution_lock(here / "own") as lock:
        run_trainings(trainings, lock, at_once, on_line)


def test_output_goes_into_a_log_and_is_reported(tmp_path: Path) -> None:
    heard: list[tuple[str, str]] = []
    trainings = [
        python(name, f"print('{name} says'); print(); print('ünï')", tmp_path / "logs" / f"{name}.log")
        for name in "ab"
    ]
    run(trainings, tmp_path, at_once=2, on_line=lambda *line: heard.append(line))
    assert sorted(heard) == [("a", "a says"), ("a", "ünï"), ("b", "b says"), ("b", "ünï")]
    assert (tmp_path / "logs" / "a.log").read_text(encoding="utf-8") == "a says\n\nünï\n"


def test_a_failure_is_reported_with_its_last_lines_and_nothing_else_begins(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "a.log"
    trainings = [
        python("a", "print('one'); print('two'); raise SystemExit(3)", log),
        python("b", "open('begun', 'w')", tmp_path / "logs" / "b.log"),
    ]
    with pytest.raises(TrainingError, match=rf"^a ended with status 3: one / two; see {log}$"):
        run(trainings, tmp_path)
    assert not (tmp_path / "begun").exists()


def test_a_training_that_cannot_start_or_be_followed_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(TrainingError, match=r"^a failed: FileExistsError: .*; see .*/taken/log$"):
        run([python("a", "pass", tmp_path / "taken" / "log")], tmp_path)

    def deaf(*line: str) -> None:
        raise OSError("no room")

    code, log = "import time; print('up', flush=True); time.sleep(3600)", tmp_path / "logs" / "log"
    with pytest.raises(TrainingError, match=rf"^b failed: OSError: no room; see {log}$"):
        run([python("b", code, log)], tmp_path, on_line=deaf)


def test_an_interrupt_ends_what_runs(tmp_path: Path) -> None:
    code, log = "import os, time; print(os.getpid(), flush=True); time.sleep(3600)", tmp_path / "logs" / "log"
    pids: list[int] = []

    def interrupt(name: str, line: str) -> None:
        pids.append(int(line))
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run([python("a", code, log)], tmp_path, on_line=interrupt)
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


def test_two_do_not_work_on_one_evolution(tmp_path: Path) -> None:
    told = rf"^{tmp_path}: in use by another process or by a training that it started; wait for it to end$"
    with evolution_lock(tmp_path), pytest.raises(ConfigError, match=told), evolution_lock(tmp_path):
        pass
    with evolution_lock(tmp_path):
        pass


def test_a_process_that_outlives_a_killed_evolution_holds_its_lock(tmp_path: Path) -> None:
    code = (
        "import sys, os, signal\n"
        "from pathlib import Path\n"
        "from pytest_trace2evolve.improve.loop import evolution_lock\n"
        "from pytest_trace2evolve.improve.trainings import Training, run_trainings\n"
        "here = Path(sys.argv[1])\n"
        "code = 'import os, time; print(\"up\", flush=True)\\n' + sys.argv[2]\n"
        "training = Training('a', ['-c', code], here, here / 'log')\n"
        "def die(*line):\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "with evolution_lock(here) as lock:\n"
        "    run_trainings([training], lock, 1, die)\n"
    )
    end = tmp_path / "end"
    outlives = f"while not os.path.exists({str(end)!r}): time.sleep(0.01)"
    subprocess.run([sys.executable, "-c", code, str(tmp_path), outlives], check=False, env=dict(os.environ))
    with pytest.raises(ConfigError, match="in use by another process"), evolution_lock(tmp_path):
        pass
    end.touch()

    def may_go_on() -> bool:
        try:
            with evolution_lock(tmp_path):
                return True
        except ConfigError:
            return False

    until(may_go_on)


def test_a_state_is_kept_and_a_damaged_one_refused(tmp_path: Path) -> None:
    begun = read_state(tmp_path, "v6", "digest")
    assert (begun.candidate, begun.minutes) == ("v6", {})
    write_state(tmp_path, begun.model_copy(update={"minutes": {Stage.RUN: 2.5}, "folder": "r1"}))
    assert read_state(tmp_path, "v6", "digest").minutes == {Stage.RUN: 2.5}
    with pytest.raises(ResultsError, match=r"state.json: belongs to a different evolution, digest; move"):
        read_state(tmp_path, "v6", "other")
    (tmp_path / "state.json").write_text('{"candidate": 1}', encoding="utf-8")
    with pytest.raises(ResultsError, match=r"state.json: damaged at .*; move the folder away$"):
        read_state(tmp_path, "v6", "digest")


def test_a_taken_path_gets_a_number(tmp_path: Path) -> None:
    assert unused_path(tmp_path / "run") == tmp_path / "run"
    (tmp_path / "run").mkdir()
    (tmp_path / "run-2").mkdir()
    assert unused_path(tmp_path / "run") == tmp_path / "run-3"
