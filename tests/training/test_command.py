"""`trace2evolve train`: what it refuses, in one line, and a whole training of the embedded model."""

import json
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from pytest_trace2evolve.cli.main import main
from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.project.adapters import Adapters
from pytest_trace2evolve.records.adapter import ADAPTER_WEIGHTS, AdapterManifest
from pytest_trace2evolve.serving.folder import folder_digest, read_adapter, read_model
from pytest_trace2evolve.training import checkpoints as keeping
from pytest_trace2evolve.training import request as ordering
from pytest_trace2evolve.training import train as course
from pytest_trace2evolve.training.recipe import PRESETS, Recipe, Vllm, read_recipe, recipe_toml
from pytest_trace2evolve.training.train import Order
from pytest_trace2evolve.training.trainer import LAST_SHARE, share
from pytest_trace2evolve.utils import optional as _optional
from pytest_trace2evolve.utils.files import alone_in
from pytest_trace2evolve.utils.resources import embedded_model
from tests.adapter_folders import write_adapter

CAPABILITY = "conditional_detail_retrieval"


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one line of a command that is refused."""
    assert main(["train", *map(str, arguments)]) == 2
    told = capsys.readouterr().err.strip()
    assert "\n" not in told
    return told.removeprefix("trace2evolve: ")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_an_unknown_capability(capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys, "--capability", "precondition_verificaton") == (
        "unknown environment 'precondition_verificaton'; did you mean 'precondition_verification'?"
    )


def test_several_capabilities_need_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    both = ("--capability", CAPABILITY, "tool_calling_precision")
    assert refused(capsys, *both) == (
        f"--capability {CAPABILITY} tool_calling_precision: several make one adapter, which needs a --name"
    )
    assert refused(capsys, *both, "--name", "Both of them") == (
        "--name Both of them: must be in snake_case, as refunds_and_returns"
    )


def test_a_base_without_a_template(capsys: pytest.CaptureFixture[str], base: Path, tmp_path: Path) -> None:
    folder = tmp_path / "base"
    shutil.copytree(base, folder)
    (folder / "chat_template.jinja").unlink()
    assert refused(capsys, "--capability", CAPABILITY, "--base", folder) == (
        f"{folder}: holds no chat template (chat_template.jinja): conversations cannot be written for it"
    )


@pytest.mark.parametrize(
    ("toml", "told"),
    [
        (
            "answer_tokens = 600",
            "answer_tokens 600 is more than rollout_tokens 512: no rollout has room for an answer",
        ),
        ("warm = 32", "warm 32 is not less than steps 32: the rate is never reached; lower warm"),
        ("checkpointing = true", "shared and checkpointing do not go together: what is worked out again"),
        ("backward = 24", "backward 24 does not divide the 64 rollouts of a step (8 groups of 8)"),
        ("rate = 0", "rate: Input should be greater than 0, not 0"),
        ("lr = 0.1", "lr: Extra inputs are not permitted, not 0.1"),
        ("rate = ", "not valid TOML: "),
    ],
)
def test_an_impossible_recipe(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, toml: str, told: str
) -> None:
    config = tmp_path / "recipe.toml"
    config.write_text(toml)
    line = refused(capsys, "--capability", CAPABILITY, "--config", config)
    assert line.startswith(f"{config}: ")
    assert told in line


def test_an_unknown_preset_and_numbers_that_are_none(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("--capability", CAPABILITY)
    assert refused(capsys, *asked, "--preset", "tpu") == "--preset tpu: must be one of pocket, gpu"
    assert refused(capsys, *asked, "--heldout", -1) == "--heldout -1: must be 0 or more"
    assert refused(capsys, *asked, "--steps", 0).endswith(
        "steps: Input should be greater than or equal to 1, not 0"
    )
    assert "difficulty 9: must be from 1 to 5" in refused(capsys, *asked, "--difficulty", 9)


def test_a_missing_extra(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(module: str) -> None:
        raise ModuleNotFoundError(name=module)

    monkeypatch.setattr(_optional, "quiet_import", absent)
    told = refused(capsys, "--capability", CAPABILITY)
    assert told.endswith("'trl' is not installed; run: pip install 'pytest-trace2evolve[train]'")


def test_one_process_makes_an_adapter_at_a_time(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    unfinished = tmp_path / "adapters" / f".{CAPABILITY}.unfinished"
    unfinished.mkdir(parents=True)
    with alone_in(unfinished):
        assert main(["train", "--capability", CAPABILITY]) == 2
    assert (
        capsys.readouterr()
        .err.splitlines()[-1]
        .endswith(f"{unfinished}: another process is training this adapter; wait for it to end")
    )


def test_adapters_of_a_run_that_are_there_stay_as_they_are(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("refunds", "returns", "swaps")
    base, recipe = read_model(embedded_model()), Recipe()
    orders = [Order([one], one, base, tmp_path / "adapters" / one, recipe, {one: 1}) for one in names]
    write_adapter(tmp_path / "adapters", "returns")
    made: list[str] = []
    monkeypatch.setattr(ordering, "orders_of", lambda *given: orders)
    monkeypatch.setattr(course, "make", lambda environments, order, **hears: made.append(order.name))
    assert main(["train", "--from-run", "one"]) == 0
    assert made == ["refunds", "swaps"]
    told = capsys.readouterr().err
    assert f"{tmp_path / 'adapters' / 'returns'}: is there already and stays as it is\n" in told


def test_the_rate_rises_and_falls_on_lines() -> None:
    recipe = Recipe(steps=12, warm=2)
    shares = [share(recipe, step) for step in range(13)]
    assert shares[:3] == pytest.approx([1 / 3, 2 / 3, 1.0])
    assert shares[12] == pytest.approx(LAST_SHARE)
    falls = [before - after for before, after in pairwise(shares[2:])]
    assert falls == pytest.approx([0.09] * 10)


def test_presets_are_whole_recipes() -> None:
    assert read_recipe("pocket") == Recipe(beta=0.05)


def test_a_recipe_is_written_as_it_is_read(tmp_path: Path) -> None:
    """What an evolution hands on to its trainings; where vLLM is, no adapter says."""
    made = Recipe(rate=1e-5, targets=("q_proj",), vllm=Vllm(server="http://127.0.0.1:8000", memory=0.5))
    file = tmp_path / "recipe.toml"
    file.write_text(recipe_toml(made))
    assert read_recipe("gpu", file) == made
    assert "vllm" not in made.model_dump()
    file.write_text("[vllm]\nmemory = 2\n")
    with pytest.raises(
        ConfigError, match=r"recipe\.toml: vllm\.memory: Input should be less than or equal to 1, not 2"
    ):
        read_recipe("gpu", file)
    gpu = read_recipe("gpu", seed=7)
    assert (gpu.seed, gpu.rank, gpu.targets, gpu.dtype) == (7, 16, "all-linear", "bfloat16")
    assert set(PRESETS) == {"pocket", "gpu"}


def test_sides_are_measured_at_once_where_a_small_base_has_cores_for_itself(tmp_path: Path) -> None:
    base = read_model(embedded_model())
    order = Order([CAPABILITY], CAPABILITY, base, tmp_path / CAPABILITY, Recipe(), {CAPABILITY: 1})
    assert course._apart(order)
    beside_others = order.recipe.model_copy(update={"threads": 1})
    assert not course._apart(replace(order, recipe=beside_others))
    large = tmp_path / "large"
    large.mkdir()
    with (large / "model.safetensors").open("wb") as file:
        file.truncate(course.SMALL + 1)
    assert not course._apart(replace(order, base=replace(base, path=large)))


@pytest.mark.parametrize("where", ["measure", "settled"])
@pytest.mark.filterwarnings("ignore")
def test_an_adapter_that_was_killed_on_its_way_is_none_until_it_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """While it is measured, and when all of it is written but for its name."""
    config = tmp_path / "recipe.toml"
    config.write_text("groups = 2\nrollouts = 4\nkl_every = 0\nthreads = 1\nsteps = 1\n")
    asked = ["train", "--capability", CAPABILITY, "--config", str(config), "--heldout", "0"]
    assert main([*asked, "--name", "whole"]) == 0
    adapters = Adapters(tmp_path / "adapters")

    settle = keeping.settle

    def killed(fresh: Any, final: Any, *given: Any, **named: Any) -> None:
        if where == "measure" or final == adapters.folder / CAPABILITY:
            raise KeyboardInterrupt
        settle(fresh, final)  # of a keeping

    with monkeypatch.context() as patched:
        patched.setattr(*((course, "measure") if where == "measure" else (keeping, "settle")), killed)
        measured = ["--heldout", "1", "--heldout-others", "0", "--heldout-rollouts", "1"]
        assert main([*asked, *(measured if where == "measure" else [])]) == 130
    assert list(adapters) == ["whole"]
    left = {one.name for one in adapters.folder.iterdir()} - {"whole"}
    assert left == {f".{CAPABILITY}.new", f".{CAPABILITY}.unfinished"}
    assert main(asked) == 0
    assert list(adapters) == [CAPABILITY, "whole"]
    one, other = (adapters.folder / name / ADAPTER_WEIGHTS for name in (CAPABILITY, "whole"))
    assert one.read_bytes() == other.read_bytes()
    assert {path.name for path in adapters.folder.iterdir()} == {CAPABILITY, "whole"}


@pytest.mark.filterwarnings("ignore")
def test_an_adapter_is_trained_measured_and_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = tmp_path / "recipe.toml"
    config.write_text("groups = 2\nrollouts = 4\nkl_every = 1\nthreads = 1\n")
    asked = ["train", "--capability", CAPABILITY, "--config", str(config), "--steps", "2", "--heldout", "1"]
    assert main([*asked, "--heldout-rollouts", "1", "--heldout-others", "1"]) == 0
    told = capsys.readouterr()
    assert told.err.startswith(
        f"training {CAPABILITY} on pocket: 2 steps × 2 groups × 4 rollouts, difficulty 1\n"
    )
    folder = tmp_path / "adapters" / CAPABILITY
    assert f"{folder}: 2 steps, " in told.out
    assert sorted(one.name for one in folder.iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
        "curve.json",
        "curve.svg",
        "manifest.json",
    ]
    manifest = AdapterManifest.model_validate_json((folder / "manifest.json").read_text())
    assert manifest.base_digest == folder_digest(embedded_model())
    assert (manifest.steps, manifest.seed, manifest.difficulty) == (2, 1, {CAPABILITY: 1})
    assert len(manifest.heldout) == 6
    assert manifest.rollouts == sum(
        one["rollouts"] for one in json.loads((folder / "curve.json").read_text())
    )
    read_adapter("mine", folder, read_model(embedded_model()))
    hidden = [one.name for one in (tmp_path / "adapters").iterdir() if one.name.startswith(".")]
    assert hidden == [], "nothing unfinished is left"
    assert main(asked) == 2
    assert (
        capsys.readouterr()
        .err.strip()
        .endswith(f"{folder}: is there already; give another --out, or move it away")
    )
