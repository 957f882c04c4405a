"""How often the gate promotes a targeted claim, next to a claim on all tasks of the same split.

python benchmarks/targeted.py [--repeats 2000]

A split has 60 tasks, 20 of them with the claimed tag, and 4 trials on each side. The gate's code compares the
claim's tasks under goal `improve`, and the others as a guard. Prints a table in Markdown.
"""

import argparse
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from pytest_trace2evolve.gate.agents import AGENTS
from pytest_trace2evolve.gate.calibrated import CALIBRATED
from pytest_trace2evolve.gate.columns import Counts, Floats
from pytest_trace2evolve.gate.confirm import simulate_fresh_trials
from pytest_trace2evolve.gate.decide import decision_ranks
from pytest_trace2evolve.gate.pairs import Comparisons
from pytest_trace2evolve.gate.protocols import Question
from pytest_trace2evolve.gate.tallies import Tally
from pytest_trace2evolve.records.verdict import Decision, Goal

CLAIMED, OTHERS, TRIALS = 20, 40, 4

CHANGES: Mapping[str, tuple[float, float]] = {
    "nothing": (0.0, 0.0),
    "+15 points on the tag": (0.15, 0.0),
    "+30 points on the tag": (0.30, 0.0),
    "+15 points elsewhere": (0.0, 0.15),
    "+30 points on the tag, −10 elsewhere": (0.30, -0.10),
    "+30 points on the tag, −20 elsewhere": (0.30, -0.20),
}
"""The change of the mean chance of success on the claim's tasks, and on the others."""


def main() -> None:
    """Simulate each change, and print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=2_000)
    repeats = parser.parse_args().repeats
    print("| change | targeted: promoted | discarded | on all tasks: promoted | discarded |")
    print("| --- | --- | --- | --- | --- |")
    for name, (inside, elsewhere) in CHANGES.items():
        rng = np.random.default_rng([*name.encode()])
        agent = AGENTS["medium"]
        old = rng.beta(agent.a, agent.b, (repeats, CLAIMED + OTHERS))
        new = np.concatenate([shift(old[:, :CLAIMED], inside), shift(old[:, CLAIMED:], elsewhere)], axis=1)
        passes = [rng.binomial(TRIALS, chances) for chances in (old, new)]
        part, rest, whole = slice(CLAIMED), slice(CLAIMED, None), slice(None)
        targeted = np.minimum(
            ranks(rng, part, passes, (old, new), is_guard=False),
            ranks(rng, rest, passes, (old, new), is_guard=True),
        )
        on_all = ranks(rng, whole, passes, (old, new), is_guard=False)
        shares = [
            f"{np.mean(found == decision.rank):.1%}"
            for found in (targeted, on_all)
            for decision in (Decision.PROMOTE, Decision.DISCARD)
        ]
        print(f"| {name} | {' | '.join(shares)} |", flush=True)


def shift(chances: Floats, change: float) -> Floats:
    """Change chances of success so that their mean changes by `change`, but none leaves 0 to 1."""
    room = 1 - chances if change > 0 else chances
    return np.clip(chances + change * room / room.mean(axis=1, keepdims=True), 0, 1)


def ranks(
    rng: np.random.Generator,
    tasks: slice,
    passes: list[Counts],
    chances: tuple[Floats, Floats],
    *,
    is_guard: bool,
) -> Counts:
    """`Decision.rank` of each comparison on some of the tasks, after fresh trials of what broke."""
    compared = Comparisons(*(Tally.of_successes(side[:, tasks], TRIALS) for side in passes))
    fresh_p = simulate_fresh_trials(
        rng, compared.is_broken, *(side[:, tasks] for side in chances), CALIBRATED.max_fresh_simulations
    )
    question = Question(Goal.IMPROVE, is_guard)
    return decision_ranks(CALIBRATED, replace(compared, fresh_p=fresh_p), question)


if __name__ == "__main__":
    main()
