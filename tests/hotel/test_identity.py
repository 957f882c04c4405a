"""Broken code never turns a verdict green: identity, confirmation and the agent's own exceptions."""

import json

import pytest

from tests.attack.sessions import Sessions
from tests.hotel import HotelProject

BREAK = ("hotel/planning.py", "if action is None:", "if True:")
"""The bot refers every guest away."""

CANCEL = ('{"cancel": "cancel",', '{"cancel": "price",')
"""The bot takes a request to cancel for a question about the price."""


def provenance(hotel: HotelProject) -> dict[str, object]:
    """The provenance that the last run recorded."""
    info = json.loads((hotel.runs[-1] / "results.json").read_text(encoding="utf-8"))["info"]
    found: dict[str, object] = info["trace2evolve"]
    return found


@pytest.mark.parametrize(
    "workers",
    [
        (),
    ],
)
def test_an_agent_that_breaks_after_its_promotion_is_not_promoted_again(
    hotel: HotelProject, workers: tuple[str, ...]
) -> None:
    hotel.baseline("v0")
    command = ("suites", "--candidate=v6", *workers)
    run = hotel.spawn if workers else hotel.run
    run(*command).stdout.fnmatch_lines(["PROMOTE: *"])
    hotel.replace(*BREAK)
    result = run(*command)
    assert result.ret == 10
    result.stdout.fnmatch_lines(
        [
            "*the agent's code differs from the baseline's: hotel/planning.py*",
            "INCONCLUSIVE: *",
        ]
    )


@pytest.mark.parametrize(("broken", "fallen"), [(CANCEL, 3)], ids=["three"])
def test_a_fall_by_broken_code_is_not_cleared_by_the_same_code(
    hotel: HotelProject, broken: tuple[str, str], fallen: int
) -> None:
    hotel.baseline("v6")
    hotel.candidate("v7", hotel.read("candidates/v6.md").split("---\n")[2], parent="v6")
    hotel.replace("hotel/planning.py", *broken)
    result = hotel.run("suites", "--candidate=v7", "--t2e-goal=hold")
    assert result.ret != 0
    note = "*regressed task* not confirmed: the agent's code changed since baseline 'v6' was saved (hotel/*"
    result.stdout.fnmatch_lines([note])
    (verdict,) = hotel.verdict["suites"]["hotel"]["verdicts"]
    assert verdict["tasks"]["suspected"] == verdict["tasks"]["broken"]
    assert len(verdict["tasks"]["broken"]) == fallen


@pytest.mark.parametrize(
    "workers",
    [
        (),
    ],
)
def test_an_exception_of_the_agent_fails_its_task_and_shows_where(
    hotel: HotelProject, workers: tuple[str, ...]
) -> None:
    hotel.replace("hotel/agent.py", "plan = Planner(", 'plan = {}["B-1077"] or Planner(')
    run = hotel.spawn if workers else hotel.run
    result = run("suites", "--candidate=v6", "--t2e-gate=off", *workers)
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        ["*0 of 4 trials passed*", "the agent raised KeyError", "*hotel/agent.py*in answer*"]
    )
    simulations = hotel.simulations()
    assert {item.termination_reason for item in simulations} == {"agent_error"}
    assert {(item.reward_info or {})["reward"] for item in simulations} == {0.0}
    errors = [item.agent_error for item in simulations]
    assert {error and error.text for error in errors} == {"KeyError: 'B-1077'"}
    assert all(error and error.frames for error in errors)
    text = result.stdout.str()
    sealed = text[text.index("heldout::") : text.index("discovery::", text.index("heldout::"))]
    assert "B-1077" not in sealed.replace('{}["B-1077"]', ""), "the message of a sealed split stays unread"


@pytest.mark.parametrize(
    ("raised", "error"),
    [("return Bot(candidate.nothing), 1", "AttributeError"), ('raise SystemExit("no key")', "SystemExit")],
)
def test_a_factory_that_raises_fails_its_tasks(hotel: HotelProject, raised: str, error: str) -> None:
    hotel.replace("hotel/agent.py", "return Bot(candidate.instruction), Guest(task)", raised)
    result = hotel.run("suites", "--candidate=v6", "--t2e-gate=off")
    assert result.ret == 1
    result.stdout.fnmatch_lines([f"the agent raised {error}*", "*in make_bot*"])
    result.stdout.fnmatch_lines(
        [f"*the code of its user cannot be identified (the factory of its agent raised {error})*"]
    )
    assert {item.termination_reason for item in hotel.simulations()} == {"agent_error"}


@pytest.mark.parametrize(
    ("raised", "reason"),
    [
        ('ValueError("\\ud800\\x1b" * 3_000)', "agent_error"),
        ('ExceptionGroup("", [ConnectionError("gone"), TimeoutError("late")])', "infrastructure_error"),
    ],
)
def test_an_odd_exception_of_the_agent_is_told_apart(hotel: HotelProject, raised: str, reason: str) -> None:
    hotel.replace("hotel/agent.py", "plan = Planner(", f"raise {raised}\n        plan = Planner(")
    result = hotel.run("suites", "--candidate=v6", "--t2e-gate=off")
    assert {item.termination_reason for item in hotel.simulations()} == {reason}
    assert result.ret == (1 if reason == "agent_error" else 10)
    assert "\x1b" not in result.stdout.str()
    assert all(len(item.error_text) < 2_100 for item in hotel.simulations())


def test_an_agent_and_its_user_name_themselves(hotel: HotelProject) -> None:
    hotel.run("suites", "--candidate=v6", "--t2e-gate=off")
    recorded = provenance(hotel)
    agent, user, world = recorded["agent"], recorded["user"], recorded["world"]
    assert isinstance(agent, dict)
    assert isinstance(user, dict)
    assert isinstance(world, dict)
    assert (agent["implementation"], user["implementation"]) == ("bot", "guest")
    assert {"hotel/agent.py", "hotel/planning.py", "hotel/prompt.md"} <= agent["code"]["files"].keys()
    assert "hotel/user.py" in user["code"]["files"]
    assert "hotel/agent.py" not in {**user["code"]["files"], **world["files"]}


def test_a_fingerprint_replaces_the_code(hotel: HotelProject) -> None:
    hotel.write("hotel/agent.py", hotel.read("hotel/agent.py") + '\n\nmake_bot.fingerprint = "bot 1"\n')
    hotel.baseline("v0")
    hotel.run("suites", "--candidate=v6").stdout.fnmatch_lines(["PROMOTE: *"])
    agent = provenance(hotel)["agent"]
    assert isinstance(agent, dict)
    assert agent["code"]["fingerprint"] == "bot 1"
    assert agent["code"]["files"] == {}


def test_a_world_of_a_nested_conftest_is_the_same_in_each_import_mode(
    hotel: HotelProject, sessions: Sessions
) -> None:
    world = (
        "from hotel.world import HotelWorld\n\n\ndef open_world(domain):\n    return HotelWorld(domain)\n\n\n"
    )
    hooks = hotel.read("conftest.py").partition("\n\n\n")[2].replace(": HotelWorld", ": open_world")
    hotel.write("suites/conftest.py", f"from hotel.agent import make_bot, make_idle\n{world}{hooks}")
    (hotel.root / "conftest.py").unlink()
    hotel.write("pytest.ini", "[pytest]\npythonpath = .\n")
    assert hotel.fork("trace2evolve", "lock").status == 0
    done = hotel.fork("pytest", "suites", "--candidate=v6", "--t2e-gate=off", "--import-mode=importlib")
    assert done.status == 0, done.text
