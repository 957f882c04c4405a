"""No sequence of runs, kills and edits promotes an unchanged agent, and every edit of evidence is named."""

import json
import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from scipy import stats

from tests.attack.attacks import ATTACKS, HOLD, OFF, restore, snapshot, unsolved
from tests.attack.coin import Coin
from tests.attack.edits import EDITS, Edit
from tests.attack.sessions import Done, Sessions
from tests.attack.target import STATUSES, TASKS, Outcome, Target, target

SEQUENCES = 3
"""How many sequences Hypothesis draws."""

ROUNDS = 5
"""How often a directed attack draws again at most: at a rate of 0.5, nearly every task succeeds once."""

UNLUCKY = {"Refer every guest": 0.0}
"""A baseline that failed all its tasks, which is where drawing the candidate again pays most."""

DIRECTED = {
    "fresh": replace(ATTACKS["fresh"], rate=0.5, rates=UNLUCKY),
    "lost-files": replace(ATTACKS["lost-files"], rate=0.5, rates=UNLUCKY),
    "kills": replace(ATTACKS["kills"], rate=0.5, rates=UNLUCKY),
    "losses": replace(ATTACKS["losses"], rate=0.5, rates=UNLUCKY),
    "tosses": replace(ATTACKS["tosses"], rate=0.5, rates=UNLUCKY),
    "goals": replace(ATTACKS["goals"], rate=0.5, rates=UNLUCKY),
    "ledger": replace(ATTACKS["ledger"], rate=0.5, rates=UNLUCKY),
    **{name: ATTACKS[name] for name in ("hold-losses", "remeasure")},
    **{name: ATTACKS[name] for name in ("verdict", "traces", "folder", "twin")},
}
SEEDS = {"remeasure": 1, "kills": 1, "losses": 1, "tosses": 1}
"""Seeds at which an honest first draw is not promoted. At seed 0 the first draw of these,
without any attack, has six successes against a baseline without one, which is promoted."""


@pytest.mark.parametrize("name", DIRECTED)
def test_an_attack_promotes_nothing(name: str, sessions: Sessions) -> None:
    attack, seed = DIRECTED[name], SEEDS.get(name, 0)
    with target(attack.coin(seed), sessions) as project:
        project.rounds = ROUNDS
        project.measure_baseline()
        promoted = attack.run(project, random.Random(seed))
        for done in project.texts:
            require_orderly(done)
    assert not promoted, attack.about


def require_orderly(done: Done) -> None:
    """A documented exit status, or the signal that the test sent, and no traceback."""
    assert done.status in STATUSES or done.status in (-9, -15), done.text
    assert "Traceback (most recent call last)" not in done.text, done.text
    assert "INTERNALERROR" not in done.text, done.text


@dataclass
class Sequence:
    """Draws, kills, deletes and edits in any order, on candidate v1 of an agent that never changes.

    Attributes:
        known: The latest reward of each task.
        edits: Those that are not undone.
        old: What the store held after each session.
        promoted: Whether a claim of an improvement was promoted.
    """

    project: Target
    random: random.Random
    known: dict[str, float | None] = field(default_factory=lambda: dict.fromkeys(TASKS))
    edits: list[Edit] = field(default_factory=list)
    old: list[dict[Path, bytes]] = field(default_factory=list)
    promoted: bool = False

    def __post_init__(self) -> None:
        self.project.measure_baseline()
        self._others = set(self.project.stored())

    def took(self, outcome: Outcome) -> None:
        """Take note of a session of v1."""
        self.known |= {task: reward for task, reward in outcome.rewards.items() if reward is not None}
        if outcome.promoted:
            assert not [edit.names for edit in self.edits if edit.blocks], outcome.done.text
        self.old.append(snapshot(self.project.store))

    def run(self, gate: tuple[str, ...], fresh: bool, narrowed: str) -> None:
        """A session: whole, or of the tasks that failed; with all of them drawn again, or not."""
        arguments = [*gate, *(["--t2e-fresh"] if fresh else [])]
        if narrowed == "lf":
            arguments.append("--lf")
        elif narrowed:
            arguments += ["-k", " or ".join(unsolved(self.known) or TASKS)]
        outcome = self.project.session("v1", *arguments)
        self.took(outcome)
        # That an equal agent is not worse is true.
        self.promoted |= outcome.promoted and gate != HOLD

    def kill(self, answers: int, fresh: bool) -> None:
        """A session that is killed in the middle."""
        outcome = self.project.killed_after(answers, "v1", *(["--t2e-fresh"] if fresh else []))
        self.took(outcome)
        self.promoted |= outcome.promoted

    def delete(self, what: str) -> None:
        """Delete what a run would reuse."""
        if what == "failures":
            for path in self._own():
                if self.known[json.loads(path.read_bytes())["task_id"]] != 1.0:
                    path.unlink()
        else:
            folder = self.project.store if what == "finished" else self.project.store.parent
            shutil.rmtree(folder, ignore_errors=True)

    def put_back(self, which: int) -> None:
        """Copy what the store held at an earlier time back."""
        if self.old:
            restore(self.old[which % len(self.old)])

    def set_clock(self, days: int) -> None:
        """Another date from now on."""
        self.project.ahead = days * 86400.0

    def edit(self, kind: str, stays: bool) -> None:
        """Edit evidence, and see that it is named."""
        edit = EDITS[kind](self.project, self.random, self._own())
        if edit is None:
            return
        self.require_named(edit)
        if stays:
            self.edits.append(edit)
        else:
            edit.undo()

    def require_named(self, edit: Edit) -> None:
        """See that `check`, `ledger`, `baseline promote` of the edited run or a gated run names an edit."""
        if edit.run:
            done = self.project.command("baseline", "promote", edit.run, "--dry-run")
            assert done.status != 0, done.text
            text = done.text
        else:
            text = self.project.command("check").text + self.project.command("ledger").text
        if not edit.is_named(text) and not edit.run:
            outcome = self.project.session("v1")
            self.took(outcome)
            text += outcome.done.text
            if not edit.is_used(outcome.run):
                return
        assert edit.is_named(text), f"{edit.names}: {text}"

    def undo(self) -> None:
        """Undo the latest edit."""
        if self.edits:
            self.edits.pop().undo()

    def lint(self) -> None:
        """Check baselines and the ledger: what was edited there is named until it is undone."""
        text = self.project.command("check").text + self.project.command("ledger").text
        for edit in self.edits:
            assert edit.is_named(text) or not edit.blocks, f"{edit.names}: {text}"

    def _own(self) -> list[Path]:
        return sorted(self.project.stored().keys() - self._others)


def operation(name: str, *arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    """The name of a method of `Sequence` with its arguments."""
    return st.tuples(st.just(name), *arguments)


SESSION = operation(
    "run",
    st.sampled_from([(), (OFF,), HOLD]),
    st.booleans(),
    st.sampled_from(["", "unsolved", "lf"]),
)
EDIT = operation("edit", st.sampled_from(sorted(EDITS)), st.booleans())
OPERATIONS = st.one_of(
    SESSION,
    SESSION,
    operation("kill", st.integers(0, 40), st.booleans()),
    operation("delete", st.sampled_from(["failures", "finished", "everything"])),
    operation("put_back", st.integers(0, 9)),
    operation("set_clock", st.sampled_from([-400, -1, 0, 1, 400])),
    EDIT,
    EDIT,
    operation("undo"),
    operation("lint"),
)


SOME = st.lists(OPERATIONS, min_size=1, max_size=2)
SEQUENCE = st.tuples(SOME, SESSION, EDIT, SOME, EDIT).map(
    lambda parts: [*parts[0], parts[1], parts[2], *parts[3], parts[4]]
)


def test_no_sequence_promotes_an_unchanged_agent_or_hides_an_edit(sessions: Sessions) -> None:
    promotions: list[bool] = []

    @settings(
        max_examples=SEQUENCES,
        derandomize=True,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.integers(0, 2**32 - 1), SEQUENCE)
    def attack(seed: int, operations: list[tuple[Any, ...]]) -> None:
        with target(Coin({}, seed=seed), sessions) as project:
            sequence = Sequence(project, random.Random(seed))
            for name, *arguments in operations:
                getattr(sequence, name)(*arguments)
                for done in project.texts:
                    require_orderly(done)
            sequence.run((), False, "")
            sequence.lint()
            promotions.append(sequence.promoted)

    attack()
    assert sum(promotions) <= stats.binom.ppf(0.999, len(promotions), 0.05)


@pytest.fixture(scope="module")
def judged(sessions: Sessions) -> Iterator[Sequence]:
    """A project whose ledger holds two gated runs."""
    with target(Coin({}, seed=1), sessions) as project:
        sequence = Sequence(project, random.Random(1))
        for _ in range(2):
            sequence.run((), False, "")
        yield sequence


@pytest.mark.parametrize("kind", EDITS)
def test_an_edit_is_named_until_it_is_undone(kind: str, judged: Sequence) -> None:
    project = judged.project
    edit = EDITS[kind](project, judged.random, judged._own())
    assert edit is not None
    try:
        judged.require_named(edit)
    finally:
        edit.undo()
    text = project.command("check").text + project.command("ledger").text
    assert not edit.is_named(text), text
    assert not edit.is_named(project.session("v1").done.text) or edit.run
