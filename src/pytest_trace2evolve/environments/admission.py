"""Admission of an environment: checks of its scenarios before anything is trained on them.

The checks show whether the environment rewards the capability alone. An expert must reach the top reward, and
its reward must never drop on the way. An agent that does nothing, takes the shortcut, repeats itself, or
reads, says or changes everything must get no reward. Synthesized environments must pass the same checks as
built-in ones.
"""

import json
import random
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_trace2evolve.environments.environment import (
    DIFFICULTIES,
)
from pytest_trace2evolve.environments.generated import project_environments
from pytest_trace2evolve.environments.held_out import held_out_of
from pytest_trace2evolve.environments.registry import Environments
from pytest_trace2evolve.environments.scenario_checks import (
    SEEDS_OF_EXPENSIVE_CHECKS,
    Findings,
    ScenarioChecks,
)
from pytest_trace2evolve.errors import ConfigError, GeneratorError, Trace2EvolveError
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.records.environment import AdmissionReport, CheckLine
from pytest_trace2evolve.records.message import Message, ToolCall
from pytest_trace2evolve.records.protocols import Generator
from pytest_trace2evolve.records.task import Content
from pytest_trace2evolve.utils.canonical import digest
from pytest_trace2evolve.utils.concurrency import all_of

if TYPE_CHECKING:
    from pytest_trace2evolve.engine.ray_actor import RayActor
    from pytest_trace2evolve.engine.ray_executor import RayExecutor

SEEDS = 1_000  # scenarios of a full admission
SEEDS_BEFORE_TRAINING = 60  # scenarios that are checked again before a training
SEEDS_AT_ONCE = 20  # scenarios that a process of a cluster checks in one call
SEEDS_ELSEWHERE = 20  # scenarios that are also made in a different process

NEW_PROCESS = "same seed, new process"

Job = tuple[int, int]
"""A seed and a difficulty."""


def admit(
    environments: Environments,
    name: str,
    *,
    seeds: int = SEEDS,
    difficulty: int | None = None,
    content: Content = Content.TRAIN,
    held_out: Sequence[str] = (),
    first: int = 0,
    on_progress: Callable[[int], None] = lambda done: None,
    executor: "RayExecutor | None" = None,
) -> AdmissionReport:
    """Run every check of admission on an environment.

    Args:
        seeds: The number of scenarios; the difficulties take turns.
        difficulty: The only difficulty to check; None for all difficulties.
        content: The words that the scenarios use. Only training content is searched for held-out content.
        held_out: Ids and people that no scenario may contain; see `held_out_of`.
        first: Seed of the first scenario; should be random if the code could know the seeds of its admission.
        on_progress: Called with the number of checked scenarios.
        executor: Checks scenarios on a cluster; None to check in this process. The report is the same.
    """
    started = time.perf_counter()
    levels = [difficulty] if difficulty is not None else list(DIFFICULTIES)

    def make(level: int) -> Generator:
        return environments.generator(name, level, content)

    def job(place: int) -> Job:
        return first + place, levels[place % len(levels)]

    checks = ScenarioChecks(make, environments.world(name), content, held_out)
    if executor is None:
        for place in range(seeds):
            checks.add(checks.check(place // len(levels), *job(place), is_early=_is_early(place)))
            on_progress(place + 1)
    else:
        places = [(place // len(levels), *job(place), _is_early(place)) for place in range(seeds)]
        parts = [places[first : first + SEEDS_AT_ONCE] for first in range(0, seeds, SEEDS_AT_ONCE)]
        work = _check_on(executor, name, content, held_out, parts, on_progress)
        for findings in executor.run(work):
            checks.add(findings)
    jobs = [job(place) for place in range(SEEDS_ELSEWHERE)]
    return AdmissionReport(
        capability=name,
        digests={level: make(level).digest for level in levels},
        seeds=seeds,
        seconds=time.perf_counter() - started,
        checks=(_check_new_process(environments, name, content, jobs), *checks.lines()),
    )


async def _check_on(
    executor: "RayExecutor",
    name: str,
    content: Content,
    held_out: Sequence[str],
    parts: Sequence[Sequence[tuple[int, int, int, bool]]],
    on_progress: Callable[[int], None],
) -> "list[Findings]":
    """Check parts of the scenarios on a cluster, and return the findings in the order of the scenarios."""
    done = 0

    async def check_part(part: Sequence[tuple[int, int, int, bool]]) -> "list[Findings]":
        nonlocal done
        found = await executor.call(check_there, name, content, tuple(held_out), tuple(part))
        done += len(part)
        on_progress(done)
        return found

    return [findings for part in await all_of(map(check_part, parts)) for findings in part]


async def check_there(
    actor: "RayActor",
    name: str,
    content: Content,
    held_out: Sequence[str],
    part: Sequence[tuple[int, int, int, bool]],
) -> "list[Findings]":
    """Check scenarios on a node; `part` holds the arguments of `ScenarioChecks.check`."""
    from pytest_trace2evolve.environments.on_cluster import environments_on

    environments = environments_on(actor)
    key = ("admission", name, content)
    if key not in actor.kept:
        world = environments.world(name)
        actor.kept[key] = ScenarioChecks(
            lambda level: environments.generator(name, level, content), world, content, held_out
        )
    checks: ScenarioChecks = actor.kept[key]
    return [
        checks.check(number, seed, difficulty, is_early=is_early)
        for number, seed, difficulty, is_early in part
    ]


def _is_early(place: int) -> bool:
    return place < SEEDS_OF_EXPENSIVE_CHECKS


def require_admitted(
    environments: Environments, names: Sequence[str], project: Project, first: int = 0
) -> None:
    """Check environments again before a training, also against the project's held-out content.

    Raises:
        ConfigError: an environment is not admitted.
    """
    held_out = held_out_of(project)
    for name in names:
        report = admit(environments, name, seeds=SEEDS_BEFORE_TRAINING, held_out=held_out, first=first)
        if failed := [line for line in report.checks if not line.passed]:
            raise ConfigError(
                f"environment {name!r} is not admitted, and nothing is trained in it: {failed[0].check}: "
                f"{failed[0].detail}; see trace2evolve environment check {name}"
            )


def draw_first_seed(first: int, count: int) -> int:
    """Draw the first seed to check among `count` training seeds, at random so that no code can predict it."""
    return first + secrets.randbelow(max(1, count - SEEDS_BEFORE_TRAINING + 1))


def _check_new_process(
    environments: Environments, name: str, content: Content, jobs: Sequence[Job]
) -> CheckLine:
    """Compare scenarios and grades with those from a different process.

    A module that a model wrote gets the jobs in reverse order there, because a scenario must not depend on
    earlier ones. For other environments, the new process hashes strings differently.
    """
    elsewhere = environments.offer(name).elsewhere
    try:
        here = _digests(lambda level: environments.generator(name, level, content), jobs)
        if elsewhere is None:
            there = _digests_of_new_process(name, content, jobs, environments.project)
        else:
            there = _digests(lambda level: elsewhere(level, content), jobs[::-1])[::-1]
    except Trace2EvolveError as error:
        return CheckLine(check=NEW_PROCESS, passed=False, detail=f"it cannot be made there: {error}")
    for (seed, level), digest_here, digest_there in zip(jobs, here, there, strict=True):
        if digest_here != digest_there:
            detail = f"another scenario or grade there, first: seed {seed} at difficulty {level}"
            return CheckLine(check=NEW_PROCESS, passed=False, detail=detail)
    return CheckLine(check=NEW_PROCESS, passed=True, detail=f"{len(jobs)} scenarios with their grades")


def _digests_of_new_process(
    name: str, content: Content, jobs: Sequence[Job], project: Project | None
) -> list[str]:
    folders = None if project is None else [str(project.root), str(project.suites_folder)]
    path = [entry for entry in sys.path if entry]
    source = (
        f"import sys; sys.path[:] = {path!r}; import json; from {__name__} import remake; "
        "print(json.dumps(remake(*json.loads(sys.argv[1]))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", source, json.dumps([name, content.value, jobs, folders])],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONHASHSEED": str(random.Random(name).randrange(1, 1 << 16))},
    )
    if done.returncode:
        raise GeneratorError((done.stderr.strip().splitlines() or ["it printed nothing"])[-1])
    digests: list[str] = json.loads(done.stdout)
    return digests


def remake(name: str, content: str, jobs: Sequence[Job], folders: Sequence[str] | None) -> list[str]:
    """Make scenarios in this process, and return their digests, which include their grades.

    `folders` are the root and the suites folder of the project that offers the environment; None without a
    project.
    """
    environments = Environments() if folders is None else project_environments(Project(*map(Path, folders)))
    return _digests(lambda level: environments.generator(name, level, Content(content)), jobs)


def _digests(make: Callable[[int], Generator], jobs: Sequence[Job]) -> list[str]:
    generators = {level: make(level) for level in {level for _, level in jobs}}
    return [_graded_digest(generators[level], seed) for seed, level in jobs]


def _graded_digest(generator: Generator, seed: int) -> str:
    """Digest of a scenario, its shortcut, and the grades of its history, gold actions and shortcut."""
    task = generator.scenario(seed)
    calls = [ToolCall(id="call", name=action.name, arguments=action.arguments) for action in task.actions]
    gold = [Message(role="assistant", tool_calls=[call]) for call in calls]
    shortcut = list(generator.shortcut(task))
    grades = [
        generator.grade(task, [*task.history, *messages], solved=solved)
        for messages in ([], gold, shortcut)
        for solved in (False, True)
    ]
    return digest([task.model_dump(mode="json"), grades, [said.model_dump(mode="json") for said in shortcut]])
