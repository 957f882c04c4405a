"""How often attacks on the evidence of a small project promote an agent that did not get better.

python benchmarks/attack.py [--sequences 200] [--jobs 2] [--attack NAME]... [--results FILE]

Runs real pytest sessions and commands on a project of eight tasks; `tests/attack/` describes the attacks.
Each sequence is a line of `--results`: run the same command again to resume, or to add sequences. Lines from
before a change of the code do not count. Prints a table in Markdown. The exit status is 1 if an attack that
the project claims to withstand promotes more often than the level allows, beyond chance.
"""

import argparse
import json
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from hashlib import sha256
from multiprocessing.util import Finalize
from pathlib import Path

from scipy import stats

CHECKOUT = Path(__file__).resolve().parents[1]
if str(CHECKOUT) not in sys.path:
    sys.path.insert(0, str(CHECKOUT))

from pytest_trace2evolve.gate.alpha_spending import alpha_share  # noqa: E402
from pytest_trace2evolve.gate.calibrated import CALIBRATED  # noqa: E402
from tests.attack.attacks import ATTACKS, honest_chance  # noqa: E402
from tests.attack.sessions import Done, Sessions  # noqa: E402
from tests.attack.target import STATUSES, target, template  # noqa: E402

LEVEL = CALIBRATED.alpha * alpha_share(1, 1)
"""The level of the first analysis of the first candidate."""


@dataclass(frozen=True)
class Tried:
    """One sequence.

    Attributes:
        code: The digest of the code that it ran.
        disorder: What no session may do: a traceback or an undocumented exit status; empty for none.
    """

    attack: str
    seed: int
    code: str
    promoted: bool
    sessions: int
    seconds: float
    disorder: str = ""


_worker = ExitStack()


def begin() -> None:
    """Start this worker's process that forks sessions; it ends with the worker."""
    global _sessions
    _sessions = _worker.enter_context(Sessions())
    Finalize(None, _worker.close, exitpriority=1)


def attempt(name: str, seed: int, code: str) -> Tried:
    """One sequence of an attack."""
    attack, started = ATTACKS[name], time.perf_counter()
    with target(attack.coin(seed), _sessions) as project:
        project.measure_baseline()
        promoted = attack.run(project, random.Random(seed))
        disorder = next(filter(None, map(disorder_of, project.texts)), "")
        seconds = time.perf_counter() - started
        return Tried(name, seed, code, promoted, len(project.texts), seconds, disorder)


def disorder_of(done: Done) -> str:
    """What is wrong with the end of a session; empty if nothing is. Signals are the attack's own."""
    if "Traceback (most recent call last)" in done.text or "INTERNALERROR" in done.text:
        return done.text[-500:]
    return "" if done.status in STATUSES or done.status < 0 else f"exit status {done.status}"


def code_digest() -> str:
    """The digest of the package and of the attacks."""
    found = sha256()
    for folder in ("src", "tests/attack", "tests/hotel"):
        for path in sorted((CHECKOUT / folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                found.update(f"{path.relative_to(CHECKOUT)}\0".encode() + path.read_bytes())
    return found.hexdigest()[:16]


def table(tried: Sequence[Tried]) -> str:
    """The figures in Markdown."""
    lines = [
        "| attack | what it does | promoted | 95 % interval | honest | sessions | seconds |",
        "| --- | --- | ---: | --- | ---: | ---: | ---: |",
    ]
    for name, attack in ATTACKS.items():
        if not (own := [one for one in tried if one.attack == name]):
            continue
        promoted = sum(one.promoted for one in own)
        interval = stats.binomtest(promoted, len(own)).proportion_ci()
        honest = "–" if attack.is_hold else f"{100 * honest_chance(attack.rate, LEVEL):.2f} %"
        told = attack.about if attack.claimed else f"{attack.about} (not claimed)"
        lines.append(
            f"| {name} | {told} | {promoted} of {len(own)} | {100 * interval.low:.1f} … "
            f"{100 * interval.high:.1f} % | {honest} | {sum(one.sessions for one in own) / len(own):.1f} "
            f"| {sum(one.seconds for one in own) / len(own):.1f} |"
        )
    head = (
        f"Level of all tests of a split: {100 * CALIBRATED.alpha:g} %; of the first: {100 * LEVEL:.2f} %. "
        "`honest` is the exact chance that a single gated run is promoted."
    )
    return "\n".join([head, "", *lines])


def is_broken(name: str, tried: Sequence[Tried]) -> bool:
    """Whether a claim is refuted: promoted more often than the level allows, beyond chance."""
    own = [one.promoted for one in tried if one.attack == name]
    low = stats.binomtest(sum(own), len(own)).proportion_ci().low if own else 0.0
    return ATTACKS[name].claimed and bool(low > CALIBRATED.alpha)


def earlier(path: Path, code: str) -> Iterator[Tried]:
    """The sequences in a results file that ran the present code."""
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        one = Tried(**json.loads(line))
        if one.code == code:
            yield one


def main() -> int:
    """Run what is missing, and print everything."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--sequences", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--attack", action="append", choices=ATTACKS, help="repeatable; default: all")
    parser.add_argument("--results", type=Path, default=CHECKOUT / ".trace2evolve" / "attack.jsonl")
    options = parser.parse_args()
    names, code = options.attack or list(ATTACKS), code_digest()
    tried = [one for one in earlier(options.results, code) if one.attack in names]
    done = {(one.attack, one.seed) for one in tried}
    missing = [
        (name, seed) for seed in range(options.sequences) for name in names if (name, seed) not in done
    ]
    options.results.parent.mkdir(parents=True, exist_ok=True)
    template()  # made once: the workers inherit it
    context = multiprocessing.get_context("fork")
    with (
        options.results.open("a", encoding="utf-8") as results,
        ProcessPoolExecutor(options.jobs, mp_context=context, initializer=begin) as pool,
    ):
        for number, ended in enumerate(
            as_completed([pool.submit(attempt, *one, code) for one in missing]), 1
        ):
            tried.append(one := ended.result())
            results.write(json.dumps(asdict(one)) + "\n")
            results.flush()
            if one.disorder:
                print(f"{one.attack}, seed {one.seed}: {one.disorder}", file=sys.stderr)
            if number % 50 == 0:
                print(f"{number} of {len(missing)}", file=sys.stderr)
    print(table(tried))
    return int(any(is_broken(name, tried) for name in names))


if __name__ == "__main__":
    sys.exit(main())
