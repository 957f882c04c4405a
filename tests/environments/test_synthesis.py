"""Synthesis of an environment: what a model writes is tried, kept, and used in the sandbox alone."""

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from pytest_trace2evolve.cli.main import main
from pytest_trace2evolve.environments import synthesize as synthesis
from pytest_trace2evolve.environments.admit import admit
from pytest_trace2evolve.environments.generated import GeneratedGenerator, told
from pytest_trace2evolve.environments.generated_store import Synthesized, keep_module, offer_of
from pytest_trace2evolve.environments.registry import Environments, played
from pytest_trace2evolve.environments.sandbox.box import missing
from pytest_trace2evolve.errors import GeneratorError
from pytest_trace2evolve.judges.environments import read_module
from pytest_trace2evolve.records.message import Message
from pytest_trace2evolve.records.protocols import Generator
from pytest_trace2evolve.records.task import Content
from pytest_trace2evolve.testing import ChatServer, Reply
from pytest_trace2evolve.testing.server import ChatRequest
from pytest_trace2evolve.utils.canonical import digest_text
from pytest_trace2evolve.worlds.registry import Worlds

pytestmark = pytest.mark.skipif(bool(missing()), reason=f"this platform cannot isolate code: {missing()}")

GOOD = (Path(__file__).parent / "modules" / "parcel_tracing.py").read_text(encoding="utf-8")
NAME = "parcel_tracing"
WORLD = Worlds().open("trace2evolve", "support")


@pytest.fixture(scope="module")
def environments() -> Iterator[Environments]:
    with closing(Environments({NAME: offer_of(NAME, GOOD, "traces parcels", WORLD)})) as found:
        yield found


def spoiled(old: str, new: str) -> str:
    assert old in GOOD
    return GOOD.replace(old, new)


@pytest.mark.parametrize("difficulty", range(1, 6))
def test_a_module_plays_on_the_targets_own_tools(environments: Environments, difficulty: int) -> None:
    generator = environments.generator(NAME, difficulty)
    task = generator.scenario(3)
    assert generator.scenario(3) == task
    results = [one for one in task.history if one.role == "tool"]
    session = WORLD.open()
    session.initialise(task.initial_state)
    calls = [call for one in task.history for call in one.tool_calls or ()]
    assert [one.content for one in results] == [
        session.call(call.name, call.arguments, "assistant").content for call in calls
    ]
    environment = played(generator, WORLD)
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


def test_held_out_scenarios_are_other_ones(environments: Environments) -> None:
    train, held = (environments.generator(NAME, 1, content) for content in Content)
    assert train.digest != held.digest
    texts = {train.scenario(seed).model_dump_json() for seed in range(5)}
    assert not texts & {held.scenario(seed).model_dump_json() for seed in range(5)}


def test_a_scenario_that_was_forgotten_is_graded_all_the_same(environments: Environments) -> None:
    generator = environments.generator(NAME, 1)
    assert isinstance(generator, GeneratedGenerator)
    task = generator.scenario(5)
    generator._goals.clear()
    assert generator.grade(task, [], solved=False) == 0.0
    assert [one.content for one in generator.shortcut(task)] == [
        "Your parcel is on its way; the tracking number is in your mail."
    ] * 3


@pytest.mark.parametrize(
    ("source", "what", "told_is"),
    [
        (
            "def scenario(seed, difficulty):\n    return {'tables': 3}\n",
            "scenario",
            "environment 'parcel_tracing': scenario(2, 1) is none: tables: Input should be a valid",
        ),
        (
            spoiled('"turns": [', '"turns": [] and ['),
            "scenario",
            "environment 'parcel_tracing': scenario(2, 1) is none: turns: Tuple should have at least 1 item",
        ),
        (
            spoiled("return 1.0 if told and solved else 0.2", "return 0.3"),
            "grade",
            "environment 'parcel_tracing': a reward of 0.3; one of 0.0, 0.2, 0.5, 0.8, 1.0 is wanted",
        ),
        (
            spoiled("return 1.0 if told and solved else 0.2", "return told and solved"),
            "grade",
            "environment 'parcel_tracing': a reward of False; one of 0.0, 0.2, 0.5, 0.8, 1.0 is wanted",
        ),
        (
            spoiled('return [{"agent": "Your', 'return [{"customer": "Your'),
            "shortcut",
            "environment 'parcel_tracing': in shortcut the customer speaks",
        ),
        (
            spoiled('return [{"agent": "Your', 'return [{"agents": "Your'),
            "shortcut",
            "environment 'parcel_tracing': shortcut is no list of steps: ",
        ),
    ],
)
def test_what_is_no_scenario_grade_or_shortcut_is_refused_by_name(
    source: str, what: str, told_is: str
) -> None:
    with closing(Environments({NAME: offer_of(NAME, source, "", WORLD)})) as found:
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
    assert told(trace) == [
        {
            "role": "assistant",
            "content": "",
            "calls": [{"name": "find", "arguments": {"a": 1}}],
            "error": False,
        },
        {"role": "tool", "content": "", "calls": [], "error": True},
    ]


RANDOM = '    drawn = random.Random(f"parcel/{seed}")\n'


@pytest.mark.parametrize(
    ("source", "check", "told_is"),
    [
        (
            GOOD.replace(RANDOM, '    drawn = random.Random(f"{scenario}/{seed}")\n'),  # its address
            "same seed, new process",
            "another scenario or grade there",
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
            "letters of JSON, 200,000 are allowed",
        ),
    ],
)
def test_modules_that_hang_on_their_process_or_break_their_readers_are_not_admitted(
    source: str, check: str, told_is: str
) -> None:
    with closing(Environments({NAME: offer_of(NAME, source, "", WORLD)})) as found:
        report = admit(found, NAME, seeds=10, first=77)
    assert not report.passed
    [line] = [one for one in report.checks if one.check == check]
    assert not line.passed
    assert told_is in line.detail


@pytest.mark.parametrize(
    "source",
    [
        spoiled("def scenario(seed, difficulty):", "MADE = []\n\n\ndef scenario(seed, difficulty):").replace(
            RANDOM, '    MADE.append(seed)\n    drawn = random.Random(f"{len(MADE)}/{seed}")\n'
        ),
        spoiled("def grade(", "ASKED = []\n\n\ndef grade(").replace(
            "    own = trace[",
            "    ASKED.append(1)\n    if len(ASKED) > 1:\n        return 1.0\n    own = trace[",
        ),
    ],
    ids=["scenario", "grade"],
)
def test_a_module_has_no_past_to_hang_on(source: str) -> None:
    with closing(Environments({NAME: offer_of(NAME, source, "", WORLD)})) as found:
        assert admit(found, NAME, seeds=10, first=77).passed


def test_plain_pytest_never_runs_what_a_model_wrote(pytester: pytest.Pytester) -> None:
    source = GOOD + "\nassert 1 == 2, 'it ran outside'\n"
    for name in ("conftest", "test_orders"):
        record = Synthesized(
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
        keep_module(pytester.path, record, source)
    pytester.makepyfile(test_own="def test_own():\n    pass\n")
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=1)
    assert "it ran outside" not in result.stdout.str()


@pytest.mark.parametrize(
    ("answer", "module"),
    [
        (
            "Here it is:\n```python\nx = 1\n```\nand ```py\ndef scenario(): pass\n```",
            "def scenario(): pass\n",
        ),
        ("def scenario(seed, difficulty): ...", "def scenario(seed, difficulty): ...\n"),
        ("I would rather not.", ""),
        ("```python\n\n```", ""),
        (None, ""),
    ],
)
def test_the_module_of_an_answer(answer: str | None, module: str) -> None:
    assert read_module(answer) == module


# --- the whole command: a judge and a base model on loopback


def block(source: str) -> str:
    return f"Here is the module.\n```python\n{source}```\n"


def scripted(answers: list[str]) -> Callable[[ChatRequest], Reply]:
    """A judge that gives its answers in turn, and a base model that solves every second rollout."""
    left = iter(answers)

    def reply(request: ChatRequest) -> Reply:
        if request.model == "writer":
            return Reply(next(left))
        return _base(request)

    return reply


def _base(request: ChatRequest) -> Reply:
    """Reads the last order, and tells the number that it finds there, or another one, as the seed has it."""
    results = [str(one["content"]) for one in request.messages if one["role"] == "tool"]
    account = next(json.loads(one) for one in results if '"orders"' in one)
    read = [json.loads(one) for one in results if '"order_id"' in one]
    if int(request.body["seed"]) % 2:
        return Reply("It is in your mail.")
    if len(read) < len(account["orders"]):
        return Reply(tool_calls=(("get_order_details", {"order_id": account["orders"][len(read)]}),))
    wanted = str(next(one for one in request.messages if one["role"] == "user")["content"])
    meant = next(one for one in read if any(item["name"] in wanted for item in one["items"]))
    return Reply(f"Its number is {meant['fulfillments'][0]['tracking_id'][0]}.")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "suites").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    # Enough for the checks of wrong ways; those of luck want more, and are tested where they are made.
    monkeypatch.setattr(synthesis, "SEEDS", 60)
    return tmp_path


def synthesize(server: ChatServer, *more: str) -> int:
    return main(
        [
            *("environment", "synthesize", NAME, "--judge", "writer", "--judge-base-url", server.base_url),
            *("--model", "base", "--base-url", server.base_url, "--seeds", "6", "--rollouts", "4"),
            *("--difficulty", "1", "--description", "Finds the parcel that is meant.", *more),
        ]
    )


def test_a_module_is_mended_until_it_holds_and_then_used_like_any_other(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = [
        block("import os\n" + GOOD),
        block(spoiled("return 1.0 if told and solved else 0.2", "return 1.0")),
        block(GOOD),
    ]
    with ChatServer(scripted(answers)) as server:
        assert synthesize(server) == 0
        asked = [one for one in server.requests if one["model"] == "writer"]
    captured = capsys.readouterr()
    rounds = [line for line in captured.err.splitlines() if line.startswith("round")]
    assert "line 1" in rounds[0]
    assert "os" in rounds[0]
    assert "unpaid: " in rounds[1] or "expert" in rounds[1]
    assert rounds[2] == "round 3: admitted, and calibrated"
    assert "admitted in round 3, calibrated at difficulty 1 (mean reward 0." in captured.out
    assert len(asked) == 3
    assert "os" in str(asked[1]["messages"][-1]["content"])
    assert len(asked[2]["messages"]) == 4, "the first request, the last module, and what is wrong with it"
    kept = project / ".trace2evolve" / "synthesis" / NAME
    assert sorted(path.name for path in kept.iterdir()) == [
        f"round-{number}.{end}" for number in (1, 2, 3) for end in ("json", "py.txt")
    ]
    assert (kept / "round-1.py.txt").read_text().startswith("import os")
    module = project / "environments" / "generated" / f"{NAME}.py.txt"
    assert module.read_text(encoding="utf-8") == GOOD
    assert main(["environment", "list", "--json"]) == 0
    listed = {one["capability"]: one for one in json.loads(capsys.readouterr().out)}
    assert listed[NAME]["pays"] == "Finds the parcel that is meant."
    assert main(["environment", "check", NAME, "--seeds", "20"]) == 0
    module.write_text(GOOD.replace("0.2", "0.5"), encoding="utf-8")
    capsys.readouterr()
    assert main(["environment", "list"]) == 2
    assert capsys.readouterr().err.startswith(
        f"trace2evolve: {module}: is not what was admitted; bring it back"
    )


def test_where_every_round_fails_all_modules_are_kept_and_none_is_admitted(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = ["I would rather not.", block("def scenario(seed, difficulty):\n    return {}\n")]
    with ChatServer(scripted(answers)) as server:
        assert synthesize(server, "--rounds", "2", "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert found["module"] is None
    assert found["rounds"][0]["problems"] == ["the answer holds no module: one ```python block is wanted"]
    assert any("is none: tables: Field required" in one for one in found["rounds"][1]["problems"])
    assert not (project / "environments").exists()


def test_a_module_that_is_too_easy_or_too_hard_is_no_use(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def reply(request: ChatRequest) -> Reply:
        return Reply(block(GOOD) if request.model == "writer" else "I do not know.")

    with ChatServer(reply) as server:
        assert synthesize(server, "--rounds", "1", "--json") == 1
    [one] = json.loads(capsys.readouterr().out)["rounds"]
    assert one["problems"][0].startswith("calibration at difficulty 1: mean")


@pytest.mark.parametrize(
    ("arguments", "told_is"),
    [
        (["teleportation"], "'teleportation' is not in the dictionary (precondition_verification, "),
        (["Not Snake", "--description", "x"], "'Not Snake' is no name of a capability: name: "),
        ([NAME, "--description", "x", "--rounds", "0"], "--rounds 0: must be 1 or more"),
        ([NAME, "--description", "x", "--seeds", "-3"], "--seeds -3: must be 2 or more"),
        ([NAME, "--description", "x", "--concurrency", "0"], "--concurrency 0: must be 1 or more"),
        ([NAME, "--description", "x", "--difficulty", "9"], "--difficulty 9: must be from 1 to 5"),
        (["tool_calling_precision"], "'tool_calling_precision' has a built-in environment: see "),
        ([NAME, "--description", "x", "--from-run", "nowhere"], "'nowhere' is no path and no run in "),
    ],
)
def test_bad_input_is_one_line(
    project: Path, arguments: list[str], told_is: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["environment", "synthesize", *arguments, "--judge", "writer"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"trace2evolve: {told_is}")
