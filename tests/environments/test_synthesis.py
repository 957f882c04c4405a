"""Synthesis of an environment: the whole command, with a judge and a base model on loopback."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_trace2evolve.cli.main import main
from pytest_trace2evolve.environments import admission, synthesis
from pytest_trace2evolve.environments.sandbox.box import isolation_problem
from pytest_trace2evolve.project.adapters import Adapters
from pytest_trace2evolve.testing import ChatServer, Reply
from pytest_trace2evolve.testing.server import ChatRequest
from pytest_trace2evolve.utils.resources import embedded_model
from pytest_trace2evolve.worlds.inspect_evals import InspectWorld
from tests.environments.parcel import GOOD, NAME, spoiled

REPOSITORY = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(
    bool(isolation_problem()), reason=f"this platform cannot isolate code: {isolation_problem()}"
)


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
    # Enough for the checks of wrong ways; those of luck need more, and are tested with the admission.
    monkeypatch.setattr(synthesis, "SEEDS", 4)
    monkeypatch.setattr(admission, "SEEDS_IN_NEW_PROCESS", 2)
    return tmp_path


def synthesize(server: ChatServer, *more: str, capability: str = NAME) -> int:
    return main(
        [
            *(
                "environment",
                "synthesize",
                capability,
                "--writer",
                "writer",
                f"-ot2e_writer_base_url={server.base_url}",
            ),
            *("--model", "base", "--base-url", server.base_url, "--seeds", "3", "-ot2e_rollouts=2"),
            *("--difficulty", "1", "--description", "Finds the parcel that is meant.", *more),
        ]
    )


def test_a_module_is_mended_until_it_holds_and_then_used_like_any_other(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = [
        block("import os\n" + GOOD),
        block(spoiled("return 1.0 if message and solved else 0.2", "return 1.0")),
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
    assert rounds[2] == "round 3: admitted and calibrated"
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
    assert main(["environment", "check", NAME, "--seeds", "2"]) == 0
    module.write_text(GOOD.replace("0.2", "0.5"), encoding="utf-8")
    capsys.readouterr()
    assert main(["environment", "list"]) == 2
    assert capsys.readouterr().err.startswith(
        f"trace2evolve: {module}: has changed since it was admitted; restore it"
    )


def test_where_every_round_fails_all_modules_are_kept_and_none_is_admitted(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = ["I would rather not.", block("def scenario(seed, difficulty):\n    return {}\n")]
    with ChatServer(scripted(answers)) as server:
        assert synthesize(server, "-ot2e_rounds=2", "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert found["module"] is None
    assert found["rounds"][0]["problems"] == ["the answer has no module: write one ```python block"]
    assert any("is invalid: tables: Field required" in one for one in found["rounds"][1]["problems"])
    assert not (project / "environments").exists()


def other_world(name: str, project: Path) -> str:
    """A suite in another world than the support world; returns the capability of its module."""
    if name == "airline":
        shutil.copy(REPOSITORY / "suites" / "tau2-airline.toml", project / "suites")
        assert main(["lock", "tau2-airline"]) == 0
        return "trip_baggage"
    shutil.copytree(REPOSITORY / "tests" / "hotel_story" / "project", project, dirs_exist_ok=True)
    return "stay_moving"


def _right_change(request: ChatRequest) -> Reply:
    """Makes the change of the scenario of a module in `modules`, or declines, as the seed has it."""
    if int(request.body["seed"]) % 2:
        return Reply("I cannot do that.")
    text = next(str(one["content"]) for one in request.messages if one["role"] == "user")
    read = [json.loads(str(one["content"])) for one in request.messages if one["role"] == "tool"]
    if "arrival" in read[-1]:
        call = next(one for one in request.messages[::-1] if one.get("tool_calls"))["tool_calls"][0]
        given = json.loads(call["function"]["arguments"])
        return Reply(tool_calls=(("move_booking", {**given, "arrival": text.split(" to ")[1][:10]}),))
    bags = next(int(word) for word in text.split() if word.isdigit())
    total = int(read[-1]["total_baggages"]) + bags
    given = {
        "reservation_id": read[-1]["reservation_id"],
        "payment_id": next(iter(read[0]["payment_methods"])),
    }
    change = {**given, "total_baggages": total, "nonfree_baggages": total}
    return Reply(tool_calls=(("update_reservation_baggages", change),))


@pytest.mark.parametrize("name", ["airline", "hotel"])
def test_an_environment_of_another_world_has_its_tools_and_records(
    name: str, project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is written, admitted and calibrated, listed, checked again, and trained on for two steps."""
    capability = other_world(name, project)
    suite = "tau2-airline" if name == "airline" else "hotel"
    module = (Path(__file__).parent / "modules" / f"{capability}.py").read_text(encoding="utf-8")
    reply = lambda request: Reply(block(module)) if request.model == "writer" else _right_change(request)  # noqa: E731
    with ChatServer(reply) as server:
        assert synthesize(server, "--suite", suite, capability=capability) == 0, capsys.readouterr()
        asked = next(str(one["messages"]) for one in server.requests if one["model"] == "writer")
    assert ("update_reservation_baggages" if name == "airline" else "move_booking") in asked
    record = json.loads((project / "environments" / "generated" / f"{capability}.json").read_text())
    world = ("inspect_evals", "airline") if name == "airline" else ("app.hotel:world", "hotel")
    assert (record["provider"], record["domain"]) == world
    assert main(["environment", "check", capability, "--seeds", "2"]) == 0
    if name == "airline":
        sealed = InspectWorld("airline").tasks()["45"].model_dump_json()
        customers = set(re.findall(r"[a-z]+_[a-z]+_\d{4}", sealed))
        assert customers
        assert not any(customer in asked for customer in customers)
    # The embedded model's context is shorter than the policy and the tools of the airline.
    base = project / "base"
    shutil.copytree(embedded_model(), base)
    config = json.loads((base / "config.json").read_text()) | {"max_position_embeddings": 16384}
    (base / "config.json").write_text(json.dumps(config))
    recipe = project / "recipe.toml"
    recipe.write_text("groups = 1\nrollouts = 2\nsteps = 2\nthreads = 1\nanswer_tokens = 8\n")
    command = ["train", "--capability", capability, "--config", str(recipe), "--heldout", "0"]
    assert main([*command, "--base", str(base)]) == 0
    assert Adapters(project / "adapters")[capability].manifest.steps == 2


def test_a_world_that_takes_no_records_has_no_environment(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "desk_server.py").write_text(
        "from pytest_trace2evolve import World\nworld = World.from_mcp('server', name='desk')\n"
    )
    (project / "tasks.yaml").write_text("- {id: t, user: {goal: Help me.}, expect: {says: [Hi]}}\n")
    (project / "suites" / "desk.toml").write_text('world = "desk_server:world"\ntasks = "tasks.yaml"\n')
    given = ["environment", "synthesize", NAME, "--writer", "w", "--description", "x", "--suite", "desk"]
    assert main(given) == 2
    assert capsys.readouterr().err.startswith(
        "trace2evolve: no environment can be written for desk_server (provider desk_server:world): "
        "world 'desk' has no tool that returns its database"
    )


@pytest.mark.parametrize(
    ("arguments", "told_is"),
    [
        (["teleportation"], "'teleportation' has no description: pass --description"),
        (["Not Snake", "--description", "x"], "'Not Snake' is not a valid capability name: name: "),
        (
            [NAME, "--description", "x", "-ot2e_rounds=0"],
            "t2e_rounds: '0' is not a whole number",
        ),
        ([NAME, "--description", "x", "--seeds", "-3"], "--seeds -3: must be 2 or more"),
        ([NAME, "--description", "x", "--difficulty", "9"], "--difficulty 9: must be from 1 to 5"),
        (["tool_calling_precision"], "'tool_calling_precision' has a built-in environment: see "),
        ([NAME, "--description", "x", "--from-run", "nowhere"], "'nowhere' is neither a path nor a run in "),
    ],
)
def test_bad_input_is_one_line(
    project: Path, arguments: list[str], told_is: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["environment", "synthesize", *arguments, "--writer", "writer"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"trace2evolve: {told_is}")
