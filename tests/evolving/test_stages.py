"""The stages of an evolution, with runs and trainings that end at once; and what each rejects."""

import json
import re
import shutil
from typing import Any

import pytest

from pytest_trace2evolve.errors import ConfigError, ResultsError, TrainingError
from pytest_trace2evolve.improve import stages
from pytest_trace2evolve.improve.processes import Work
from pytest_trace2evolve.records.adapter import AdapterState
from pytest_trace2evolve.records.improvement import Stage
from pytest_trace2evolve.records.routing import NONE
from pytest_trace2evolve.records.verdict import Decision, RunVerdict
from pytest_trace2evolve.report.improvement import evolved_text
from pytest_trace2evolve.training.recipe import Recipe
from tests.adapter_folders import write_adapter
from tests.evolving.at_once import ONE, PLAYED, TWO, WEIGHTS, World, digest_of, world
from tests.evolving.test_asking import write_suites
from tests.gate_helpers import write_candidate

__all__ = ["world"]


def test_a_red_run_ends_with_gated_adapters_and_a_routed_agent(world: World) -> None:
    state = world.evolving().run()
    assert world.ran == ["v6", ONE, TWO, f"v6+{ONE}", f"v6+{TWO}", "v6+routed"]
    assert [one.name for one in state.missing or ()] == [ONE, TWO], "what has no environment is left out"
    assert {name: one.state for name, one in state.judged.items()} == {
        f"v6+{ONE}": AdapterState.PROMOTED,
        f"v6+{TWO}": AdapterState.DISCARDED,
        "v6+routed": AdapterState.PROMOTED,
    }
    manifest = world.project.adapters[ONE].manifest
    assert (manifest.state, manifest.evidence, manifest.informed_by) == (
        AdapterState.PROMOTED,
        ("run",),
        ("support::discovery",),
    )
    assert manifest.verdict is not None
    assert manifest.verdict.run == f"gate-{ONE}"
    assert [one.name for one in world.project.adapters.promoted()] == [ONE]
    assert state.confusion is not None
    assert state.confusion.right == state.confusion.total == 40
    assert set(state.minutes) == set(Stage)
    assert state.rollouts[Stage.ENVIRONMENTS] == 30
    assert state.rollouts[Stage.RUN] == state.rollouts[Stage.ROUTED] == PLAYED
    assert state.rollouts[Stage.GATE] == 2 * PLAYED
    text = evolved_text(state, world.project.adapters)
    for told in (
        f"v6+{ONE}",
        "promoted",
        "discarded",
        "router: right on 100% of 40 held-out openings",
        "rollouts",
    ):
        assert told in text


ALL = ["v6", ONE, TWO, f"v6+{ONE}", f"v6+{TWO}", "v6+routed"]


@pytest.mark.parametrize("dies", ALL)
def test_what_was_interrupted_goes_on_and_does_nothing_twice(world: World, dies: str) -> None:
    world.dies = dies
    with pytest.raises(KeyboardInterrupt):
        world.evolving().run()
    kept = world.evolving().folder / "state.json"
    assert json.loads(kept.read_text())["minutes"].keys() >= {"run"}, "what was interrupted took its time"
    world.dies = ""
    state = world.evolving().run()
    assert world.ran == ALL
    assert set(state.minutes) == set(state.done) == set(Stage)
    assert sum(state.rollouts.values()) == 4 * PLAYED + 30 + 2 * (8 + 2 * 8), "trained and measured"
    world.evolving().run()
    assert len(world.ran) == 6, "what is finished is only told again"
    assert world.told[-1][1].startswith(
        "all of this was done before, and nothing is done now; to evolve anew"
    )
    assert str(world.evolving().folder) in world.told[-1][1]


@pytest.mark.parametrize("dies", ALL)
def test_what_was_over_before_it_was_kept_is_done_in_a_folder_of_its_own(world: World, dies: str) -> None:
    """A session's folder is there and nothing says so; a training is known by its manifest."""
    world.dies, world.after = dies, True
    with pytest.raises(KeyboardInterrupt):
        world.evolving().run()
    world.dies = ""
    state = world.evolving().run()
    session = dies not in (ONE, TWO)
    assert sorted(world.ran) == sorted([*ALL, dies] if session else ALL)
    assert set(state.done) == set(Stage)
    assert sum(state.rollouts.values()) == 4 * PLAYED + 30 + 2 * (8 + 2 * 8), "trained and measured"
    if session:
        assert world.folders[dies].name.endswith("-2")
    if dies == "v6":
        assert state.folder.endswith("run-2")
        assert world.baselines[f"v6+{ONE}"] == state.folder


def test_a_verdict_that_was_noted_and_not_kept_is_noted_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted: list[str] = []

    def note_verdict(project: Any, record: RunVerdict) -> None:
        stages_note(project, record)
        noted.append(record.candidate.id)
        if len(noted) == 1:
            raise KeyboardInterrupt

    stages_note = stages.note_verdict
    monkeypatch.setattr(stages, "note_verdict", note_verdict)
    with pytest.raises(KeyboardInterrupt):
        world.evolving().run()
    assert world.project.adapters[ONE].promoted
    state = world.evolving().run()
    assert noted == [f"v6+{ONE}", f"v6+{ONE}", f"v6+{TWO}"]
    assert world.project.adapters[ONE].promoted
    assert state.judged[f"v6+{ONE}"].run == f"gate-{ONE}-2"


def test_minutes_are_kept_while_a_stage_works(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is killed outright has no time to write them down."""
    monkeypatch.setattr(stages, "KEPT_EVERY", -1.0)
    seen: list[dict[str, float]] = []
    evolving = world.evolving()

    def told(stage: Stage, text: str) -> None:
        if (evolving.folder / "state.json").exists():
            seen.append(json.loads((evolving.folder / "state.json").read_text())["minutes"])

    evolving.told = told
    evolving.run()
    assert any(set(one) == {"run", "capabilities", "environments", "adapters"} for one in seen)


def test_a_training_goes_on_with_the_threads_that_it_began_with(world: World) -> None:
    world.dies = TWO
    with pytest.raises(KeyboardInterrupt):
        world.evolving(parallel=2).run()
    world.dies = ""
    world.evolving(parallel=1).run()
    assert world.ran == ALL
    assert world.project.adapters[ONE].manifest.recipe["threads"] == 1
    assert world.project.adapters[TWO].manifest.recipe["threads"] == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"base": "f" * 32},
        {"recipe": {}},
        {"difficulty": {ONE: 5}},
        {"candidate": "v5"},
        {"environments": {TWO: digest_of(TWO)}},
        {"environments": {ONE: "of another version"}},
        {"heldout": {}},
        {"evidence": ("of another run",), "informed_by": ("support::discovery",)},
    ],
)
def test_an_adapter_that_has_come_under_the_name_meanwhile_is_not_ones_own(
    world: World, changes: dict[str, Any]
) -> None:
    world.dies = ONE
    with pytest.raises(KeyboardInterrupt):
        world.evolving(most=1).run()
    told = {
        "base": WEIGHTS,
        "environments": {ONE: digest_of(ONE)},
        "recipe": Recipe(steps=2).model_dump(mode="json"),
        "difficulty": {ONE: 2},
        "candidate": "v6",
        "informed_by": (),
    }
    write_adapter(world.project.adapters.folder, ONE, **{**told, **changes})
    before = (world.project.adapters[ONE].path / "manifest.json").read_bytes()
    world.dies = ""
    world.decisions[f"v6+{ONE}_2"] = Decision.DISCARD
    state = world.evolving(most=1).run()
    assert state.adapters == {ONE: f"{ONE}_2"}
    assert (world.project.adapters[ONE].path / "manifest.json").read_bytes() == before


def test_a_taken_folder_without_a_manifest_is_left_alone(world: World) -> None:
    world.dies = ONE
    with pytest.raises(KeyboardInterrupt):
        world.evolving(most=1).run()
    (world.project.adapters.folder / ONE).mkdir(parents=True)
    world.dies = ""
    world.decisions[f"v6+{ONE}_2"] = Decision.DISCARD
    assert world.evolving(most=1).run().adapters == {ONE: f"{ONE}_2"}


def test_what_another_training_left_unfinished_is_left_alone(world: World) -> None:
    kept = world.project.adapters.folder / f".{ONE}.unfinished"
    kept.mkdir(parents=True)
    world.decisions[f"v6+{ONE}_2"] = Decision.DISCARD
    assert world.evolving(most=1).run().adapters == {ONE: f"{ONE}_2"}
    assert kept.is_dir()


def test_a_run_is_checked_as_a_baseline_before_anything_is_learnt_from_it(world: World) -> None:
    folder = world.project.root / "other"
    world.run("v6", folder, gated=False)
    world.evolving(run=folder).run()
    assert world.ran == ["check", *ALL[1:]]
    assert world.baselines["check"] == world.baselines[f"v6+{ONE}"] == str(folder)


def test_of_two_promoted_adapters_of_a_capability_the_new_one_is_routed_to(world: World) -> None:
    write_adapter(
        world.project.adapters.folder,
        ONE,
        state=AdapterState.PROMOTED,
        base=WEIGHTS,
        promoted_on=1,
    )
    world.decisions[f"v6+{ONE}_2"] = Decision.PROMOTE
    state = world.evolving(most=1).run()
    assert [one.name for one in world.project.adapters.routed()] == [f"{ONE}_2"]
    assert state.confusion is not None
    assert state.confusion.labels == (f"{ONE}_2", NONE)


def test_without_a_promoted_adapter_nothing_is_routed(world: World) -> None:
    world.decisions[f"v6+{ONE}"] = Decision.INCONCLUSIVE
    state = world.evolving().run()
    assert "v6+routed" not in world.ran
    assert state.confusion is None
    assert "no adapter was promoted, so there is nothing to route to" in evolved_text(
        state, world.project.adapters
    )


def test_adapters_that_are_there_stay(world: World) -> None:
    write_adapter(world.project.adapters.folder, ONE, state=AdapterState.PROMOTED)
    before = (world.project.adapters[ONE].path / "manifest.json").read_bytes()
    world.decisions[f"v6+{ONE}_2"] = Decision.DISCARD
    state = world.evolving(most=1).run()
    assert state.adapters == {ONE: f"{ONE}_2"}
    assert (world.project.adapters[ONE].path / "manifest.json").read_bytes() == before


def test_a_run_of_another_candidate_or_model_is_refused(world: World) -> None:
    write_candidate(world.project.root / "candidates", "v5")
    folder = world.project.root / "other"
    world.run("v5", folder, gated=False)
    with pytest.raises(ConfigError, match=r"^run other is of candidate 'v5', and 'v6' is to evolve; name"):
        world.evolving(run=folder).run()
    text = (folder / "results.json").read_text(encoding="utf-8")
    (folder / "results.json").write_text(
        text.replace('"v5"', '"v6"').replace(WEIGHTS, "f" * 32), encoding="utf-8"
    )
    with pytest.raises(
        ConfigError, match=r"^in run other model 'pocket' \(ffffffffffff\) talked, and the base"
    ):
        world.evolving(run=folder).run()


def test_after_its_minutes_no_further_stage_begins(world: World) -> None:
    evolving = world.evolving(max_minutes=1e-9)
    with pytest.raises(ConfigError, match=r"^--max-minutes 1e-09: 0.0 were spent before stage 'cap.*on$"):
        evolving.run()
    assert set(world.evolving().run().minutes) == set(Stage)


def test_a_session_that_leaves_no_verdict_is_no_verdict(world: World) -> None:
    world.silent = {f"v6+{ONE}"}
    with pytest.raises(ResultsError, match=rf"gate-{ONE}: the run left no verdict; run the same"):
        world.evolving().run()
    assert world.project.adapters[ONE].manifest.state is AdapterState.TRAINED
    world.silent = set()
    assert set(world.evolving().run().done) == set(Stage)


@pytest.mark.parametrize("candidate", [f"v6+{ONE}", "v6+routed"])
def test_a_promotion_that_the_ledger_does_not_hold_promotes_nothing(world: World, candidate: str) -> None:
    world.unrecorded = {candidate}
    name = candidate.removeprefix("v6+")
    told = rf"gate-{name}/verdict.json: the ledger holds no entry of run gate-{name} on support, so nothing "
    with pytest.raises(ResultsError, match=told):
        world.evolving().run()
    if name == ONE:
        assert world.project.adapters[ONE].manifest.state is AdapterState.TRAINED
    world.unrecorded = set()
    assert set(world.evolving().run().done) == set(Stage)


def test_a_discard_needs_no_entry(world: World) -> None:
    world.unrecorded = {f"v6+{TWO}"}
    state = world.evolving().run()
    assert state.judged[f"v6+{TWO}"].state is AdapterState.DISCARDED


def test_a_given_run_whose_verdict_was_edited_is_refused(world: World) -> None:
    folder = world.project.root / "given"
    world.decisions["v6"] = Decision.DISCARD
    world.run("v6", folder, gated=True)
    path = folder / "verdict.json"
    before = path.read_text(encoding="utf-8")
    path.write_text(before.replace("calibrated", "strict"), encoding="utf-8")
    with pytest.raises(ResultsError, match=r"given/verdict.json: was edited: .*; run it again$"):
        world.evolving(run=folder).run()
    assert "check" not in world.ran
    path.write_text(before, encoding="utf-8")
    assert set(world.evolving(run=folder).run().done) == set(Stage)


@pytest.mark.parametrize("candidate", [f"v6+{ONE}", "v6+routed"])
def test_a_session_that_was_cut_short_gives_no_verdict_yet(world: World, candidate: str) -> None:
    """As by a budget: the same command with a larger one goes on."""
    world.cut = {candidate: "the budget is spent"}
    folder = world.evolving().folder / f"gate-{candidate.removeprefix('v6+')}"
    told = (
        rf"^the run of {re.escape(candidate)} was not whole: the budget is spent \(see {folder}\); what is "
        "finished is kept: give it what it lacks, and run the same command again$"
    )
    with pytest.raises(TrainingError, match=told):
        world.evolving().run()
    if candidate != "v6+routed":
        assert world.project.adapters[ONE].manifest.state is AdapterState.TRAINED
    world.cut = {candidate: ""}
    with pytest.raises(TrainingError, match=r"was not whole: tasks were left out of it \(see"):
        world.evolving().run()
    world.cut = {}
    state = world.evolving().run()
    assert set(state.done) == set(Stage)
    assert state.judged[candidate].state is AdapterState.PROMOTED
    assert sorted(world.ran) == sorted([*ALL, candidate, candidate]), "nothing else is done again"


def test_from_a_run_that_lacks_tasks_nothing_is_learnt(world: World) -> None:
    (world.project.root / "suites").mkdir()
    write_suites(world.project.root, a="support")
    with pytest.raises(ConfigError, match=r"^run run lacks 3 of 3 tasks of a::heldout"):
        world.evolving().run()
    assert world.ran == ["v6"]


def test_an_adapter_that_was_removed_is_told_as_gone(world: World) -> None:
    world.evolving().run()
    shutil.rmtree(world.project.adapters.folder / TWO)
    text = evolved_text(world.evolving().run(), world.project.adapters)
    [row] = [line for line in text.splitlines() if f"v6+{TWO}" in line]
    assert "gone" in row
    assert "discarded" in row


def test_a_process_that_fails_ends_the_evolution(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(works: list[Work], *given: Any, **told: Any) -> None:
        raise TrainingError(f"{works[0].name} ended with status 4: no; see {works[0].log}")

    monkeypatch.setattr(stages, "run_all", failing)
    with pytest.raises(TrainingError, match=rf"^{ONE} ended with status 4"):
        world.evolving().run()
