"""Target tasks: solvable, not trivial, split by content, and with τ²'s reward wherever they are played."""

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
from pytest_trace2evolve.session.case_admission import admit
from pytest_trace2evolve.users.scripted import ScriptedUser
from pytest_trace2evolve.utils.resources import embedded_model
from pytest_trace2evolve.worlds.support.world import SupportWorld
from research.trace.evaluate import subgoal_success
from research.trace.plan import CAPABILITIES, Plan
from research.trace.target import TargetGenerator, ended, target_offers
from research.trace.tasks import (
    Cell,
    Target,
    cells_of,
    heldout_targets,
    target_of,
    targets_of,
    validation_targets,
)

CELLS = cells_of(CAPABILITIES)
PAIRS = [cell for cell in CELLS if len(cell.capabilities) == 2]
WORLD = SupportWorld()
WRITES = [name for name, kind in WORLD.tool_types().items() if kind is ToolType.WRITE]


def name_of(cell: Cell) -> str:
    return cell.name


@pytest.mark.parametrize("content", Content)
@pytest.mark.parametrize("cell", CELLS, ids=name_of)
def test_tasks_are_solvable_and_not_trivial(cell: Cell, content: Content) -> None:
    targets = targets_of(cell, "test", 8, content)
    found = {admitted.case.id: admitted.problems for admitted in admit((t.case for t in targets), WORLD)}
    assert len(found) == 8
    assert set(found.values()) == {()}


@pytest.mark.parametrize("cell", PAIRS, ids=name_of)
def test_a_pair_is_two_wishes_of_one_customer(cell: Cell) -> None:
    targets = targets_of(cell, "test", 8, Content.HELDOUT)
    for target in targets:
        turns = target.case.script.turns
        assert set(target.labels) == set(cell.capabilities)
        assert len(target.labels) == len(turns)
        orders = [request.about[1] for turn in turns for request in turn.requests]
        assert len(set(orders)) == 2, "one wish does not undo the other"
    assert len({target.labels[0] for target in targets}) == 2, "neither always comes first"


def test_training_validation_and_evaluation_share_no_task() -> None:
    cell = CELLS[0]
    generator = TargetGenerator(cell)
    trained = {generator.scenario(seed).id for seed in range(100_000, 100_040)}
    chosen = {target.case.id for target in validation_targets((cell,), 20)}
    searched = {target.case.id for target in targets_of(cell, "minibatch/1", 20, Content.TRAIN)}
    judged = {target.case.id for target in heldout_targets((cell,), 20)}
    assert len(trained | chosen | searched | judged) == 100


def test_a_seed_makes_one_task() -> None:
    assert target_of(PAIRS[0], "7", Content.TRAIN) == target_of(PAIRS[0], "7", Content.TRAIN)


def test_an_exhausted_cell_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    only = target_of(PAIRS[0], "7", Content.TRAIN)
    monkeypatch.setattr("research.trace.tasks.target_of", lambda *args: only)
    with pytest.raises(CaseError, match="gave no new task after 1 of 2; ask for fewer"):
        targets_of(PAIRS[0], "x", 2, Content.TRAIN)


def expert(target: Target) -> CaseOracle:
    return CaseOracle(target.case.task, target.case.script, WRITES)


def play(environment: ScenarioEnvironment, agent: CaseOracle, rewards: list[float]) -> Sequence[Message]:
    while not environment.step(agent.reply(environment.trace)).done:
        rewards.append(environment.reward())
    return environment.trace


@pytest.mark.parametrize("cell", [CELLS[1], PAIRS[1]], ids=name_of)
@pytest.mark.parametrize("early", [True, False])
def test_the_environment_gives_the_targets_reward_at_the_end_and_nothing_before(
    cell: Cell, early: bool
) -> None:
    generator = TargetGenerator(cell)
    target = target_of(cell, "training/5", Content.TRAIN)
    environment = ScenarioEnvironment(generator, WORLD, ends_early=early)
    environment.reset(5)
    before: list[float] = []
    trace = play(environment, expert(target), before)
    user = ScriptedUser(target.case.script, seed=5)
    found = asyncio.run(converse(target.case.task, WORLD, expert(target), user, limits=Limits(max_steps=60)))
    assert [message.content for message in trace] == [message.content for message in found.trace]
    assert environment.reward() == score(found, target.case.task, WORLD).reward == 1.0
    assert len(before) > 2
    assert set(before) == {0.0}
    assert subgoal_success(target, trace) == 1.0


@pytest.mark.parametrize("cell", CELLS, ids=name_of)
def test_the_experts_rollout_fits_into_training(cell: Cell) -> None:
    from pytest_trace2evolve.serving.loading import load_tokenizer, read_end_tokens
    from pytest_trace2evolve.training.chat_encoding import ChatEncoder

    folder = read_model(embedded_model())
    tokenizer = load_tokenizer(folder)
    context = json.loads((folder.path / "config.json").read_text())["max_position_embeddings"]
    agents = {cell.name: (system_prompt(WORLD.policy(), ""), WORLD.tools("assistant"))}
    encoder = ChatEncoder(tokenizer, read_end_tokens(folder, tokenizer), agents)
    [training, *_] = Plan().trainings()
    recipe = Plan().recipe_of(training, 1)
    environment = ScenarioEnvironment(TargetGenerator(cell), WORLD)
    for seed in range(recipe.first_scenario, recipe.first_scenario + 8):
        environment.reset(seed)
        start = len(encoder.prompt(cell.name, environment.trace))
        oracle, prompt, done = expert(target_of(cell, f"training/{seed}", Content.TRAIN)), start, False
        while not done:
            prompt = len(encoder.prompt(cell.name, environment.trace))
            done = environment.step(oracle.reply(environment.trace)).done
        assert environment.reward() == 1.0
        # A rollout is cut if the tokens since its prompt leave no room for an answer.
        assert prompt - start + recipe.answer_tokens <= recipe.rollout_tokens
        assert start + recipe.rollout_tokens <= context


def test_an_idle_agent_earns_nothing() -> None:
    generator = TargetGenerator(PAIRS[0])
    environment = ScenarioEnvironment(generator, WORLD)
    environment.reset(3)
    while not environment.step(generator.shortcut(environment.task)[0]).done:
        pass
    assert ended(environment.trace)
    assert environment.reward() == 0.0
    assert subgoal_success(target_of(PAIRS[0], "training/3", Content.TRAIN), environment.trace) == 0.0


def test_a_wish_is_fulfilled_by_its_own_changes_alone() -> None:
    target = next(
        target
        for target in targets_of(PAIRS[1], "half", 9, Content.TRAIN)
        if target.case.script.turns[0].actions and target.case.script.turns[1].actions
    )
    user = ScriptedUser(target.case.script, seed=0)
    found = asyncio.run(converse(target.case.task, WORLD, expert(target), user, limits=Limits(max_steps=60)))
    place = next(
        place
        for place, message in enumerate(found.trace)
        if message.content == target.case.script.turns[1].says
    )
    assert subgoal_success(target, found.trace[:place]) == 0.5
    [write] = [
        number
        for number, message in enumerate(found.trace[:place])
        if any(call.name in WRITES for call in message.tool_calls or ())
    ]
    twice = [*found.trace, *found.trace[write : write + 2]]  # the same change again, with its result
    assert subgoal_success(target, twice) == 0.5


def test_offers_are_environments_of_whole_tasks() -> None:
    offers = target_offers(CELLS)
    generators = [offer.make(1, Content.TRAIN) for offer in offers.values()]
    assert [generator.capability for generator in generators] == [cell.name for cell in CELLS]
    assert len({generator.digest for generator in generators}) == len(CELLS)
    assert not generators[0].scenario(1).history
