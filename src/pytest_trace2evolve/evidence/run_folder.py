"""Writes run folders in the form that tau2's tools read, with one file per simulation."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pydantic_core
from pydantic import ValidationError

from pytest_trace2evolve.errors import ResultsError
from pytest_trace2evolve.evidence.results import OWN_BLOCK_KEY, SIMULATIONS_KEY
from pytest_trace2evolve.records.evidence import Provenance, SimulationEvidence
from pytest_trace2evolve.records.rules import Finding
from pytest_trace2evolve.records.score import Check, Score
from pytest_trace2evolve.records.task import Task
from pytest_trace2evolve.records.trace import Simulation
from pytest_trace2evolve.scoring.trace_checks import CheckResult
from pytest_trace2evolve.utils.canonical import digest_text
from pytest_trace2evolve.utils.files import write_atomic
from pytest_trace2evolve.utils.reading import MAX_RESULTS_BYTES, read_json

_SAFE_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")


@dataclass(frozen=True)
class RunStore:
    """One suite's part of a run folder: `results.json` and `simulations/`.

    Workers write simulations and the controller writes the header, so no two processes write the same file.
    """

    folder: Path

    def write_simulation(self, record: dict[str, Any]) -> Path:
        path = self.folder / SIMULATIONS_KEY / f"{record['id']}.json"
        write_atomic(path, _render_json(record))
        return path

    def read_simulation(self, simulation_id: str) -> Simulation | None:
        """Read one simulation; None if the folder does not hold it, or its file is damaged."""
        path = self.folder / SIMULATIONS_KEY / f"{simulation_id}.json"
        try:
            return Simulation.model_validate(read_json(path, ResultsError, max_bytes=MAX_RESULTS_BYTES))
        except (ResultsError, ValidationError):
            return None

    def write_header(self, header: dict[str, Any]) -> Path:
        """Write `results.json`, which holds the header and the index of all simulations; return its path."""
        path = self.folder / "results.json"
        (self.folder / SIMULATIONS_KEY).mkdir(parents=True, exist_ok=True)
        write_atomic(path, _render_json(header))
        return path

    def stored_records(self, records: Iterable[SimulationEvidence]) -> list[SimulationEvidence]:
        stored_ids = {path.stem for path in self._simulation_paths()}
        return [record for record in records if record.id in stored_ids]

    def set_aside_unreported(self, records: Iterable[SimulationEvidence]) -> list[str]:
        """Set aside traces that a killed worker wrote but never reported; return their ids.

        The traces are moved to `unreported/`, so the index and the folder agree and no trace is lost.
        """
        reported_ids = {record.id for record in records}
        moved_ids = []
        for path in self._simulation_paths():
            if path.stem not in reported_ids:
                target = self.folder / "unreported" / path.name
                target.parent.mkdir(exist_ok=True)
                path.replace(target)
                moved_ids.append(path.stem)
        return moved_ids

    def _simulation_paths(self) -> list[Path]:
        return sorted((self.folder / SIMULATIONS_KEY).glob("*.json"))


def _render_json(record: dict[str, Any]) -> str:
    """Render indented JSON with pydantic's encoder, because that of the standard library is slow."""
    return pydantic_core.to_json(record, indent=1, inf_nan_mode="strings").decode("utf-8")


def to_safe_id(name: str) -> str:
    """Return a simulation id that can be a file name: the id itself, or a digest of an unsuitable id."""
    return name if _SAFE_NAME.match(name) else f"id-{digest_text(name)}"


def simulation_record(
    simulation: Simulation,
    score: Score,
    findings: Sequence[Finding] = (),
    check_results: Mapping[str, CheckResult] | None = None,
) -> dict[str, Any]:
    """The record of a simulation, with this project's score in place of the recorded score.

    The recorded reward, the broken invariants and the results of the project's own checks are
    under `OWN_BLOCK_KEY` in `info`.
    """
    record = simulation.model_dump(mode="json", exclude_unset=True)
    own_block: dict[str, Any] = {"status": score.status.value}
    if simulation.recorded_reward is not None:
        own_block["recorded_reward"] = simulation.recorded_reward
    if score.note:
        own_block["note"] = score.note
    if score.judge is not None:
        own_block["judge"] = score.judge.model_dump(mode="json")
    if findings:
        own_block["invariants"] = [finding.model_dump(mode="json") for finding in findings]
    if check_results:
        own_block["checks"] = {name: result.to_json() for name, result in check_results.items()}
    return {
        # tau2 requires these fields, which older files lack.
        "timestamp": "",
        "start_time": "",
        "end_time": "",
        "duration": 0.0,
        **record,
        "reward_info": _reward_info(score),
        "info": {**(record.get("info") or {}), OWN_BLOCK_KEY: own_block},
    }


def _reward_info(score: Score) -> dict[str, Any] | None:
    """A score in tau2's `RewardInfo` shape; None if there is no reward."""
    if score.reward is None:
        return None

    def render_checks(checks: Sequence[Check], requirement_field: str) -> list[dict[str, Any]]:
        return [
            {requirement_field: check.wanted, "met": check.met, "justification": check.note}
            for check in checks
        ]

    breakdown = {part.value: score.components[part] for part in score.basis if part in score.components}
    # tau2's record has no field for forbidden calls, but its field `info` takes any keys.
    info: dict[str, Any] = {"note": score.note} if score.note else {}
    if score.forbidden_calls:
        info["forbidden_calls"] = render_checks(score.forbidden_calls, "call")
    database = {"db_match": score.db_match, "db_reward": float(bool(score.db_match))}
    return {
        "reward": score.reward,
        "db_check": database if score.db_match is not None else None,
        "env_assertions": [
            {"env_assertion": check.wanted, "met": check.met, "reward": float(check.met)}
            for check in score.env_assertions
        ],
        "action_checks": [
            {
                "action": {"action_id": "", **check.action},
                "action_match": check.matched,
                "action_reward": float(check.matched),
                "tool_type": check.tool_type if check.tool_type != "unknown" else None,
            }
            for check in score.actions
        ],
        "communicate_checks": render_checks(score.communicate, "info"),
        "nl_assertions": render_checks(score.nl_assertions, "nl_assertion") or None,
        "reward_basis": [component.value for component in score.basis] or None,
        "reward_breakdown": breakdown or None,
        "info": info or None,
    }


def results_header(
    provenance: Provenance,
    tasks: Iterable[Task],
    simulations: Iterable[SimulationEvidence],
    *,
    policy: str,
    git_commit: str,
    trials: int,
    max_errors: int,
) -> dict[str, Any]:
    """Return the content of `results.json`: tau2's header, the tasks, and an index of the simulations."""
    agent = _participant_info(provenance.agent.model_dump(mode="json"))
    if provenance.mode.solo:
        # tau2 scores a file as solo only if it names tau2's own solo agent.
        agent["implementation"] = "llm_agent_solo"
    return {
        "timestamp": provenance.created_at,
        "info": {
            "git_commit": git_commit,
            "num_trials": trials,
            "max_steps": provenance.max_steps or 0,
            "max_errors": max_errors,
            "user_info": _participant_info(provenance.user.model_dump(mode="json")),
            "agent_info": agent,
            "environment_info": {"domain_name": provenance.domain, "policy": policy},
            OWN_BLOCK_KEY: provenance.model_dump(mode="json"),
        },
        "tasks": [task.model_dump(mode="json", exclude_unset=True) for task in tasks],
        "simulation_index": [
            {
                "id": record.id,
                "task_id": record.task_id,
                "trial": record.trial,
                "reward": record.reward,
                "termination_reason": record.termination_reason,
                "agent_cost": record.cost,
            }
            for record in simulations
        ],
    }


def _participant_info(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "implementation": settings["implementation"] or "unknown",
        "llm": settings["model"],
        "llm_args": settings["arguments"],
    }
