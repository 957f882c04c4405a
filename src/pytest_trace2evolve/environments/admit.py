"""Admission of environments by name: with wrong ways of the support world, and what a project holds out.

What an environment must be before anything is trained in it: it shares nothing with what decides.
"""

import json
import random
import re
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from pytest_trace2evolve.agents.reference import CaseOracle
from pytest_trace2evolve.cases.case import read_cases
from pytest_trace2evolve.cases.content import find_foreign_mark, training_words, vocabulary
from pytest_trace2evolve.environments.admission import Admission, Trial
from pytest_trace2evolve.environments.environment import Play
from pytest_trace2evolve.environments.generated_store import project_environments
from pytest_trace2evolve.environments.generators.scenario import EASIEST, HARDEST
from pytest_trace2evolve.environments.registry import Environments, scripted
from pytest_trace2evolve.environments.reward_hacking_probes import LUCK, WRONG, nothing, repeats, silence
from pytest_trace2evolve.errors import CaseError, ConfigError, Trace2EvolveError
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.project.suites import CasesOf, Role
from pytest_trace2evolve.records.environment import AdmissionReport, CheckLine
from pytest_trace2evolve.records.message import Message, ToolCall
from pytest_trace2evolve.records.protocols import Generator, World, rules_of
from pytest_trace2evolve.records.score import ToolType
from pytest_trace2evolve.records.task import Action, Content, Task, script_of
from pytest_trace2evolve.scoring.invariants import broken
from pytest_trace2evolve.training.recipe import Recipe
from pytest_trace2evolve.utils.canonical import digest, texts_in
from pytest_trace2evolve.worlds.registry import Worlds

SEEDS = 1_000
"""Scenarios that an environment is looked at for."""

RUN = 4
"""Words in a row that training may not share with a held-out phrasing, as for the embedded model's words."""

ELSEWHERE = 20
"""Scenarios that are made again in another process."""


def admit(
    environments: Environments,
    name: str,
    *,
    seeds: int = SEEDS,
    difficulty: int | None = None,
    content: Content = Content.TRAIN,
    held_out: Sequence[str] = (),
    first: int = 0,
    told: Callable[[int], None] = lambda done: None,
) -> AdmissionReport:
    """Hold an environment against every check of admission.

    Args:
        environments: Those that are known.
        name: The capability.
        seeds: How many scenarios, taking turns between the difficulties.
        difficulty: One difficulty alone; None: all of them.
        content: Whose words; what is held out is looked for in training content alone.
        held_out: Ids and people that no scenario may hold, see `held_out_of`.
        first: Seed of the first scenario; for code that could know the seeds of its admission, a drawn one.
        told: Hears how many scenarios are done.

    Raises:
        GeneratorError: it is unknown or cannot be made.
        WorldError: its world cannot be opened.
    """
    started = time.perf_counter()
    offer = environments.offer(name)
    world = (
        Worlds().open(offer.provider, offer.domain)
        if offer.provider == "trace2evolve"
        else environments.world(name)
    )
    levels = [difficulty] if difficulty is not None else list(range(EASIEST, HARDEST + 1))

    def make(level: int) -> Generator:
        return environments.generator(name, level, content)

    admission = Admission(make, _trial(world, content, held_out))
    for seed in range(seeds):
        admission.look(first + seed, levels[seed % len(levels)])
        told(seed + 1)
    again = offer.elsewhere
    lines = [
        _elsewhere(name, levels, content, make, environments.project)
        if again is None
        else _again(levels, make, lambda level: again(level, content), first),
        *admission.lines(),
    ]
    return AdmissionReport(
        capability=name,
        digests={level: make(level).digest for level in levels},
        seeds=seeds,
        seconds=time.perf_counter() - started,
        checks=tuple(lines),
    )


def _trial(world: World, content: Content, held_out: Sequence[str]) -> Trial:
    ours = (world.provider, world.domain) == ("trace2evolve", "support")
    writes = [tool for tool, kind in world.tool_types().items() if kind is ToolType.WRITE]
    rules = rules_of(world)

    def expert(task: Task, trace: Sequence[Message]) -> Message:
        script = script_of(task)
        if script is None:
            raise CaseError(f"scenario {task.id!r} has no customer script: write user_scenario.script")
        return CaseOracle(task, script, writes).reply(trace)

    def forbidden(task: Task) -> str:
        """What breaks a rule where the gold is carried out from the start, with a yes before each change."""
        if rules is None or task.initial_state is None:
            return ""
        whole = task.model_copy(
            update={"initial_state": task.initial_state.model_copy(update={"message_history": None})}
        )
        play = Play(whole, world, scripted(whole, 0))
        while play.end is None:
            play.step(expert(whole, play.trace))
        found = broken(play.trace, rules)
        return f"breaks {found[0].invariant.value}: {found[0].why}" if found else ""

    def seen(task: Task) -> str:
        return found_held_out(task, held_out) if content is Content.TRAIN else ""

    return Trial(
        world=world,
        customers=scripted,
        expert=expert,
        # The others need the tables of a retail store.
        wrong=WRONG if ours else {one.__name__: one for one in (nothing, silence, repeats)},
        luck=LUCK if ours else {},
        names=_names if ours else lambda task: (),
        held_out=seen,
        sought=_sought(content, held_out),
        forbidden=forbidden,
    )


def _sought(content: Content, held_out: Sequence[str]) -> str:
    """What held-out content is looked for, in words."""
    if content is not Content.TRAIN:
        return "nothing is looked for: the content is held out itself"
    words = "no name, product or phrasing"
    return (
        f"{words}, no id and no customer" if held_out else f"{words}; no project says which ids and customers"
    )


def found_held_out(task: Task, held_out: Sequence[str]) -> str:
    """What of a scenario must not be seen in training; empty where nothing is.

    Args:
        task: The scenario.
        held_out: Ids, names and mailboxes of held-out tasks.
    """
    record = task.model_dump(mode="json")
    # What tools answered holds the same records once more.
    history = record["initial_state"]["message_history"] or []
    record["initial_state"]["message_history"] = [one for one in history if one["role"] != "tool"]
    texts = list(dict.fromkeys(texts_in(record)))
    whole = "\n".join(texts)
    if mark := find_foreign_mark(whole, Content.HELDOUT):
        return f"held-out content: {mark!r}"
    if held_out:
        words = set(re.findall(r"[\w#@.+-]+", whole))
        named = (one for one in held_out if words.issuperset(one.split()) and one in whole)
        if one := next(named, ""):
            return f"of a held-out task: {one!r}"
    for text in (one for one in texts if one.count(" ") >= RUN - 1):
        if shared := _runs(text) & _held_out_runs():
            return f"a held-out phrasing: {' '.join(min(shared))!r}"
    return ""


def held_out_of(project: Project | None) -> list[str]:
    """Ids, people and records of the tasks that decide in a project's suites; none without a project.

    The tasks of a benchmark are known by their ids alone, those of files of cases by all that they bring.

    Raises:
        SuiteError: a suite is broken.
        LockError: the lock is damaged.
    """
    if project is None:
        return []
    found: dict[str, None] = {}
    for name in project.suite_names:
        suite = project.suite(name)
        locked = project.lock.suites.get(name)
        for split, tasks in (locked.splits if locked else {}).items():
            if split in project.splits and project.splits[split].role is not Role.REPORT:
                found |= dict.fromkeys(one for one in tasks if not one.isdigit())
        for split, spec in suite.case_splits.items():
            if project.splits[split].role is not Role.REPORT and isinstance(spec, CasesOf):
                for case in read_cases(project.inside(spec.cases)):
                    found |= dict.fromkeys(_records(case.task))
    return list(found)


def _records(task: Task) -> Iterator[str]:
    """The task's id, and its customers: ids, mailboxes and whole names.

    Orders are left out: among some thousand scenarios one holds the same seven random digits by chance.
    """
    tables = task.tables
    yield task.id
    for user_id, user in tables.get("users", {}).items():
        yield from (user_id, user["email"], f"{user['name']['first_name']} {user['name']['last_name']}")


def _names(task: Task) -> Iterator[str]:
    """Words that only name somebody or some place in a scenario."""
    tables = task.tables
    for user in tables["users"].values():
        yield from (*user["name"].values(), user["user_id"], user["email"])
    for record in (*tables["users"].values(), *tables["orders"].values()):
        address = record["address"]
        street = address["address1"].partition(" ")[2]
        yield from (street, address["city"], f'"state":"{address["state"]}"', f" {address['state']} ")


def _runs(text: str) -> set[tuple[str, ...]]:
    """All runs of `RUN` words in a text; a slot of a phrase is no word, and it and a sentence end a run."""
    found: set[tuple[str, ...]] = set()
    for part in re.split(r"\{\w+\}|(?<=[.!?])\s", text.lower()):
        words = re.findall(r"[\w'-]+", part)
        found |= {tuple(words[at : at + RUN]) for at in range(len(words) - RUN + 1)}
    return found


@cache
def _held_out_runs() -> set[tuple[str, ...]]:
    """Runs of words of held-out phrasings that no phrasing of training has: others are everybody's."""
    held, train = vocabulary(Content.HELDOUT).phrases, training_words().phrases
    theirs = {run for texts in held.values() for text in texts for run in _runs(text)}
    return theirs - {run for texts in train.values() for text in texts for run in _runs(text)}


ANEW = "same seed, new process"
"""The check that scenarios do not hang on the process that makes them."""


def _again(
    levels: Sequence[int],
    make: Callable[[int], Generator],
    again: Callable[[int], Generator],
    first: int,
) -> CheckLine:
    """The same scenarios and grades by generators that run in another process themselves.

    They are asked in the other order: what a module makes must not hang on what it made before.
    """
    jobs = [(first + place, levels[place % len(levels)]) for place in range(ELSEWHERE)]
    one, other = ({level: made(level) for level in levels} for made in (make, again))
    try:
        here = {job: _made(one[job[1]], job[0]) for job in jobs}
        there = {job: _made(other[job[1]], job[0]) for job in reversed(jobs)}
    except Trace2EvolveError as error:
        return CheckLine(check=ANEW, passed=False, detail=f"it cannot be made there: {error}")
    finally:
        for generator in other.values():
            close = getattr(generator, "close", None)
            if close is not None:
                close()
    if differs := next((job for job in jobs if here[job] != there[job]), None):
        detail = f"another scenario or grade there, first: seed {differs[0]} at difficulty {differs[1]}"
        return CheckLine(check=ANEW, passed=False, detail=detail)
    return CheckLine(check=ANEW, passed=True, detail=f"{len(jobs)} scenarios with their grades")


def _made(generator: Generator, seed: int) -> str:
    """Digest of a scenario, and of what its history, its gold actions and its shortcut are graded."""
    task = generator.scenario(seed)
    history = list(task.history)
    calls = [Message(role="assistant", tool_calls=[_call(one)]) for one in task.actions]
    shortcut = list(generator.shortcut(task))
    graded = [
        generator.grade(task, trace, solved=solved)
        for trace in (history, [*history, *calls], [*history, *shortcut])
        for solved in (False, True)
    ]
    told = [one.model_dump(mode="json") for one in shortcut]
    return digest([task.model_dump(mode="json"), graded, told])


def _call(action: Action) -> ToolCall:
    return ToolCall(id="call", name=action.name, arguments=action.arguments)


def _elsewhere(
    name: str,
    levels: Sequence[int],
    content: Content,
    make: Callable[[int], Generator],
    project: Project | None,
) -> CheckLine:
    """The same scenarios in a new process, whose hashes of strings are others."""
    jobs = [(seed, levels[seed % len(levels)]) for seed in range(ELSEWHERE)]
    here = scenarios_digest({level: make(level) for level in levels}, jobs)
    source = (
        "import json, sys; from pytest_trace2evolve.environments.admit import remade; "
        "print(remade(*json.loads(sys.argv[1])))"
    )
    folders = None if project is None else [str(project.root), str(project.suites_folder)]
    arguments = json.dumps([name, content.value, jobs, folders])
    path = [entry for entry in sys.path if entry]
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:] = {path!r}; {source}", arguments],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONHASHSEED": str(random.Random(name).randrange(1, 1 << 16))},
    )
    if done.returncode:
        told = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return CheckLine(check=ANEW, passed=False, detail=f"it cannot be made there: {told}")
    same = done.stdout.strip() == here
    return CheckLine(
        check=ANEW, passed=same, detail=f"{len(jobs)} scenarios" if same else "other scenarios there"
    )


def remade(
    name: str, content: str, jobs: Sequence[Sequence[int]], folders: Sequence[str] | None = None
) -> str:
    """Digest of scenarios, made here from nothing but their names.

    Args:
        folders: Root and folder of suites of the project that knows the environment, if one does.
    """
    environments = Environments() if folders is None else project_environments(Project(*map(Path, folders)))
    levels = {level for _, level in jobs}
    made = {level: environments.generator(name, level, Content(content)) for level in levels}
    return scenarios_digest(made, [(seed, level) for seed, level in jobs])


def scenarios_digest(made: Mapping[int, Generator], jobs: Sequence[tuple[int, int]]) -> str:
    """Digest of the scenarios of some seeds, each at its difficulty."""
    return digest([made[level].scenario(seed).model_dump(mode="json") for seed, level in jobs])


CHECKED = 60
"""Scenarios of each environment that are held against held-out content."""


def require_admitted(
    environments: Environments, names: Sequence[str], project: Project, first: int = 0
) -> None:
    """Hold environments against the held-out content of a project.

    Args:
        first: The first scenario that is looked at; see `a_first`.

    Raises:
        ConfigError: one is not admitted: nothing may be trained in it.
    """
    held_out = held_out_of(project)
    for name in names:
        admission = admit(environments, name, seeds=CHECKED, held_out=held_out, first=first)
        if not admission.passed:
            why = next(f"{one.check}: {one.detail}" for one in admission.checks if not one.passed)
            raise ConfigError(
                f"environment {name!r} is not admitted, and nothing is trained in it: {why}; "
                f"see trace2evolve environment check {name}"
            )


def a_first(recipe: Recipe) -> int:
    """A drawn first scenario of those that are trained in: code that was written to pass known scenarios does
    not know which are looked at."""
    return recipe.first_scenario + secrets.randbelow(max(1, recipe.scenarios - CHECKED + 1))
