"""Environments are played as suites are, and end early if nothing can be gained."""

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_trace2evolve.agents.reference import CaseOracle, NopAgent
from pytest_trace2evolve.engine.conversation import Limits, converse
from pytest_trace2evolve.environments.environment import Episode, ScenarioEnvironment
from pytest_trace2evolve.environments.registry import Environments
from pytest_trace2evolve.environments.reward_hacking_probes import WRONG_PROBES
from pytest_trace2evolve.errors import GeneratorError
from pytest_trace2evolve.records.environment import MAX_GRADE
from pytest_trace2evolve.records.message import STOP_MARK, Message, ToolCall
from pytest_trace2evolve.records.score import ToolType
from pytest_trace2evolve.records.task import Task, script_of
from pytest_trace2evolve.scoring.reward import score
from pytest_trace2evolve.users.scripted import ScriptedUser
from pytest_trace2evolve.worlds.support.world import SupportWorld

ENVIRONMENTS = Environments()
WORLD = SupportWorld()
WRITES = [name for name, kind in WORLD.tool_types().items() if kind is ToolType.WRITE]
NAMES = st.sampled_from(ENVIRONMENTS.names)
LEVELS = st.integers(1, 5)
SEEDS = st.integers(0, 10_000)
few = settings(max_examples=8, deadline=None)


class Listed:
    """Says what it was given, and then that it cannot help."""

    name = "listed"

    def __init__(self, said: Sequence[Message]) -> None:
        self._left = iter(said)

    async def respond(self, history: Sequence[Message]) -> Message:
        return next(self._left, Message(role="assistant", content="I cannot help you with that."))


def oracle(task: Task) -> CaseOracle:
    script = script_of(task)
    assert script is not None
    return CaseOracle(task, script, WRITES)


def said(trace: Sequence[Message]) -> list[object]:
    kept = ("role", "content", "tool_calls", "id", "error", "requestor")
    return [{name: getattr(one, name) for name in kept} for one in trace]


def rolled(environment: ScenarioEnvironment, agent: object, seed: int) -> list[float]:
    """All rewards of a rollout, that before its first step too."""
    environment.reset(seed)
    rewards = [environment.reward()]
    for _ in range(60):
        message = asyncio.run(agent.respond(environment.trace))  # type: ignore[attr-defined]
        done = environment.step(message).done
        rewards.append(environment.reward())
        if done:
            return rewards
    raise AssertionError("it does not end")


def agent_of(who: str, task: Task) -> CaseOracle | NopAgent | Listed:
    if who == "oracle":
        return oracle(task)
    return NopAgent() if who == "nop" else Listed(list(WRONG_PROBES[who](task)))


@few
@given(name=NAMES, level=LEVELS, seed=SEEDS, who=st.sampled_from(["oracle", "nop", *WRONG_PROBES]))
def test_an_environment_is_played_as_a_suite_is(name: str, level: int, seed: int, who: str) -> None:
    generator = ENVIRONMENTS.generator(name, level)
    task, script = generator.scenario(seed), script_of(generator.scenario(seed))
    assert script is not None
    for steps in (60, 7):
        user = ScriptedUser(script, seed=seed)
        limits = Limits(max_steps=steps)
        simulation = asyncio.run(converse(task, WORLD, agent_of(who, task), user, limits=limits))
        episode, agent = Episode(task, WORLD, seed, max_steps=steps), agent_of(who, task)
        while episode.end is None:
            episode.step(asyncio.run(agent.respond(episode.trace)))
        assert said(episode.trace) == said(simulation.trace)
        assert episode.end == simulation.termination_reason
        assert episode.is_solved() is (score(simulation, task, WORLD).reward == 1.0)
    environment = ScenarioEnvironment(generator, WORLD)
    rolled(environment, agent_of(who, task), seed)
    assert said(simulation.trace[: len(environment.trace)]) == said(
        environment.trace[: len(simulation.trace)]
    )


@few
@given(name=NAMES, level=LEVELS, seed=SEEDS)
def test_who_does_nothing_gets_nothing_and_the_shortcut_hardly_more(name: str, level: int, seed: int) -> None:
    generator = ENVIRONMENTS.generator(name, level)
    environment = ScenarioEnvironment(generator, WORLD)
    assert set(rolled(environment, NopAgent(), seed)) == {0.0}
    shortcut = list(generator.shortcut(generator.scenario(seed)))
    assert rolled(environment, Listed(shortcut), seed)[-1] <= 0.2
    # Played on to its end, and with the expert's work after it, it is worth no more.
    late = ScenarioEnvironment(generator, WORLD, ends_early=False)
    more = [
        Message(role="assistant", tool_calls=[ToolCall(name=one.name, arguments=one.arguments)])
        for one in generator.scenario(seed).actions
    ]
    assert (
        rolled(late, Listed([*shortcut[:6], *more, Message(role="assistant", content=STOP_MARK)]), seed)[-1]
        <= 0.5
    )


TEXTS = st.one_of(
    st.text(max_size=8), st.integers(), st.none(), st.floats(allow_nan=False, allow_infinity=False)
)
VALUES = st.recursive(
    TEXTS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
)


@few
@given(name=NAMES, level=LEVELS, seed=SEEDS, data=st.data())
def test_whatever_a_model_writes_is_graded(name: str, level: int, seed: int, data: st.DataObject) -> None:
    """The right call with a wrong value anywhere in it, or any call at all: never an error, never the top."""
    generator = ENVIRONMENTS.generator(name, level)
    task = generator.scenario(seed)
    changes = [one for one in task.actions if one.name in WRITES]
    right = data.draw(st.sampled_from(changes or task.actions))
    place = data.draw(st.sampled_from(sorted(right.arguments)))
    value = data.draw(st.one_of(VALUES, st.lists(st.sampled_from([["1"], {"a": 1}, 7, "7"]), max_size=3)))
    arguments = {**right.arguments, place: value}
    environment = ScenarioEnvironment(generator, WORLD)
    call = ToolCall(name=right.name, arguments=arguments)
    reward = rolled(environment, Listed([Message(role="assistant", tool_calls=[call])]), seed)[-1]
    assert reward < MAX_GRADE or value == right.arguments[place] or not changes


class Broken:
    """Grades as no environment may."""

    capability, digest = "broken", ""

    def scenario(self, seed: int) -> Task:
        return ENVIRONMENTS.generator("precondition_verification", 5).scenario(seed)

    def grade(self, task: Task, trace: Sequence[Message], *, solved: bool) -> float:
        return 0.3

    def settled(self, task: Task, trace: Sequence[Message]) -> bool:
        return False

    def shortcut(self, task: Task) -> Sequence[Message]:
        return ()


def test_what_breaks_its_promise_is_told_in_one_line() -> None:
    environment = ScenarioEnvironment(Broken(), WORLD)
    with pytest.raises(
        GeneratorError, match=r"^environment 'broken' has no scenario yet: call reset\(seed\)$"
    ):
        environment.reward()
    environment.reset(1)
    with pytest.raises(
        GeneratorError,
        match=r"^environment 'broken': the reward must be one of 0\.0, 0\.2, 0\.5, 0\.8, 1\.0, got 0\.3",
    ):
        environment.reward()
    with pytest.raises(GeneratorError, match=r"^environment '.*': difficulty must be from 1 to 5, got 6$"):
        ENVIRONMENTS.generator("precondition_verification", 6)
    with pytest.raises(GeneratorError, match=r"^unknown environment 'precondition'; did you mean 'precond"):
        ENVIRONMENTS.offer("precondition")
