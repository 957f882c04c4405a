"""A whole experiment, piece by piece: each is kept when it is done, and made once however often it is run."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any

from pytest_trace2evolve.cases.case import CAPABILITIES as FAMILIES
from pytest_trace2evolve.environments.environment import EASIEST
from pytest_trace2evolve.environments.registry import Environments
from pytest_trace2evolve.errors import ConfigError, GeneratorError, TrainingError, nearest
from pytest_trace2evolve.models.settings import ModelSettings
from pytest_trace2evolve.records.task import Content
from pytest_trace2evolve.serving.folder import folder_digest, read_model
from pytest_trace2evolve.serving.process import served
from pytest_trace2evolve.utils.files import alone_in
from pytest_trace2evolve.utils.optional import require
from research.trace.adapters import end_with_parent, merge_weights, train_one
from research.trace.agents import Policy
from research.trace.arms import (
    ARMS,
    MERGES,
    Chosen,
    Piece,
    adapter_at,
    candidates_of,
    chosen_of,
    environments_for,
    pieces_of,
    policy_of,
)
from research.trace.evaluate import AT_ONCE, Environmental, Evaluation, Evaluator
from research.trace.identity import code_digest, refuse_changed, tasks_digest
from research.trace.plan import CAPABILITIES, CONTROL, POINTS, SHARE, Plan, made_plan, plan_in, write_plan
from research.trace.prompts import Found, evolve
from research.trace.store import Seed, kept, read
from research.trace.tasks import Target, heldout_targets, targets_of, validation_targets

EXTRAS = (("trl", "train"), ("peft", "train"), ("matplotlib", "plot"), ("gepa", "experiment"))
"""Packages that it needs, and the extras that install them."""

POLL = 1.0
"""Seconds between two looks at how far the processes are."""


def plan_for(
    environments: Environments,
    base: Path,
    *,
    capabilities: tuple[str, ...] = CAPABILITIES,
    control: str = CONTROL,
    rollouts: int | None = None,
    **given: Any,
) -> Plan:
    """What is asked for, held against what there is.

    Args:
        environments: Those that are known.
        base: The base model's folder.
        capabilities: The selected ones.
        control: One that was not.
        rollouts: Of every arm; None: `SHARE` for each capability.
        given: Further fields of the plan; None leaves one.

    Raises:
        GeneratorError: a capability has no environment.
        ConfigError: it has no target tasks, or the plan cannot be carried out.
        MissingExtraError: a package is not installed.
    """
    for name in (*capabilities, control):
        try:
            environments.generator(name, EASIEST)
        except GeneratorError as error:
            raise GeneratorError(f"experiment: {error}") from None
    for name in capabilities:
        if name not in FAMILIES:
            raise ConfigError(
                f"experiment: capability {name!r} has no target tasks; {nearest(name, list(FAMILIES))}"
            )
    plan = made_plan(
        **given,
        capabilities=capabilities,
        control=control,
        rollouts=len(capabilities) * SHARE if rollouts is None else rollouts,
        base=folder_digest(base),
        code=code_digest(),
    )
    for module, extra in EXTRAS:
        require(module, extra=extra)
    ids = (one.case.id for one in heldout_targets(plan.cells, plan.tasks))
    return plan.model_copy(update={"targets": tasks_digest(ids)})


def run(plan: Plan, base: Path, out: Path, parallel: int, told: Callable[[int, int], None]) -> list[Seed]:
    """Do what is not done yet: trainings and searches, then choices, then evaluations.

    Args:
        plan: What is done.
        base: The base model's folder.
        out: Where every piece is kept; one process at a time works there.
        parallel: Processes at once.
        told: Hears how many pieces of how many are there.

    Raises:
        ConfigError: the folder holds another experiment, or a damaged piece, or another process works there.
        TrainingError: a training came apart, or an adapter was trained otherwise than the plan says.
        InfrastructureError: a simulation was lost.
        OSError: something cannot be written.
    """
    out.mkdir(parents=True, exist_ok=True)
    seeds = [Seed(plan, number, base, out) for number in range(1, plan.seeds + 1)]
    with _alone(out):
        write_plan(plan_in(plan, out), out)
        jobs = [job for seed in seeds for job in seed.jobs if not job.done]
        for job in (job for seed in seeds for job in seed.jobs if job.done):
            job.manifest()  # before hours of work, and not behind them
        searches = [seed for seed in seeds if not seed.found.is_file()]
        # The longest first: behind the trainings the last search would have the machine to itself.
        first = [*(partial(search, one) for one in searches), *(partial(train_one, job) for job in jobs)]
        _at_once(first, parallel, seeds, told)
        unchosen = [partial(choose, seed) for seed in seeds if not seed.chosen.is_file()]
        _at_once(unchosen, parallel, seeds, told)
        left = [seed for seed in seeds if not all(file.is_file() for file in seed.files)]
        # In parts, so that no process has a seed to itself while others have nothing to do.
        parts = [partial(measure, seed, part, parallel) for seed in left for part in range(parallel)]
        _at_once(parts, parallel, seeds, told)
    return seeds


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    with ExitStack() as held:
        try:
            held.enter_context(alone_in(out, wait=False))
        except BlockingIOError:
            raise ConfigError(
                f"{out}: another process makes this experiment; wait for it to end, or give another --out"
            ) from None
        yield


def _at_once(
    jobs: Sequence[Callable[[], None]],
    parallel: int,
    seeds: Sequence[Seed],
    told: Callable[[int, int], None],
) -> None:
    """Do jobs in processes of their own; where one fails, those under way come to their end first.

    Raises:
        TrainingError: a process was killed; the others ended with it.
    """
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
        except BrokenProcessPool:
            raise TrainingError(
                f"experiment: one of {parallel} processes was killed, for want of memory perhaps, and the "
                "others ended with it; the same command goes on, with --parallel 1 in less memory"
            ) from None
        except Exception:
            pool.shutdown(cancel_futures=True)
            raise
        except BaseException:
            # Whoever stops it does not wait: what is under way goes on from its last keeping.
            for process in active_children():
                process.terminate()
            pool.shutdown(cancel_futures=True)
            raise


def _served(seed: Seed, adapters: Mapping[str, Path]) -> AbstractContextManager[ModelSettings]:
    """A seed's server: of one thread, as many seeds are measured at once as there are cores.

    Answers are drawn from the number of their simulation alone, which holds the seed's own.
    """
    return served(read_model(seed.base), adapters, seed=0, at_once=AT_ONCE, threads=1)


def search(seed: Seed) -> None:
    """Evolve the instruction of a seed; in a process of its own, which ends with its parent.

    Raises:
        InfrastructureError: a simulation was lost.
        ModelFolderError: the base cannot be served.
        OSError: something cannot be written.
    """
    end_with_parent()
    refuse_changed(seed.plan)
    with _served(seed, {}) as settings:
        evaluator = Evaluator(settings, Environments(), seed.plan.capabilities, seed.number)
        kept(seed.found, Found, lambda: _search(seed, evaluator))


def choose(seed: Seed) -> None:
    """Merge a seed's adapters in weight space, and choose on validation tasks; in a process of its own.

    Raises:
        InfrastructureError: a simulation was lost.
        ModelFolderError: an adapter cannot be served.
        OSError: something cannot be written.
    """
    end_with_parent()
    refuse_changed(seed.plan)
    plan = seed.plan
    shares = {name: seed.adapters / f"share_{name}" for name in plan.capabilities}
    for name, weight in zip(MERGES, (1 / len(shares), 1.0), strict=True):
        merge_weights(seed.base, shares, weight, seed.adapters / name)
    names = [name for group in candidates_of(plan).values() for name in group]
    with _served(seed, {name: seed.adapters / name for name in names}) as settings:
        evaluator = Evaluator(settings, Environments(), plan.capabilities, seed.number)
        kept(seed.chosen, Chosen, lambda: _choose(seed, evaluator))


def measure(seed: Seed, part: int, parts: int) -> None:
    """Every `parts`-th evaluation of a seed, from `part` on; in a process of its own.

    Raises:
        InfrastructureError: a simulation was lost.
        ModelFolderError: an adapter cannot be served.
        OSError: something cannot be written.
    """
    end_with_parent()
    refuse_changed(seed.plan)
    plan, environments = seed.plan, Environments()
    chosen, found = read(seed.chosen, Chosen), read(seed.found, Found)
    adapters = [adapter_at(one, point) for one in plan.trainings() for point in (1.0, *POINTS)]
    targets = heldout_targets(plan.cells, plan.tasks)
    with _served(seed, {name: seed.adapters / name for name in (*adapters, *MERGES)}) as settings:
        evaluator = Evaluator(settings, environments, plan.capabilities, seed.number)

        def on_targets(policy: Policy) -> Evaluation:
            return asyncio.run(evaluator.evaluate(policy, targets))

        def in_environments(policy: Policy, names: Sequence[str]) -> Environmental:
            difficulties = dict.fromkeys(names, plan.difficulty)
            return asyncio.run(evaluator.environmental(policy, difficulties, plan.scenarios, plan.repeats))

        for piece in pieces_of(plan)[part::parts]:
            policy = policy_of(plan, piece, chosen, found.instructions)
            kept(seed.evaluation(piece), Evaluation, partial(on_targets, policy))
        for arm in list(ARMS)[part::parts]:
            policy = policy_of(plan, Piece(arm), chosen, found.instructions)
            names = environments_for(plan, arm)
            kept(seed.environmental(arm), Environmental, partial(in_environments, policy, names))


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
