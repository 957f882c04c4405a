"""Modules that a model wrote: played on the target's tools, admitted, and run in the sandbox alone."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from pytest_trace2evolve.environments import admission
from pytest_trace2evolve.environments.admission import admit
from pytest_trace2evolve.environments.environment import ScenarioEnvironment
from pytest_trace2evolve.environments.generated import ModuleRecord, make_offer, plain_trace, save_module
from pytest_trace2evolve.environments.registry import Environments
from pytest_trace2evolve.environments.sandbox.box import isolation_problem
from pytest_trace2evolve.errors import GeneratorError
from pytest_trace2evolve.records.environment import AdmissionReport
from pytest_trace2evolve.records.message import Message
from pytest_trace2evolve.records.protocols import Generator
from pytest_trace2evolve.utils.canonical import digest_text
from pytest_trace2evolve.worlds.registry import Worlds
from tests.environments.parcel import GOOD, NAME, spoiled

pytestmark = pytest.mark.skipif(
    bool(isolation_problem()), reason=f"this platform cannot isolate code: {isolation_problem()}"
)

SUPPORT = ("trace2evolve", "support")


@pytest.fixture(scope="module")
def environments() -> Iterator[Environments]:
    with closing(Environments({NAME: make_offer(NAME, GOOD, "traces parcels", SUPPORT, Worlds())})) as found:
        yield found


@pytest.mark.parametrize("difficulty", [1, 5])
def test_a_module_plays_on_the_targets_own_tools(environments: Environments, difficulty: int) -> None:
    generator = environments.generator(NAME, difficulty)
    task = generator.scenario(3)
    assert generator.scenario(3) == task
    results = [one for one in task.history if one.role == "tool"]
    session = Worlds().open(*SUPPORT).open()
    session.initialise(task.initial_state)
    calls = [call for one in task.history for call in one.tool_calls or ()]
    assert [one.content for one in results] == [
        session.call(call.name, call.arguments, "assistant").content for call in calls
    ]
    environment = ScenarioEnvironment(generator, Worlds().open(*SUPPORT))
    environment.reset(3)
    for action in task.actions[len(calls) :]:
        assert environment.reward() in (0.0, 0.2)
        environment.step(
            Message.model_validate(
                {
                    "role": "assistant",
                    "tool_calls": [{"id": "c", "name": action.name, "arguments": action.arguments}],
                }
            )
        )
    criteria = task.evaluation_criteria
    assert criteria is not None
    [answer] = criteria.communicate_info or []
    assert environment.step(Message(role="assistant", content=f"It is {answer}.")).done
    assert environment.reward() == 1.0


@pytest.mark.parametrize(
    ("source", "what", "told_is"),
    [
        (
            "def scenario(seed, difficulty):\n    return {'tables': 3}\n",
            "scenario",
            "environment 'parcel_tracing': scenario(2, 1) is invalid: tables: Input should be a valid",
        ),
        (
            spoiled('"turns": [', '"turns": [] and ['),
            "scenario",
            "environment 'parcel_tracing': scenario(2, 1) is invalid: turns: Tuple should have at least 1",
        ),
        (
            spoiled("return 1.0 if message and solved else 0.2", "return 0.3"),
            "grade",
            "environment 'parcel_tracing': the reward must be one of 0.0, 0.2, 0.5, 0.8, 1.0, got 0.3",
        ),
        (
            spoiled("return 1.0 if message and solved else 0.2", "return message and solved"),
            "grade",
            "environment 'parcel_tracing': the reward must be one of 0.0, 0.2, 0.5, 0.8, 1.0, got False",
        ),
        (
            spoiled('return [{"agent": "Your', 'return [{"customer": "Your'),
            "shortcut",
            "environment 'parcel_tracing': shortcut must not contain a step of the customer",
        ),
        (
            spoiled('return [{"agent": "Your', 'return [{"agents": "Your'),
            "shortcut",
            "environment 'parcel_tracing': shortcut must return a list of steps: ",
        ),
    ],
)
def test_what_is_no_scenario_grade_or_shortcut_is_refused_by_name(
    source: str, what: str, told_is: str
) -> None:
    with closing(Environments({NAME: make_offer(NAME, source, "", SUPPORT, Worlds())})) as found:
        generator = found.generator(NAME, 1)
        with pytest.raises(GeneratorError) as caught:
            _ask(generator, what)
    assert str(caught.value).startswith(told_is)


def _ask(generator: Generator, what: str) -> None:
    """Ask for a scenario, for its shortcut, or for the grade of the expert's last reading."""
    task = generator.scenario(1)
    if what == "shortcut":
        generator.shortcut(task)
    read = next(one for one in reversed(task.actions) if one.name == "get_order_details")
    call = {"id": "c", "name": read.name, "arguments": read.arguments}
    made = Message.model_validate({"role": "assistant", "tool_calls": [call]})
    generator.grade(task, [*task.history, made], solved=False)


def test_a_trace_is_handed_over_as_plain_data() -> None:
    trace = [
        Message.model_validate(
            {"role": "assistant", "tool_calls": [{"id": "c", "name": "find", "arguments": {"a": 1}}]}
        ),
        Message(role="tool", id="c", content="Error: no", error=True),
    ]
    assert plain_trace(trace) == [
        {
            "role": "assistant",
            "content": "",
            "calls": [{"name": "find", "arguments": {"a": 1}}],
            "error": False,
        },
        {"role": "tool", "content": "", "calls": [], "error": True},
    ]


def admitted(source: str) -> AdmissionReport:
    """The report on a few scenarios of a module."""
    with closing(Environments({NAME: make_offer(NAME, source, "", SUPPORT, Worlds())})) as found:
        return admit(found, NAME, seeds=3, first_seed=77)


@pytest.fixture(autouse=True)
def _few_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "SEEDS_IN_NEW_PROCESS", 3)


RANDOM = '    drawn = random.Random(f"parcel/{seed}")\n'


@pytest.mark.parametrize(
    ("source", "check", "told_is"),
    [
        (
            GOOD.replace(RANDOM, '    drawn = random.Random(f"{scenario}/{seed}")\n'),  # its address
            "same seed, new process",
            "a different scenario or grade in a new process, first: seed ",
        ),
        (
            spoiled('"users": {user_id: user},', '"users": {},'),
            "scenarios can be played",
            "",
        ),
        (
            spoiled('            "orders": {one["order_id"]: one for one in orders},\n', ""),
            "scenarios can be played",
            "",
        ),
        (
            spoiled('        "goal": {\n', '        "goal": {\n            "pad": "x" * 300_000,\n'),
            "scenarios can be played",
            "characters of JSON, but the limit is 200,000",
        ),
    ],
)
def test_modules_that_hang_on_their_process_or_break_their_readers_are_not_admitted(
    source: str, check: str, told_is: str
) -> None:
    report = admitted(source)
    assert not report.passed
    [line] = [one for one in report.checks if one.check == check]
    assert not line.passed
    assert told_is in line.detail


def test_plain_pytest_never_runs_what_a_model_wrote(pytester: pytest.Pytester) -> None:
    source = GOOD + "\nassert 1 == 2, 'it ran outside'\n"
    for name in ("conftest", "test_orders"):
        record = ModuleRecord(
            capability=name,
            description="x",
            source=digest_text(source),
            judge="j",
            prompt="1",
            rounds=1,
            provider="trace2evolve",
            domain="support",
            created_at="2026-11-22",
        )
        save_module(pytester.path, record, source)
    pytester.makepyfile(test_own="def test_own():\n    pass\n")
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=1)
    assert "it ran outside" not in result.stdout.str()
