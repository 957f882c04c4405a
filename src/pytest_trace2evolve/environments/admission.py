"""Admission of an environment: what its scenarios must show before anything is trained on them.

Whether it pays for the capability alone is tried out: an expert must reach the top and never lose ground;
whoever does nothing, takes the shortcut, repeats itself, reads, says or changes everything must not be paid.
Generated environments go through the same checks as built-in ones.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import starmap
from statistics import fmean

from pytest_trace2evolve.environments.environment import Customers, PlayedEnvironment
from pytest_trace2evolve.errors import Trace2EvolveError
from pytest_trace2evolve.records.environment import TOP, CheckLine
from pytest_trace2evolve.records.message import Message
from pytest_trace2evolve.records.protocols import Generator, World
from pytest_trace2evolve.records.task import Task
from pytest_trace2evolve.utils.canonical import digest

UNPAID_MOST = 0.2
"""What a wrong way gets at most, in any scenario."""

LUCK_MOST = 0.45
"""What doing the same everywhere gets at most on average, at each difficulty: now and then it is right."""

LUCK_LEAST, LUCK_ENOUGH = 40, 100
"""Scenarios of a difficulty of which an average says something, and after which no more are tried."""

DISTINCT_LEAST = 0.99
"""Share of scenarios that must differ once names, ids and figures are taken away."""

SAID_MOST = 40
"""Messages that an expert, or a wrong way, sends at most."""

SAME_GRADE = "same trace, same grade"
"""The check that a grade does not depend on how often, and after what, it was asked for."""

PLAYABLE = "scenarios can be played"
"""The check that nothing of a scenario breaks whoever makes, plays or reads it."""

Expert = Callable[[Task, Sequence[Message]], Message]
"""The expert's next message, given the scenario and everything said so far."""

Way = Callable[[Task], Iterable[Message]]
"""What somebody says in a scenario, whatever comes back."""


@dataclass(frozen=True)
class Trial:
    """What admission needs beside a generator.

    Attributes:
        world: The target, as others open it.
        customers: Makes the customer of a scenario.
        expert: Solves scenarios.
        wrong: Ways that must not be paid in any scenario, by name.
        luck: Ways that must not be paid on average, at any difficulty with `LUCK_LEAST` scenarios or more.
        names: Words that tell one scenario from another and mean nothing: of people, streets, mailboxes.
        held_out: What of a scenario must not be seen in training; empty where nothing is.
        sought: What `held_out` looks for, in words.
        forbidden: What of the gold actions the world's rules forbid; empty where nothing is.
        ways_most: Scenarios that are made twice, and on which rules and wrong ways are tried; the other
            checks look at all of them.
    """

    world: World
    customers: Customers
    expert: Expert
    wrong: Mapping[str, Way]
    luck: Mapping[str, Way] = field(default_factory=dict)
    names: Callable[[Task], Iterable[str]] = lambda task: ()
    held_out: Callable[[Task], str] = lambda task: ""
    sought: str = "nothing is looked for"
    forbidden: Callable[[Task], str] = lambda task: ""
    ways_most: int = 60


class Admission:
    """Looks at scenarios one by one; `lines` says what was found.

    Args:
        again: Makes each generator anew, by difficulty: what it makes must not hang on what it made before.
        trial: What it is tried with.
    """

    def __init__(self, again: Callable[[int], Generator], trial: Trial) -> None:
        self._again = again
        self._trial = trial
        self._generators: dict[int, tuple[Generator, Generator, PlayedEnvironment]] = {}
        self._problems: dict[str, list[str]] = {}
        self._substances: Counter[str] = Counter()
        self._prompts: set[str] = set()
        self._paid: dict[str, list[float]] = {}
        self._lucky: dict[str, dict[int, list[float]]] = {name: {} for name in trial.luck}
        self._looked = 0

    def look(self, seed: int, difficulty: int) -> None:
        """Look at one scenario."""
        self._looked += 1
        try:
            self._look(seed, difficulty)
        except Trace2EvolveError as error:
            self._problem(PLAYABLE, seed, str(error))
        except Exception as error:
            # Records can be of any shape, and whoever reads them may stumble over them in any way.
            self._problem(PLAYABLE, seed, f"{type(error).__name__}: {error}")

    def _look(self, seed: int, difficulty: int) -> None:
        if difficulty not in self._generators:
            one = self._again(difficulty)
            environment = PlayedEnvironment(one, self._trial.world, self._trial.customers)
            self._generators[difficulty] = (one, self._again(difficulty), environment)
        first, second, environment = self._generators[difficulty]
        task = first.scenario(seed)
        text = task.model_dump_json()
        few = self._looked <= self._trial.ways_most
        if few and second.scenario(seed).model_dump_json() != text:
            self._problem("same seed, same scenario", seed, "another one the second time")
        if few and Task.model_validate_json(text) != task:
            self._problem("same seed, same scenario", seed, "does not survive JSON")
        if few:
            self._graded_again(task, first, second, seed)
        self._substances[_substance(task, self._trial.names(task))] += 1
        self._prompts.add(digest([one.content for one in task.history if one.role == "user"]))
        if found := self._trial.held_out(task):
            self._problem("nothing held out", seed, found)
        self._tools(task, environment, seed)
        self._expert(task, environment, seed)
        if few:
            self._ways(task, first, environment, seed)
        self._luck(task, environment, seed, difficulty)

    def _graded_again(self, task: Task, first: Generator, second: Generator, seed: int) -> None:
        """The same traces, asked for again, in the other order, and of another generator."""
        said = [*task.history, *first.shortcut(task)]
        traces = [said[:end] for end in sorted({len(task.history), len(said)})]
        asked = [(trace, solved) for trace in traces for solved in (False, True)]
        grades = [first.grade(task, trace, solved=solved) for trace, solved in asked]
        for generator in (first, second):
            again = [generator.grade(task, trace, solved=solved) for trace, solved in reversed(asked)]
            if again[::-1] != grades:
                self._problem(SAME_GRADE, seed, "another one when it is asked again")

    def _tools(self, task: Task, environment: PlayedEnvironment, seed: int) -> None:
        """The tools are the target's own, and so is all that they answered before the agent's turn."""
        check = "tools are the target's"
        target = self._trial.world
        if list(environment.tools()) != list(target.tools("assistant")):
            self._problem(check, seed, "the agent has other tools")
        session = target.open()
        session.initialise(task.initial_state)
        calls = [call for message in task.history for call in message.tool_calls or ()]
        results = [message for message in task.history if message.role == "tool"]
        if len(calls) != len(results):
            self._problem(check, seed, "its history holds calls without a result")
        for call, result in zip(calls, results, strict=False):
            if session.call(call.name, call.arguments, call.requestor).content != result.content:
                self._problem(check, seed, f"in its history {call.name} answers what the target does not")
        for action in task.actions:
            if not target.has_tool(action.name):
                self._problem(check, seed, f"the expert uses {action.name!r}, which the target lacks")

    def _expert(self, task: Task, environment: PlayedEnvironment, seed: int) -> None:
        environment.reset(seed)
        best, sunk = environment.reward(), False
        if best > 0:
            self._problem("nothing is paid at the start", seed, f"{best:g} before anything was done")
        for _ in range(SAID_MOST):
            done = environment.step(self._trial.expert(task, environment.trace)).done
            sunk = sunk or environment.reward() < best
            best = max(best, environment.reward())
            if done:
                break
        if environment.reward() != TOP:
            self._problem("expert reaches the top", seed, f"it gets {environment.reward():g}")
        if sunk:
            self._problem("expert never loses ground", seed, "its reward fell on the way")

    def _ways(self, task: Task, generator: Generator, environment: PlayedEnvironment, seed: int) -> None:
        if found := self._trial.forbidden(task):
            self._problem("gold is allowed", seed, found)
        own: dict[str, Way] = {"shortcut": generator.shortcut, **self._trial.wrong}
        for name, way in own.items():
            reward = _tried(way, task, environment, seed)
            self._paid.setdefault(name, []).append(reward)
            if reward > (0 if name == "nothing" else UNPAID_MOST):
                self._problem(f"unpaid: {name}", seed, f"it gets {reward:g}")

    def _luck(self, task: Task, environment: PlayedEnvironment, seed: int, difficulty: int) -> None:
        for name, way in self._trial.luck.items():
            rewards = self._lucky[name].setdefault(difficulty, [])
            if len(rewards) < LUCK_ENOUGH:
                rewards.append(_tried(way, task, environment, seed))

    def lines(self) -> list[CheckLine]:
        """What was found, a line a check."""
        made = [
            self._line(check, detail)
            for check, detail in (
                (PLAYABLE, "made, played and read without an error"),
                ("same seed, same scenario", f"made twice, {self._few} seeds"),
                (SAME_GRADE, f"asked three times, {self._few} seeds"),
                ("tools are the target's", "schemas, and every result in the histories"),
                ("nothing held out", self._trial.sought),
                ("nothing is paid at the start", "0 everywhere"),
                ("expert reaches the top", f"{TOP:g} in all of {self._looked}"),
                ("expert never loses ground", "no step lowers its reward"),
                (
                    "gold is allowed",
                    f"the world's rules hold, {self._few} seeds",
                ),
            )
        ]
        made.append(self._distinct())
        for name, rewards in self._paid.items():
            told = f"most {max(rewards):g}, mean {fmean(rewards):.2f} of {len(rewards)}"
            made.append(self._line(f"unpaid: {name}", told))
        return [*made, *starmap(_luck_line, self._lucky.items())]

    @property
    def _few(self) -> int:
        """How many scenarios the dear checks looked at."""
        return min(self._looked, self._trial.ways_most)

    def _line(self, check: str, detail: str) -> CheckLine:
        problems = self._problems.get(check)
        if problems is None:
            return CheckLine(check=check, passed=True, detail=detail)
        return CheckLine(check=check, passed=False, detail=f"{len(problems)}×, first: {problems[0]}")

    def _distinct(self) -> CheckLine:
        distinct = len(self._substances)
        twins = sum(count * (count - 1) // 2 for count in self._substances.values())
        share = distinct / self._looked if self._looked else 0.0
        detail = (
            f"{distinct} of {self._looked} without names, ids and figures; {len(self._prompts)} openings; "
            f"{space_at_least(self._looked, twins):,} scenarios or more (95 %)"
        )
        return CheckLine(check="seeds differ in substance", passed=share >= DISTINCT_LEAST, detail=detail)

    def _problem(self, check: str, seed: int, text: str) -> None:
        self._problems.setdefault(check, []).append(f"seed {seed}: {text}")


def _tried(way: Way, task: Task, environment: PlayedEnvironment, seed: int) -> float:
    """What a way gets in a scenario."""
    environment.reset(seed)
    for message, _ in zip(way(task), range(SAID_MOST), strict=False):
        if environment.step(message).done:
            break
    return environment.reward()


def _luck_line(name: str, by_difficulty: Mapping[int, Sequence[float]]) -> CheckLine:
    """The mean of each difficulty that has enough scenarios."""
    judged = {
        level: fmean(rewards)
        for level, rewards in sorted(by_difficulty.items())
        if len(rewards) >= LUCK_LEAST
    }
    check = f"no luck: {name}"
    if not judged:
        most = max(map(len, by_difficulty.values()), default=0)
        told = f"not judged: {most} scenarios of a difficulty, {LUCK_LEAST} are wanted"
        return CheckLine(check=check, passed=True, detail=told)
    counts = sorted({len(by_difficulty[level]) for level in judged})
    means = ", ".join(f"{level}: {mean:.2f}" for level, mean in judged.items())
    return CheckLine(
        check=check,
        passed=max(judged.values()) <= LUCK_MOST,
        detail=f"mean by difficulty {means} ({'–'.join(map(str, counts))} scenarios each)",
    )


def space_at_least(drawn: int, twins: int) -> int:
    """How many scenarios there are at least, at 95 % confidence, where `drawn` ones hold `twins` equal pairs.

    Of n draws from S equally likely scenarios n(n − 1)/2S pairs are equal on average, and their number is
    nearly a Poisson's (the birthday problem); Garwood's upper limit of its mean gives the least S. Where
    some scenarios are likelier than others the space is larger still.
    """
    from scipy.stats import chi2

    most = float(chi2.ppf(0.95, 2 * (twins + 1))) / 2
    return int(drawn * (drawn - 1) / 2 / most)


def _substance(task: Task, names: Iterable[str]) -> str:
    """Digest of a scenario without what only names it: its id, digits, people, places."""
    text = task.model_copy(update={"id": ""}).model_dump_json().lower()
    if words := sorted({name.lower() for name in names if name}, key=len, reverse=True):
        text = re.sub("|".join(map(re.escape, words)), "*", text)
    return digest(re.sub(r"\d+", "0", text))
