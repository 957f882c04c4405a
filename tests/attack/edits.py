"""Edits of evidence, each with its undoing and the names of what it changed."""

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_trace2evolve.evidence.ledger import Ledger
from pytest_trace2evolve.records.ledger import TracesEntry
from tests.attack.target import Target, edit_rewards, with_digest


@dataclass(frozen=True)
class Edit:
    """Files that were changed.

    Attributes:
        before: What they held; None for a file that was not there.
        names: A report names the edit if it holds one of these.
        run: The run whose verdict was changed, if one was.
        blocks: Whether no candidate may be promoted meanwhile.
        ids: The ids of stored simulations that were changed.
    """

    before: Mapping[Path, bytes | None]
    names: tuple[str, ...]
    run: str = ""
    blocks: bool = False
    ids: tuple[str, ...] = ()

    def undo(self) -> None:
        """Put everything back."""
        for path, data in self.before.items():
            if data is None:
                path.unlink(missing_ok=True)
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)

    def is_used(self, run: Path | None) -> bool:
        """Whether a run took a simulation that was changed: what is not used need not be named."""
        made = {path.stem for path in run.rglob("simulations/*.json")} if run else set()
        return not self.ids or not made.isdisjoint(self.ids)

    def is_named(self, text: str) -> bool:
        """Whether a report names it."""
        return any(name in text for name in self.names)


def baseline_reward(target: Target, rng: random.Random, own: list[Path]) -> Edit | None:
    """Turns a reward of the baseline over."""
    path = target.root / "baselines/hotel/v0.json"
    before = path.read_bytes()
    lines = before.decode().split("\n")
    places = [place for place, line in enumerate(lines) if '"reward":' in line]
    place = rng.choice(places)
    for old, new in (('"reward":1.0', '"reward":0.0'), ('"reward":0.0', '"reward":1.0')):
        if old in lines[place]:
            lines[place] = lines[place].replace(old, new)
            break
    path.write_text("\n".join(lines), encoding="utf-8")
    return Edit({path: before}, ("baselines/hotel/v0.json",), blocks=True)


def verdict(target: Target, rng: random.Random, own: list[Path]) -> Edit | None:
    """Writes PROMOTE into a run's verdict, and sometimes better rewards into its evidence."""
    runs = sorted((target.root / ".trace2evolve/runs").glob("*/verdict.json"))
    texts = {path: path.read_text(encoding="utf-8") for path in runs}
    open_ones = [
        path for path, text in texts.items() if json.loads(text)["verdict"] in ("inconclusive", "discard")
    ]
    if not open_ones:
        return None
    path = open_ones[0]  # later ones may have met edits of the baseline
    before: dict[Path, bytes | None] = {path: path.read_bytes()}
    record = json.loads(texts[path])
    if rng.randrange(2):
        evidence = path.parent / "evidence/hotel.json"
        before[evidence] = evidence.read_bytes()
        edit_rewards(evidence, 1.0)
        record["suites"]["hotel"]["evidence"]["digest"] = with_digest(evidence)
    text = json.dumps(record | {"verdict": "promote", "partial": False}, indent=1)
    for decision in ("inconclusive", "discard"):
        text = text.replace(f'"verdict": "{decision}"', '"verdict": "promote"')
    path.write_text(text + "\n", encoding="utf-8")
    return Edit(before, ("verdict.json", "evidence/hotel.json"), run=path.parent.name)


def ledger_text(target: Target, rng: random.Random, own: list[Path]) -> Edit | None:
    """Changes the content of an entry."""
    entries = sorted((target.root / "ledger").glob("*.json"))
    if not entries:
        return None
    path = rng.choice(entries)
    before = path.read_bytes()
    text = before.decode()
    swaps = [
        ('"inconclusive"', '"promote"'),
        ('"discard"', '"inconclusive"'),
        ('"v1"', '"v2"'),
        ("2026", "2025"),
    ]
    changed = next((text.replace(*swap) for swap in swaps if swap[0] in text), text.replace("1", "2"))
    path.write_text(changed, encoding="utf-8")
    return Edit({path: before}, (path.name,), blocks=True)


def ledger_entry(target: Target, rng: random.Random, own: list[Path]) -> Edit | None:
    """Deletes an entry that another names."""
    entries = sorted((target.root / "ledger").glob("*.json"))
    texts = {path: path.read_text(encoding="utf-8") for path in entries}
    named = [
        path for path in entries if any(path.stem in text for other, text in texts.items() if other != path)
    ]
    if not named:
        return None
    path = rng.choice(named)
    before = path.read_bytes()
    path.unlink()
    return Edit({path: before}, (path.name,), blocks=True)


def ledger_copy(target: Target, rng: random.Random, own: list[Path]) -> Edit | None:
    """Copies an entry under another name."""
    entries = sorted((target.root / "ledger").glob("*.json"))
    if not entries:
        return None
    path = target.root / "ledger" / f"{rng.getrandbits(128):032x}.json"
    path.write_bytes(rng.choice(entries).read_bytes())
    return Edit({path: None}, (path.name,), blocks=True)


def trace_text(target: Target, rng: random.Random, own: list[Path]) -> Edit | None:
    """Changes what was said in a stored simulation of the candidate."""
    if not (present := [path for path in own if path.exists()]):
        return None
    path = rng.choice(present)
    before = path.read_bytes()
    record = json.loads(before)
    said = [message for message in record["messages"] if message.get("content")]
    rng.choice(said)["content"] += " Really."
    path.write_text(json.dumps(record, ensure_ascii=False), encoding="utf-8")
    return Edit({path: before}, (path.stem,), ids=(record["id"],))


def trace_swap(target: Target, rng: random.Random, own: list[Path]) -> Edit | None:
    """Swaps two stored simulations of the candidate."""
    present = [path for path in own if path.exists()]
    if len(present) < 2:
        return None
    item, other = rng.sample(present, k=2)
    before = {item: item.read_bytes(), other: other.read_bytes()}
    item.write_bytes(before[other])
    other.write_bytes(before[item])
    ids = tuple(json.loads(data)["id"] for data in before.values())
    return Edit(before, (item.stem, other.stem), ids=ids)


def run_folder(target: Target, rng: random.Random, own: list[Path]) -> Edit | None:
    """Changes the recorded reward of a simulation in the folder of a run whose traces the ledger knows."""
    known = {
        entry.run
        for entry in Ledger(target.root / "ledger").read().entries_by_time
        if isinstance(entry, TracesEntry)
    }
    folder = target.root / ".trace2evolve/runs"
    paths = [path for run in sorted(known) for path in sorted((folder / run).glob("simulations/*.json"))]
    if not (present := [path for path in paths if (path.parents[1] / "results.json").exists()]):
        return None
    path = rng.choice(present)
    before = path.read_bytes()
    record = json.loads(before)
    graded = record.get("reward_info") or {"reward": 0.0}
    record["reward_info"] = graded | {"reward": 1.0 - graded["reward"]}
    path.write_text(json.dumps(record), encoding="utf-8")
    return Edit({path: before}, (f"{path.parents[1].name}: was edited: its traces have digest",))


EDITS: dict[str, Callable[[Target, random.Random, list[Path]], Edit | None]] = {
    "baseline reward": baseline_reward,
    "verdict": verdict,
    "ledger text": ledger_text,
    "ledger entry": ledger_entry,
    "ledger copy": ledger_copy,
    "trace text": trace_text,
    "trace swap": trace_swap,
    "run folder": run_folder,
}
"""All edits. Each takes the files of the candidate's stored simulations; None if there is nothing to edit."""
