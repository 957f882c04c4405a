"""What the controller tells its workers, and how a crashed worker's item is reported."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from pytest_trace2evolve.gate.alpha_spending import Stage
from pytest_trace2evolve.records.evidence import Identity
from pytest_trace2evolve.session.live import Address
from pytest_trace2evolve.session.plan import Plan, Shared


def worker_input(
    plan: Plan, account: Path | None, served: Mapping[str, Address] | None = None
) -> dict[str, Any]:
    """What a worker takes over, as plain JSON types."""
    return {
        "run_id": plan.run_id,
        "run_folder": str(plan.run_folder),
        "started": plan.started,
        "baselines": {
            name: planned.baseline.name
            for name, planned in plan.suites.items()
            if planned.baseline is not None
        },
        "account": None if account is None else str(account),
        "stage": None if plan.stage is None else asdict(plan.stage),
        "served": {folder: asdict(address) for folder, address in (served or {}).items()},
        "draw": plan.draw,
        "identities": {name: one.identity.model_dump(mode="json") for name, one in plan.suites.items()},
    }


def taken_over(raw: Mapping[str, Any]) -> Shared:
    """What `worker_input` holds, on the worker."""
    account = raw["account"]
    return Shared(
        run_id=raw["run_id"],
        run_folder=Path(raw["run_folder"]),
        started=raw["started"],
        baselines=raw["baselines"],
        account=None if account is None else Path(account),
        stage=None if raw["stage"] is None else Stage(**raw["stage"]),
        served={folder: Address(**address) for folder, address in raw["served"].items()},
        draw=raw["draw"],
        identities={name: Identity.model_validate(one) for name, one in raw["identities"].items()},
    )


def hands_out(config: pytest.Config) -> bool:
    """Whether this process only hands items to workers."""
    return config.pluginmanager.hasplugin("dsession")


def is_crash(report: pytest.TestReport) -> bool:
    """Whether xdist made this report because a worker died on the item."""
    return report.when not in ("setup", "call", "teardown") and report.failed


def as_setup_error(report: pytest.TestReport) -> None:
    """Turn a crash report into an error of the item's setup, where infrastructure trouble belongs."""
    path, _, name = report.nodeid.partition("::")
    report.when = "setup"
    report.location = (path, None, name)


def split_nodeid(nodeid: str, plan: Plan, root_to_suites: str) -> tuple[str, str] | None:
    """The suite and task that a node id of ours names; None for any other item."""
    parts = nodeid.split("::", 2)
    if len(parts) != 3:
        return None
    for name, planned in plan.suites.items():
        if parts[0] == f"{root_to_suites}{name}.toml":
            return (name, parts[2]) if parts[2] in planned.lock.splits.get(parts[1], {}) else None
    return None
