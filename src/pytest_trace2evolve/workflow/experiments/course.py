"""A whole experiment, piece by piece: each is kept when it is done, and made once however often it is run."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from pytest_trace2evolve._optional import require
from pytest_trace2evolve.cases.case import CAPABILITIES
from pytest_trace2evolve.errors import ConfigError, GeneratorError, nearest
from pytest_trace2evolve.evidence.atomic import alone_in, write_atomic
from pytest_trace2evolve.records.base import Record
from pytest_trace2evolve.records.script import Content
from pytest_trace2evolve.serving.folder import folder_digest
from pytest_trace2evolve.workflow.environments.registry import Environments
from pytest_trace2evolve.workflow.environments.sources import sources_digest
from pytest_trace2evolve.workflow.experiments.adapters import Job, end_with_parent, merge_weights, train_one
from pytest_trace2evolve.workflow.experiments.agents import Policy
from pytest_trace2evolve.workflow.experiments.arms import (
    ARMS,
    MERGES,
    Chosen,
    Piece,
    adapter_at,
    candidates_of,
    chosen_of,
    pieces_of,
    policy_of,
)
from pytest_trace2evolve.workflow.experiments.evaluate import (
    Environmental,
    Evaluation,
    Evaluator,
    served,
)
from pytest_trace2evolve.workflow.experiments.plan import POINTS, Plan, made_plan, settle_plan
from pytest_trace2evolve.workflow.experiments.prompts import Found, evolve
from pytest_trace2evolve.workflow.experiments.tasks import (
    Target,
    heldout_targets,
    targets_of,
    validation_targets,
)

R = TypeVar("R", bound=Record)

EXTRAS = (("trl", "train"), ("peft", "train"), ("matplotlib", "plot"), ("gepa", "experiment"))
"""Packages that it needs, and the extras that install them."""

POLL = 1.0
"""Seconds between two looks at how far the processes are."""


@dataclass(frozen=True)
class Seed:
    """One seed of an experiment.

    Attributes:
        base: The base model's folder.
        out: The experiment's folder.
    """

    plan: Plan
    number: int
    base: Path
    out: Path

    @property
    def folder(self) -> Path:
        """Where all of it is kept."""
        return self.out / f"seed-{self.number}"

    @property
    def adapters(self) -> Path:
        """Where its adapters lie."""
        return self.folder / "adapters"

    @property
    def jobs(self) -> list[Job]:
        """Its trainings."""
        return [
            Job(self.plan, training, self.number, self.base, self.adapters)
            for training in self.plan.trainings()
        ]

    def evaluation(self, piece: Piece) -> Path:
        """The file of an evaluation on target tasks."""
        return self.folder / "targets" / f"{piece.name}.json"

    def environmental(self, arm: str) -> Path:
        """The file of an arm's rewards in environments."""
        return self.folder / "environments" / f"{arm}.json"

    @property
    def chosen(self) -> Path:
        """The file of what was chosen on validation tasks."""
        return self.folder / "chosen.json"

    @property
    def found(self) -> Path:
        """The file of what prompt evolution found."""
        return self.folder / "gepa.json"

    @property
    def files(self) -> list[Path]:
        """All that is kept beside adapters."""
        own = [self.evaluation(piece) for piece in pieces_of(self.plan)]
        return [self.chosen, self.found, *own, *map(self.environmental, ARMS)]

    @property
    def done(self) -> int:
        """How many pieces are there, of `len(jobs) + len(files)`."""
        return sum(job.done for job in self.jobs) + sum(file.is_file() for file in self.files)


def plan_for(environments: Environments, base: Path, **given: Any) -> Plan:
    """What is asked for, held against what there is.

    Raises:
        GeneratorError: a capability has no environment.
        ConfigError: it has no target tasks, or the plan cannot be carried out.
        MissingExtraError: a package is not installed.
    """
    plan = made_plan(**given, base=folder_digest(base), sources=sources_digest())
    for name in (*plan.capabilities, plan.control):
        try:
            environments.generator(name, plan.difficulty)
        except GeneratorError as error:
            raise GeneratorError(f"experiment: {error}") from None
    for name in plan.capabilities:
        if name not in CAPABILITIES:
            raise ConfigError(
                f"experiment: capability {name!r} has no target tasks; {nearest(name, list(CAPABILITIES))}"
            )
    for module, extra in EXTRAS:
        require(module, extra=extra)
    return plan


def run(plan: Plan, base: Path, out: Path, parallel: int, told: Callable[[int, int], None]) -> list[Seed]:
    """Do what is not done yet: all trainings, then what each seed measures.

    Args:
        plan: What is done.
        base: The base model's folder.
        out: Where every piece is kept; one process at a time works there.
        parallel: Processes at once.
        told: Hears how many pieces of how many are there.

    Raises:
        ConfigError: the folder holds another experiment.
        TrainingError: a training came apart.
        InfrastructureError: a simulation was lost.
        OSError: something cannot be written.
    """
    settle_plan(plan, out)
    seeds = [Seed(plan, number, base, out) for number in range(1, plan.seeds + 1)]
    with alone_in(out):
        jobs = [job for seed in seeds for job in seed.jobs if not job.done]
        _at_once([partial(train_one, job) for job in jobs], parallel, seeds, told)
        left = [seed for seed in seeds if not all(file.is_file() for file in seed.files)]
        _at_once([partial(measure_seed, seed) for seed in left], parallel, seeds, told)
    return seeds


def _at_once(
    jobs: Sequence[Callable[[], None]],
    parallel: int,
    seeds: Sequence[Seed],
    told: Callable[[int, int], None],
) -> None:
    """Do jobs in processes of their own; where one fails, those under way come to their end first."""
    whole = sum(len(seed.jobs) + len(seed.files) for seed in seeds)
    told(sum(seed.done for seed in seeds), whole)
    if not jobs:
        return
    # Forking a process that has loaded torch hangs; and each adapter begins from a fresh base.
    with ProcessPoolExecutor(parallel, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        going: set[Future[None]] = {pool.submit(job) for job in jobs}
        try:
            while going:
                done, going = wait(going, timeout=POLL, return_when=FIRST_COMPLETED)
                for one in done:
                    one.result()
                told(sum(seed.done for seed in seeds), whole)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def measure_seed(seed: Seed) -> None:
    """Choose, search and evaluate for one seed; in a process of its own, which ends with its parent.

    Raises:
        InfrastructureError: a simulation was lost.
        ModelFolderError: an adapter cannot be served.
        OSError: something cannot be written.
    """
    end_with_parent()
    plan, environments = seed.plan, Environments()
    shares = {name: seed.adapters / f"share_{name}" for name in plan.capabilities}
    for name, weight in zip(MERGES, (1 / len(shares), 1.0), strict=True):
        merge_weights(seed.base, shares, weight, seed.adapters / name)
    names = [adapter_at(one, point) for one in plan.trainings() for point in (1.0, *POINTS)]
    with served(seed.base, {name: seed.adapters / name for name in (*names, *MERGES)}) as settings:
        evaluator = Evaluator(settings, environments, plan.capabilities, seed.number)
        chosen = kept(seed.chosen, Chosen, lambda: _choose(seed, evaluator))
        found = kept(seed.found, Found, lambda: _search(seed, evaluator))
        targets = heldout_targets(plan.cells, plan.tasks)
        difficulties = dict.fromkeys(plan.capabilities, plan.difficulty)
        for piece in pieces_of(plan):
            policy = policy_of(plan, piece, chosen, found.instructions)
            kept(
                seed.evaluation(piece),
                Evaluation,
                lambda policy=policy: asyncio.run(evaluator.evaluate(policy, targets)),  # type: ignore[misc]
            )
        for arm in ARMS:
            policy = policy_of(plan, Piece(arm), chosen, found.instructions)
            kept(
                seed.environmental(arm),
                Environmental,
                lambda policy=policy: asyncio.run(  # type: ignore[misc]
                    evaluator.environmental(policy, difficulties, plan.scenarios, plan.repeats)
                ),
            )


def _choose(seed: Seed, evaluator: Evaluator) -> Chosen:
    """Play validation tasks with every adapter that may be chosen."""
    targets = validation_targets(seed.plan.cells, seed.plan.validation)
    figures = {}
    for name in (name for names in candidates_of(seed.plan).values() for name in names):
        rewards, _ = asyncio.run(evaluator.targets(Policy(adapter=name), targets))
        figures[name] = sum(rewards) / len(rewards)
    return chosen_of(seed.plan, figures)


def _search(seed: Seed, evaluator: Evaluator) -> Found:
    """Evolve an instruction on training tasks that are neither evaluated nor validated on."""
    plan = seed.plan

    def tasks(what: str, count: int) -> list[Target]:
        name = f"{what}/{seed.number}"
        return [one for cell in plan.cells for one in targets_of(cell, name, count, Content.TRAIN)]

    each = max(1, min(8, plan.rollouts // (16 * len(plan.cells))))
    return evolve(
        evaluator,
        (tasks("minibatch", 4 * each), tasks("deciding", each)),
        plan.rollouts,
        seed.number,
        points=POINTS,
    )


def kept(file: Path, kind: type[R], make: Callable[[], R]) -> R:
    """A piece from its file; made and written where there is none.

    Raises:
        ConfigError: the file is damaged.
        OSError: it cannot be written.
    """
    if file.is_file():
        return read(file, kind)
    made = make()
    write_atomic(file, made.model_dump_json(indent=1) + "\n")
    return made


def read(file: Path, kind: type[R]) -> R:
    """A piece from its file.

    Raises:
        ConfigError: the file is damaged.
    """
    try:
        return kind.model_validate_json(file.read_text(encoding="utf-8"))
    except (OSError, ValidationError):
        raise ConfigError(f"{file}: damaged; remove it, and it is made again") from None
