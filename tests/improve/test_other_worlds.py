"""A run or a suite of a world whose tools no environment has: nothing is learned from it."""

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_trace2evolve.cli.main import main
from pytest_trace2evolve.diagnose.diagnosis import diagnose_run
from pytest_trace2evolve.environments.generators.precondition import PreconditionVerification
from pytest_trace2evolve.environments.registry import BUILT_IN_NAMES, Environments
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.records.protocols import Offer
from pytest_trace2evolve.serving.folder import folder_digest
from pytest_trace2evolve.training import train as course
from pytest_trace2evolve.utils.resources import embedded_model
from pytest_trace2evolve.worlds.registry import WorldName, Worlds
from tests.fake_world import FakeWorld
from tests.improve.searches import write_project

WHERE = (
    "environments use support (provider trace2evolve, with the tools of τ² retail); name a run or suite of "
    "one of these worlds, or let a model write an environment for this world: trace2evolve environment "
    "synthesize --suite SUITE"
)
HOTEL: WorldName = ("mine", "hotel")


def write_results(
    folder: Path,
    run: str,
    suite: str = "a",
    domain: str = "support",
    count: int = 0,
    provider: str | None = None,
) -> None:
    """A run's results of the embedded model, with simulations of task `t`."""
    folder.mkdir(parents=True, exist_ok=True)
    provider = provider or ("trace2evolve" if domain == "support" else "inspect_evals")
    provenance: dict[str, Any] = {"domain": domain, "provider": provider, "run_id": run, "suite": suite}
    agent = {"arguments": {"weights": folder_digest(embedded_model())}}
    provenance |= {"candidate": {"id": "v6", "digest": "d"}, "agent": agent}
    simulations = [
        {"id": f"{run}-{trial}", "task_id": "t", "trial": trial, "termination_reason": "user_stop"}
        for trial in range(count)
    ]
    tasks = [{"id": "t", "user_scenario": {"instructions": "x"}}]
    info = {"environment_info": {"domain_name": domain}, "trace2evolve": provenance}
    record = {"info": info, "tasks": tasks, "simulations": simulations}
    (folder / "results.json").write_text(json.dumps(record), encoding="utf-8")


def refusal(what: str, domain: str, provider: str = "inspect_evals") -> str:
    return f"{what} uses {domain} (provider {provider}), but no environment has its tools; {WHERE}"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return write_project(tmp_path)


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the adapters that a command trains; nothing is trained."""
    names: list[str] = []
    monkeypatch.setattr(
        course, "train_adapter", lambda environments, order, **callbacks: names.append(order.name)
    )
    return names


def test_a_recorded_retail_run_has_environments(recorded: Path, tmp_path: Path) -> None:
    """The environments have the tools of τ² retail."""
    own = Project(root=tmp_path, suites_folder=tmp_path / "suites")
    run = str(recorded / "retail-gpt-4.1-mini-base.json.gz")
    learnt = diagnose_run(own, run, tmp_path, Environments())
    assert [one.name for one in learnt.trainable_capabilities] == [
        "structured_data_reasoning",
        "precondition_verification",
    ]


@pytest.mark.parametrize(
    ("provider", "domain"),
    [("inspect_evals", "airline"), ("tau2", "telecom"), ("mine", "support"), ("trace2evolve", "retail")],
)
def test_a_run_of_another_world_is_not_trained_on(
    project: Project,
    trained: list[str],
    provider: str,
    domain: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(project.root)
    write_results(project.root / "run", "r1", "a", domain, count=3, provider=provider)
    assert main(["train", "--from-run", "run"]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", f"trace2evolve: {refusal('run r1', domain, provider)}\n")
    assert not trained


@pytest.mark.parametrize(
    "world", [("trace2evolve", "support"), ("inspect_evals", "retail"), ("tau2", "retail")]
)
def test_worlds_with_the_tools_of_retail_have_the_built_in_environments(world: WorldName) -> None:
    environments = Environments()
    environments.require_tools_of("run r1", world)
    assert set(environments.names_with_tools_of([world])) == BUILT_IN_NAMES


def test_an_own_environment_trains_for_runs_of_its_own_world_alone() -> None:
    offer = Offer(PreconditionVerification, "what it pays", provider="mine", domain="hotel")
    environments = Environments({"booking": offer}, Worlds({"mine": FakeWorld}))
    environments.require_tools_of("run r1", HOTEL)
    assert environments.names_with_tools_of([HOTEL]) == ("booking",)
    assert "booking" not in environments.names_with_tools_of([("inspect_evals", "retail")])
    assert environments.names_with_tools_of([HOTEL, ("trace2evolve", "support")]) == ()
