"""`trace2evolve cases from-failure` varies a failed case: the same demands, other records and wording."""

from pathlib import Path

import pytest

from pytest_trace2evolve.cases.case import read_cases
from pytest_trace2evolve.cli.main import main
from pytest_trace2evolve.project.project import Project
from tests.improve.searches import write_project


@pytest.fixture
def project(pytester: pytest.Pytester) -> Project:
    """A project in whose run `idle` each task failed, while each passed in `right`."""
    pytester.makeini("[pytest]\nt2e_suites = suites\ntestpaths = suites\naddopts = -p no:cacheprovider\n")
    project = write_project(pytester.path, size=28)
    for agent, folder in (("nop", "idle"), ("oracle", "right")):
        arguments = [f"--t2e-agent={agent}", f"--t2e-run-folder={folder}", "--t2e-gate=off", "-mdiscovery"]
        assert int(pytester.runpytest_inprocess("--candidate=v0", *arguments).ret) in (0, 1)
    return project


def test_variants_demand_the_same_of_other_records(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    cases = read_cases(project.root / "cases" / "discovery.jsonl")
    for case in [case for case in cases if not case.script.refuses_all][:2]:
        family = case.script.family
        out = Path(f"{family}.jsonl")
        assert main(["cases", "from-failure", "idle", case.id, "--out", str(out), "--count", "3"]) == 0
        variants = read_cases(out)
        assert f"{out}: 3 cases of {family}" in capsys.readouterr().out
        assert len({case.id, *(variant.id for variant in variants)}) == 4
        assert {variant.demands for variant in variants} == {case.demands}
        assert {variant.script.family for variant in variants} == {family}
        assert case.script.turns[0].says not in {variant.script.turns[0].says for variant in variants}
        assert main(["cases", "check", str(out)]) == 0


def test_what_has_not_failed_or_cannot_vary_is_named(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    name = next(iter(read_cases(project.root / "cases" / "discovery.jsonl"))).id
    for run, out, problem in (
        ("right", "v.jsonl", f"trial 0 of task {name!r} passed; name a failed one with --trial"),
        ("idle", "suites", "--out suites is a folder"),
        ("nowhere", "v.jsonl", "'nowhere' is neither a path nor a run"),
    ):
        assert main(["cases", "from-failure", run, name, "--out", out]) == 2
        assert problem in capsys.readouterr().err
    assert not Path("v.jsonl").exists()
