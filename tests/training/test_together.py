"""Several processes that train one adapter: equal weights, and figures of all of them together."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_trace2evolve.errors import TrainingError
from pytest_trace2evolve.training.run import train
from tests.training.toy import toy_plan

TOLD = ("reward", "informative", "rollouts", "loss", "kl", "tokens")


def together(base: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Two processes, on the processor."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2"]
    program = Path(__file__).with_name("together.py")
    settings = {"ACCELERATE_USE_CPU": "true", "TRL_EXPERIMENTAL_SILENCE": "1", "OMP_NUM_THREADS": "1"}
    root = str(program.parents[2])
    return subprocess.run(
        [*command, program, base, folder],
        env={
            **os.environ,
            **settings,
            "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")]),
        },
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_two_processes_train_one_adapter(base: Path, tmp_path: Path) -> None:
    done = together(base, tmp_path)
    assert done.returncode == 0, done.stderr
    first, second = (json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in (0, 1))
    assert (first["writes"], second["writes"]) == (True, False)
    assert first["weights"] == second["weights"]

    def told(one: dict[str, Any]) -> list[dict[str, Any]]:
        return [{name: step[name] for name in TOLD} for step in one["curve"]]

    assert told(first) == told(second)
    assert all(one["rollouts"] >= 16 and one["rollouts"] % 8 == 0 for one in first["curve"])
    assert first["curve"][1]["kl"] > 0


def test_no_group_is_cut(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(TrainingError) as error:
        train(toy_plan(base, tmp_path, groups=3))
    assert str(error.value) == (
        "3 groups a step cannot be shared out to 2 processes: none is cut; set groups to a multiple of 2"
    )
