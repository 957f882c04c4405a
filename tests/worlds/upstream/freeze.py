"""Writes the results that tau2's own evaluator gives for varied banking traces.

Run it with tau2 1.0.1 and `rank-bm25` installed, in an environment of its own:

    python tests/worlds/upstream/freeze.py TASKS OUT SEED ...

TASKS is `tau2/data/domains/banking_knowledge/tasks.json` of inspect_evals 0.26.0.
"""

import functools
import importlib.metadata
import json
import sys
from pathlib import Path
from typing import Any

import tau2
from loguru import logger
from tau2.domains.banking_knowledge import environment
from tau2.evaluator.evaluator import EvaluationType, evaluate_simulation
from tau2.runner.build import _derive_read_log_allowlist
from variations import EDITS, digest_of, sign_of, to_simulation, variations

TIMES = {"start_time": "", "end_time": "", "duration": 0.0}


def main(tasks_path: Path, out_path: Path, *seeds: int) -> None:
    logger.remove()
    environment.get_knowledge_base = functools.cache(environment.get_knowledge_base)  # no tool uses it here
    records = json.loads(tasks_path.read_text(encoding="utf-8"))
    tasks = {record["id"]: tau2.Task.model_validate(record) for record in records}
    results: dict[str, list[Any]] = {}
    for name, task_id, calls in variations(records, seeds):
        task = tasks[task_id]
        info = evaluate_simulation(
            simulation=tau2.SimulationRun.model_validate(to_simulation(name, task_id, calls) | TIMES),
            task=task,
            evaluation_type=EvaluationType.ALL,
            solo_mode=False,
            domain="banking_knowledge",
            env_kwargs={
                "retrieval_variant": "no_knowledge",
                "read_log_allowlist": _derive_read_log_allowlist(task),
            },
            strict_replay=False,
        )
        matched = "".join(str(int(check.action_match)) for check in info.action_checks or ())
        database = None if info.db_check is None else int(info.db_check.db_match)
        results[name] = [info.reward, database, matched]
    versions = {"tau2": importlib.metadata.version("tau2"), "inspect_evals": "0.26.0"}
    out_path.write_text(render(versions, results, digest_of(records, seeds)), encoding="utf-8")


def render(versions: dict[str, str], results: dict[str, list[Any]], digest: str) -> str:
    """One line for each task and seed, with one sign for each edit: see `sign_of`."""
    signs: dict[str, str] = {}
    for name, result in results.items():
        task_id, _, seed = name.split("/")
        signs[f"{task_id}/{seed}"] = signs.get(f"{task_id}/{seed}", "") + sign_of(*result)
    lines = ",\n".join(f'"{name}":"{text}"' for name, text in signs.items())
    edits = json.dumps([edit.__name__ for edit in EDITS])
    head = f'"versions":{json.dumps(versions)},\n"variations":"{digest}",\n"edits":{edits}'
    return f'{{{head},\n"results":{{\n{lines}\n}}}}\n'


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:]))
