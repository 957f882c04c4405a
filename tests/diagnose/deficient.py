"""Simulations of support cases by agents whose deficits are known, and results files of them."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.deficits import DeficientAgent, Deficit
from pytest_trace2evolve.cases.case import Case, generate
from pytest_trace2evolve.diagnose.behavior_features import Behavior
from pytest_trace2evolve.engine.conversation import Limits, converse
from pytest_trace2evolve.evidence.results import OWN_BLOCK_KEY
from pytest_trace2evolve.records.evidence import Provenance
from pytest_trace2evolve.records.task import Content
from pytest_trace2evolve.records.trace import Simulation
from pytest_trace2evolve.scoring.reward import score
from pytest_trace2evolve.users.scripted import ScriptedUser
from pytest_trace2evolve.worlds.support.world import SupportWorld

WORLD = SupportWorld()


def simulated(
    case: Case, lacks: Mapping[str, Deficit] = {}, *, seed: int = 0, breaks: bool = False
) -> Simulation:
    """One simulation of a case."""
    agent = DeficientAgent(case.task, case.script, lacks, seed=seed, breaks=breaks)
    user = ScriptedUser(case.script, seed=seed)
    return asyncio.run(converse(case.task, WORLD, agent, user, limits=Limits(max_steps=80), trial=seed))


def behavior_of(case: Case, simulation: Simulation) -> Behavior:
    """A simulation, scored and read."""
    result = score(simulation, case.task, WORLD)
    return Behavior(simulation, case.task, WORLD, passed=result.reward == 1)


def cases(family: str, count: int, seed: str = "labels") -> list[Case]:
    """Some cases of a family."""
    return list(generate(seed, count, Content.TRAIN, (family,)))


def write_run(path: Path, runs: Sequence[tuple[Case, Simulation]], origin: Provenance | None = None) -> Path:
    """A results file of the support world, in τ²'s shape; with its origin, as our own runs record it."""
    tasks: dict[str, Any] = {case.id: case.task.model_dump(mode="json") for case, _ in runs}
    own = {} if origin is None else {OWN_BLOCK_KEY: origin.model_dump(mode="json")}
    record = {
        "timestamp": "2026-11-01T10:00:00",
        "info": {"environment_info": {"domain_name": "support", "policy": None}, **own},
        "tasks": list(tasks.values()),
        "simulations": [simulation.model_dump(mode="json") for _, simulation in runs],
    }
    path.write_text(json.dumps(record), encoding="utf-8")
    return path
