"""Whole tasks: their reward is that of a suite, and only at the end."""

from pathlib import Path

from pytest_trace2evolve.agents.reference import CaseOracle
from pytest_trace2evolve.cases.case import read_cases
from pytest_trace2evolve.environments.environment import ScenarioEnvironment, require_script
from pytest_trace2evolve.environments.generators.whole_tasks import FAMILY_NAMES, WholeTasks
from pytest_trace2evolve.environments.held_out import describe_held_out_content
from pytest_trace2evolve.records.message import Message
from pytest_trace2evolve.records.score import ToolType
from pytest_trace2evolve.records.task import Content
from pytest_trace2evolve.worlds.support.world import SupportWorld

WORLD = SupportWorld()
WRITES = [tool for tool, kind in WORLD.tool_types().items() if kind is ToolType.WRITE]


def test_an_expert_is_paid_at_the_end_of_a_task_and_not_before() -> None:
    environment = ScenarioEnvironment(WholeTasks(), WORLD)
    for seed in range(14):
        environment.reset(seed)
        expert = CaseOracle(environment.task, require_script(environment.task), WRITES)
        rewards, done = [environment.reward()], False
        while not done:
            done = environment.step(expert.reply(environment.trace)).done
            rewards.append(environment.reward())
        assert rewards[-1] == 1.0
        assert not any(rewards[:-1])


def test_what_breaks_after_the_right_change_costs_the_reward() -> None:
    environment = ScenarioEnvironment(WholeTasks(), WORLD)
    seed = FAMILY_NAMES.index("policy_edge")
    environment.reset(seed)  # nothing may be changed, so everything is right at the start
    assert environment.reward() == 0.0
    while not environment.step(Message(role="assistant", content="I am sorry, I cannot do that.")).done:
        assert environment.reward() == 0.0
    ended = environment.trace
    generator, task = WholeTasks(), environment.task
    assert generator.grade(task, ended, solved=True) == 1.0
    assert generator.grade(task, ended, solved=False) == 0.0
    said = Message(role="assistant", content="###STOP###")
    assert generator.grade(task, [*ended[:-1], said], solved=True) == 0.0  # the agent cannot end it


def test_training_holds_nothing_that_decides() -> None:
    suite = {case.digest for case in read_cases(Path("suites/support/heldout.jsonl"))}
    training, held_out = WholeTasks(), WholeTasks(content=Content.HELDOUT)
    for seed in range(100_000, 100_042):
        assert not describe_held_out_content(training.scenario(seed), ())
    fresh = {held_out.scenario(seed).digest for seed in range(300)}
    assert len(fresh) == 300
    assert not fresh & suite
