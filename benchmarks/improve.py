"""How often a search promotes proposals whose truth is known, next to acceptance rules of other optimizers.

python benchmarks/improve.py [--repeats 200] [--jobs 2] [--write]

Each repeat simulates an agent with a planted flaw: some families of tasks fail more often. A scripted
proposer offers 20 edits in random order. The search of `trace2evolve improve` screens them on 60 discovery
tasks and gates the survivors on 60 held-out tasks, with 4 trials each, the gate's own code and its
α-spending. Every other rule compares each edit with the present best on the same held-out tasks, and spends
about as many simulations as the search did on average. Prints tables in Markdown; `--write` puts them
into benchmarks/improve-figures.md.
"""

import argparse
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from pytest_trace2evolve.gate.agents import AGENTS
from pytest_trace2evolve.gate.alpha_spending import alpha_share
from pytest_trace2evolve.gate.calibrated import CALIBRATED
from pytest_trace2evolve.gate.columns import Counts, Floats
from pytest_trace2evolve.gate.confirm import simulate_fresh_trials
from pytest_trace2evolve.gate.decide import decision_ranks
from pytest_trace2evolve.gate.pairs import Comparisons
from pytest_trace2evolve.gate.protocols import Question
from pytest_trace2evolve.gate.tallies import Tally
from pytest_trace2evolve.improve.search import DEFAULT_RULES, Rewards, Rules, search
from pytest_trace2evolve.records.verdict import Decision, Goal

TASKS, TRIALS, FAMILIES, PROPOSALS = 60, 4, 12, 20
FLAW, HARM = 0.15, 0.10
BAND = 0.02
"""Gain that the rule of a fixed noise band asks for."""

PAGE = """\
# Figures of the search

Simulated loops of `trace2evolve improve` and of other acceptance rules; `python benchmarks/improve.py
--write` writes this page. Each agent has a planted flaw: a third of its task families fails more often, by
15 points in the mean. Each loop has 20 proposals, 60 discovery and 60 held-out tasks and 4 trials. The
other rules compare each proposal with the present best on the held-out tasks, at about as many simulations.
{repeats} loops for each line; with 200, a share of 5 % has a standard error of 1.5 points.

{tables}
"""

SCENARIOS: Mapping[str, Mapping[str, int]] = {
    "20 neutral edits": {},
    "20 edits that help some tasks and harm others": {"mixed": PROPOSALS},
    "20 edits of −10 points": {"harm": PROPOSALS},
    "the fix of 15 points, 19 neutral edits": {"fix": 1},
    "the fix of 15 points, 19 edits of −10 points": {"fix": 1, "harm": PROPOSALS - 1},
}
"""How many of the proposals are what; all others change nothing."""

Chances = Mapping[str, Floats]
"""Each task's chance of success, by split."""


class Agent:
    """A simulated agent: its chances of success, and those of each proposed edit of it."""

    def __init__(self, rng: np.random.Generator, kinds: Sequence[str]) -> None:
        self.rng, self.kinds = rng, kinds
        self.family = np.arange(TASKS) % FAMILIES
        agent = AGENTS["medium"]
        self.healthy = {split: rng.beta(agent.a, agent.b, TASKS) for split in ("discovery", "heldout")}
        # A third of the families is flawed, enough for a drop of `FLAW` over both splits.
        self.flawed = np.isin(self.family, rng.permutation(FAMILIES)[: FAMILIES // 3])
        share = np.mean([chances[self.flawed].sum() / TASKS for chances in self.healthy.values()])
        self.severity = min(1.0, FLAW / share)

    def chances(self, edits: Sequence[int]) -> Chances:
        """The chances of success with some of the proposals applied."""
        kinds = [self.kinds[edit] for edit in edits]
        harm = (1 - HARM / self._mean()) ** kinds.count("harm")
        is_fixed = "fix" in kinds
        chances = {}
        for split, healthy in self.healthy.items():
            p = healthy if is_fixed else np.where(self.flawed, healthy * (1 - self.severity), healthy)
            for edit in edits:
                if self.kinds[edit] == "mixed":
                    p = self._mixed(p, edit, split)
            chances[split] = p * harm
        return chances

    def _mean(self) -> float:
        return float(np.mean(list(self.healthy.values()))) - FLAW

    def _mixed(self, p: Floats, edit: int, split: str) -> Floats:
        """Swap the chances of some tasks, so that their mean stays the same."""
        rng = np.random.default_rng([edit, len(split)])
        moved = rng.permutation(TASKS)[: TASKS // 4]
        swapped = p.copy()
        swapped[moved] = p[rng.permutation(moved)]
        return swapped


class SimulatedArena:
    """Measures and gates edits of a simulated agent, and counts the simulations.

    A candidate's id is the list of the edits in it, as in `0+3+7`.
    """

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.simulations = 0
        self.tests = 0
        self._untried = list(range(len(agent.kinds)))
        self._passes: dict[tuple[str, str], Counts] = {}
        self._measured: dict[str, set[str]] = {}

    def propose(self, parent: str, count: int) -> Sequence[str]:
        edits, self._untried = self._untried[:count], self._untried[count:]
        return [f"{parent}+{edit}" for edit in edits]

    def screen(self, candidate: str, tasks: Sequence[str]) -> Rewards:
        passes = self.passes(candidate, "discovery")
        measured = self._measured.setdefault(candidate, set())
        self.simulations += TRIALS * len(set(tasks) - measured)
        measured |= set(tasks)
        return {task: passes[int(task)] / TRIALS for task in tasks}

    def gate(self, candidate: str, parent: str) -> Decision:
        self.tests += 1
        self.simulations += TRIALS * TASKS
        old, new = (
            Tally.of_successes(self.passes(name, "heldout")[None, :], TRIALS) for name in (parent, candidate)
        )
        compared = Comparisons(old, new)
        old_chances, new_chances = (self.chances(name)["heldout"][None, :] for name in (parent, candidate))
        fresh_p = simulate_fresh_trials(
            self.agent.rng, compared.is_broken, old_chances, new_chances, CALIBRATED.max_fresh_simulations
        )
        question = Question(
            Goal.IMPROVE, share=alpha_share(self.tests, 1), next_share=alpha_share(self.tests, 2)
        )
        rank = decision_ranks(CALIBRATED, replace(compared, fresh_p=fresh_p), question)
        return list(Decision)[int(rank[0])]

    def chances(self, candidate: str) -> Chances:
        return self.agent.chances([int(edit) for edit in candidate.split("+")[1:]])

    def passes(self, candidate: str, split: str) -> Counts:
        """A candidate's passed trials by task, drawn once."""
        key = candidate, split
        if key not in self._passes:
            self._passes[key] = self.agent.rng.binomial(TRIALS, self.chances(candidate)[split])
        return self._passes[key]


@dataclass(frozen=True)
class Outcome:
    """What one loop did.

    Attributes:
        promoted: The kinds of the promoted edits, in order.
        simulations: Simulations after the measurement of the first parent.
        first: Simulations up to the first promotion; NaN without one.
        full: Simulations up to the same promotion if each edit had run to its full trials.
        tests: Comparisons on the held-out tasks.
    """

    promoted: tuple[str, ...]
    simulations: int
    first: float
    full: float
    tests: int


def _kinds(rng: np.random.Generator, scenario: str) -> list[str]:
    kinds = [kind for kind, count in SCENARIOS[scenario].items() for _ in range(count)]
    kinds += ["neutral"] * (PROPOSALS - len(kinds))
    return [kinds[index] for index in rng.permutation(PROPOSALS)]


def run_search(scenario: str, seed: int, rules: Rules = DEFAULT_RULES) -> Outcome:
    """One loop of the search."""
    rng = np.random.default_rng([*scenario.encode(), seed])
    arena = SimulatedArena(Agent(rng, _kinds(rng, scenario)))
    tasks = {str(task): str(family) for task, family in enumerate(arena.agent.family)}
    arena.screen("", list(tasks))
    arena.passes("", "heldout")
    start, first, full = arena.simulations, math.nan, math.nan
    promoted: list[str] = []
    for row in search(arena, "", tasks, rules):
        if row.decision is Decision.PROMOTE:
            edit = int(row.candidate.split("+")[-1])
            promoted.append(arena.agent.kinds[edit])
            if math.isnan(first):
                first, full = arena.simulations - start, (edit + 1) * 2 * TASKS * TRIALS
    return Outcome(tuple(promoted), arena.simulations - start, first, full, arena.tests)


def run_rule(scenario: str, seed: int, accepts: Callable[[Floats], bool], trials: int) -> Outcome:
    """One loop of a rule that compares each edit with the present best on the held-out tasks."""
    rng = np.random.default_rng([*scenario.encode(), seed])
    agent = Agent(rng, _kinds(rng, scenario))
    best: list[int] = []
    rewards = rng.binomial(trials, agent.chances(best)["heldout"]) / trials
    promoted = []
    for edit, kind in enumerate(agent.kinds):
        new = rng.binomial(trials, agent.chances([*best, edit])["heldout"]) / trials
        if accepts(new - rewards):
            best, rewards = [*best, edit], new
            promoted.append(kind)
    count = PROPOSALS * TASKS * trials
    return Outcome(tuple(promoted), count, math.nan, math.nan, PROPOSALS)


def _above_one_error(differences: Floats) -> bool:
    error = differences.std(ddof=1) / math.sqrt(len(differences))
    return bool(differences.mean() > error)


RULES: Mapping[str, Callable[[Floats], bool]] = {
    "mean above one standard error": _above_one_error,
    f"mean above a band of {100 * BAND:.0f} points": lambda differences: bool(differences.mean() > BAND),
    "mean better": lambda differences: bool(differences.mean() > 0),
}


def _row(name: str, scenario: str, outcomes: Sequence[Outcome]) -> str:
    wanted = "fix" in SCENARIOS[scenario]
    fixed = np.mean(["fix" in outcome.promoted for outcome in outcomes])
    wrong = np.mean([any(kind != "fix" for kind in outcome.promoted) for outcome in outcomes])
    count = np.mean([len(outcome.promoted) for outcome in outcomes])
    simulations = np.mean([outcome.simulations for outcome in outcomes])
    tests = np.mean([outcome.tests for outcome in outcomes])
    fix_text = f"{fixed:.1%}" if wanted else "–"
    return (
        f"| {scenario} | {name} | {fix_text} | {wrong:.1%} | {count:.2f} | {tests:.1f} | {simulations:,.0f} |"
    )


def tables(repeats: int, jobs: int, rules: Rules = DEFAULT_RULES) -> str:
    """Simulate everything, and return the tables in Markdown."""
    head = "| proposals | accepted by | fix promoted | loops with another promotion | promotions a loop "
    lines = [
        f"{head}| held-out tests | simulations |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    savings = []
    with ProcessPoolExecutor(jobs) as pool:
        for scenario in SCENARIOS:
            seeds = range(repeats)
            found = list(pool.map(run_search, [scenario] * repeats, seeds, [rules] * repeats, chunksize=10))
            lines.append(_row("`trace2evolve improve`", scenario, found))
            first, full = (
                np.array([getattr(outcome, name) for outcome in found if outcome.promoted])
                for name in ("first", "full")
            )
            if "fix" in SCENARIOS[scenario]:
                savings.append(
                    f"| {scenario} | {np.median(first):,.0f} | {np.median(full):,.0f} | "
                    f"{first.sum() / full.sum():.2f} |"
                )
            simulations = np.mean([outcome.simulations for outcome in found])
            trials = max(1, round(simulations / (PROPOSALS * TASKS)))
            for name, accepts in RULES.items():
                outcomes = [run_rule(scenario, seed, accepts, trials) for seed in seeds]
                lines.append(_row(name, scenario, outcomes))
    lines += [
        "",
        "| proposals | simulations to the first promotion, median | with every edit run in full | ratio |",
        "| --- | --- | --- | --- |",
        *savings,
    ]
    return "\n".join(lines)


def main() -> None:
    """Simulate everything and print it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--width", type=int, default=DEFAULT_RULES.width)
    parser.add_argument("--min-z", type=float, default=DEFAULT_RULES.min_z)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    started = time.perf_counter()
    rules = replace(DEFAULT_RULES, width=options.width, min_z=options.min_z)
    text = tables(options.repeats, options.jobs, rules)
    print(text)
    print(f"\n{options.repeats} repeats in {time.perf_counter() - started:.0f} s")
    if options.write:
        path = Path(__file__).with_name("improve-figures.md")
        path.write_text(PAGE.format(repeats=options.repeats, tables=text), encoding="utf-8")


if __name__ == "__main__":
    main()
