"""Runs an experiment piece by piece: each is kept when it is done, and made once, however often it is run."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager
from functools import partial
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any

from pytest_trace2evolve.cases.case import CAPABILITIES as FAMILIES
from pytest_trace2evolve.environments.environment import EASIEST
from pytest_trace2evolve.environments.registry import Environments
from pytest_trace2evolve.errors import ConfigError, GeneratorError, TrainingError, name_suggestion
from pytest_trace2evolve.models.settings import ModelSettings
from pytest_trace2evolve.records.task import Content
from pytest_trace2evolve.serving.folder import folder_digest, read_model
from pytest_trace2evolve.serving.process import serve_locally
from pytest_trace2evolve.utils.optional import check_installed
from research.common import OnProgress, locked
from research.trace.adapters import end_with_parent, merge_weights, train_one
from research.trace.evaluate import AT_ONCE, Environmental, Evaluation, Evaluator
from research.trace.identity import check_unchanged, code_digest, tasks_digest
from research.trace.plan import (
    ARMS,
    CAPABILITIES,
    CONTROL,
    MERGES,
    POINTS,
    SHARE,
    Chosen,
    Piece,
    Plan,
    Policy,
    adapter_at,
    candidates_of,
    choose,
    environments_for,
    make_plan,
    pieces_of,
    policy_of,
    resumed_plan,
    write_plan,
)
from research.trace.prompts import Found, evolve
from research.trace.store import Seed, read, read_or_make
from research.trace.tasks import Target, heldout_targets, targets_of, validation_targets

PACKAGES = {"trl": "train", "peft": "train", "matplotlib": "plot", "gepa": "experiment"}
"""Packages that an experiment needs, and the extras that install them."""

POLL_SECONDS = 1.0
"""Between two reports of progress."""


def plan_for(
    environments: Environments,
    base: Path,
    *,
    capabilities: tuple[str, ...] = CAPABILITIES,
    control: str = CONTROL,
    rollouts: int | None = None,
    **fields: Any,
) -> Plan:
    """The plan of an experiment that can be carried out here.

    Args:
        environments: All known environments.
        base: The base model's folder.
        capabilities: The selected ones.
        control: One that was not selected.
        rollouts: Of every arm; None means `SHARE` for each capability.
        fields: Further fields of the plan; None leaves a default.

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
                f"experiment: capability {name!r} has no target tasks; "
                f"{name_suggestion(name, list(FAMILIES))}"
            )
    plan = make_plan(
        **fields,
        capabilities=capabilities,
        control=control,
        rollouts=len(capabilities) * SHARE if rollouts is None else rollouts,
        base=folder_digest(base),
        code=code_digest(),
    )
    for package, extra in PACKAGES.items():
        check_installed(package, extra=extra)
    ids = (target.case.id for target in heldout_targets(plan.cells, plan.tasks))
    return plan.model_copy(update={"targets": tasks_digest(ids)})


def run(plan: Plan, base: Path, out: Path, parallel: int, on_progress: OnProgress) -> list[Seed]:
    """Do what is not done yet: trainings and searches, then choices, then evaluations.

    Args:
        plan: The plan.
        base: The base model's folder.
        out: Where every piece is kept; one process at a time works there.
        parallel: Processes at once.
        on_progress: Called with the number of pieces that exist, and of all.

    Raises:
        ConfigError: the folder holds another experiment, or a damaged piece, or another process works there.
        TrainingError: a training diverged, or an adapter was trained differently than the plan says.
        InfrastructureError: a simulation was lost.
        OSError: something cannot be written.
    """
    out.mkdir(parents=True, exist_ok=True)
    seeds = [Seed(plan, number, base, out) for number in range(1, plan.seeds + 1)]
    total = sum(len(seed.jobs) + len(seed.files) for seed in seeds)

    def in_processes(jobs: Sequence[Callable[[], None]]) -> None:
        run_jobs(jobs, parallel, lambda: on_progress(sum(seed.done for seed in seeds), total))

    message = "another process makes this experiment; wait for it to end, or give another --out"
    with locked(out, message):
        write_plan(resumed_plan(plan, out), out)
        jobs = [job for seed in seeds for job in seed.jobs]
        for job in jobs:
            if job.done:
                job.manifest()  # an error is found before hours of work, and not after
        searches = [partial(search, seed) for seed in seeds if not seed.found.is_file()]
        # The longest first: after the trainings the last search would have the machine to itself.
        in_processes([*searches, *(partial(train_one, job) for job in jobs if not job.done)])
        in_processes([partial(choose_adapters, seed) for seed in seeds if not seed.chosen.is_file()])
        left = [seed for seed in seeds if not all(file.is_file() for file in seed.files)]
        # In parts, so that no process has a seed to itself while others are idle.
        in_processes([partial(measure, seed, part, parallel) for seed in left for part in range(parallel)])
    return seeds


def run_jobs(jobs: Sequence[Callable[[], None]], parallel: int, on_poll: Callable[[], None]) -> None:
    """Do jobs in processes of their own; if one fails, those that are running finish first.

    Raises:
        TrainingError: a process was killed; the others ended with it.
    """
    on_poll()
    if not jobs:
        return
    # Forking a process that has loaded torch hangs; and each adapter begins from a fresh base.
    with ProcessPoolExecutor(parallel, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        running: set[Future[None]] = {pool.submit(job) for job in jobs}
        try:
            while running:
                done, running = wait(running, timeout=POLL_SECONDS, return_when=FIRST_COMPLETED)
                for future in done:
                    future.result()
                on_poll()
        except BrokenProcessPool:
            raise TrainingError(
                f"experiment: one of {parallel} processes was killed, perhaps for lack of memory, and the "
                "others ended with it; rerun the same command to resume, with --parallel 1 in less memory"
            ) from None
        except Exception:
            pool.shutdown(cancel_futures=True)
            raise
        except BaseException:
            # An interruption does not wait: running jobs resume from their last checkpoint.
            for process in active_children():
                process.terminate()
            pool.shutdown(cancel_futures=True)
            raise


def _served(seed: Seed, adapters: Mapping[str, Path]) -> AbstractContextManager[ModelSettings]:
    """A seed's server, with one thread: as many seeds are measured at once as there are cores.

    Answers are drawn from the number of their simulation alone, which includes the seed's own.
    """
    return serve_locally(read_model(seed.base), adapters, seed=0, max_connections=AT_ONCE, threads=1)


def search(seed: Seed) -> None:
    """Evolve the instruction of a seed; in a process of its own, which ends with its parent.

    Raises:
        InfrastructureError: a simulation was lost.
        ModelFolderError: the base cannot be served.
        OSError: something cannot be written.
    """
    end_with_parent()
    check_unchanged(seed.plan)
    plan = seed.plan

    def tasks(name: str, count: int) -> list[Target]:
        """Training tasks that are neither evaluated nor validated on."""
        of_seed = f"{name}/{seed.number}"
        return [target for cell in plan.cells for target in targets_of(cell, of_seed, count, Content.TRAIN)]

    each = max(1, min(8, plan.rollouts // (16 * len(plan.cells))))
    minibatches, deciding = tasks("minibatch", 4 * each), tasks("deciding", each)
    with _served(seed, {}) as settings:
        evaluator = Evaluator(settings, Environments(), plan.capabilities, seed.number)
        read_or_make(
            seed.found,
            Found,
            lambda: evolve(evaluator, minibatches, deciding, plan.rollouts, seed.number, points=POINTS),
        )


def choose_adapters(seed: Seed) -> None:
    """Merge a seed's adapters in weight space, and choose on validation tasks; in a process of its own.

    Raises:
        InfrastructureError: a simulation was lost.
        ModelFolderError: an adapter cannot be served.
        OSError: something cannot be written.
    """
    end_with_parent()
    check_unchanged(seed.plan)
    plan = seed.plan
    shares = {name: seed.adapters / f"share_{name}" for name in plan.capabilities}
    for name, weight in zip(MERGES, (1 / len(shares), 1.0), strict=True):
        merge_weights(seed.base, shares, weight, seed.adapters / name)
    names = [name for group in candidates_of(plan).values() for name in group]
    targets = validation_targets(plan.cells, plan.validation)
    with _served(seed, {name: seed.adapters / name for name in names}) as settings:
        evaluator = Evaluator(settings, Environments(), plan.capabilities, seed.number)

        def mean_reward(name: str) -> float:
            rewards, _ = asyncio.run(evaluator.targets(Policy(adapter=name), targets))
            return sum(rewards) / len(rewards)

        read_or_make(seed.chosen, Chosen, lambda: choose(plan, {name: mean_reward(name) for name in names}))


def measure(seed: Seed, part: int, parts: int) -> None:
    """Make every `parts`-th evaluation of a seed, from `part` on; in a process of its own.

    Raises:
        InfrastructureError: a simulation was lost.
        ModelFolderError: an adapter cannot be served.
        OSError: something cannot be written.
    """
    end_with_parent()
    check_unchanged(seed.plan)
    plan = seed.plan
    chosen, found = read(seed.chosen, Chosen), read(seed.found, Found)
    adapters = [adapter_at(training, point) for training in plan.trainings() for point in (1.0, *POINTS)]
    targets = heldout_targets(plan.cells, plan.tasks)
    with _served(seed, {name: seed.adapters / name for name in (*adapters, *MERGES)}) as settings:
        evaluator = Evaluator(settings, Environments(), plan.capabilities, seed.number)

        def on_targets(policy: Policy) -> Evaluation:
            return asyncio.run(evaluator.evaluate(policy, targets))

        def in_environments(policy: Policy, names: Sequence[str]) -> Environmental:
            difficulties = dict.fromkeys(names, plan.difficulty)
            return asyncio.run(evaluator.environmental(policy, difficulties, plan.scenarios, plan.repeats))

        for piece in pieces_of(plan)[part::parts]:
            policy = policy_of(plan, piece, chosen, found.instructions)
            read_or_make(seed.evaluation(piece), Evaluation, partial(on_targets, policy))
        for arm in list(ARMS)[part::parts]:
            policy = policy_of(plan, Piece(arm), chosen, found.instructions)
            names = environments_for(plan, arm)
            read_or_make(seed.environmental(arm), Environmental, partial(in_environments, policy, names))
