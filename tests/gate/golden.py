"""Verdicts on simulated evidence as they were before decision 15; run as a module, it writes `golden.json`.

Write the file again only if the gate is meant to decide otherwise.
"""

import json
import random
from pathlib import Path
from typing import Any

from pytest_trace2evolve.gate.alpha_spending import Stage
from pytest_trace2evolve.gate.claims import AlphaSpending
from pytest_trace2evolve.gate.confirm import FreshResult, fresh_p
from pytest_trace2evolve.gate.decide import GateInput, decide
from pytest_trace2evolve.gate.pairs import Pairs, pair
from pytest_trace2evolve.gate.policy import get_policy
from pytest_trace2evolve.records.evidence import ActionCount, SimulationEvidence
from pytest_trace2evolve.records.rules import Invariant
from pytest_trace2evolve.records.score import Status
from pytest_trace2evolve.records.verdict import Goal, Label, Verdict

GOLDEN = Path(__file__).with_name("golden.json")

POLICIES = {
    "own": "[checks.reward]\nmargin = 0.2\n[checks.write_action_match]\nmargin = 0.3\nalpha = 0.02\n",
    "suite": "estimand = 'suite'\nsuspected = 'block'\n[checks.invariants]\nwatch = false\n",
}
"""Policies of a project, by name; the built-in ones are judged too."""

SIZES = ((8, 4), (14, 1), (20, 2), (30, 3), (40, 8), (60, 2))
EFFECTS = (0.0, -0.3, 0.3)


def simulations(source: random.Random, name: str, tasks: list[float], trials: int, lost: float) -> Any:
    """One side: tasks with their chances of success, some with fractions, breaches and lost trials."""
    for task, chance in enumerate(tasks):
        for trial in range(trials):
            is_lost, passes = source.random() < lost, source.random() < chance
            reward = float(passes) if task % 7 else 0.5 + passes / 2
            failed_end = "max_steps" if source.random() < 0.1 else "user_stop"
            matched = {
                kind: sum(source.random() < 0.5 + passes / 2 for _ in range(2)) for kind in ("read", "write")
            }
            # Evidence of that version knew no collateral changes.
            broken = {kind: 1 for kind in [*Invariant][:6] if source.random() < 0.2 - chance / 8}
            yield SimulationEvidence(
                id=f"{name}-{task}-{trial}",
                task_id=str(task),
                trial=trial,
                status=Status.INFRASTRUCTURE_ERROR if is_lost else Status.MEASURED,
                termination_reason="user_stop" if passes else failed_end,
                reward=None if is_lost else reward,
                actions={
                    kind: ActionCount(total=2, matched=None if is_lost else count)
                    for kind, count in matched.items()
                    if task % 5 or kind == "write"
                },
                task_digest="digest",
                invariants=None if is_lost or task % 4 == 0 else broken,
                cost=0.01,
            )


def pairs_of(seed: int) -> Pairs:
    """Simulated evidence of two sides; every third comparison has fresh trials."""
    source = random.Random(seed)
    size, trials = SIZES[seed % len(SIZES)]
    chances = [source.betavariate(0.8, 0.6) for _ in range(size)]
    moved = [min(max(chance + EFFECTS[seed % len(EFFECTS)], 0.0), 1.0) for chance in chances]
    lost = 0.05 if seed % 4 == 3 else 0.0
    pairs = pair(
        simulations(source, "old", chances, trials, lost), simulations(source, "new", moved, trials, lost)
    )
    if seed % 3:
        return pairs
    p = {name: float(fresh_p(*(source.randint(0, 8) for _ in range(4)))) for name in pairs.broken_tasks()}
    return pairs.with_fresh_results({name: FreshResult(each, each / 2) for name, each in p.items()})


def verdicts(folder: Path) -> dict[str, Verdict]:
    """A verdict for every seed; policies, goals and levels take turns."""
    for name, text in POLICIES.items():
        (folder / f"{name}.toml").write_text(text, encoding="utf-8")
    found = {}
    for seed in range(60):
        policy = ("calibrated", "strict", "calibrated", *POLICIES)[seed % 5]
        goal, guard = list(Goal)[seed // 5 % 3], seed % 8 == 5
        spending = AlphaSpending(1 + seed % 3, 1 + seed % 2) if seed % 7 == 2 else None
        stage = Stage(1, 3, 2, 0.03, schedule=(2, 4, 8)) if seed % 11 == 4 else None
        key = f"{seed} {policy} {goal.value}{' guard' if guard else ''}"
        found[key] = decide(
            GateInput(
                pairs_of(seed),
                get_policy(policy, folder),
                goal=goal,
                is_guard=guard,
                label=Label.CLEAN,
                expected_tasks=SIZES[seed % len(SIZES)][0],
                spending=spending,
                stage=stage,
            )
        )
    return found


def summary(verdict: Verdict) -> dict[str, Any]:
    """What a golden file holds of a verdict; numbers with nine digits."""

    def rounded(value: float | None) -> float | None:
        return None if value is None else float(f"{value:.9g}")

    return {
        "decision": verdict.decision,
        "guard": verdict.guard,
        "alpha": rounded(verdict.alpha),
        "tasks": [
            len(names) for names in (verdict.fixed, verdict.broken, verdict.regressions, verdict.suspected)
        ],
        "settling": [(one.trials, one.tasks, one.obstacle) for one in verdict.settling],
        "checks": {
            one.id: [one.status, *map(rounded, (one.estimate, one.low, one.high, one.p, one.detectable))]
            for one in verdict.checks
        },
    }


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        lines = [
            f"{json.dumps(key)}: {json.dumps(summary(one))}" for key, one in verdicts(Path(folder)).items()
        ]
    GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
