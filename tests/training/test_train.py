"""`trace2evolve train`: what it rejects, in one line, and a whole training of the embedded model."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_trace2evolve.cli.main import main
from pytest_trace2evolve.project.adapters import Adapters
from pytest_trace2evolve.records.adapter import WEIGHTS_NAME
from pytest_trace2evolve.serving.folder import folder_digest, read_adapter, read_model
from pytest_trace2evolve.training import train as training
from pytest_trace2evolve.training.recipe import Recipe
from pytest_trace2evolve.training.train import TrainingSpec
from pytest_trace2evolve.utils.files import folder_lock
from pytest_trace2evolve.utils.resources import embedded_model
from tests.adapter_folders import write_adapter

CAPABILITY = "conditional_detail_retrieval"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def rejection(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one line of a command that is rejected."""
    assert main(["train", *map(str, arguments)]) == 2
    line = capsys.readouterr().err.strip()
    assert "\n" not in line
    return line.removeprefix("trace2evolve: ")


def test_bad_names_and_values_are_rejected(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    one, both = ("--capability", CAPABILITY), ("--capability", CAPABILITY, "tool_calling_precision")
    assert rejection(capsys, "--capability", "precondition_verificaton") == (
        "unknown environment 'precondition_verificaton'; did you mean 'precondition_verification'?"
    )
    assert rejection(capsys, *both) == (
        f"--capability {CAPABILITY} tool_calling_precision: several capabilities share one adapter, which "
        "needs a name; add --adapter-name"
    )
    assert rejection(capsys, *both, "--adapter-name", "Both of them") == (
        "--adapter-name Both of them: must be in snake_case, such as refunds_and_returns"
    )
    assert rejection(capsys, *one, "--preset", "tpu") == "--preset tpu: must be one of pocket, gpu, paper"
    assert rejection(capsys, *one, "--heldout", -1) == "--heldout -1: must be 0 or more"
    assert "difficulty must be from 1 to 5, got 9" in rejection(capsys, *one, "--difficulty", 9)


def test_a_base_without_a_template(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = tmp_path / "base"
    shutil.copytree(embedded_model(), folder)
    (folder / "chat_template.jinja").unlink()
    assert rejection(capsys, "--capability", CAPABILITY, "--base", folder) == (
        f"{folder}: has no chat template (chat_template.jinja), so no prompts can be rendered; save the "
        "model's template there"
    )


def test_a_missing_extra(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trl", None)
    line = rejection(capsys, "--capability", CAPABILITY)
    assert line.endswith("'trl' is not installed; run: pip install 'pytest-trace2evolve[train]'")


@pytest.mark.filterwarnings("ignore")
def test_one_process_makes_an_adapter_at_a_time(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    unfinished = tmp_path / "adapters" / f".{CAPABILITY}.unfinished"
    unfinished.mkdir(parents=True)
    with folder_lock(unfinished):
        assert main(["train", "--capability", CAPABILITY]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.endswith(f"{unfinished}: another process is training this adapter; wait for it to end")


def test_existing_adapters_of_a_run_stay_as_they_are(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("refunds", "returns", "swaps")
    base, recipe = read_model(embedded_model()), Recipe()
    orders = [
        TrainingSpec([name], name, base, tmp_path / "adapters" / name, recipe, {name: 1}) for name in names
    ]
    write_adapter(tmp_path / "adapters", "returns")
    trained: list[str] = []
    monkeypatch.setattr(training, "make_specs", lambda *given: orders)
    monkeypatch.setattr(
        training, "train_adapter", lambda environments, order, **callbacks: trained.append(order.name)
    )
    assert main(["train", "--from-run", "one"]) == 0
    assert trained == ["refunds", "swaps"]
    path = tmp_path / "adapters" / "returns"
    assert f"{path}: already exists; left unchanged\n" in capsys.readouterr().err


@pytest.mark.usefixtures("forked_servers")
@pytest.mark.filterwarnings("ignore")
def test_a_killed_adapter_does_not_exist_until_it_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Killed while it is measured, and when all of it is written except its name; then it is completed."""
    from pytest_trace2evolve.training import checkpoints

    config = tmp_path / "recipe.toml"
    config.write_text("groups = 2\nrollouts = 4\nkl_every = 0\nthreads = 1\nsteps = 1\n")
    command = ["train", "--capability", CAPABILITY, "--config", str(config), "--heldout", "0"]
    assert main([*command, "--adapter-name", "whole"]) == 0
    adapters = Adapters(tmp_path / "adapters")
    commit = checkpoints.commit_folder

    def killed(*given: Any, **named: Any) -> None:
        raise KeyboardInterrupt

    def killed_at_the_end(fresh: Path, final: Path) -> None:
        if final == adapters.folder / CAPABILITY:
            raise KeyboardInterrupt
        commit(fresh, final)

    measured = ["--heldout", "1", "-ot2e_heldout_others=0", "-ot2e_heldout_rollouts=1"]
    for module, name, replacement, options in (
        (training, "measure", killed, measured),
        (checkpoints, "commit_folder", killed_at_the_end, []),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(module, name, replacement)
            assert main([*command, *options]) == 130
        assert list(adapters) == ["whole"]
        left = {entry.name for entry in adapters.folder.iterdir()} - {"whole"}
        assert left == {f".{CAPABILITY}.new", f".{CAPABILITY}.unfinished"}
    capsys.readouterr()
    assert main([*command, *measured]) == 0
    captured = capsys.readouterr()
    assert captured.err.startswith(
        f"training {CAPABILITY} on pocket: 1 steps × 2 groups × 4 rollouts, difficulty 1\n"
    )
    assert list(adapters) == [CAPABILITY, "whole"]
    folder = adapters.folder / CAPABILITY
    assert f"{folder}: 1 steps, " in captured.out
    assert (folder / WEIGHTS_NAME).read_bytes() == (adapters.folder / "whole" / WEIGHTS_NAME).read_bytes()
    assert {entry.name for entry in adapters.folder.iterdir()} == {CAPABILITY, "whole"}
    assert sorted(file.name for file in folder.iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
        "curve.json",
        "manifest.json",
    ]
    manifest = adapters[CAPABILITY].manifest
    assert manifest.base_digest == folder_digest(embedded_model())
    assert (manifest.steps, manifest.seed, manifest.difficulty) == (1, 1, {CAPABILITY: 1})
    assert list(manifest.heldout) == [CAPABILITY]
    curve = json.loads((folder / "curve.json").read_text())
    assert manifest.rollouts == sum(step["rollouts"] for step in curve)
    read_adapter("mine", folder, read_model(embedded_model()))
    assert rejection(capsys, *command[1:]) == (
        f"{folder}: already exists; choose a different --out, or move it away"
    )
