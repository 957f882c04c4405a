"""Scores that ToolSandbox's own evaluator gave, frozen.

`benchmarks/toolsandbox.py` writes those of scripts. The cases of random milestones were made once.
"""

import asyncio
import gzip
import json
from pathlib import Path

import pytest

from benchmarks import toolsandbox
from pytest_trace2evolve.errors import WorldError
from pytest_trace2evolve.scoring.milestones import Graph, Measure, evaluate
from pytest_trace2evolve.worlds.toolsandbox.world import ToolSandboxWorld

FOLDER = Path(__file__).parent
FROZEN = json.loads((FOLDER / "toolsandbox_scores.json").read_text(encoding="utf-8"))
CASES = json.loads(gzip.decompress((FOLDER / "toolsandbox_cases.json.gz").read_bytes()))


@pytest.mark.parametrize("number", range(len(CASES)))
def test_a_case_of_our_own_has_upstreams_similarity(number):
    pytest.importorskip("rouge_score")
    case = CASES[number]
    graphs = [Graph.model_validate(case[kind]) for kind in ("milestones", "minefields")]
    expected = case["similarity"]
    if expected is None:  # a milestone refers to one that is matched later, which no scenario does
        with pytest.raises(KeyError):
            evaluate(case["snapshots"], *graphs)
    else:
        # Upstream takes the exponential of one 32-bit column in 32 bits, and its last bit depends on the CPU.
        # No scenario has such a target.
        has_single_column = any(
            [column.measure for column in constraint.columns.values()] == [Measure.ROUGE]
            for graph in graphs
            for milestone in graph.milestones
            for constraint in milestone
        )
        tolerance = 1e-7 if has_single_column else 1e-9
        found = evaluate(case["snapshots"], *graphs).similarity
        assert found == pytest.approx(expected, abs=tolerance)


def test_a_played_script_has_upstreams_similarity():
    """Needs an export of the same revision."""
    pytest.importorskip("rouge_score")
    try:
        world = ToolSandboxWorld("offline")
    except WorldError as error:
        pytest.skip(str(error))
    if world.data_digest() != FROZEN["data"]:
        pytest.skip("the export is of another revision")
    scripts = toolsandbox.write_scripts(world, FROZEN["trajectories"], FROZEN["seed"])
    expected = FROZEN["scripts"]
    found = {
        script["key"]: asyncio.run(toolsandbox.play(world, script))["similarity"]
        for script in scripts
        if script["key"] in expected
    }
    assert found == pytest.approx(expected, abs=1e-9)
