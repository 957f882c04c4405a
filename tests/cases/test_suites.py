"""Suites whose splits are files of synthetic cases: locks, agents, replays, evidence, and mistakes."""

import copy
import json
from pathlib import Path

import pytest

from pytest_trace2evolve.cases.case import format_case_line, generate, read_cases
from pytest_trace2evolve.evidence.baselines import read_evidence
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.records.task import Content
from pytest_trace2evolve.worlds.registry import Worlds
from tests.fake_world import FakeWorld
from tests.plugin.conftest import DeskProject, project

__all__ = ["project"]

SUITE = """\
provider = "trace2evolve"
domain = "support"
max_steps = 60

[splits]
heldout = { cases = "cases/heldout.jsonl" }
synthetic = { cases = "cases/pressure.jsonl" }
"""
CASES = {
    "heldout": list(generate("h", 6, Content.HELDOUT)),
    "pressure": list(generate("p", 3, Content.HELDOUT)),
}


class CaseProject:
    """The desk project with a suite of cases beside it."""

    def __init__(self, desk: DeskProject) -> None:
        self.desk = desk
        for name, cases in CASES.items():
            desk.write(f"cases/{name}.jsonl", "".join(map(format_case_line, cases)))
        self.suite(SUITE)

    def suite(self, text: str) -> None:
        self.desk.write("suites/help.toml", text)

    def lock(self) -> None:
        Project(self.desk.root, self.desk.root / "suites").renew_lock(Worlds({"fake": FakeWorld}))

    def run(self, agent: str, *arguments: str) -> pytest.RunResult:
        return self.desk.pytester.runpytest_inprocess(
            "suites/help.toml", f"--t2e-agent={agent}", "--t2e-gate=off", *arguments
        )


@pytest.fixture
def cases(project: DeskProject) -> CaseProject:
    made = CaseProject(project)
    made.lock()
    return made


def output_of(result: pytest.RunResult) -> str:
    return "\n".join([*result.outlines, *result.errlines])


def test_cases_are_items_of_their_splits(cases: CaseProject) -> None:
    cases.run("oracle").assert_outcomes(passed=9)
    cases.run("oracle", "-m", "synthetic").assert_outcomes(passed=3, deselected=6)
    refusals = sum(case.script.refuses_all for held in CASES.values() for case in held)
    cases.run("nop").assert_outcomes(passed=refusals, failed=9 - refusals)
    listed = cases.run("oracle", "--collect-only", "-q")
    assert f"suites/help.toml::heldout::{CASES['heldout'][0].id}" in output_of(listed)


def test_a_run_is_evidence_with_a_scripted_user_and_replays(cases: CaseProject) -> None:
    cases.run("oracle", "--t2e-run-folder=run", "--t2e-save-baseline=good").assert_outcomes(passed=9)
    evidence = read_evidence(cases.desk.root / "baselines" / "help" / "good.json")
    assert evidence.provenance.user.implementation == "script"
    assert {record.reward for record in evidence.simulations} == {1.0}
    assert all(record.invariants == {"collateral_change": 0} for record in evidence.simulations)
    results = json.loads((cases.desk.root / "run" / "results.json").read_text())
    stored = {task["id"]: task for task in results["tasks"]}
    for case in (*CASES["heldout"], *CASES["pressure"]):
        assert stored[case.id]["user_scenario"]["script"] == case.task.user_scenario["script"]
    replayed = cases.desk.pytester.runpytest_inprocess(
        "suites/help.toml", "--t2e-results=run", "--t2e-gate=off"
    )
    replayed.assert_outcomes(passed=9)


def test_a_changed_case_file_breaks_the_lock(cases: CaseProject) -> None:
    path = cases.desk.root / "cases" / "pressure.jsonl"
    first, *rest = path.read_text().splitlines()
    record = json.loads(first)
    record["user_scenario"]["script"]["turns"][0]["says"] = "Something else."
    path.write_text("\n".join([json.dumps(record), *rest]) + "\n")
    changed = cases.run("oracle")
    assert changed.ret == pytest.ExitCode.USAGE_ERROR
    assert f"the content of task {record['id']!r} in split 'synthetic' changed" in output_of(changed)
    path.write_text("\n".join([first, *rest, format_case_line(next(generate("new", 1, Content.HELDOUT)))]))
    added = cases.run("oracle")
    assert (
        "was added to split 'synthetic' since suites.lock was written; run 'trace2evolve lock'"
        in output_of(added)
    )
    cases.lock()
    cases.run("oracle").assert_outcomes(passed=10)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            lambda root: (root / "cases" / "heldout.jsonl").unlink(),
            "help.toml: split 'heldout': {root}/cases/heldout.jsonl: cannot be read: No such file",
        ),
        (
            lambda root: (root / "cases" / "heldout.jsonl").write_text("{}\n"),
            "help.toml: split 'heldout': {root}/cases/heldout.jsonl, line 1: id: Field required",
        ),
        (
            lambda root: (root / "cases" / "pressure.jsonl").write_text(
                (root / "cases" / "heldout.jsonl").read_text()
            ),
            "is also in cases/heldout.jsonl; a task belongs to one split",
        ),
    ],
)
def test_a_file_that_cannot_be_used_is_told(cases: CaseProject, change, expected: str) -> None:
    change(cases.desk.root)
    result = cases.run("oracle")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert expected.format(root=cases.desk.root) in output_of(result)


@pytest.mark.parametrize(
    ("split", "expected"),
    [
        ('{ cases = "" }', "splits.heldout"),
        ('{ cases = "/etc/cases.jsonl" }', "a file of cases must be inside the project's root"),
        ('{ cases = "../cases.jsonl" }', "a file of cases must be inside the project's root"),
        ("{ cases = 3 }", "splits.heldout"),
        ('{ case = "x" }', '{ cases = "FILE" } or'),
    ],
)
def test_a_split_that_means_no_file_is_told(cases: CaseProject, split: str, expected: str) -> None:
    cases.suite(SUITE.replace('{ cases = "cases/heldout.jsonl" }', split))
    result = cases.run("oracle")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert expected in output_of(result)


def test_a_link_out_of_the_project_is_told(
    cases: CaseProject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = cases.desk.root / "cases" / "heldout.jsonl"
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "heldout.jsonl"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    assert "cases/heldout.jsonl: is outside" in output_of(cases.run("oracle"))


def test_what_may_be_learned_from_shares_no_content_with_what_decides(cases: CaseProject) -> None:
    discovery = 'discovery = { cases = "cases/discovery.jsonl" }\n'
    cases.suite(SUITE + discovery)
    path = cases.desk.write(
        "cases/discovery.jsonl", "".join(map(format_case_line, generate("d", 3, Content.HELDOUT)))
    )
    refused = output_of(cases.run("oracle"))
    assert "splits 'heldout' and 'discovery' both contain cases of heldout content" in refused
    path.write_text("".join(map(format_case_line, generate("d", 3, Content.TRAIN))))
    cases.lock()
    cases.run("oracle").assert_outcomes(passed=12)


def test_cases_stand_beside_a_worlds_own_tasks(cases: CaseProject) -> None:
    """A suite of a benchmark can take frozen cases as a further split."""
    cases.desk.write(
        "suites/desk.toml",
        (cases.desk.root / "suites" / "desk.toml").read_text()
        + 'synthetic = { cases = "cases/desk.jsonl" }\n',
    )
    world = FakeWorld("desk")
    task = world.tasks()["close"]
    script = copy.deepcopy(CASES["pressure"][0].task.user_scenario["script"])
    script["turns"][0]["actions"] = len(task.actions)
    own = {**task.model_dump(mode="json"), "id": "frozen", "user_scenario": {"script": script}}
    cases.desk.write("cases/desk.jsonl", json.dumps(own) + "\n")
    cases.lock()
    result = cases.desk.run("--candidate=v1", "--t2e-suite=desk", "--t2e-gate=off", "-m", "synthetic")
    assert result.parseoutcomes().get("failed", 0) + result.parseoutcomes().get("passed", 0) == 1
    own["id"] = "close"
    cases.desk.write("cases/desk.jsonl", json.dumps(own) + "\n")
    clash = cases.desk.run("--t2e-suite=desk", "--t2e-gate=off")
    assert "case 'close' of cases/desk.jsonl is also in desk; a task belongs to one split" in output_of(clash)


def test_the_committed_suite_is_locked_and_its_contents_are_apart() -> None:
    root = Path(__file__).resolve().parents[2]
    files = {
        name: read_cases(root / "suites" / "support" / f"{name}.jsonl") for name in ("discovery", "heldout")
    }
    assert {case.script.content for case in files["discovery"]} == {Content.TRAIN}
    assert {case.script.content for case in files["heldout"]} == {Content.HELDOUT}
    locked = Project(root, root / "suites").lock.suites["support"]
    assert {name: len(ids) for name, ids in locked.splits.items()} == {
        "discovery": 280,
        "heldout": 280,
        "synthetic": 84,
    }
