"""`trace2evolve export`: other tools read the run's figures, and nothing sealed leaves."""

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_trace2evolve.cli.main import main
from pytest_trace2evolve.importing.conversation import Conversation
from pytest_trace2evolve.importing.readers import read_conversations
from pytest_trace2evolve.records.message import STOP_MARK
from pytest_trace2evolve.utils.reading import parse_json
from tests.plugin.conftest import DeskProject
from tests.plugin.test_failures import PLANTED, accesses, vault


def export(project: DeskProject, form: str, *options: str) -> list[Path]:
    """The files of an export of the last run."""
    folder = project.root / f"{form}-export"
    command = ["export", form, project.runs[-1].name, "--output", str(folder), "--root", str(project.root)]
    assert main([*command, *options]) == 0
    return sorted(folder.iterdir())


def rewards(project: DeskProject) -> dict[str, float]:
    """The rewards of the last run by task."""
    files = (project.runs[-1] / "simulations").glob("*.json")
    contents = [json.loads(path.read_text(encoding="utf-8")) for path in files]
    return {content["task_id"]: content["reward_info"]["reward"] for content in contents}


@pytest.fixture
def measured(project: DeskProject) -> DeskProject:
    project.baseline()
    project.after("--candidate=v1")
    return project


def test_tables_hold_the_figures_of_the_run(measured: DeskProject) -> None:
    pandas = pytest.importorskip("pandas")
    messages, simulations = (pandas.read_csv(path) for path in export(measured, "csv"))
    assert dict(zip(simulations.task, simulations.reward, strict=True)) == rewards(measured)
    assert set(simulations.candidate) == {"v1"}
    assert set(simulations.splits) == {"discovery", "heldout"}
    open_tasks = set(simulations[simulations.splits == "discovery"].task)
    assert set(messages.task) == open_tasks
    assert set(simulations[~simulations.sealed].task) == open_tasks


def test_inspect_reads_the_log(measured: DeskProject) -> None:
    log_module = pytest.importorskip("inspect_ai.log")
    (path,) = export(measured, "inspect")
    (info,) = log_module.list_eval_logs(str(path.parent))
    log = log_module.read_eval_log(info)
    expected = rewards(measured)
    assert {sample.id: sample.scores["reward"].value for sample in log.samples} == expected
    (score,) = log.results.scores
    assert score.metrics["mean"].value == pytest.approx(sum(expected.values()) / len(expected))
    assert log_module.read_eval_log(info, header_only=True).results == log.results
    assert log.eval.task == "desk"


def turns(path: Path) -> list[Any]:
    """The turns of each conversation of a log, without ids and the mark at which a user stops."""
    _, items = read_conversations(path)
    found = [item for item in items if isinstance(item, Conversation)]
    return sorted(
        [
            [
                (turn.role, turn.text.replace(STOP_MARK, "").strip(), turn.content[2], turn.error)
                for turn in item.turns
            ]
            for item in found
        ],
        key=repr,
    )


def test_imports_of_exports_are_the_run(measured: DeskProject) -> None:
    folder = measured.runs[-1] / "simulations"
    messages = [
        [
            message
            for message in json.loads(path.read_text(encoding="utf-8"))["messages"]
            if (message["role"], message.get("requestor")) != ("tool", "user")  # tools of the customer
            and (message["role"] != "user" or message.get("content") not in (None, STOP_MARK))
        ]
        for path in folder.glob("*.json")
    ]
    log = measured.root / "chats.json"
    log.write_text(json.dumps(messages), encoding="utf-8")
    for form in ("inspect", "otel"):
        (path,) = export(measured, form, "--sealed")
        assert turns(path) == turns(log)


def test_spans_follow_the_conventions(measured: DeskProject) -> None:
    (path,) = export(measured, "otel", "--sealed")
    scopes = [
        scope for group in parse_json(path.read_bytes())["resourceSpans"] for scope in group["scopeSpans"]
    ]
    spans = [span for scope in scopes for span in scope["spans"]]
    fields = [
        {pair["key"]: next(iter(pair["value"].values())) for pair in span["attributes"]} for span in spans
    ]
    roots = [own for own in fields if own["gen_ai.operation.name"] == "invoke_agent"]
    assert {own["trace2evolve.task"]: own["trace2evolve.reward"] for own in roots} == rewards(measured)
    tools = [own for own in fields if own["gen_ai.operation.name"] == "execute_tool"]
    assert {"gen_ai.tool.name", "gen_ai.tool.call.id", "gen_ai.tool.call.arguments"} <= tools[0].keys()
    parents = {span["spanId"] for span in spans if "parentSpanId" not in span}
    assert all(span["parentSpanId"] in parents for span in spans if "parentSpanId" in span)
    assert all(int(span["startTimeUnixNano"]) <= int(span["endTimeUnixNano"]) for span in spans)
    assert len({span["spanId"] for span in spans}) == len(spans)


@pytest.mark.parametrize("form", ["inspect", "otel", "csv"])
def test_sealed_traces_leave_only_with_a_recorded_access(
    project: DeskProject, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    vault(project, "heldout", capsys)
    project.run("--candidate=v1", "--t2e-gate=off")
    texts = [path.read_text(encoding="utf-8") for path in export(project, form)]
    assert [word for word in PLANTED if word in "".join(texts)] == []
    assert "vault" in "".join(texts)
    assert list(accesses(project)) == []
    assert "are sealed, so only their figures were exported" in capsys.readouterr().out
    texts = [path.read_text(encoding="utf-8") for path in export(project, form, "--sealed")]
    assert all(word in "".join(texts) for word in ("agentword", "callword", "userword"))
    assert ("heldout", "vault") in list(accesses(project))
