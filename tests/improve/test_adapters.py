"""Proposer `adapters`: what is trained, under which names, and a search that screens and gates it."""

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from pytest_trace2evolve.cli.main import main
from pytest_trace2evolve.environments.generators.whole_tasks import FAMILY_NAMES
from pytest_trace2evolve.errors import TrainingError
from pytest_trace2evolve.improve import adapters
from pytest_trace2evolve.improve.adapters import REHEARSAL, AdapterProposer, family_weights, mean_adapter
from pytest_trace2evolve.improve.proposers import Request
from pytest_trace2evolve.project.adapters import Adapters
from pytest_trace2evolve.project.candidates import Candidate
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.records.adapter import WEIGHTS_NAME, AdapterState
from pytest_trace2evolve.records.verdict import Decision
from pytest_trace2evolve.serving.folder import folder_digest, read_model
from pytest_trace2evolve.training.recipe import Recipe, read_recipe
from pytest_trace2evolve.utils.git import git_text
from pytest_trace2evolve.utils.resources import embedded_model
from tests.adapter_folders import write_adapter
from tests.ci_files import REPOSITORY
from tests.improve.searches import SIZE, rows, state, write_project

V0 = Candidate(id="v0")


def write_weights(folder: Path) -> Path:
    """A LoRA adapter of the embedded model that changes nothing."""
    tensors = {}
    with safe_open(embedded_model() / "model.safetensors", framework="numpy") as base:
        for key in base.keys():  # noqa: SIM118  # not a mapping
            if key.endswith("q_proj.weight"):
                outputs, inputs = base.get_slice(key).get_shape()
                layer = f"base_model.model.{key.removesuffix('.weight')}"
                tensors[f"{layer}.lora_A.weight"] = np.zeros((1, inputs), np.float32)
                tensors[f"{layer}.lora_B.weight"] = np.zeros((outputs, 1), np.float32)
    folder.mkdir()
    save_file(tensors, folder / WEIGHTS_NAME)
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 1, "lora_alpha": 1}
    config |= {"target_modules": ["q_proj"], "lora_dropout": 0.0, "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """The options of the trainings so far; each leaves an adapter without effect, at once."""
    made: list[dict[str, str]] = []
    weights = write_weights(tmp_path / "weights")

    def train(name: str, command: list[str], folder: Path, processes: Any) -> str:
        options = dict(
            zip(
                command[command.index("train") + 1 :: 2],
                command[command.index("train") + 2 :: 2],
                strict=True,
            )
        )
        made.append(options)
        base = folder_digest(embedded_model())
        facts: dict[str, Any] = {"heldout": {}, "evidence": (), "informed_by": ()}
        write_adapter(
            folder / "adapters", name, weights=weights, base=base, capabilities=["whole_tasks"], **facts
        )
        return ""

    monkeypatch.setattr(adapters, "_train", train)
    return made


def proposer(root: Path, count: int = 2) -> AdapterProposer:
    return AdapterProposer(root, read_model(embedded_model()), Recipe(), count)


def request_of(
    rates: Mapping[str, float], parent: Candidate = V0, tried: frozenset[str] = frozenset()
) -> Request:
    return Request(
        parent=parent, tried=tried, rates=lambda: rates, informed_by=("a::discovery",), runs=("r1",)
    )


@given(st.dictionaries(st.sampled_from(FAMILY_NAMES), st.floats(0, 1)))
def test_families_with_a_middling_pass_rate_are_trained_most(rates: dict[str, float]) -> None:
    weights = family_weights(rates)
    assert set(weights) == set(FAMILY_NAMES)
    assert all(REHEARSAL <= weight <= REHEARSAL + 0.5 for weight in weights.values())
    for one in rates:
        for other in rates:
            if abs(rates[one] - 0.5) < abs(rates[other] - 0.5):
                assert weights[one] >= weights[other]


def test_adapters_are_trained_once_and_their_mean_is_proposed_once(
    tmp_path: Path, trained: list[dict[str, str]]
) -> None:
    rates = {"policy_edge": 0.5, "missing_order_id": 1.0}
    first = proposer(tmp_path).propose(request_of(rates))
    assert first is not None
    assert first.adapter is not None
    assert "(seeds 1, 2)" in first.hypothesis
    assert len(trained) == 2
    recipes = [read_recipe("pocket", Path(options["--config"])) for options in trained]
    assert sorted(recipe.seed for recipe in recipes) == [1, 2]
    assert recipes[0].families == family_weights(rates)
    assert {options["--candidate"] for options in trained} == {"v0"}
    child = first.apply(V0, "ignored")
    assert (child.id, child.parent) == (f"v0+{first.adapter.name}", "v0")
    assert child.informed_by == ("a::discovery",)
    adapters = Project(root=tmp_path, suites_folder=tmp_path).adapters
    assert first.adapter.manifest.evidence == ("r1",)
    assert sorted(first.adapter.manifest.parts) == sorted(set(adapters) - {first.adapter.name})
    assert proposer(tmp_path).propose(request_of(rates)) == first
    assert len(trained) == 2
    assert proposer(tmp_path).propose(request_of(rates, tried=frozenset({child.digest}))) is None
    assert proposer(tmp_path).propose(request_of(rates, parent=child)) is None
    # Other rates, other adapters; a single one is proposed itself.
    single = proposer(tmp_path, 1).propose(request_of({"policy_edge": 0.9}))
    assert single is not None
    assert single.adapter is not None
    assert not single.adapter.manifest.parts
    assert len(trained) == 3


@given(st.integers(2, 4), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_the_update_of_a_mean_is_the_mean_of_the_updates(count: int, rank: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as name:
        updates = []
        for part in range(count):
            a, b = draw.normal(size=(rank, 5)), draw.normal(size=(3, rank))
            updates.append(2.0 * b @ a)
            weights = Path(name) / f"weights{part}"
            weights.mkdir()
            tensors = {"l.lora_A.weight": a.astype(np.float32), "l.lora_B.weight": b.astype(np.float32)}
            save_file(tensors, weights / WEIGHTS_NAME)
            config = {"r": rank, "lora_alpha": 2 * rank}
            (weights / "adapter_config.json").write_text(json.dumps(config))
            write_adapter(Path(name) / "adapters", f"a{part}", weights=weights, base="b", heldout={})
        adapters = Adapters(Path(name) / "adapters")
        mean = mean_adapter([adapters[f"a{part}"] for part in range(count)])
        assert mean == mean_adapter([adapters[f"a{part}"] for part in range(count)])
        found = load_file(mean.path / WEIGHTS_NAME)
        settings = json.loads((mean.path / "adapter_config.json").read_text())
    scale = settings["lora_alpha"] / settings["r"]
    update = scale * found["l.lora_B.weight"] @ found["l.lora_A.weight"]
    assert update == pytest.approx(sum(updates) / count, rel=1e-4, abs=1e-4)
    assert set(mean.manifest.parts) == {f"a{part}" for part in range(count)}


def test_a_training_that_fails_ends_the_search_and_says_why(tmp_path: Path) -> None:
    (tmp_path / "suites").mkdir()
    missing = request_of({}, parent=Candidate(id="v9"))
    with pytest.raises(TrainingError, match=r"^training whole_tasks_\w{8} ended with status 2: .*'v9'"):
        proposer(tmp_path, 1).propose(missing)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (
            ["--", "--t2e-base-url=http://127.0.0.1:9"],
            "--t2e-base-url http://127.0.0.1:9: --proposer adapters",
        ),
        (
            ["--", "--t2e-model=gpt-4.1"],
            "--t2e-model gpt-4.1: --proposer adapters trains a model in a folder",
        ),
        (["--preset", "tpu"], "--preset tpu: must be one of pocket, gpu"),
    ],
)
def test_what_cannot_be_trained_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], problem: str
) -> None:
    project = write_project(tmp_path / "project")
    command = ["--root", str(project.root), "improve", "--suite", "small", "--proposer", "adapters"]
    assert main([*command, *options]) == 2
    assert capsys.readouterr().err.startswith(f"trace2evolve: {problem}")


@pytest.mark.usefixtures("forked_servers")
@pytest.mark.filterwarnings("ignore")
def test_an_adapter_is_screened_gated_and_recorded(
    tmp_path: Path, trained: list[dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under goal `hold`, an adapter without effect is promoted, and committed to the search's branch."""
    project = write_project(tmp_path / "project")
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "Someone")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "someone@example.com")
    for arguments in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "A project"]):
        assert git_text(project.root, *arguments) is not None
    command = ["--root", str(project.root), "improve", "--suite", "small", "--proposer", "adapters"]
    run = ["--t2e-goal=hold", "--t2e-gate=strict", "--t2e-temperature=0"]
    assert main([*command, "--adapters", "1", "--", *run]) == 0
    [row] = rows(project)
    assert (row["verdict"], row["status"]) == ("promote", "keep")
    assert len(trained) == 1
    name = row["candidate"].partition("+")[2]
    branch = (git_text(project.root, "branch", "--list", "improve/*") or "").strip()
    committed = git_text(project.root, "ls-tree", "-r", "--name-only", branch, "adapters/") or ""
    assert f"adapters/{name}/{WEIGHTS_NAME}" in committed.split()
    manifest = project.adapters[name].manifest
    assert (manifest.state, manifest.informed_by) == (AdapterState.PROMOTED, ("small::discovery",))
    assert manifest.verdict is not None
    assert (manifest.verdict.decision, manifest.verdict.candidate) == (Decision.PROMOTE, row["candidate"])
    assert state(project).simulations_of(row["candidate"]) == 2 * SIZE


def test_evolve_is_short_for_the_proposer_of_adapters(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "src")]))
    pytester.makeini("[pytest]\nt2e_suites = suites\ntestpaths = suites\naddopts = -p no:cacheprovider\n")
    write_project(pytester.path)
    both = pytester.runpytest_subprocess("--t2e-evolve", "--t2e-improve=--proposer ablate")
    assert "--t2e-evolve is --t2e-improve='--proposer adapters'; give one of the two" in both.stderr.str()
    other = pytester.runpytest_subprocess(
        "--t2e-evolve", "--t2e-model=gpt-4.1", "--t2e-base-url=http://127.0.0.1:9"
    )
    assert other.ret == pytest.ExitCode.USAGE_ERROR
    assert (
        "--t2e-evolve: --t2e-base-url http://127.0.0.1:9: --proposer adapters trains a model"
        in other.stderr.str()
    )
