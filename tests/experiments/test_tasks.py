"""Target tasks: solvable, not trivial, split by content; and paid by τ²'s reward wherever they are played."""

import asyncio
import json
from collections.abc import Sequence

import pytest

from pytest_trace2evolve.agents.chat import system_prompt
from pytest_trace2evolve.agents.reference import CaseOracle
from pytest_trace2evolve.engine.conversation import Limits, converse
from pytest_trace2evolve.environments.environment import ScenarioEnvironment
from pytest_trace2evolve.errors import CaseError
from pytest_trace2evolve.records.message import Message
from pytest_trace2evolve.records.score import ToolType
from pytest_trace2evolve.records.task import Content
from pytest_trace2evolve.scoring.reward import score
from pytest_trace2evolve.serving.folder import read_model
from pytest_trace2evolve.serving.loading import ends_of, load_tokenizer
from pytest_trace2evolve.session.case_admission import admit
from pytest_trace2evolve.training.chat_encoding import ServerTalk
from pytest_trace2evolve.users.scripted import ScriptedUser
from pytest_trace2evolve.utils.resources import embedded_model
from pytest_trace2evolve.worlds.support.world import SupportWorld
from research.trace import tasks
from research.trace.plan import CAPABILITIES, Plan
from research.trace.subgoal_success import wishes_of
from research.trace.target import TargetGenerator, ended, target_offers
from research.trace.tasks import Cell, Target, cells_of, target_of, targets_of

CELLS = cells_of(CAPABILITIES)
PAIRS = [cell for cell in CELLS if len(cell.capabilities) == 2]
WORLD = SupportWorld()
WRITES = [name for name, kind in WORLD.tool_types().items() if kind is ToolType.WRITE]


def named(cell: Cell) -> str:
    return cell.name


@pytest.mark.parametrize("content", Content)
@pytest.mark.parametrize("cell", CELLS, ids=named)
def test_tasks_are_solvable_and_not_trivial(cell: Cell, content: Content) -> None:
    made = targets_of(cell, "test", 8, content)
    found = {one.case.id: one.problems for one in admit((one.case for one in made), WORLD)}
    assert len(found) == 8
    assert set(found.values()) == {()}


@pytest.mark.parametrize("cell", PAIRS, ids=named)
def test_two_wishes_of_one_customer_each_of_one_capability(cell: Cell) -> None:
    made = targets_of(cell, "test", 8, Content.HELDOUT)
    for one in made:
        assert set(one.labels) == set(cell.capabilities)
        assert len(one.labels) == len(one.case.script.turns)
        orders = [request.about[1] for turn in one.case.script.turns for request in turn.requests]
        assert len(set(orders)) == 2  # one wish does not undo the other
    assert len({one.labels[0] for one in made}) == 2  # neither always comes first


def test_what_is_trained_on_validated_on_and_evaluated_on_shares_no_task() -> None:
    cell = CELLS[0]
    generator = TargetGenerator(cell)
    trained = {generator.scenario(seed).id for seed in range(100_000, 100_040)}
    chosen = {one.case.id for one in tasks.validation_targets((cell,), 20)}
    searched = {one.case.id for one in targets_of(cell, "minibatch/1", 20, Content.TRAIN)}
    judged = {one.case.id for one in tasks.heldout_targets((cell,), 20)}
    assert len(trained | chosen | searched | judged) == 100


def test_a_seed_makes_one_task_and_a_used_up_cell_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert target_of(PAIRS[0], "7", Content.TRAIN) == target_of(PAIRS[0], "7", Content.TRAIN)
    only = target_of(PAIRS[0], "7", Content.TRAIN)
    monkeypatch.setattr(tasks, "target_of", lambda *given: only)
    with pytest.raises(CaseError, match="gave no new task after 1 of 2; ask for fewer"):
        targets_of(PAIRS[0], "x", 2, Content.TRAIN)


def expert(target: Target) -> CaseOracle:
    return CaseOracle(target.case.task, target.case.script, WRITES)


def play(environment: ScenarioEnvironment, agent: CaseOracle, rewards: list[float]) -> Sequence[Message]:
    while not environment.step(agent.reply(environment.trace)).done:
        rewards.append(environment.reward())
    return environment.trace


@pytest.mark.parametrize("cell", [CELLS[1], PAIRS[1]], ids=named)
@pytest.mark.parametrize("early", [True, False])
def test_the_environment_pays_the_targets_reward_at_the_end_and_nothing_before(
    cell: Cell, early: bool
) -> None:
    generator = TargetGenerator(cell)
    target = target_of(cell, "training/5", Content.TRAIN)
    environment = ScenarioEnvironment(generator, WORLD, early=early)
    environment.reset(5)
    before: list[float] = []
    trace = play(environment, expert(target), before)
    user = ScriptedUser(target.case.script, seed=5)
    found = asyncio.run(converse(target.case.task, WORLD, expert(target), user, limits=Limits(max_steps=60)))
    assert [one.content for one in trace] == [one.content for one in found.trace]
    assert environment.reward() == score(found, target.case.task, WORLD).reward == 1.0
    assert len(before) > 2
    assert set(before) == {0.0}
    assert wishes_of(target, trace) == 1.0


@pytest.mark.parametrize("cell", CELLS, ids=named)
def test_the_experts_rollout_fits_in_what_training_has_room_for(cell: Cell) -> None:
    folder = read_model(embedded_model())
    tokenizer = load_tokenizer(folder)
    context = json.loads((folder.path / "config.json").read_text())["max_position_embeddings"]
    agents = {cell.name: (system_prompt(WORLD.policy(), ""), WORLD.tools("assistant"))}
    talk = ServerTalk(tokenizer, ends_of(folder, tokenizer), agents)
    [training, *_] = Plan().trainings()
    recipe = Plan().recipe_of(training, 1)
    environment = ScenarioEnvironment(TargetGenerator(cell), WORLD)
    for seed in range(recipe.first_scenario, recipe.first_scenario + 8):
        environment.reset(seed)
        begun = len(talk.prompt(cell.name, environment.trace))
        oracle, asked, done = expert(target_of(cell, f"training/{seed}", Content.TRAIN)), begun, False
        while not done:
            asked = len(talk.prompt(cell.name, environment.trace))
            done = environment.step(oracle.reply(environment.trace)).done
        assert environment.reward() == 1.0
        # As rollouts are cut: where the tokens since the prompt leave no room for an answer.
        assert asked - begun + recipe.answer_tokens <= recipe.rollout_tokens
        assert begun + recipe.rollout_tokens <= context


def test_an_agent_that_does_nothing_gets_nothing() -> None:
    generator = TargetGenerator(PAIRS[0])
    environment = ScenarioEnvironment(generator, WORLD)
    environment.reset(3)
    while not environment.step(generator.shortcut(environment.task)[0]).done:
        pass
    assert ended(environment.trace)
    assert environment.reward() == 0.0
    assert wishes_of(target_of(PAIRS[0], "training/3", Content.TRAIN), environment.trace) == 0.0


def test_a_wish_counts_where_its_own_changes_are_right() -> None:
    target = next(
        one
        for one in targets_of(PAIRS[1], "half", 9, Content.TRAIN)
        if one.case.script.turns[0].actions and one.case.script.turns[1].actions
    )
    user = ScriptedUser(target.case.script, seed=0)
    found = asyncio.run(converse(target.case.task, WORLD, expert(target), user, limits=Limits(max_steps=60)))
    place = next(
        place for place, one in enumerate(found.trace) if one.content == target.case.script.turns[1].says
    )
    assert wishes_of(target, found.trace[:place]) == 0.5
    [write] = [
        number
        for number, one in enumerate(found.trace[:place])
        if any(call.name in WRITES for call in one.tool_calls or ())
    ]
    twice = [*found.trace, *found.trace[write : write + 2]]  # the same change, and what came back on it
    assert wishes_of(target, twice) == 0.5


def test_offers_are_environments_of_whole_tasks() -> None:
    offers = target_offers(CELLS)
    made = [offer.make(1, Content.TRAIN) for offer in offers.values()]
    assert [one.capability for one in made] == [cell.name for cell in CELLS]
    assert len({one.digest for one in made}) == len(CELLS)
    assert not made[0].scenario(1).history
