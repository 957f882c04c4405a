"""Admits an environment if its scenarios pass all checks, before a model is trained on them.

The checks show whether the environment rewards the capability alone. An expert must reach the top reward, and
the reward must never drop on the way. An agent that does nothing, takes the shortcut, repeats itself, or
reads, says or changes everything must get almost no reward. Synthesized environments must pass the same
checks as built-in ones.
"""

import json
import random
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from pytest_trace2evolve.environments.environment import DIFFICULTIES
from pytest_trace2evolve.environments.generated import project_environments
from pytest_trace2evolve.environments.held_out import collect_held_out_identifiers
from pytest_trace2evolve.environments.registry import Environments
from pytest_trace2evolve.environments.scenario_checks import EXPENSIVE_CHECK_SEEDS, ScenarioChecks
from pytest_trace2evolve.errors import ConfigError, GeneratorError, Trace2EvolveError
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.records.adapter import WHOLE_TASKS
from pytest_trace2evolve.records.environment import AdmissionReport, CheckLine
from pytest_trace2evolve.records.message import Message, ToolCall
from pytest_trace2evolve.records.protocols import Generator
from pytest_trace2evolve.records.task import Content
from pytest_trace2evolve.utils.canonical import digest

SEEDS = 1_000  # scenarios of a full admission
SEEDS_BEFORE_TRAINING = 60  # scenarios that are checked again before a training run
SEEDS_IN_NEW_PROCESS = 20  # scenarios that are also made in a new process

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
    held_out_identifiers: Sequence[str] = (),
    first_seed: int = 0,
    on_progress: Callable[[int], None] = lambda count: None,
) -> AdmissionReport:
    """Run every admission check on an environment.

    Args:
        seeds: The number of scenarios; the difficulties take turns.
        difficulty: The only difficulty to check; None for all difficulties.
        content: The words that the scenarios use. Only training content is searched for held-out content.
        held_out_identifiers: Ids and people that no scenario may contain; see `collect_held_out_identifiers`.
        first_seed: Seed of the first scenario; should be random if a model wrote the environment's code.
        on_progress: Called with the number of checked scenarios.
    """
    start = time.perf_counter()
    difficulties = [difficulty] if difficulty is not None else list(DIFFICULTIES)

    def make_generator(level: int) -> Generator:
        return environments.generator(name, level, content)

    def job_at(index: int) -> Job:
        return first_seed + index, difficulties[index % len(difficulties)]

    checks = ScenarioChecks(make_generator, environments.world(name), content, held_out_identifiers)
    for index in range(seeds):
        is_early = index < EXPENSIVE_CHECK_SEEDS
        checks.add(checks.check(index // len(difficulties), *job_at(index), is_early=is_early))
        on_progress(index + 1)
    jobs = [job_at(index) for index in range(SEEDS_IN_NEW_PROCESS)]
    return AdmissionReport(
        capability=name,
        digests={level: make_generator(level).digest for level in difficulties},
        seeds=seeds,
        seconds=time.perf_counter() - start,
        checks=(_check_new_process(environments, name, content, jobs), *checks.lines()),
    )


def require_admitted(
    environments: Environments, names: Sequence[str], project: Project, first_seed: int = 0
) -> None:
    """Check environments again before a training run, also for the project's held-out content.

    Raises:
        ConfigError: an environment is not admitted.
    """
    held_out_identifiers = collect_held_out_identifiers(project)
    for name in names:
        report = admit(
            environments,
            name,
            seeds=SEEDS_BEFORE_TRAINING,
            held_out_identifiers=held_out_identifiers,
            first_seed=first_seed,
        )
        failures = [check for check in report.checks if not check.passed]
        if name == WHOLE_TASKS:
            # A task whose right answer is a refusal pays everybody who refuses, as it does in a suite.
            failures = [check for check in failures if not check.check.startswith("unpaid: ")]
        if failures:
            raise ConfigError(
                f"environment {name!r} is not admitted, so it cannot be used for training: "
                f"{failures[0].check}: {failures[0].detail}; see trace2evolve environment check {name}"
            )


def draw_first_seed(min_seed: int, count: int) -> int:
    """Draw the first seed to check among `count` training seeds, at random so that no code can predict it."""
    return min_seed + secrets.randbelow(max(1, count - SEEDS_BEFORE_TRAINING + 1))


def _check_new_process(
    environments: Environments, name: str, content: Content, jobs: Sequence[Job]
) -> CheckLine:
    """Compare scenarios and grades with those from a different process.

    A module that a model wrote gets the jobs in reverse order there, because a scenario must not depend on
    earlier ones. For other environments, the new process uses a different seed for the hashes of strings.
    """
    make_elsewhere = environments.offer(name).elsewhere
    try:
        own_digests = _digests(lambda level: environments.generator(name, level, content), jobs)
        if make_elsewhere is None:
            other_digests = _digests_in_new_process(name, content, jobs, environments.project)
        else:
            other_digests = _digests(lambda level: make_elsewhere(level, content), jobs[::-1])[::-1]
    except Trace2EvolveError as error:
        return CheckLine(
            check=NEW_PROCESS, passed=False, detail=f"no scenario can be made in a new process: {error}"
        )
    for (seed, level), own_digest, other_digest in zip(jobs, own_digests, other_digests, strict=True):
        if own_digest != other_digest:
            detail = (
                f"a different scenario or grade in a new process, first: seed {seed} at difficulty {level}"
            )
            return CheckLine(check=NEW_PROCESS, passed=False, detail=detail)
    return CheckLine(check=NEW_PROCESS, passed=True, detail=f"{len(jobs)} scenarios with their grades")


def _digests_in_new_process(
    name: str, content: Content, jobs: Sequence[Job], project: Project | None
) -> list[str]:
    folders = None if project is None else [str(project.root), str(project.suites_folder)]
    import_path = [entry for entry in sys.path if entry]
    source = (
        f"import sys; sys.path[:] = {import_path!r}; import json; from {__name__} import scenario_digests; "
        "print(json.dumps(scenario_digests(*json.loads(sys.argv[1]))))"
    )
    process = subprocess.run(
        [sys.executable, "-c", source, json.dumps([name, content.value, jobs, folders])],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONHASHSEED": str(random.Random(name).randrange(1, 1 << 16))},
    )
    if process.returncode:
        raise GeneratorError((process.stderr.strip().splitlines() or ["the new process printed nothing"])[-1])
    digests: list[str] = json.loads(process.stdout)
    return digests


def scenario_digests(
    name: str, content: str, jobs: Sequence[Job], folders: Sequence[str] | None
) -> list[str]:
    """Make scenarios in this process, and return their digests, which include their grades.

    `folders` are the root and the suites folder of the project that offers the environment; None without a
    project.
    """
    environments = Environments() if folders is None else project_environments(Project(*map(Path, folders)))
    return _digests(lambda level: environments.generator(name, level, Content(content)), jobs)


def _digests(make_generator: Callable[[int], Generator], jobs: Sequence[Job]) -> list[str]:
    generators = {level: make_generator(level) for level in {level for _, level in jobs}}
    return [_digest_with_grades(generators[level], seed) for seed, level in jobs]


def _digest_with_grades(generator: Generator, seed: int) -> str:
    """Digest of a scenario, its shortcut, and the grades of its history, gold actions and shortcut."""
    task = generator.scenario(seed)
    calls = [ToolCall(id="call", name=action.name, arguments=action.arguments) for action in task.actions]
    gold_messages = [Message(role="assistant", tool_calls=[call]) for call in calls]
    shortcut_messages = list(generator.shortcut(task))
    grades = [
        generator.grade(task, [*task.history, *messages], solved=solved)
        for messages in ([], gold_messages, shortcut_messages)
        for solved in (False, True)
    ]
    return digest(
        [
            task.model_dump(mode="json"),
            grades,
            [message.model_dump(mode="json") for message in shortcut_messages],
        ]
    )
