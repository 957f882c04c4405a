"""Prompt evolution by GEPA, with the rollouts that the other arms spend on training.

The embedded model cannot write prompts, so nobody reflects in words: the proposer draws sentences from the
rulebook in `cases/content/rules.toml`, those more often whose behaviour the failed rollouts lack. GEPA does
the rest: minibatches, acceptance, the Pareto frontier.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import zip_longest
from statistics import fmean
from typing import Annotated, Any

from pydantic import Field

from pytest_trace2evolve.cases.teacher import rulebook
from pytest_trace2evolve.records.base import Record
from pytest_trace2evolve.records.message import Message
from pytest_trace2evolve.utils.optional import require
from research.pocket.behaviour import BEHAVIOURS
from research.trace.agents import Policy
from research.trace.evaluate import Evaluator
from research.trace.tasks import Target

COMPONENT = "instruction"
"""What evolves: a candidate's instruction, a sentence a line."""

BATCH = 8
"""Tasks of a minibatch."""

LINES_MOST = 6
"""Sentences of an instruction at most: prompts of the model's training held few more."""

NUMBER = 500_000
"""First number of the search's simulations: away from those of evaluations."""


class Found(Record):
    """What a search found.

    Attributes:
        instructions: By share of the budget, the best instruction that was known then.
        rollouts: Rollouts spent in all.
        candidates: How many were kept on the way, the empty one included.
        score: Mean reward of the last instruction on the search's own tasks.
    """

    instructions: dict[str, str]
    rollouts: Annotated[int, Field(ge=0)]
    candidates: int
    score: float


@dataclass
class Proposer:
    """Draws the next instruction: adds, drops or rewords a sentence of the rulebook.

    Args:
        seed: Of the draws.
    """

    seed: int
    _drawn: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._drawn = random.Random(self.seed)

    def __call__(
        self,
        candidate: Mapping[str, str],
        reflective_dataset: Mapping[str, Sequence[Mapping[str, Any]]],
        components_to_update: Sequence[str],
    ) -> dict[str, str]:
        """The next text of each component; GEPA's own names of arguments."""
        return {
            name: self.reworked(candidate[name], reflective_dataset.get(name, ()))
            for name in components_to_update
        }

    def reworked(self, text: str, records: Sequence[Mapping[str, Any]]) -> str:
        """One sentence more, less, or in other words.

        Args:
            text: The instruction so far.
            records: What rollouts showed; `lacks` names rules whose behaviour was missing in a failed one.
        """
        book = rulebook().rules
        held = {rule: line for line in text.splitlines() for rule in book if line in book[rule].wordings}
        lacking = Counter(rule for one in records for rule in one.get("lacks", ()) if rule not in held)
        free = [rule for rule in book if rule not in held]
        kind = self._drawn.choice(("add", "add", "add", "drop", "reword") if held else ("add",))
        if kind == "add" and (not free or len(held) >= LINES_MOST):
            kind = "drop"
        if kind == "add":
            # Each rule may be drawn; what failures lack is drawn more often.
            rule = self._drawn.choices(free, [1 + lacking[one] for one in free])[0]
            held[rule] = self._drawn.choice(book[rule].wordings)
        else:
            rule = self._drawn.choice(list(held))
            others = [one for one in book[rule].wordings if one != held[rule]]
            if kind == "drop":
                del held[rule]
            else:
                held[rule] = self._drawn.choice(others)
        return "\n".join(held.values())


class TargetAdapter:
    """GEPA's view of target tasks: plays them, says what failed ones lack, and draws the next instruction.

    GEPA logs an error of the latter two and goes on with its rounds: `failed` keeps the first.
    """

    propose_new_texts = None

    def __init__(self, evaluator: Evaluator, runner: asyncio.Runner, proposer: Proposer) -> None:
        self._evaluator, self._runner, self._proposer = evaluator, runner, proposer
        self.spent = 0
        self.failed: Exception | None = None

    def evaluate(self, batch: list[Target], candidate: dict[str, str], capture_traces: bool = False) -> Any:
        """One rollout a task; counts them."""
        from gepa import EvaluationBatch

        rewards, traces = self.play(batch, candidate[COMPONENT])
        kept = list(zip(batch, traces, rewards, strict=True)) if capture_traces else None
        return EvaluationBatch(outputs=list(rewards), scores=list(rewards), trajectories=kept)

    def play(self, batch: Sequence[Target], text: str) -> tuple[list[float], list[Sequence[Message]]]:
        """Rewards and traces of one rollout a task."""
        policy = Policy(instruction=text)
        found = self._runner.run(self._evaluator.targets(policy, batch, first=NUMBER + self.spent))
        self.spent += len(batch)
        return found

    def make_reflective_dataset(
        self, candidate: dict[str, str], eval_batch: Any, components_to_update: list[str]
    ) -> dict[str, list[dict[str, Any]]]:
        """What each rollout showed, for the proposer."""
        with self._noted():
            records = [
                {"reward": reward, "lacks": [] if reward else lacking(target, trace)}
                for target, trace, reward in eval_batch.trajectories
            ]
        return dict.fromkeys(components_to_update, records)

    def propose(self, *given: Any, **named: Any) -> dict[str, str]:
        """The proposer's next texts."""
        with self._noted():
            return self._proposer(*given, **named)

    @contextmanager
    def _noted(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.failed = self.failed or error
            raise


def lacking(target: Target, trace: Sequence[Message]) -> list[str]:
    """Rules whose behaviour a trace has a place for and does not show."""
    return [rule for rule in rulebook().rules if BEHAVIOURS[rule].kept(target.case, trace) is False]


class _Quiet:
    """GEPA's log, which nobody reads."""

    def log(self, message: str) -> None:
        """Nothing."""


def evolve(
    evaluator: Evaluator,
    tasks: tuple[Sequence[Target], Sequence[Target]],
    budget: int,
    seed: int,
    *,
    points: Sequence[float],
) -> Found:
    """Search for an instruction with exactly `budget` rollouts.

    GEPA ends before a round that the budget might not cover; what is left then is played with the two best
    instructions, the same tasks of all kinds, and the better of all their rollouts is the result.

    Args:
        evaluator: Plays.
        tasks: Those of minibatches, and those that decide between candidates; all of training content.
        budget: Rollouts.
        seed: Of what the proposer and GEPA draw; answers follow from the evaluator's.
        points: Shares of the budget at which the best so far is noted too.

    Raises:
        MissingExtraError: gepa is not installed.
        InfrastructureError: a rollout was lost.
        Exception: whatever went wrong when an instruction was drawn.
    """
    gepa = require("gepa", extra="experiment")
    minibatches, deciding = tasks
    round_most = 2 * BATCH + len(deciding)
    with asyncio.Runner() as runner:
        adapter = TargetAdapter(evaluator, runner, Proposer(seed))
        result = gepa.optimize(
            seed_candidate={COMPONENT: ""},
            trainset=list(minibatches),
            valset=list(deciding),
            adapter=adapter,
            custom_candidate_proposer=adapter.propose,
            reflection_minibatch_size=BATCH,
            stop_callbacks=lambda state: bool(adapter.failed) or adapter.spent + round_most > budget,
            skip_perfect_score=False,
            logger=_Quiet(),
            seed=seed,
        )
        if adapter.failed is not None:
            raise adapter.failed
        scores = {
            place: [float(one) for one in result.val_subscores[place].values()]
            for place in range(result.num_candidates)
        }
        best = sorted(scores, key=lambda place: -fmean(scores[place]))[:2]
        left, mixed = budget - adapter.spent, _mixed(minibatches)
        for turn, place in enumerate(best):
            own = [mixed[one % len(mixed)] for one in range(len(range(turn, left, len(best))))]
            if own:
                scores[place] += adapter.play(own, result.candidates[place][COMPONENT])[0]
    last = max(best, key=lambda place: fmean(scores[place]))
    known = {f"{one:g}": _best_until(result, one * budget, len(deciding)) for one in points}
    return Found(
        instructions={**known, "1": result.candidates[last][COMPONENT]},
        rollouts=adapter.spent,
        candidates=result.num_candidates,
        score=fmean(scores[last]),
    )


def _mixed(tasks: Sequence[Target]) -> list[Target]:
    """Tasks of all kinds in turn: the first few of them are of each kind alike."""
    kinds: dict[str, list[Target]] = {}
    for one in tasks:
        kinds.setdefault(one.cell.name, []).append(one)
    return [one for group in zip_longest(*kinds.values()) for one in group if one is not None]


def _best_until(result: Any, spent: float, deciding: int) -> str:
    """The best of the candidates that were decided on, with `deciding` rollouts, after `spent` in all."""
    # GEPA notes a candidate's count before it adds the rollouts on which it was decided.
    counts = result.discovery_eval_counts
    known = [place for place, count in enumerate(counts) if not place or count + deciding <= spent]
    best = max(known, key=lambda place: float(result.val_aggregate_scores[place]))
    return str(result.candidates[best][COMPONENT])
