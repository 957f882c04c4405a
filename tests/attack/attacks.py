"""Attacks that keep the true rates equal, or worse by the margin, and still want a PROMOTE.

Each takes a fresh target with a measured baseline, always goes on from what looks best, and ends with whether
the candidate was promoted. They use pytest sessions, `trace2evolve` commands and the project's files alone.
"""

import json
import random
import shutil
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_trace2evolve.testing import Fault
from tests.attack.coin import Coin
from tests.attack.target import TASKS, Outcome, Target, edit_rewards, with_digest

HOLD = ("--t2e-goal=hold", "--t2e-gate=wide")
OFF = "--t2e-gate=off"
FAULTS = (Fault.SERVER_ERROR, Fault.OVERLOADED, Fault.HANG_UP, Fault.BROKEN_BODY, Fault.NOT_JSON)
WORSE = {"This version is worse.": 0.3}
"""Below the baseline's 0.9 by more than policy `wide` allows."""


@dataclass(frozen=True)
class Attack:
    """A class of attacks.

    Attributes:
        about: What it does, for the report.
        run: Attacks a target; whether the candidate was promoted.
        rate: The chance of success of the baseline and the candidate.
        rates: Other chances: see `Coin.rates`.
    """

    about: str
    run: Callable[[Target, random.Random], bool]
    rate: float = 0.2
    rates: Mapping[str, float] = field(default_factory=dict)

    def coin(self, seed: int) -> Coin:
        """The coin of the sequence of a seed."""
        return Coin(self.rates, seed=seed, rate=self.rate)


def fresh(target: Target, rng: random.Random, candidate: str = "v1", goal: Sequence[str] = ()) -> bool:
    """Draws failures again by `--t2e-fresh` and `-k`, with and without a gate."""
    known: dict[str, float | None] = dict.fromkeys(TASKS)
    vain = 0

    def draw(*arguments: str) -> None:
        nonlocal vain
        # A whole run with a gate would be recorded: a failure that stays.
        gate = rng.choice(([OFF], goal)) if arguments else [OFF]
        outcome = target.session(candidate, "--t2e-fresh", *gate, *arguments)
        measured = {task: reward for task, reward in outcome.rewards.items() if reward is not None}
        known.update(measured)
        vain = 0 if measured else vain + 1

    draw()
    for _ in range(target.rounds):
        if not (failing := unsolved(known)) or vain > 1:
            break
        draw("-k", " or ".join(failing))
    return target.session(candidate, *goal).promoted


def lost_files(target: Target, rng: random.Random, candidate: str = "v1", goal: Sequence[str] = ()) -> bool:
    """Deletes the files of failures below `.trace2evolve`, or all of it and puts the others back."""
    others = set(target.stored())
    outcome = target.session(candidate, OFF)
    for _ in range(target.rounds):
        if not (failing := outcome.failing):
            break
        own = {path: path.read_bytes() for path in target.stored().keys() - others}
        kept = {path: data for path, data in own.items() if json.loads(data)["task_id"] not in failing}
        match rng.randrange(3):
            case 0:
                for path in own.keys() - kept.keys():
                    path.unlink()
            case 1:
                shutil.rmtree(target.store)
            case _:
                shutil.rmtree(target.root / ".trace2evolve")
        restore(kept)
        partial = ("-k", " or ".join(failing))
        again = target.session(
            candidate, *rng.choice(((OFF,), (OFF, "--lf"), (OFF, *partial), (*goal, *partial)))
        )
        measured = {task: reward for task, reward in again.rewards.items() if reward is not None}
        if not measured:
            break
        outcome = Outcome(again.done, outcome.rewards | measured, again.run, again.verdict)
    return target.session(candidate, *goal).promoted


def kills(target: Target, rng: random.Random, candidate: str = "v1", goal: Sequence[str] = ()) -> bool:
    """Kills sessions whose remaining conversations are about to fail, and starts again."""
    others = len(target.stored())
    for _ in range(target.rounds):
        missing = len(TASKS) - (len(target.stored()) - others)
        if not missing:
            break
        by = rng.choice((signal.SIGKILL, signal.SIGTERM, signal.SIGINT))
        killed = target.killed(candidate, *rng.choice(([OFF], goal)), expected=missing, by=by)
        if killed.promoted:
            return True
    return target.session(candidate, *goal).promoted


def losses(target: Target, rng: random.Random, candidate: str = "v1", goal: Sequence[str] = ()) -> bool:
    """The endpoint breaks on conversations that are about to fail, until enough have succeeded."""
    for _ in range(target.rounds):
        target.coin.on_failure = rng.choice(FAULTS)
        outcome = target.session(candidate, *rng.choice(([OFF], goal)))
        target.coin.on_failure = None
        if outcome.promoted:
            return True
        if outcome.run is None or None not in outcome.rewards.values():
            break
    return target.session(candidate, *goal).promoted


def tosses(target: Target, rng: random.Random) -> bool:
    """The endpoint breaks on conversations that are about to fail, which the next session tosses again."""
    for _ in range(3):
        target.coin.unseen = rng.randint(2, 4)
        arguments = rng.choice(((OFF,), (), ("--t2e-goal=no-regression",), HOLD))
        outcome = target.session("v1", *arguments)
        target.coin.unseen = 0
        if outcome.promoted and not arguments:
            return True
    return target.session("v1").promoted


def goals(target: Target, rng: random.Random) -> bool:
    """Looks at new draws under other goals and policies, and claims at the end."""
    for _ in range(5):
        goal = rng.choice((("--t2e-goal=no-regression",), HOLD, ("--t2e-gate=strict", "--t2e-goal=hold")))
        target.session("v1", "--t2e-fresh", *goal)
    return target.session("v1", "--t2e-fresh").promoted


def remeasure(target: Target, rng: random.Random) -> bool:
    """Draws the baseline's successes again until it looks bad."""
    update = (OFF, "--t2e-save-baseline=v0", "--t2e-baseline-mode=update")
    passing = [task for task, reward in target.baseline.rewards.items() if reward == 1.0]
    for _ in range(target.rounds):
        if not passing:
            break
        if rng.randrange(2):
            again = target.session("v0", OFF, "--t2e-fresh", "-k", " or ".join(passing)).rewards
        else:
            for path, record in target.stored().items():
                if record["task_id"] in passing:
                    path.unlink()
            again = target.session("v0", *update).rewards
        passing = [task for task in passing if again[task] != 0.0]
    target.session("v0", *update)
    return target.session("v1").promoted


def edited_verdict(target: Target, rng: random.Random) -> bool:
    """Writes PROMOTE into a run's `verdict.json`, with or without better evidence, and promotes the run."""
    outcome = target.session("v1")
    if outcome.run is None:
        return False
    record = json.loads((outcome.run / "verdict.json").read_bytes())
    if rng.randrange(2):
        evidence = outcome.run / "evidence/hotel.json"
        edit_rewards(evidence, 1.0)
        record["suites"]["hotel"]["evidence"]["digest"] = with_digest(evidence)
    text = json.dumps(record, indent=1)
    for decision in ("inconclusive", "discard"):
        text = text.replace(f'"verdict": "{decision}"', '"verdict": "promote"')
    (outcome.run / "verdict.json").write_text(text + "\n", encoding="utf-8")
    return target.command("baseline", "promote", outcome.run.name).status == 0


def forged_traces(target: Target, rng: random.Random) -> bool:
    """Puts successes of another candidate in the place of stored failures."""
    before = set(target.stored())
    outcome = target.session("v1", OFF)
    own = {record["task_id"]: path for path, record in target.stored().items() if path not in before}
    before = set(target.stored())
    target.session("v2", OFF)
    for path, record in target.stored().items():
        if path not in before and record["task_id"] in outcome.failing:
            victim = own[record["task_id"]]
            if rng.randrange(2):
                record["id"] = json.loads(victim.read_bytes())["id"]
            victim.write_text(json.dumps(record), encoding="utf-8")
    return target.session("v1").promoted


def forged_folder(target: Target, rng: random.Random) -> bool:
    """Puts successes of another candidate into a run's folder, and replays the folder."""
    good, bad = (target.session(name, OFF).run for name in ("v2", "v1"))
    if good is None or bad is None:
        return False
    said = {record["task_id"]: record for record in _records(good).values()}
    for path, record in _records(bad).items():
        path.write_text(json.dumps({**said[record["task_id"]], "id": record["id"]}), encoding="utf-8")
    return target.session("v1", f"--t2e-results={bad}", without_model=True).promoted


def _records(run: Path) -> dict[Path, dict[str, Any]]:
    return {path: json.loads(path.read_bytes()) for path in sorted(run.glob("simulations/*.json"))}


def damaged_ledger(target: Target, rng: random.Random) -> bool:
    """Draws failures again, and edits or deletes entries of the ledger."""
    target.session("v1")
    fresh(target, rng)
    entries = sorted((target.root / "ledger").glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
    for path in rng.sample(entries[:-1], k=min(len(entries) - 1, rng.randint(1, 3))):
        text = path.read_text(encoding="utf-8")
        changed = text.replace("inconclusive", "promote").replace("discard", "promote")
        if changed != text and rng.randrange(2):
            path.write_text(changed, encoding="utf-8")
        else:
            path.unlink()
    return any(target.session("v1").promoted for _ in range(2))


def twin(target: Target, rng: random.Random) -> bool:
    """Draws the tasks in a suite whose draws have no entry until they pass, and judges the sealed one."""
    suite = (target.root / "suites/hotel.toml").read_text(encoding="utf-8")
    (target.root / "suites/twin.toml").write_text(suite.replace("heldout", "discovery"), encoding="utf-8")
    target.command("lock")
    cached = rng.choice(((), ("--t2e-cache",)))
    outcome = target.session("v1", OFF, "--t2e-suite=twin", *cached)
    for _ in range(target.rounds):
        if not (failing := outcome.failing):
            break
        for path, record in target.stored().items():
            if record["task_id"] in failing:
                path.unlink()
        for path in (*target.store.glob("draws/*"), *(target.root / ".trace2evolve").glob("cache.sqlite*")):
            path.unlink()
        again = target.session("v1", OFF, "--t2e-suite=twin", *cached, "-k", " or ".join(failing))
        measured = {task: reward for task, reward in again.rewards.items() if reward is not None}
        outcome = Outcome(again.done, outcome.rewards | measured, again.run, again.verdict)
    return target.session("v1", "--t2e-suite=hotel", *cached).promoted


def held(attack: Callable[..., bool]) -> Callable[[Target, random.Random], bool]:
    """An attack under goal `hold`, for a candidate that is worse."""
    return lambda target, rng: attack(target, rng, "worse", HOLD)


ATTACKS = {
    "fresh": Attack("failures drawn again by --t2e-fresh and -k", fresh),
    "lost-files": Attack("files of failures deleted below .trace2evolve", lost_files),
    "kills": Attack("killed before a failure is stored", kills),
    "losses": Attack("failures lost to the endpoint's faults", losses),
    "tosses": Attack("failures lost before they are seen, and tossed again", tosses, rate=0.5),
    "goals": Attack("new draws under other goals and policies first", goals, rate=0.5),
    "hold-losses": Attack("goal hold: failures lost", held(losses), 0.9, WORSE),
    "remeasure": Attack("the baseline's successes drawn again", remeasure, rate=0.8),
    "verdict": Attack("an edited verdict.json and evidence", edited_verdict),
    "traces": Attack("successes of others in the store", forged_traces, rates={"This is version 2.": 1.0}),
    "folder": Attack(
        "successes of others in a run's folder, replayed", forged_folder, rates={"This is version 2.": 1.0}
    ),
    "ledger": Attack("drawn again, entries edited or deleted", damaged_ledger),
    "twin": Attack("drawn in a suite with another split, with and without a cache", twin),
}
"""All attacks by name."""


def unsolved(rewards: Mapping[str, float | None]) -> list[str]:
    """The tasks without a success."""
    return [task for task, reward in rewards.items() if reward != 1.0]


def snapshot(folder: Path) -> dict[Path, bytes]:
    """The files of a folder."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def restore(files: Mapping[Path, bytes]) -> None:
    """Write files back."""
    for path, data in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
