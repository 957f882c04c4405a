"""How often planted deficits are found, and others taken for one: real simulations, labelled by rules.

    python benchmarks/capabilities.py [--repeats 100] [--traces 100] [--only NAME] [--intervals]

A repeat is a set of simulations of support cases. Planted: half of the cases call for the capability, and
half of all agents lack it always, which spoils the outcome; the other half show it. Every other capability is
seen lacking at rate .3 where a case calls for it, whoever serves it and without harm. One simulation in ten
breaks off at its end, for no reason that a capability explains; where nothing is planted, one in two.
"""

import argparse
import asyncio
import random
import time
from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import islice

from deficits import HARMLESS, DeficientAgent, Deficit

from pytest_trace2evolve.cases.case import FAMILIES, Case, generate
from pytest_trace2evolve.diagnose.behavior_features import Behavior
from pytest_trace2evolve.diagnose.contrast import TRACE_THRESHOLDS, assess_capabilities
from pytest_trace2evolve.diagnose.labels import RULES, label_by_rules
from pytest_trace2evolve.engine.conversation import Limits, converse
from pytest_trace2evolve.gate.intervals import Cluster, difference_interval
from pytest_trace2evolve.records.capability import BUILT_IN_CAPABILITIES, Presence, TraceOutcome
from pytest_trace2evolve.records.task import Content
from pytest_trace2evolve.scoring.reward import score
from pytest_trace2evolve.users.scripted import ScriptedUser
from pytest_trace2evolve.worlds.support.world import SupportWorld

RATE = 0.3
"""How often a capability that is not planted is seen lacking."""

WORLD = SupportWorld()
NAMES = [one.name for one in BUILT_IN_CAPABILITIES]


def simulate(case: Case, lacks: dict[str, Deficit], seed: int, *, breaks: bool) -> Behavior:
    """One simulation, scored and read."""
    agent = DeficientAgent(case.task, case.script, lacks, seed=seed, breaks=breaks)
    user = ScriptedUser(case.script, seed=seed)
    simulation = asyncio.run(converse(case.task, WORLD, agent, user, limits=Limits(max_steps=80)))
    result = score(simulation, case.task, WORLD)
    return Behavior(simulation, case.task, WORLD, passed=result.reward == 1)


@cache
def families_calling_for(capability: str) -> tuple[str, ...]:
    """Kinds of case in which the lack of a capability, and of it alone, does harm: in two of ten or more."""
    return tuple(
        family
        for family in FAMILIES
        if sum(bites(case, capability) for case in generate("calls", 10, Content.TRAIN, (family,))) > 1
    )


def bites(case: Case, capability: str) -> bool:
    """Whether the lack of a capability spoils a case, and nothing else is seen lacking then."""
    harmed = simulate(case, {capability: Deficit.HARM}, 0, breaks=False)
    lacking = {name for name in NAMES if RULES[name](harmed).presence is Presence.LACKING}
    return not harmed.passed and lacking == {capability}


def chosen(planted: str, count: int, seed: str) -> list[Case]:
    """The cases of one repeat: half of them call for what is planted, and the others are any."""
    half = count // 2 if planted else 0
    found: list[Case] = []
    if half:
        families = families_calling_for(planted)
        biting = (
            case for case in generate(seed, 40 * count, Content.TRAIN, families) if bites(case, planted)
        )
        found += islice(biting, half)
    return [*found, *generate(f"{seed}/any", count - half, Content.TRAIN)]


def traces(planted: str, count: int, seed: str) -> list[Behavior]:
    """The simulations of one repeat; an empty name plants nothing."""
    drawn = random.Random(seed)
    made = []
    for number, case in enumerate(chosen(planted, count, seed)):
        lacks = {name: Deficit.SLIP for name in HARMLESS if name != planted and drawn.random() < RATE}
        if planted and drawn.random() < 0.5:
            lacks[planted] = Deficit.HARM
        breaks = drawn.random() < (0.1 if planted else 0.5)
        made.append(simulate(case, lacks, number, breaks=breaks))
    return made


def selected(conducts: Sequence[Behavior]) -> set[str]:
    """What is selected from labels by rules."""
    outcomes = [
        TraceOutcome(trace=one.simulation.id, task=one.task.id, passed=one.passed) for one in conducts
    ]
    return {
        one.name
        for one in assess_capabilities(BUILT_IN_CAPABILITIES, [label_by_rules(conducts)], outcomes)
        if one.selected
    }


def planted_deficits(repeats: int, count: int, only: str) -> None:
    """Print how often each planted capability is selected, and how often a wrong one."""
    print(f"{repeats} repeats of {count} traces; ρ {TRACE_THRESHOLDS.coverage}, δ {TRACE_THRESHOLDS.delta}\n")
    print(f"{'planted':32} {'selected':>9} {'a wrong one':>12} {'failed':>8}  wrong ones")
    for planted in [only] if only else [*NAMES, ""]:
        right = wrong = failures = 0
        others: Counter[str] = Counter()
        for repeat in range(repeats):
            conducts = traces(planted, count, f"{planted}/{repeat}")
            found = selected(conducts)
            right += planted in found
            wrong += bool(found - {planted})
            others.update(found - {planted})
            failures += sum(not one.passed for one in conducts)
        told = f"{right / repeats:9.0%}" if planted else "        –"
        mean = failures / repeats
        print(f"{planted or 'none':32} {told} {wrong / repeats:12.0%} {mean:8.1f}  {dict(others) or ''}")


def intervals(draws: int) -> None:
    """Print how often the interval of Δ leaves out the true value, single trials and clusters."""
    print(f"\n{draws} draws; true Δ outside of the interval at level .95 (two-sided)")
    print(f"{'tasks × trials':>16} {'failed':>7} {'passed':>7} {'alike':>6} {'outside':>8} {'below':>6}")
    drawn = random.Random("intervals")
    for tasks, trials in ((20, 1), (50, 1), (20, 4), (50, 4)):
        for p, q in ((0.3, 0.3), (0.5, 0.5), (0.1, 0.1), (0.8, 0.3)):
            for alike in (0.0,) if trials == 1 else (0.0, 0.5):
                outside = above = 0
                for _ in range(draws):
                    first = _clusters(drawn, tasks, trials, p, alike)
                    second = _clusters(drawn, tasks, trials, q, alike)
                    found = difference_interval(first, second)
                    assert found is not None
                    outside += not found[0] <= p - q <= found[1]
                    above += found[0] > p - q
                told = f"{outside / draws:8.1%} {above / draws:6.1%}"
                print(f"{f'{tasks} × {trials}':>16} {p:7} {q:7} {alike:6} {told}")


def _clusters(drawn: random.Random, tasks: int, trials: int, rate: float, alike: float) -> list[Cluster]:
    """Tasks whose own rates vary about a mean: beta with intra-task correlation `alike`."""
    found = []
    for _ in range(tasks):
        own = rate
        if alike:
            scale = (1 - alike) / alike
            own = drawn.betavariate(rate * scale, (1 - rate) * scale)
        found.append(Cluster(sum(drawn.random() < own for _ in range(trials)), trials))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--traces", type=int, default=100)
    parser.add_argument("--only", default="", choices=["", *NAMES])
    parser.add_argument("--intervals", action="store_true", help="the interval's error instead")
    options = parser.parse_args()
    started = time.perf_counter()
    if options.intervals:
        intervals(2_000)
    else:
        planted_deficits(options.repeats, options.traces, options.only)
    print(f"\n{time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
