"""An evolution as it is, but for its trainings: its runs, its diagnosis, its gate and its router are real."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from pytest_trace2evolve.errors import ConfigError, ResultsError
from pytest_trace2evolve.improve.loop import evolution_lock
from pytest_trace2evolve.improve.plan import EvolutionPlan
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.records.adapter import AdapterState
from pytest_trace2evolve.records.improvement import Evolution, Stage
from pytest_trace2evolve.report.improvement import evolution_text
from pytest_trace2evolve.serving.folder import folder_digest
from pytest_trace2evolve.session.ledger import ProjectLedger
from pytest_trace2evolve.utils.resources import embedded_model, has_embedded_model
from tests.adapter_folders import write_adapter
from tests.improve.evolutions import (
    CAPABILITY,
    DISCOVERY,
    FakeTrainer,
    evolved,
    planned,
    write_project,
    write_weights,
)

pytestmark = [
    pytest.mark.skipif(not has_embedded_model(), reason="no embedded model ships yet"),
    pytest.mark.usefixtures("forked_servers"),
    pytest.mark.xdist_group("evolution"),  # one evolution for all
]

ROUTED = "v6+routed"
TRAINED = f"v6+{CAPABILITY}"
RUN_SIZE = len(DISCOVERY) + 2


class Finished:
    """A finished evolution."""

    def __init__(self, root: Path) -> None:
        self.project = write_project(root)
        self.train = FakeTrainer(root, write_weights(root / "weights"))
        self.plan = planned(self.project)
        self.heard: list[str] = []
        self.state = evolved(self.plan, self.project, self.train, lambda _, line: self.heard.append(line))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A finished evolution, for tests that change nothing."""
    return Finished(tmp_path_factory.mktemp("evolution"))


@pytest.fixture
def project(finished: Finished, tmp_path: Path) -> Project:
    """A copy of its project."""
    root = tmp_path / "project"
    shutil.copytree(finished.project.root, root)
    return Project(root=root, suites_folder=root / "suites")


def state_path(project: Project) -> Path:
    [path] = (project.root / ".trace2evolve" / "evolving").glob("*/state.json")
    return path


def rewind(project: Project, stage: Stage, **changes: Any) -> None:
    """Set an evolution back to before a stage, as if it had been killed there."""
    state = Evolution.model_validate_json(state_path(project).read_text())
    done = tuple(list(Stage)[: list(Stage).index(stage)])
    state_path(project).write_text(state.model_copy(update={"done": done} | changes).model_dump_json())


def test_a_red_run_ends_with_a_promoted_and_a_routed_adapter(finished: Finished) -> None:
    state, project = finished.state, finished.project
    assert state.done == tuple(Stage)
    assert {name: judged.state for name, judged in state.judged.items()} == {
        TRAINED: AdapterState.PROMOTED,
        ROUTED: AdapterState.PROMOTED,
    }
    assert state.adapters == {CAPABILITY: CAPABILITY}
    assert finished.train.trained == [CAPABILITY]
    manifest = project.adapters[CAPABILITY].manifest
    assert manifest.evidence == state.runs
    assert manifest.informed_by == ("small::discovery",)
    assert manifest.verdict is not None
    assert manifest.verdict.run == state.judged[TRAINED].run
    assert [adapter.name for adapter in project.adapters.promoted_adapters()] == [CAPABILITY]
    assert state.confusion is not None
    assert state.confusion.total == 40
    assert [state.rollouts[stage] for stage in (Stage.RUN, Stage.GATE, Stage.ROUTED)] == [RUN_SIZE] * 3
    recorded = {getattr(entry, "run", None) for entry in ProjectLedger(project).entries}
    assert {judged.run for judged in state.judged.values()} <= recorded

    folder = state_path(project).parent
    routed = [
        [message["routing"]["chosen"] for message in simulation["messages"] if "routing" in message]
        for simulation in map(_read, (folder / "gate-routed" / "simulations").glob("*.json"))
    ]
    assert [len(choices) for choices in routed] == [1] * RUN_SIZE
    assert f"{TRAINED}: {RUN_SIZE} of {RUN_SIZE} tasks" in finished.heard
    text = evolution_text(state, project.adapters)
    for part in (TRAINED, ROUTED, "promoted", "router: right on ", "rollouts: "):
        assert part in text


def _read(path: Path) -> Any:
    return json.loads(path.read_text())


def test_a_finished_evolution_is_only_reported_again(finished: Finished, project: Project) -> None:
    before = {path: path.stat().st_mtime_ns for path in (project.root / "adapters").rglob("*")}
    heard: list[str] = []
    train = FakeTrainer(project.root, finished.train.weights)
    state = evolved(planned(project), project, train, lambda _, line: heard.append(line))
    assert state == finished.state
    [line] = heard
    assert line.startswith("this evolution is already complete, so nothing is run; to repeat it, move ")
    assert before == {path: path.stat().st_mtime_ns for path in (project.root / "adapters").rglob("*")}


def test_what_was_killed_after_its_run_resumes_in_another_folder(
    finished: Finished, project: Project
) -> None:
    """The verdict of the first attempt is there, and the state does not say so: it is made again."""
    rollouts = {**finished.state.rollouts, Stage.GATE: 0}
    done = tuple(stage for stage in Stage if stage is not Stage.GATE)
    rewind(project, Stage.GATE, done=done, judged={}, rollouts=rollouts)
    train = FakeTrainer(project.root, finished.train.weights)
    state = evolved(planned(project), project, train)
    assert train.trained == []
    assert {name: judged.state for name, judged in state.judged.items()} == {TRAINED: AdapterState.PROMOTED}
    assert (state_path(project).parent / f"gate-{CAPABILITY}-2").is_dir()
    assert state.rollouts[Stage.GATE] == RUN_SIZE
    assert state.minutes[Stage.GATE] > finished.state.minutes[Stage.GATE], "both attempts took time"


@pytest.mark.parametrize(
    "changes",
    [
        {"base": "f" * 32},
        {"recipe": {}},
        {"candidate": "v5"},
        {"environments": {CAPABILITY: "of another version"}},
        {"heldout": {}},
        {"evidence": ("another run",), "informed_by": ("small::discovery",)},
        None,
    ],
)
def test_an_adapter_that_took_the_name_meanwhile_stays(
    finished: Finished, project: Project, changes: dict[str, Any] | None
) -> None:
    """None is a folder without a manifest, such as another training may leave."""
    own = project.adapters[CAPABILITY].manifest.model_copy(update={"evidence": (), "informed_by": ()})
    rewind(project, Stage.ADAPTERS, judged={}, confusion=None)
    shutil.rmtree(project.adapters.folder / CAPABILITY)
    if changes is None:
        (project.adapters.folder / CAPABILITY).mkdir()
    else:
        given = {name: getattr(own, name) for name in ("environments", "recipe", "difficulty", "candidate")}
        given |= {"base": folder_digest(embedded_model()), "informed_by": (), "evidence": ()}
        write_adapter(project.adapters.folder, CAPABILITY, **{**given, **changes})
    train = FakeTrainer(project.root, finished.train.weights)
    train.interrupts = f"{CAPABILITY}_2"
    with pytest.raises(KeyboardInterrupt):
        evolved(planned(project), project, train)
    state = Evolution.model_validate(_read(state_path(project)))
    assert state.adapters == {CAPABILITY: f"{CAPABILITY}_2"}
    assert state.done == finished.state.done[:3]
    assert state.minutes[Stage.ADAPTERS] > finished.state.minutes[Stage.ADAPTERS]


def test_a_resumed_training_keeps_its_threads(finished: Finished, project: Project) -> None:
    rewind(project, Stage.ADAPTERS, threads=1)
    shutil.rmtree(project.adapters.folder / CAPABILITY)
    train = FakeTrainer(project.root, finished.train.weights)
    train.interrupts = CAPABILITY
    with pytest.raises(KeyboardInterrupt):
        evolved(planned(project, "--candidate v6 --max-adapters 1"), project, train)
    assert "threads = 1\n" in (state_path(project).parent / "recipe.toml").read_text()


def test_after_its_minutes_no_further_stage_begins(finished: Finished, project: Project) -> None:
    rewind(project, Stage.GATE)
    plan = planned(project, "--candidate v6 --max-adapters 1 --max-minutes 0.001")
    with pytest.raises(ConfigError, match=r"^--max-minutes 0.001: .* were spent before stage 'gate'; fin"):
        evolved(plan, project, finished.train)


def test_a_removed_adapter_is_reported_as_gone(finished: Finished, project: Project) -> None:
    shutil.rmtree(project.adapters.folder / CAPABILITY)
    [row] = [
        line for line in evolution_text(finished.state, project.adapters).splitlines() if TRAINED in line
    ]
    assert "gone" in row


# ---- from a run that exists


def from_run(project: Project, finished: Finished, options: str = "", **runs: Any) -> EvolutionPlan:
    run = project.root / ".trace2evolve" / "evolving" / finished.plan.name / "run"
    return planned(project, f"--from-run {run} --max-adapters 1 {options}", **runs)


def test_a_run_names_its_candidate_and_its_suites(finished: Finished, project: Project) -> None:
    plan = from_run(project, finished)
    assert (plan.candidate, plan.suites, plan.values.t2e_suite) == ("v6", ("small",), ["small"])
    assert plan.name != finished.plan.name
    with pytest.raises(ConfigError, match=r"^--t2e-suite other: run run contains only small, and adapters"):
        from_run(project, finished, t2e_suite=["other"])


def test_a_run_of_another_candidate_or_model_is_rejected(
    finished: Finished, project: Project, tmp_path: Path
) -> None:
    with pytest.raises(
        ConfigError, match=r"^run run has candidate 'v6', but the candidate to evolve is 'v5'; name the"
    ):
        from_run(project, finished, "--candidate v5")
    other = tmp_path / "other"
    shutil.copytree(embedded_model(), other)
    (other / "generation_config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"^run run used model 'pocket' \(.*\), but the base"):
        from_run(project, finished, f"--base {other}")


def test_a_run_that_cannot_be_the_baseline_of_its_adapters_is_rejected(
    finished: Finished, project: Project
) -> None:
    with pytest.raises(ResultsError, match=r"cannot be compared: user implementation 'script' and 'chat'"):
        from_run(project, finished, t2e_user_model="m", t2e_user_base_url="http://127.0.0.1:9/v1")
    run = project.root / ".trace2evolve" / "evolving" / finished.plan.name / "run"
    trace = next((run / "simulations").glob("*.json"))
    trace.write_text(trace.read_text().replace('"content": "', '"content": "!', 1))
    with pytest.raises(ResultsError, match=r"was edited|has changed|damaged"):
        from_run(project, finished)


def test_a_run_that_lacks_tasks_is_rejected(finished: Finished, project: Project) -> None:
    run = project.root / ".trace2evolve" / "evolving" / finished.plan.name / "run"
    results = _read(run / "results.json")
    lacking = project.lock.suites["small"].splits["heldout"]
    for trace in (run / "simulations").glob("*.json"):
        if _read(trace)["task_id"] in lacking:
            trace.unlink()
    keep = [entry for entry in results.get("simulation_index", ()) if entry["task_id"] not in lacking]
    (run / "results.json").write_text(json.dumps({**results, "simulation_index": keep}))
    shutil.rmtree(project.root / "ledger")
    with pytest.raises(
        ConfigError, match=r"^run run lacks 2 of 2 tasks of small::heldout, which decide about"
    ):
        from_run(project, finished)


def test_nothing_is_learned_by_an_evolution_that_another_process_works_on(
    finished: Finished, project: Project
) -> None:
    with (
        evolution_lock(state_path(project).parent),
        pytest.raises(ConfigError, match="in use by another process or by a training that it started"),
    ):
        evolved(planned(project), project, finished.train)
