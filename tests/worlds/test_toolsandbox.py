"""ToolSandbox's world, on an export of our own whose tools a stand-in runs."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

from pytest_trace2evolve.cli.main import main
from pytest_trace2evolve.engine.conversation import Limits, converse
from pytest_trace2evolve.errors import WorldError
from pytest_trace2evolve.records.completion import Completion, RequestedCall
from pytest_trace2evolve.records.message import STOP_MARK, Message, ToolCall
from pytest_trace2evolve.records.score import Status
from pytest_trace2evolve.scoring.reward import score
from pytest_trace2evolve.users.chat import PromptedUser, prompts_of
from pytest_trace2evolve.utils.canonical import digest_text
from pytest_trace2evolve.worlds.registry import Worlds
from pytest_trace2evolve.worlds.toolsandbox import process
from pytest_trace2evolve.worlds.toolsandbox.dump import FOLDER_VARIABLE
from pytest_trace2evolve.worlds.toolsandbox.export import suite_text
from pytest_trace2evolve.worlds.toolsandbox.world import ToolSandboxWorld

VARIANTS = (
    "",
    "_3_distraction_tools",
    "_10_distraction_tools",
    "_all_tools",
    *(
        f"_3_distraction_tools_{part}_scrambled"
        for part in ("tool_name", "tool_description", "arg_type", "arg_description")
    ),
)
BASES = [f"lamp_{letter}" for letter in "abcdefghijklmnopqrst"] + ["shop"]
TOOLS = ["set_lamp", "get_lamp", "set_door", "get_door", "find_shop", "end_conversation"]


def said(sender, recipient, content, visible_to=None):
    return {"sender": sender, "recipient": recipient, "content": content, "visible_to": visible_to}


def exact(*names):
    return {name: {"measure": "exact", "tolerance": {}} for name in names}


def constraint(rule="match", table="SANDBOX", reference=None, **row):
    columns = exact(*row)
    if "content" in row:
        columns["content"]["measure"] = "contains"
    if "tool_trace" in row:
        columns["tool_trace"]["measure"] = "calls"
    return {
        "table": table,
        "rule": rule,
        "reference": reference,
        "rows": [row] if row else [],
        "columns": columns,
    }


MILESTONES = {
    "milestones": [
        [constraint(table="SETTING", lamp=True)],
        [
            constraint(sender="AGENT", recipient="USER", content="is on"),
            constraint("unchanged", "SETTING", reference=0),
        ],
    ],
    "order": [0, 1],
    "edges": [[0, 1]],
}
DOOR = json.dumps({"tool_name": "set_door", "arguments": {}})
MINEFIELDS = {
    "milestones": [[constraint(sender="EXECUTION_ENVIRONMENT", recipient="AGENT", tool_trace=DOOR)]],
    "order": [0],
    "edges": [],
}


def dump():
    schemas = [
        {"name": name, "description": name, "parameters": {"type": "object", "properties": {}}}
        for name in [*TOOLS, "setting_0"]
    ]
    base = {
        "messages": [
            said("SYSTEM", "EXECUTION_ENVIRONMENT", "import json"),
            said("SYSTEM", "AGENT", "Ask if anything is unclear."),
            said("SYSTEM", "USER", "You are a user. An example:", ["USER"]),
            said("USER", "AGENT", "Open the door", ["USER"]),
            said("AGENT", "USER", "It is open", ["USER"]),
            said("SYSTEM", "USER", "You want light."),
            said("USER", "AGENT", "Make it bright, please"),
        ],
        "tables": {"SETTING": [{"lamp": False, "door": False}]},
        "milestones": MILESTONES,
        "minefields": MINEFIELDS,
    }

    def tools(name, variant):
        own = (
            ["set_lamp", "get_lamp", "find_shop"] if name == "shop" else ["set_lamp", "get_lamp", "set_door"]
        )
        if variant == "_all_tools":
            own = TOOLS[:5]
        seen = {"set_lamp": "setting_0"} if "tool_name" in variant else {}
        rows = [[seen.get(tool, tool), tool, 6 if tool in seen else TOOLS.index(tool)] for tool in own]
        return {"assistant": rows, "user": [["end_conversation", "end_conversation", 5]]}

    return {
        "bases": dict.fromkeys(BASES, base),
        "scenarios": {
            name + variant: {"base": name, "tools": tools(name, variant), "categories": ["SINGLE_TOOL_CALL"]}
            for name in BASES
            for variant in VARIANTS
        },
        "tools": schemas,
        "network": ["find_shop"],
    }


@pytest.fixture
def folder(tmp_path, monkeypatch):
    text = json.dumps(dump())
    (tmp_path / "scenarios.json").write_text(text)
    manifest = {
        "commit": "c0ffee",
        "clock": 0.0,
        "seed": 0,
        "scenarios": digest_text(text),
        "source": "s",
        "clone": str(tmp_path),
        "python": sys.executable,
    }
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setattr(process, "BRIDGE", Path(__file__).with_name("toy_bridge.py"))
    return tmp_path


@pytest.fixture
def world(folder):
    made = Worlds().open("toolsandbox", "offline")
    yield made
    made._process.close()


class Player:
    def __init__(self, role, *steps):
        self.role, self.steps = role, list(steps)

    async def respond(self, history):
        step = self.steps.pop(0) if self.steps else "Done."
        if isinstance(step, str):
            return Message(role=self.role, content=step)
        calls = [
            ToolCall(id=f"{len(history)}-{number}", name=name, arguments=arguments)
            for number, (name, arguments) in enumerate(step)
        ]
        return Message(role=self.role, tool_calls=calls)


def call(name, **arguments):
    return [(name, arguments)]


def play(world, *steps, task="lamp_a", user=(STOP_MARK,)):
    task = world.tasks()[task]
    agent = Player("assistant", *steps)
    simulation = asyncio.run(
        converse(task, world, agent, Player("user", *user), limits=Limits(max_steps=30, max_errors=1000))
    )
    return simulation, task


def scored(world, *steps, **options):
    return score(*play(world, *steps, **options), world)


ON = call("set_lamp", on=True)


def test_a_simulation_that_reaches_every_milestone_is_perfect(world):
    result = scored(world, ON, "The lamp is on.")
    assert (result.status, result.reward, result.note) == (Status.MEASURED, 1.0, "")
    assert [(match.index, match.similarity, match.message) for match in result.milestones] == [
        (0, 1.0, 2),
        (1, 1.0, 3),
    ]


@pytest.mark.parametrize(
    ("steps", "reward", "kind"),
    [
        (["I cannot do that."], 0.0, "no call at all"),
        ([ON, "Good night."], 0.5, "tool result not reported"),
        (["It is on.", ON, "Bye."], 0.5, "tool result not reported"),
        ([call("get_lamp"), "The lamp is on."], 0.5, "partial"),
        ([call("set_lamp", on=False), "It is on."], 0.5, "no recovery from a tool error"),
        ([ON, call("set_door", on=True), "It is on."], 0.0, "minefield"),
        (
            [call("no_such_tool"), ON, "It is on."],
            0.0,
            "call of 'no_such_tool', a tool that the scenario does not have",
        ),
    ],
)
def test_a_failure_has_a_similarity_and_a_kind(world, steps, reward, kind):
    result = scored(
        world, *steps, user=("Go on.", STOP_MARK) if len(steps) > 1 and "It" in steps[0] else (STOP_MARK,)
    )
    assert (result.reward, result.note) == (reward, kind)


def test_a_network_tool_is_refused_by_name(world, folder):
    name = next(name for name in world.tasks() if name.endswith("_all_tools"))
    simulation, _ = play(world, call("find_shop"), "It is on.", task=name)
    assert simulation.messages[2].content == "PermissionError: the network is not available"
    everything = ToolSandboxWorld("all")
    simulation, task = play(everything, call("find_shop"), "It is on.", task="shop")
    result = score(simulation, task, everything)
    assert result.status is Status.INFRASTRUCTURE_ERROR
    assert result.note == (
        "ToolSandbox's tool 'find_shop' needs RapidAPI: set RAPID_API_KEY or use suite toolsandbox-offline"
    )
    everything._process.close()


class Model:
    def __init__(self, *replies):
        self.replies, self.requests = list(replies), []

    async def complete(self, messages, tools, *, trial=0, tool_choice="auto"):
        self.requests.append((messages, [tool.name for tool in tools]))
        return self.replies.pop(0)


def test_the_user_gets_its_prompts_and_ends_the_conversation_by_its_tool(world):
    task = world.tasks()["lamp_a"]
    model = Model(Completion(tool_calls=(RequestedCall(id="1", name="end_conversation", arguments="{}"),)))
    user = PromptedUser(model, prompts_of(task), world.tools("user"))
    history = [*task.history, Message(role="assistant", content="It is on.")]
    assert asyncio.run(user.respond(history)).content == STOP_MARK
    messages, tools = model.requests[0]
    assert [(message["role"], message["content"]) for message in messages] == [
        ("system", "You are a user. An example:"),
        ("assistant", "Open the door"),
        ("user", "It is open"),
        ("system", "You want light."),
        ("assistant", "Make it bright, please"),
        ("user", "It is on."),
    ]
    assert tools == ["end_conversation"]


def test_an_unknown_domain_is_an_error(folder):
    with pytest.raises(
        WorldError, match="provider 'toolsandbox' has no domain 'online'; it has offline, all"
    ):
        ToolSandboxWorld("online")


def test_without_an_export_one_line_says_how_to_get_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "none"))
    with pytest.raises(WorldError) as caught:
        ToolSandboxWorld("offline")
    assert str(caught.value) == (
        f"ToolSandbox is not exported to {tmp_path / 'none'}: clone https://github.com/apple/ToolSandbox and "
        "`trace2evolve import CLONE --format toolsandbox`"
    )
    (tmp_path / "suites").mkdir()
    (tmp_path / "suites/toolsandbox-offline.toml").write_text(suite_text("offline"))
    assert main(["--root", str(tmp_path), "lock"]) == 2
    assert "ToolSandbox is not exported" in capsys.readouterr().err


def test_a_changed_export_is_refused(folder):
    with (folder / "scenarios.json").open("a") as file:
        file.write("\n")
    with pytest.raises(WorldError, match=r"scenarios.json was changed after its export: clone"):
        ToolSandboxWorld("offline")
