"""An unchanged agent whose runs are watched, killed, lost and drawn again until one is promoted.

The baseline and the candidate have the same true rate on each task. Each repeat follows a strategy for up to
twelve runs, and ends at the first PROMOTE of goal `improve`. Draws, losses and verdicts go through the
project's own ledger rules and gate, in this process and without a model.
"""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import numpy as np

from pytest_trace2evolve.gate.claims import Claim, spending_of
from pytest_trace2evolve.gate.decide import GateInput, awaits_simulations, decide
from pytest_trace2evolve.gate.losses import without_second_tosses
from pytest_trace2evolve.gate.pairs import pair
from pytest_trace2evolve.project.policies import find_policy
from pytest_trace2evolve.records.evidence import SimulationEvidence
from pytest_trace2evolve.records.ledger import ContentVersion, DatedEntry, Draw, DrawOrigin, Evaluation
from pytest_trace2evolve.records.score import Status
from pytest_trace2evolve.records.verdict import Decision, Goal, Label
from pytest_trace2evolve.session.verdicts import combine_with_ledger

ROOT, RUNS, MOST_TRIALS = "0" * 32, 12, 8
V1, V0 = ContentVersion(id="v1", digest="text of v1"), ContentVersion(id="v0", digest="evidence of v0")
START = datetime(2026, 1, 1, tzinfo=UTC)
GOALS = (Goal.NO_REGRESSION, Goal.HOLD, Goal.IMPROVE)
RATE = 0.8
"""The true rate of every task."""


@dataclass
class Outcomes:
    """A draw: by task and trial whether it passes, and how many runs lost it before.

    Attributes:
        name: The draw's id.
        made: Its origin.
    """

    name: str
    made: DrawOrigin
    passes: np.ndarray
    lost: np.ndarray

    def records(
        self, side: str, trials: int, gone: Sequence[tuple[int, int]] = ()
    ) -> list[SimulationEvidence]:
        """The first trials of each task; those that are `gone` are lost."""
        return [
            SimulationEvidence(
                id=f"{side}-{self.name}-{task}-{trial}",
                task_id=str(task),
                trial=trial,
                status=Status.INFRASTRUCTURE_ERROR if (task, trial) in gone else Status.MEASURED,
                reward=None if (task, trial) in gone else float(self.passes[task, trial]),
                termination_reason="user_stop",
                task_digest=f"task {task}",
                lost=int(self.lost[task, trial]),
            )
            for task in range(len(self.passes))
            for trial in range(trials)
        ]


@dataclass
class Attacker:
    """Who wants a PROMOTE of an agent that did not change.

    Attributes:
        entries: The ledger.
        agent: The digest of the agent's settings, which may change without an effect.
    """

    rng: np.random.Generator
    rates: np.ndarray
    entries: list[DatedEntry] = field(default_factory=list)
    agent: str = "agent"
    n_draws: int = 0

    def __post_init__(self) -> None:
        self.baseline = self.draw(DrawOrigin.KEPT)

    def draw(self, made: DrawOrigin) -> Outcomes:
        """Simulations that nobody has seen."""
        self.n_draws += 1
        shape = (len(self.rates), MOST_TRIALS)
        passes = self.rng.random(shape) < self.rates[:, None]
        return Outcomes(f"{self.n_draws:032x}", made, passes, np.zeros(shape, dtype=int))

    def gain(self, draw: Outcomes, trials: int) -> float:
        """How much better than the baseline a draw looks."""
        return float(draw.passes[:, :trials].mean() - self.baseline.passes[:, :trials].mean())

    def declare(self, draw: Outcomes, trials: int, *, gated: bool = True) -> None:
        """Enter the draw in the ledger, as each run does before it shows anything; then it may be killed."""
        fields = {"suite": "s", "split": "heldout", "lock": "lock", "candidate": V1, "agent": self.agent}
        known = [(one.draw, one.trials) for one in self.entries if isinstance(one, Draw)]
        if (draw.name, trials) not in known:
            self.entries.append(
                Draw(
                    **self._dated(), **fields, draw=draw.name, made=draw.made, gated=gated, whole=True,
                    run=f"run {len(self.entries)}", trials=trials,
                )
            )  # fmt: skip

    def judge(
        self,
        draw: Outcomes,
        trials: int,
        goal: Goal = Goal.IMPROVE,
        policy: str = "calibrated",
        gone: Sequence[tuple[int, int]] = (),
    ) -> bool:
        """Run whole with a gate; whether an improvement was promoted."""
        self.declare(draw, trials)
        is_numbered = goal is Goal.IMPROVE
        claim = Claim(
            "s", "heldout", "lock", V1.digest, self.agent, "who v0 is", policy, trials, goal=goal,
            is_numbered=is_numbered, draw_id=draw.name,
        )  # fmt: skip
        spending = spending_of(self.entries, claim)
        sides = self.baseline.records("old", trials), draw.records("new", trials, gone)
        verdict = decide(
            GateInput(
                pair(*sides),
                find_policy(policy, None),
                goal=goal,
                label=Label.CLEAN,
                expected_tasks=len(self.rates),
                spending=spending,
                bounded_pairs=pair(*without_second_tosses(*sides)),
            )
        )
        verdict = combine_with_ledger(verdict, spending)
        assert verdict.decision is not None
        is_unmeasured = verdict.decision is Decision.INCONCLUSIVE and awaits_simulations(verdict)
        repeated = spending.repeated_verdict
        self.entries.append(
            Evaluation(
                **self._dated(), suite="s", split="heldout", lock="lock", candidate=V1, agent=self.agent,
                baseline=V0, baseline_identity="who v0 is", policy=policy, goal=goal, trials=trials,
                decision=verdict.decision, label=verdict.label, look=verdict.look, analysis=verdict.analysis,
                alpha=None if is_unmeasured or goal is Goal.NO_REGRESSION else verdict.alpha,
                repeats=repeated.name if is_numbered and repeated else None,
                run=f"run {len(self.entries)}", draw=draw.name,
            )
        )  # fmt: skip
        return is_numbered and policy == "calibrated" and verdict.decision is Decision.PROMOTE

    def lose(self, draw: Outcomes, trials: int, most: int) -> list[tuple[int, int]]:
        """Lose conversations that are about to fail, where they would matter most, and toss them again."""
        failing = np.argwhere(~draw.passes[:, :trials])
        order = np.argsort(-self.rates[failing[:, 0]], kind="stable")[:most]
        gone = [(int(task), int(trial)) for task, trial in failing[order]]
        for task, trial in gone:
            draw.lost[task, trial] += 1
            draw.passes[task, trial] = self.rng.random() < self.rates[task]
        return gone

    def _dated(self) -> dict[str, object]:
        at = START + timedelta(minutes=len(self.entries))
        return {"root": ROOT, "parents": (ROOT,), "at": at}


def goals(attacker: Attacker) -> bool:
    """Other goals and policies on new draws until one looks good, then `improve` on that draw."""
    for _ in range(RUNS - 1):
        draw = attacker.draw(DrawOrigin.RESUMABLE)
        policy = str(attacker.rng.choice(["calibrated", "strict"]))
        attacker.judge(draw, 2, GOALS[attacker.rng.integers(2)], policy)
        if attacker.gain(draw, 2) > 0.1:
            return attacker.judge(draw, 2)
    return attacker.judge(draw, 2)


def losses(attacker: Attacker, most: int = 8) -> bool:
    """Loses failing conversations in each run of the same draw, under any goal, until it looks good."""
    draw = attacker.draw(DrawOrigin.RESUMABLE)
    for _ in range(RUNS - 1):
        goal = GOALS[attacker.rng.integers(3)]
        if attacker.gain(draw, 2) > 0.1:
            break
        if attacker.judge(draw, 2, goal, gone=attacker.lose(draw, 2, most)):
            return True
    return attacker.judge(draw, 2)


def few_losses(attacker: Attacker) -> bool:
    """As many second tosses as count as measured, and no more; then more trials."""
    draw = attacker.draw(DrawOrigin.RESUMABLE)
    for trials in (1, 2, 4, 8):
        most = max(1, int(np.sqrt(len(attacker.rates) * trials) / 6)) - int((draw.lost > 0).sum())
        if attacker.judge(draw, trials, gone=attacker.lose(draw, trials, most) if most > 0 else []):
            return True
        if attacker.judge(draw, trials):
            return True
    return False


def everything(attacker: Attacker) -> bool:
    """All of these in any order, always from the draw that looks best."""
    rng, draws = attacker.rng, [attacker.draw(DrawOrigin.RESUMABLE)]
    number = 2
    for _ in range(RUNS):
        draw = max(draws, key=lambda one: attacker.gain(one, number))
        match rng.integers(6):
            case 0:
                draws.append(attacker.draw(DrawOrigin(rng.choice(["fresh", "resumable", "kept"]))))
                attacker.declare(draws[-1], number)
            case 1:
                attacker.judge(
                    draw, number, GOALS[rng.integers(2)], str(rng.choice(["calibrated", "strict"]))
                )
            case 2:
                if attacker.judge(draw, number, gone=attacker.lose(draw, number, int(rng.integers(1, 5)))):
                    return True
            case 3:
                number = min(MOST_TRIALS, number + 1)
                attacker.declare(draw, number)
            case _ if attacker.gain(draw, number) > 0.1 and attacker.judge(draw, number):
                return True
    return attacker.judge(max(draws, key=lambda one: attacker.gain(one, number)), number)


def promoted(strategy: Callable[[Attacker], bool], tasks: int, repeats: int) -> int:
    """The number of repeats that end in a promotion; equal arguments give equal numbers."""
    name = zlib.crc32(f"{strategy.__name__} {tasks}".encode())
    attackers = (
        Attacker(np.random.default_rng([name, repeat]), np.full(tasks, RATE)) for repeat in range(repeats)
    )
    return sum(strategy(attacker) for attacker in attackers)
