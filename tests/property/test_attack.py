"""No sequence of runs, kills and edits promotes an unchanged agent, and every edit of evidence is named."""

import random
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from scipy import stats

from tests.attack.attacks import ATTACKS, HOLD, OFF, restore, snapshot, unsolved
from tests.attack.coin import Coin
from tests.attack.edits import EDITS, Edit
from tests.attack.sessions import Done, Sessions
from tests.attack.target import STATUSES, TASKS, Outcome, Target, target

SEQUENCES = 10
"""How many sequences the machine tries."""

UNLUCKY = {"Refer every guest": 0.0}
"""A baseline that failed all its tasks, which is where drawing the candidate again pays most."""

DIRECTED = {
    "fresh": replace(ATTACKS["fresh"], rate=0.4, rates=UNLUCKY),
    "lost-files": replace(ATTACKS["lost-files"], rate=0.4, rates=UNLUCKY),
    "kills": replace(ATTACKS["kills"], rate=0.4, rates=UNLUCKY),
    "losses": replace(ATTACKS["losses"], rate=0.4, rates=UNLUCKY),
    "ledger": replace(ATTACKS["ledger"], rate=0.4, rates=UNLUCKY),
    **{name: ATTACKS[name] for name in ("hold-fresh", "remeasure", "baseline", "verdict", "traces")},
}
SEEDS = {"remeasure": 1}
"""Seeds at which an attack would succeed, where the first does not."""


@pytest.fixture(scope="module")
def sessions() -> Iterator[Sessions]:
    """The process that forks sessions."""
    with Sessions() as made:
        yield made


@pytest.mark.parametrize("name", DIRECTED)
def test_an_attack_promotes_nothing(name: str, sessions: Sessions) -> None:
    attack, seed = DIRECTED[name], SEEDS.get(name, 0)
    with target(attack.coin(seed), sessions) as project:
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


class Attacker(RuleBasedStateMachine):
    """Draws, kills, deletes and edits in any order, on candidate v1 of an agent that never changes."""

    sessions: ClassVar[Sessions]
    promotions: ClassVar[list[bool]]

    @initialize(seed=st.integers(0, 2**32 - 1))
    def begin(self, seed: int) -> None:
        self.stack = ExitStack()
        self.project: Target = self.stack.enter_context(target(Coin({}, seed=seed), self.sessions))
        self.random = random.Random(seed)
        self.project.measure_baseline()
        self.others = set(self.project.stored())
        self.known: dict[str, float | None] = dict.fromkeys(TASKS)
        self.edits: list[Edit] = []
        self.old: list[dict[Path, bytes]] = []
        self.checked = 0
        self.promoted = False
        self.check()

    def teardown(self) -> None:
        if hasattr(self, "stack"):
            self.promotions.append(self.promoted)
            self.stack.close()

    def check(self) -> None:
        """Check whatever was said since the last time."""
        new = self.project.texts[self.checked :]
        self.checked = len(self.project.texts)
        for done in new:
            require_orderly(done)

    def took(self, outcome: Outcome) -> None:
        """Take note of a session of v1."""
        self.known |= {task: reward for task, reward in outcome.rewards.items() if reward is not None}
        self.promoted |= outcome.promoted
        if outcome.promoted:
            assert not [edit.names for edit in self.edits if edit.blocks], outcome.done.text
        self.old.append(snapshot(self.project.store))
        self.check()

    @rule(
        gate=st.sampled_from([(), (OFF,), HOLD]),
        fresh=st.booleans(),
        narrowed=st.sampled_from(["", "unsolved", "lf"]),
    )
    def run(self, gate: tuple[str, ...], fresh: bool, narrowed: str) -> None:
        """A session: whole, or of the tasks that failed; with all drawn again, or not."""
        arguments = [*gate, *(["--t2e-fresh"] if fresh else [])]
        if narrowed == "lf":
            arguments.append("--lf")
        elif narrowed:
            arguments += ["-k", " or ".join(unsolved(self.known) or TASKS)]
        self.took(self.project.session("v1", *arguments))

    @rule(answers=st.integers(0, 40), fresh=st.booleans())
    def kill(self, answers: int, fresh: bool) -> None:
        """A session that is killed in the middle."""
        self.took(self.project.killed_after(answers, "v1", *(["--t2e-fresh"] if fresh else [])))

    @rule(what=st.sampled_from(["failures", "finished", "everything"]))
    def delete(self, what: str) -> None:
        """Delete what a run would reuse."""
        if what == "failures":
            for path, record in self.project.stored().items():
                if path not in self.others and self.known[record["task_id"]] != 1.0:
                    path.unlink()
        else:
            folder = self.project.store if what == "finished" else self.project.store.parent
            shutil.rmtree(folder, ignore_errors=True)

    @precondition(lambda self: self.old)
    @rule(data=st.data())
    def put_back(self, data: st.DataObject) -> None:
        """Copy stored simulations of an earlier time back."""
        restore(data.draw(st.sampled_from(self.old)))

    @rule(days=st.sampled_from([-400, -1, 0, 1, 400]))
    def set_clock(self, days: int) -> None:
        """Another date from now on."""
        self.project.ahead = days * 86400.0

    @rule(kind=st.sampled_from(sorted(EDITS)), stays=st.booleans())
    def edit(self, kind: str, stays: bool) -> None:
        """Edit evidence, and see that it is named."""
        own = sorted(self.project.stored().keys() - self.others)
        made = EDITS[kind](self.project, self.random, own)
        if made is None:
            return
        self.require_named(kind, made)
        if stays:
            self.edits.append(made)
        else:
            made.undo()

    def require_named(self, kind: str, edit: Edit) -> None:
        if edit.run:
            done = self.project.command("promote", edit.run, "--dry-run")
            assert done.status != 0, f"{kind}: {done.text}"
            assert edit.is_named(done.text), f"{kind}, {edit.names}: {done.text}"
            return
        texts = [self.project.command(name).text for name in ("lint", "ledger")]
        if not any(map(edit.is_named, texts)):
            outcome = self.project.session("v1")
            texts.append(outcome.done.text)
            if edit.is_named(outcome.done.text):
                self.took(outcome)
        assert any(map(edit.is_named, texts)), f"{kind}, {edit.names}: {''.join(texts)}"
        self.check()

    @precondition(lambda self: self.edits)
    @rule()
    def undo(self) -> None:
        """Undo the latest edit."""
        self.edits.pop().undo()

    @rule()
    def lint(self) -> None:
        """Baselines and the ledger are read."""
        text = self.project.command("lint").text + self.project.command("ledger").text
        for edit in self.edits:
            assert edit.is_named(text) or not edit.blocks, f"{edit.names}: {text}"
        self.check()

    @rule()
    def promote(self) -> None:
        """Try every run."""
        for run in sorted((self.project.root / ".trace2evolve/runs").glob("*"))[-2:]:
            done = self.project.command("promote", run.name, "--dry-run")
            self.promoted |= done.status == 0
        self.check()


def test_no_sequence_promotes_an_unchanged_agent_or_hides_an_edit(sessions: Sessions) -> None:
    Attacker.sessions, Attacker.promotions = sessions, []
    run_state_machine_as_test(
        Attacker,
        settings=settings(
            max_examples=SEQUENCES,
            stateful_step_count=8,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )
    promoted = sum(Attacker.promotions)
    assert promoted <= stats.binom.ppf(0.999, len(Attacker.promotions), 0.05)
