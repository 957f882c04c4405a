"""Prompt evolution by GEPA, with the rollouts that the other arms spend on training.

The embedded model cannot write prompts, so no model reflects in words: the proposer draws sentences from the
rulebook in `cases/content/rules.toml`, those more often whose behavior failed rollouts lack. The rest is
GEPA's: minibatches, acceptance, the Pareto frontier."""

import asyncio
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from statistics import fmean
from typing import Annotated, Any

from pydantic import Field

from pytest_trace2evolve.cases.teacher import rulebook
from pytest_trace2evolve.records.base import Record
from pytest_trace2evolve.records.message import Message
from research.pocket.behavior import BEHAVIORS
from research.trace.evaluate import Evaluator
from research.trace.plan import Policy
from research.trace.tasks import Target

COMPONENT = "instruction"
"""What evolves: a candidate's instruction, a sentence per line."""

BATCH = 8
"""Tasks of a minibatch."""

MAX_LINES = 6
"""Sentences of an instruction: prompts of the model's training held hardly more."""

FIRST_NUMBER = 500_000
"""Of the search's simulations: no evaluation has such a number."""


class Found(Record):
    """The result of a search.

    Attributes:
        instructions: The best instruction that was known at each share of the budget.
        rollouts: Rollouts spent in all.
        candidates: How many were kept on the way, including the empty one.
        score: Mean reward of the last instruction on the search's own tasks.
    """

    instructions: dict[str, str]
    rollouts: Annotated[int, Field(ge=0)]
    candidates: int
    score: float


class Proposer:
    """Draws the next instruction: adds, drops or rewords a sentence of the rulebook."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def __call__(
        self,
        candidate: Mapping[str, str],
        reflective_dataset: Mapping[str, Sequence[Mapping[str, Any]]],
        components_to_update: Sequence[str],
    ) -> dict[str, str]:
        """The next text of each component; the parameters' names are GEPA's."""
        return {
            name: self.rework(candidate[name], reflective_dataset.get(name, ()))
            for name in components_to_update
        }

    def rework(self, text: str, records: Sequence[Mapping[str, Any]]) -> str:
        """The instruction with one sentence more, less, or in other words.

        Args:
            text: The instruction.
            records: What rollouts showed; `lacks` names rules whose behavior was missing in a failed one.
        """
        book = rulebook().rules
        held = {rule: line for line in text.splitlines() for rule in book if line in book[rule].wordings}
        lacking = Counter(rule for record in records for rule in record.get("lacks", ()) if rule not in held)
        free = [rule for rule in book if rule not in held]
        kind = self._random.choice(("add", "add", "add", "drop", "reword") if held else ("add",))
        if kind == "add" and (not free or len(held) >= MAX_LINES):
            kind = "drop"
        if kind == "add":
            # Any rule may be drawn; what failures lack is drawn more often.
            rule = self._random.choices(free, [1 + lacking[name] for name in free])[0]
            held[rule] = self._random.choice(book[rule].wordings)
            return "\n".join(held.values())
        rule = self._random.choice(list(held))
        if kind == "drop":
            del held[rule]
        else:
            others = [wording for wording in book[rule].wordings if wording != held[rule]]
            held[rule] = self._random.choice(others)
        return "\n".join(held.values())


class TargetAdapter:
    """GEPA's view of target tasks: plays them, says what failed ones lack, and proposes the next instruction.

    GEPA logs an error in the latter two and continues; `failed` keeps the first.
    """

    propose_new_texts = None

    def __init__(self, evaluator: Evaluator, runner: asyncio.Runner, proposer: Proposer) -> None:
        self._evaluator, self._runner, self._proposer = evaluator, runner, proposer
        self.spent = 0
        self.failed: Exception | None = None

    def evaluate(self, batch: list[Target], candidate: dict[str, str], capture_traces: bool = False) -> Any:
        """One rollout per task; counts them."""
        from gepa import EvaluationBatch

        rewards, traces = self.play(batch, candidate[COMPONENT])
        kept = list(zip(batch, traces, rewards, strict=True)) if capture_traces else None
        return EvaluationBatch(outputs=list(rewards), scores=list(rewards), trajectories=kept)

    def play(self, batch: Sequence[Target], text: str) -> tuple[list[float], list[Sequence[Message]]]:
        """Rewards and traces of one rollout per task."""
        policy = Policy(instruction=text)
        played = self._runner.run(self._evaluator.targets(policy, batch, first=FIRST_NUMBER + self.spent))
        self.spent += len(batch)
        return played

    def make_reflective_dataset(
        self, candidate: dict[str, str], eval_batch: Any, components_to_update: list[str]
    ) -> dict[str, list[dict[str, Any]]]:
        """What each rollout showed, for the proposer."""
        with self._first_failure():
            records = [
                {"reward": reward, "lacks": [] if reward else lacking(target, trace)}
                for target, trace, reward in eval_batch.trajectories
            ]
        return dict.fromkeys(components_to_update, records)

    def propose(self, *args: Any, **kwargs: Any) -> dict[str, str]:
        """The proposer's next texts."""
        with self._first_failure():
            return self._proposer(*args, **kwargs)

    @contextmanager
    def _first_failure(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.failed = self.failed or error
            raise


def lacking(target: Target, trace: Sequence[Message]) -> list[str]:
    """Rules whose behavior a trace has an occasion for and does not show."""
    return [rule for rule in rulebook().rules if BEHAVIORS[rule].followed(target.case, trace) is False]


class _NoLog:
    def log(self, message: str) -> None:
        """Drop GEPA's log."""


def evolve(
    evaluator: Evaluator,
    minibatches: Sequence[Target],
    deciding: Sequence[Target],
    budget: int,
    seed: int,
    *,
    points: Sequence[float],
) -> Found:
    """Search for an instruction with exactly `budget` rollouts.

    GEPA ends before a round that the budget might not cover; the rest is played with the two best
    instructions, the same tasks of all kinds, and the better of all their rollouts is the result.

    Args:
        evaluator: Plays the tasks.
        minibatches: Tasks of minibatches, of training content.
        deciding: Tasks that decide between candidates, of training content.
        budget: Rollouts.
        seed: Of what the proposer and GEPA draw; answers follow from the evaluator's.
        points: Shares of the budget at which the best so far is recorded too.

    Raises:
        InfrastructureError: a rollout was lost.
        Exception: whatever went wrong when an instruction was drawn.
    """
    import gepa

    max_round = 2 * BATCH + len(deciding)
    with asyncio.Runner() as runner:
        adapter = TargetAdapter(evaluator, runner, Proposer(seed))
        result = gepa.optimize(
            seed_candidate={COMPONENT: ""},
            trainset=list(minibatches),
            valset=list(deciding),
            adapter=adapter,
            custom_candidate_proposer=adapter.propose,
            reflection_minibatch_size=BATCH,
            stop_callbacks=lambda state: bool(adapter.failed) or adapter.spent + max_round > budget,
            skip_perfect_score=False,
            logger=_NoLog(),
            seed=seed,
        )
        if adapter.failed is not None:
            raise adapter.failed
        scores = {
            place: [float(value) for value in result.val_subscores[place].values()]
            for place in range(result.num_candidates)
        }
        best = sorted(scores, key=lambda place: -fmean(scores[place]))[:2]
        left, mixed = budget - adapter.spent, _mixed(minibatches)
        for turn, place in enumerate(best):
            own = [mixed[number % len(mixed)] for number in range(len(range(turn, left, len(best))))]
            if own:
                scores[place] += adapter.play(own, result.candidates[place][COMPONENT])[0]
    last = max(best, key=lambda place: fmean(scores[place]))
    earlier = {f"{point:g}": _best_until(result, point * budget, len(deciding)) for point in points}
    return Found(
        instructions={**earlier, "1": result.candidates[last][COMPONENT]},
        rollouts=adapter.spent,
        candidates=result.num_candidates,
        score=fmean(scores[last]),
    )


def _mixed(tasks: Sequence[Target]) -> list[Target]:
    """Tasks of all kinds in turn: the first few are of each kind equally."""
    kinds: dict[str, list[Target]] = {}
    for task in tasks:
        kinds.setdefault(task.cell.name, []).append(task)
    return [task for group in zip_longest(*kinds.values()) for task in group if task is not None]


def _best_until(result: Any, spent: float, deciding: int) -> str:
    """The best of the candidates that were decided on, with `deciding` rollouts, after `spent` in all."""
    # GEPA records a candidate's count before it adds the rollouts on which it was decided.
    counts = result.discovery_eval_counts
    known = [place for place, count in enumerate(counts) if not place or count + deciding <= spent]
    best = max(known, key=lambda place: float(result.val_aggregate_scores[place]))
    return str(result.candidates[best][COMPONENT])
