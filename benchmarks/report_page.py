"""Measures the report page: the size and the writing time with traces, and the writing time without.

    python benchmarks/report_page.py FOLDER

FOLDER holds the recorded retail runs of gpt-4.1-mini. Their trials are combined to 114 tasks of 4 trials on
each side. A second page has 1,000 tasks of 8 trials without traces.
"""

import gzip
import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from pytest_trace2evolve.evidence.baselines import write_evidence
from pytest_trace2evolve.records.evidence import Evidence, Provenance, SimulationEvidence
from pytest_trace2evolve.records.score import Status
from pytest_trace2evolve.report.page import write_page
from pytest_trace2evolve.report.verdict import comparison_summary
from pytest_trace2evolve.session.compare import compare
from pytest_trace2evolve.session.page_data import compared_facts
from pytest_trace2evolve.worlds.registry import Worlds

NAMES = ("base", "policy-v1", "policy-v2", "base")


def combined_run(folder: Path, path: Path, names: tuple[str, ...]) -> Path:
    """Write a results file whose trials are those of several recorded runs."""
    content: dict[str, Any] = {}
    simulations = []
    for trial, name in enumerate(names):
        content = json.loads(gzip.decompress((folder / f"retail-gpt-4.1-mini-{name}.json.gz").read_bytes()))
        for simulation in content["simulations"]:
            for message in simulation["messages"]:  # equal conversations count as copies
                message["timestamp"] = f"{path.name} {trial} {message.get('timestamp')}"
            simulation |= {"id": f"{path.name}-{trial}-{simulation['id']}", "trial": trial}
            simulations.append(simulation)
    path.write_text(json.dumps({**content, "simulations": simulations}))
    return path


def made_evidence(path: Path, rate: float) -> Path:
    """Write evidence of 1,000 tasks of 8 trials."""
    draw = random.Random(rate)
    simulations = tuple(
        SimulationEvidence(
            id=f"{task}-{trial}",
            task_id=f"task-{task}",
            trial=trial,
            status=Status.MEASURED,
            reward=float(draw.random() < rate),
            termination_reason="user_stop",
            task_digest="d",
        )
        for task in range(1_000)
        for trial in range(8)
    )
    write_evidence(
        path, Evidence(provenance=Provenance(domain="retail", provider="p"), simulations=simulations)
    )
    return path


def measure(title: str, baseline: Path, candidate: Path, page: Path) -> None:
    """Compare two files, and print what their page costs."""
    worlds = Worlds()
    started = time.process_time()
    comparison = compare([baseline], [candidate], worlds, keeps_evidence=True)
    compared = time.process_time()
    facts = compared_facts(comparison, None, worlds)
    gathered = time.process_time()
    write_page(page, comparison_summary(comparison), facts)
    written = time.process_time()
    print(
        f"{title}: {page.stat().st_size / 1e6:.2f} MB; compared in {compared - started:.1f} s, gathered in "
        f"{gathered - compared:.1f} s, written in {written - gathered:.1f} s"
    )


def main(folder: Path, output: Path) -> None:
    """Measure both pages."""
    old, new = (
        combined_run(folder, output / name, NAMES[::step])
        for name, step in (("old.json", 1), ("new.json", -1))
    )
    measure("114 tasks, 4 trials, traces", old, new, output / "traces.html")
    old, new = (made_evidence(output / name, rate) for name, rate in (("o.json", 0.6), ("n.json", 0.62)))
    measure("1,000 tasks, 8 trials", old, new, output / "tasks.html")


if __name__ == "__main__":
    target = Path(sys.argv[2]) if sys.argv[2:] else Path(tempfile.mkdtemp())
    main(Path(sys.argv[1]), target)
