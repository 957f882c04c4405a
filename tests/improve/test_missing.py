"""Training on what a run lacks: its adapters, and one clear line for a run that cannot be read."""

from pathlib import Path

import pytest

from benchmarks.deficits import Deficit
from pytest_trace2evolve.cli.commands import COMMANDS
from pytest_trace2evolve.cli.main import main
from pytest_trace2evolve.cli.parser import build_parser
from pytest_trace2evolve.environments.registry import Environments
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.records.evidence import Provenance
from pytest_trace2evolve.training.train import make_specs
from tests.diagnose.deficient import cases, simulated, write_run


@pytest.fixture
def own(tmp_path: Path) -> Project:
    return Project(root=tmp_path, suites_folder=tmp_path / "suites")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "name what to train with either --capability NAME… or --from-run RUN"),
        (
            ["--capability", "precondition_verification", "--from-run", "r1"],
            "name what to train with either --capability NAME… or --from-run RUN",
        ),
        (
            ["--from-run", "r1"],
            "--from-run r1: needs a project, which says which tasks decide; name its folder with --root",
        ),
    ],
)
def test_either_capabilities_or_a_run(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    expected: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", *arguments]) == 2
    assert capsys.readouterr().err == f"trace2evolve: {expected}\n"


def test_what_a_run_lacks_is_what_its_adapters_are_trained_for(own: Project) -> None:
    """One each, by Δ; the run whose failures showed it goes into the manifest."""
    lacks = {"tool_calling_precision": Deficit.HARM}
    made = [
        (case, simulated(case, lacks if place % 2 else {}))
        for place, case in enumerate(cases("missing_order_id", 40))
    ]
    origin = Provenance(domain="support", provider="trace2evolve", run_id="r1")
    run = write_run(own.root / "run.json", made, origin)
    options = build_parser(COMMANDS).parse_args(["train", "--from-run", str(run), "--steps", "3"])
    vars(options).update(heldout_others=None, heldout_rollouts=1)
    [order] = make_specs(Environments(), options, own, own.root)
    assert (order.name, order.capabilities) == ("tool_calling_precision", ["tool_calling_precision"])
    assert (order.evidence, order.informed_by) == (("r1",), ())
    assert order.recipe.steps == 3
    assert order.out == own.root / "adapters" / order.name
