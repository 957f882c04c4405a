"""Full-duplex (voice) results, as tau2 1.0.1 writes them: none is scored or drafted, with one note."""

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_trace2evolve.cli.main import main
from pytest_trace2evolve.records.score import Status
from pytest_trace2evolve.records.trace import FULL_DUPLEX
from pytest_trace2evolve.session.evidence_sources import rescore_files
from pytest_trace2evolve.worlds.registry import Worlds

CHUNK = {"timestamp": "2026-01-01T00:00:00", "is_final_chunk": True, "contains_speech": True}
TICKS: list[dict[str, Any]] = [
    {
        "tick_id": 0,
        "timestamp": "2026-01-01T00:00:00",
        "agent_chunk": {"role": "assistant", "content": "Hello", "utterance_ids": ["u1"], **CHUNK},
        "user_chunk": {"role": "user", "content": "Hi", **CHUNK},
        "agent_tool_calls": [],
        "user_tool_calls": [],
        "agent_tool_results": [],
        "user_tool_results": [],
    },
    {
        "tick_id": 1,
        "timestamp": "2026-01-01T00:00:01",
        "agent_chunk": None,
        "user_chunk": None,
        "agent_tool_calls": [{"id": "1", "name": "get_user_details", "arguments": {"user_id": "x"}}],
        "user_tool_calls": [],
        "agent_tool_results": [{"id": "1", "role": "tool", "content": "no", "requestor": "assistant"}],
        "user_tool_results": [],
    },
]
MESSAGES = [
    {"role": "assistant", "content": "Hello"},
    {"role": "user", "content": "Please cancel my order."},
    {"role": "assistant", "content": "Done."},
    {"role": "user", "content": "###STOP###"},
]


def simulation(name: str, **fields: Any) -> dict[str, Any]:
    record = {"id": name, "task_id": "t", "termination_reason": "user_stop", "mode": "half_duplex"}
    return {**record, "messages": None, "ticks": None, "reward_info": {"reward": 1.0}, **fields}


VOICE = [
    simulation("v0", mode="full_duplex", ticks=TICKS),
    simulation("v1", mode="full_duplex", ticks=TICKS, messages=MESSAGES),
    simulation("v2", mode="full_duplex", ticks=TICKS, termination_reason="max_steps"),
    simulation("v3", mode="full_duplex", ticks=TICKS, termination_reason="infrastructure_error"),
    simulation("v4", mode="full_duplex", ticks=[], messages=MESSAGES),
    simulation("v5", ticks=TICKS, messages=MESSAGES),
    simulation("v6", mode="full_duplex", messages=MESSAGES),
]
OTHER = [{"role": "assistant", "content": "Good day"}, *MESSAGES[1:]]
TEXT = [simulation("x0", messages=MESSAGES), simulation("x1", messages=OTHER, ticks=[])]


def results(path: Path, simulations: list[dict[str, Any]], *, is_folder: bool = False) -> Path:
    """A results file, or a folder, as tau2 writes voice results by default."""
    criteria = {"actions": [], "reward_basis": ["DB"]}
    task = {"id": "t", "user_scenario": {"instructions": {}}, "evaluation_criteria": criteria}
    numbered = [{**record, "trial": number} for number, record in enumerate(simulations)]
    content = {"info": {"environment_info": {"domain_name": "retail"}}, "tasks": [task]}
    if not is_folder:
        path.write_text(json.dumps({**content, "simulations": numbered}), encoding="utf-8")
        return path
    (path / "simulations").mkdir(parents=True)
    index = [{"id": record["id"], "task_id": "t"} for record in numbered]
    whole = {**content, "simulations": [], "simulation_index": index}
    (path / "results.json").write_text(json.dumps(whole), encoding="utf-8")
    for record in numbered:
        (path / "simulations" / f"{record['id']}.json").write_text(json.dumps(record), encoding="utf-8")
    return path


@pytest.mark.parametrize("is_folder", [False, True])
def test_no_full_duplex_simulation_is_scored_and_one_note_counts_them(
    tmp_path: Path, worlds: Worlds, is_folder: bool
) -> None:
    path = results(tmp_path / "voice", [*VOICE, *TEXT], is_folder=is_folder)
    (file,) = rescore_files([path], worlds, None, None)
    scored = [one.record.id for one in file.simulations if one.score.status is Status.MEASURED]
    assert scored == ["x0", "x1"]
    assert file.notes == (f"7 not scored, first 'v0': {FULL_DUPLEX}",)
    assert (file.metrics.measured, file.metrics.reward, file.metrics.recorded_reward) == (2, 1.0, 1.0)
    (voice,) = rescore_files([results(tmp_path / "only", VOICE, is_folder=is_folder)], worlds, None, None)
    assert (voice.metrics.measured, voice.metrics.reward, voice.metrics.recorded_reward) == (0, None, None)


def test_a_comparison_of_full_duplex_results_decides_nothing_and_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, candidate = (results(tmp_path / f"{name}.json", VOICE) for name in ("base", "cand"))
    assert main(["compare", str(base), str(candidate)]) == 10
    out = " ".join(capsys.readouterr().out.split())
    assert f"note: base.json: 7 not scored, first 'v0': {FULL_DUPLEX}" in out
    assert "INCONCLUSIVE" in out
