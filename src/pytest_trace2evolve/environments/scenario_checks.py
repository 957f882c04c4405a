"""Checks the scenarios of an environment one by one, and reports the findings of all of them."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from pytest_trace2evolve.agents.reference import CaseOracle
from pytest_trace2evolve.environments.environment import (
    Episode,
    ScenarioEnvironment,
    require_script,
)
from pytest_trace2evolve.environments.held_out import found_held_out
from pytest_trace2evolve.environments.reward_hacking_probes import ANYWHERE, LUCK, WRONG, Probe
from pytest_trace2evolve.errors import Trace2EvolveError
from pytest_trace2evolve.records.environment import TOP, CheckLine
from pytest_trace2evolve.records.protocols import Generator, World, rules_of
from pytest_trace2evolve.records.score import ToolType
from pytest_trace2evolve.records.task import Content, Task
from pytest_trace2evolve.scoring.invariants import find_breaches
from pytest_trace2evolve.utils.canonical import digest

SEEDS_OF_EXPENSIVE_CHECKS = 60  # scenarios made twice, with rules and wrong ways tried
MAX_UNPAID = 0.2  # most reward of a wrong way, in any scenario
MAX_LUCK = 0.45  # most mean reward per difficulty of a fixed strategy, which is sometimes right
MIN_LUCK_SEEDS, MAX_LUCK_SEEDS = 40, 100  # scenarios per difficulty: needed for a mean, and tried at most
MIN_DISTINCT = 0.99  # share of scenarios that must differ without names, ids and figures
MAX_MESSAGES = 40  # messages of an expert, or of a wrong way
PLAYABLE = "scenarios can be played"
SAME_SCENARIO = "same seed, same scenario"
SAME_GRADE = "same trace, same grade"
SAME_TOOLS = "tools are the target's"
NOT_HELD_OUT = "nothing held out"
UNPAID_START = "nothing is paid at the start"
EXPERT_REACHES_TOP = "expert reaches the top"
EXPERT_KEEPS_GROUND = "expert never loses ground"
GOLD_IS_ALLOWED = "gold is allowed"


@dataclass
class Findings:
    """The findings of the checks in one scenario.

    Attributes:
        difficulty: The difficulty of the scenario.
        problems: Problems by check, a line each.
        substance: Digest of the scenario without names, ids and figures; empty if it could not be read.
        opening: Digest of the customer's words in the history.
        rewards: Rewards of wrong ways, by name.
        lucky: Rewards of fixed strategies, by name.
    """

    difficulty: int
    problems: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    substance: str = ""
    opening: str = ""
    rewards: dict[str, float] = field(default_factory=dict)
    lucky: dict[str, float] = field(default_factory=dict)

    def note(self, check: str, seed: int, problem: str) -> None:
        self.problems[check].append(f"seed {seed}: {problem}")


class ScenarioChecks:
    """Checks scenarios one by one. `lines` reports the findings passed to `add`."""

    def __init__(
        self, make: Callable[[int], Generator], world: World, content: Content, held_out: Sequence[str]
    ) -> None:
        self._make, self._world, self._content, self._held_out = make, world, content, held_out
        self._writes = [tool for tool, kind in world.tool_types().items() if kind is ToolType.WRITE]
        self._is_support = (world.provider, world.domain) == ("trace2evolve", "support")
        # Most probes need the tables of a retail store.
        self._wrong = WRONG if self._is_support else ANYWHERE
        self._luck = LUCK if self._is_support else {}
        self._generators: dict[int, tuple[Generator, Generator, ScenarioEnvironment]] = {}
        self._problems: dict[str, list[str]] = defaultdict(list)
        self._substances: Counter[str] = Counter()
        self._openings: set[str] = set()
        self._rewards: dict[str, list[float]] = defaultdict(list)
        self._lucky: dict[str, dict[int, list[float]]] = {name: defaultdict(list) for name in self._luck}
        self._seeds = 0

    def check(self, number: int, seed: int, difficulty: int, *, is_early: bool) -> Findings:
        """Check a scenario.

        Args:
            number: The number of earlier scenarios of the same difficulty.
            is_early: Whether to run the expensive checks as well.
        """
        found = Findings(difficulty)
        try:
            self._check_scenario(found, number, seed, difficulty, is_early=is_early)
        except Exception as error:
            # Records can have any shape, so every reader may raise any error.
            kind = "" if isinstance(error, Trace2EvolveError) else f"{type(error).__name__}: "
            found.note(PLAYABLE, seed, f"{kind}{error}")
        return found

    def add(self, found: Findings) -> None:
        """Add the findings of a scenario."""
        self._seeds += 1
        for check, problems in found.problems.items():
            self._problems[check] += problems
        if found.substance:
            self._substances[found.substance] += 1
        if found.opening:
            self._openings.add(found.opening)
        for name, reward in found.rewards.items():
            self._rewards[name].append(reward)
        for name, reward in found.lucky.items():
            self._lucky[name][found.difficulty].append(reward)

    def _check_scenario(
        self, found: Findings, number: int, seed: int, difficulty: int, *, is_early: bool
    ) -> None:
        if difficulty not in self._generators:
            generator = self._make(difficulty)
            environment = ScenarioEnvironment(generator, self._world)
            self._generators[difficulty] = generator, self._make(difficulty), environment
        generator, second, environment = self._generators[difficulty]
        task = generator.scenario(seed)
        if is_early:
            self._check_repeats(found, task, generator, second, seed)
        found.substance = _substance(task, _names(task) if self._is_support else ())
        found.opening = digest([said.content for said in task.history if said.role == "user"])
        if self._content is Content.TRAIN and (held_out := found_held_out(task, self._held_out)):
            found.note(NOT_HELD_OUT, seed, held_out)
        self._check_history(found, task, seed)
        self._check_expert(found, task, environment, seed)
        if is_early:
            if broken := self._broken_rule(task):
                found.note(GOLD_IS_ALLOWED, seed, broken)
            for name, probe in {"shortcut": generator.shortcut, **self._wrong}.items():
                reward = found.rewards[name] = _reward_of(probe, task, environment, seed)
                if reward > (0 if name == "nothing" else MAX_UNPAID):
                    found.note(f"unpaid: {name}", seed, f"it gets {reward:g}")
        if number < MAX_LUCK_SEEDS:
            for name, probe in self._luck.items():
                found.lucky[name] = _reward_of(probe, task, environment, seed)

    def _check_repeats(
        self, found: Findings, task: Task, generator: Generator, second: Generator, seed: int
    ) -> None:
        """Check that repeated requests, also to a second generator, give the same scenario and grades."""
        text = task.model_dump_json()
        if second.scenario(seed).model_dump_json() != text:
            found.note(SAME_SCENARIO, seed, "another one the second time")
        if Task.model_validate_json(text) != task:
            found.note(SAME_SCENARIO, seed, "does not survive JSON")
        messages = [*task.history, *generator.shortcut(task)]
        traces = [messages[:end] for end in sorted({len(task.history), len(messages)})]
        asked = [(trace, solved) for trace in traces for solved in (False, True)]
        grades = [generator.grade(task, trace, solved=solved) for trace, solved in asked]
        for other in (generator, second):
            again = [other.grade(task, trace, solved=solved) for trace, solved in reversed(asked)]
            if again[::-1] != grades:
                found.note(SAME_GRADE, seed, "another one when it is asked again")

    def _check_history(self, found: Findings, task: Task, seed: int) -> None:
        """Check that the target gives the history's tool results, and has the tools of the gold actions."""
        session = self._world.open()
        session.initialise(task.initial_state)
        calls = [call for message in task.history for call in message.tool_calls or ()]
        results = [message for message in task.history if message.role == "tool"]
        if len(calls) != len(results):
            found.note(SAME_TOOLS, seed, "its history holds calls without a result")
        for call, result in zip(calls, results, strict=False):
            if session.call(call.name, call.arguments, call.requestor).content != result.content:
                found.note(SAME_TOOLS, seed, f"in its history {call.name} answers what the target does not")
        for action in task.actions:
            if not self._world.has_tool(action.name):
                found.note(SAME_TOOLS, seed, f"the expert uses {action.name!r}, which the target lacks")

    def _check_expert(self, found: Findings, task: Task, environment: ScenarioEnvironment, seed: int) -> None:
        environment.reset(seed)
        expert = self._expert(task)
        best, has_sunk = environment.reward(), False
        if best > 0:
            found.note(UNPAID_START, seed, f"{best:g} before anything was done")
        for _ in range(MAX_MESSAGES):
            done = environment.step(expert.reply(environment.trace)).done
            has_sunk = has_sunk or environment.reward() < best
            best = max(best, environment.reward())
            if done:
                break
        if environment.reward() != TOP:
            found.note(EXPERT_REACHES_TOP, seed, f"it gets {environment.reward():g}")
        if has_sunk:
            found.note(EXPERT_KEEPS_GROUND, seed, "its reward fell on the way")

    def _expert(self, task: Task) -> CaseOracle:
        return CaseOracle(task, require_script(task), self._writes)

    def _broken_rule(self, task: Task) -> str:
        """The rule that the gold actions break, run from the start with a confirmation before each change."""
        rules = rules_of(self._world)
        if rules is None or task.initial_state is None:
            return ""
        state = task.initial_state.model_copy(update={"message_history": None})
        whole = task.model_copy(update={"initial_state": state})
        expert, episode = self._expert(whole), Episode(whole, self._world, 0)
        while episode.end is None:
            episode.step(expert.reply(episode.trace))
        found = find_breaches(episode.trace, rules)
        return f"breaks {found[0].invariant.value}: {found[0].why}" if found else ""

    def lines(self) -> Iterator[CheckLine]:
        """One line per check."""
        few = f"{min(self._seeds, SEEDS_OF_EXPENSIVE_CHECKS)} seeds"
        yield self._line(PLAYABLE, "made, played and read without an error")
        yield self._line(SAME_SCENARIO, f"made twice, {few}")
        yield self._line(SAME_GRADE, f"asked three times, {few}")
        yield self._line(SAME_TOOLS, "schemas, and every result in the histories")
        yield self._line(NOT_HELD_OUT, self._searched_for())
        yield self._line(UNPAID_START, "0 everywhere")
        yield self._line(EXPERT_REACHES_TOP, f"{TOP:g} in all of {self._seeds}")
        yield self._line(EXPERT_KEEPS_GROUND, "no step lowers its reward")
        yield self._line(GOLD_IS_ALLOWED, f"the world's rules hold, {few}")
        yield self._distinct_line()
        for name, rewards in self._rewards.items():
            figures = f"most {max(rewards):g}, mean {fmean(rewards):.2f} of {len(rewards)}"
            yield self._line(f"unpaid: {name}", figures)
        for name, by_difficulty in self._lucky.items():
            yield luck_line(name, by_difficulty)

    def _line(self, check: str, detail_if_passed: str) -> CheckLine:
        problems = self._problems.get(check)
        detail = f"{len(problems)}×, first: {problems[0]}" if problems else detail_if_passed
        return CheckLine(check=check, passed=not problems, detail=detail)

    def _searched_for(self) -> str:
        if self._content is not Content.TRAIN:
            return "nothing is looked for: the content is held out itself"
        identifiers = "no id and no customer" if self._held_out else "no project says which ids and customers"
        return f"no name, product or phrasing{',' if self._held_out else ';'} {identifiers}"

    def _distinct_line(self) -> CheckLine:
        distinct = len(self._substances)
        equal_pairs = sum(count * (count - 1) // 2 for count in self._substances.values())
        share = distinct / self._seeds if self._seeds else 0.0
        detail = (
            f"{distinct} of {self._seeds} without names, ids and figures; {len(self._openings)} openings; "
            f"{min_space(self._seeds, equal_pairs):,} scenarios or more (95 %)"
        )
        return CheckLine(check="seeds differ in substance", passed=share >= MIN_DISTINCT, detail=detail)


def _reward_of(probe: Probe, task: Task, environment: ScenarioEnvironment, seed: int) -> float:
    environment.reset(seed)
    for message, _ in zip(probe(task), range(MAX_MESSAGES), strict=False):
        if environment.step(message).done:
            break
    return environment.reward()


def luck_line(name: str, by_difficulty: Mapping[int, Sequence[float]]) -> CheckLine:
    """Compare the mean reward of each difficulty that has enough scenarios with `MAX_LUCK`."""
    means = {
        level: fmean(rewards)
        for level, rewards in sorted(by_difficulty.items())
        if len(rewards) >= MIN_LUCK_SEEDS
    }
    check = f"no luck: {name}"
    if not means:
        most = max(map(len, by_difficulty.values()), default=0)
        detail = f"not judged: {most} scenarios of a difficulty, {MIN_LUCK_SEEDS} are needed"
        return CheckLine(check=check, passed=True, detail=detail)
    counts = "–".join(map(str, sorted({len(by_difficulty[level]) for level in means})))
    listed = ", ".join(f"{level}: {mean:.2f}" for level, mean in means.items())
    detail = f"mean by difficulty {listed} ({counts} scenarios each)"
    return CheckLine(check=check, passed=max(means.values()) <= MAX_LUCK, detail=detail)


def min_space(drawn: int, equal_pairs: int) -> int:
    """A lower bound, at 95 % confidence, of the number of scenarios from which `drawn` were drawn.

    Among n draws from S equally likely scenarios, n(n − 1)/2S pairs are equal on average, and their number
    is nearly Poisson distributed (the birthday problem). Garwood's upper limit of its mean gives the least S.
    If some scenarios are likelier than others, the space is larger still.
    """
    from scipy.stats import chi2

    most = float(chi2.ppf(0.95, 2 * (equal_pairs + 1))) / 2
    return int(drawn * (drawn - 1) / 2 / most)


def _substance(task: Task, names: Iterable[str]) -> str:
    """Digest of a scenario without its id, its digits, and the names of people and places."""
    text = task.model_copy(update={"id": ""}).model_dump_json().lower()
    if words := sorted({name.lower() for name in names if name}, key=len, reverse=True):
        text = re.sub("|".join(map(re.escape, words)), "*", text)
    return digest(re.sub(r"\d+", "0", text))


def _names(task: Task) -> Iterator[str]:
    """Texts of a scenario that only name a person or a place."""
    tables = task.tables
    for user in tables["users"].values():
        yield from (*user["name"].values(), user["user_id"], user["email"])
    for record in (*tables["users"].values(), *tables["orders"].values()):
        address = record["address"]
        street = address["address1"].partition(" ")[2]
        yield from (street, address["city"], f'"state":"{address["state"]}"', f" {address['state']} ")
