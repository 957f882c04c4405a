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
from pytest_trace2evolve.environments.held_out import describe_held_out_content
from pytest_trace2evolve.environments.reward_hacking_probes import (
    GENERAL_PROBES,
    LUCKY_PROBES,
    WRONG_PROBES,
    Probe,
)
from pytest_trace2evolve.errors import Trace2EvolveError
from pytest_trace2evolve.records.environment import MAX_GRADE, CheckLine
from pytest_trace2evolve.records.protocols import Generator, World, rules_of
from pytest_trace2evolve.records.score import ToolType
from pytest_trace2evolve.records.task import Content, Task
from pytest_trace2evolve.scoring.invariants import find_breaches
from pytest_trace2evolve.utils.canonical import digest

EXPENSIVE_CHECK_SEEDS = 60  # scenarios made twice, and checked with rules and wrong strategies
MAX_WRONG_REWARD = 0.2  # maximum reward of a wrong strategy in any scenario
MAX_LUCKY_REWARD = 0.45  # maximum mean reward, per difficulty, of a fixed strategy that is sometimes right
MIN_LUCK_SEEDS, MAX_LUCK_SEEDS = 40, 100  # scenarios per difficulty: required for a mean, and maximum tried
MIN_DISTINCT_SHARE = 0.99  # share of scenarios that must differ without names, ids and figures
MAX_MESSAGES = 40  # messages of an expert or a wrong strategy
PLAYABLE = "scenarios can be played"
SAME_SCENARIO = "same seed, same scenario"
SAME_GRADE = "same trace, same grade"
SAME_TOOLS = "tools are the target's"
NOT_HELD_OUT = "nothing held out"
NO_REWARD_AT_START = "nothing is paid at the start"
EXPERT_REACHES_TOP = "expert reaches the top"
EXPERT_NEVER_DROPS = "expert never loses ground"
GOLD_IS_ALLOWED = "gold is allowed"


@dataclass
class Findings:
    """The findings of the checks in one scenario.

    Attributes:
        difficulty: The difficulty of the scenario.
        problems: The problems by check, one line each.
        substance_digest: Digest of the scenario without names, ids and figures; empty if unreadable.
        wrong_rewards: Rewards of wrong strategies, by name.
        lucky_rewards: Rewards of fixed strategies, by name.
    """

    difficulty: int
    problems: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    substance_digest: str = ""
    wrong_rewards: dict[str, float] = field(default_factory=dict)
    lucky_rewards: dict[str, float] = field(default_factory=dict)

    def note(self, check: str, seed: int, problem: str) -> None:
        self.problems[check].append(f"seed {seed}: {problem}")


class ScenarioChecks:
    """Checks scenarios one by one. `lines` reports the findings passed to `add`."""

    def __init__(
        self,
        make_generator: Callable[[int], Generator],
        world: World,
        content: Content,
        held_out_identifiers: Sequence[str],
    ) -> None:
        self._make_generator, self._world, self._content, self._held_out = (
            make_generator,
            world,
            content,
            held_out_identifiers,
        )
        self._write_tools = [tool for tool, kind in world.tool_types().items() if kind is ToolType.WRITE]
        self._is_support = (world.provider, world.domain) == ("trace2evolve", "support")
        # Most probes need the tables of a retail store.
        self._wrong_probes = WRONG_PROBES if self._is_support else GENERAL_PROBES
        self._lucky_probes = LUCKY_PROBES if self._is_support else {}
        self._generators: dict[int, tuple[Generator, Generator, ScenarioEnvironment]] = {}
        self._problems_by_check: dict[str, list[str]] = defaultdict(list)
        self._substance_counts: Counter[str] = Counter()
        self._wrong_rewards: dict[str, list[float]] = defaultdict(list)
        self._lucky_rewards: dict[str, dict[int, list[float]]] = {
            name: defaultdict(list) for name in self._lucky_probes
        }
        self._scenario_count = 0

    def check(self, number: int, seed: int, difficulty: int, *, is_early: bool) -> Findings:
        """Check a scenario.

        Args:
            number: The number of earlier scenarios of the same difficulty.
            is_early: Whether to run the expensive checks as well.
        """
        findings = Findings(difficulty)
        try:
            self._check_scenario(findings, number, seed, difficulty, is_early=is_early)
        except Exception as error:
            # Records can have any shape, so every reader may raise any error.
            error_prefix = "" if isinstance(error, Trace2EvolveError) else f"{type(error).__name__}: "
            findings.note(PLAYABLE, seed, f"{error_prefix}{error}")
        return findings

    def add(self, findings: Findings) -> None:
        """Add the findings of a scenario."""
        self._scenario_count += 1
        for check, problems in findings.problems.items():
            self._problems_by_check[check] += problems
        if findings.substance_digest:
            self._substance_counts[findings.substance_digest] += 1
        for name, reward in findings.wrong_rewards.items():
            self._wrong_rewards[name].append(reward)
        for name, reward in findings.lucky_rewards.items():
            self._lucky_rewards[name][findings.difficulty].append(reward)

    def _check_scenario(
        self, findings: Findings, number: int, seed: int, difficulty: int, *, is_early: bool
    ) -> None:
        if difficulty not in self._generators:
            generator = self._make_generator(difficulty)
            environment = ScenarioEnvironment(generator, self._world)
            self._generators[difficulty] = generator, self._make_generator(difficulty), environment
        generator, second_generator, environment = self._generators[difficulty]
        task = generator.scenario(seed)
        if is_early:
            self._check_repeats(findings, task, generator, second_generator, seed)
        findings.substance_digest = _substance_digest(
            task, _people_and_places(task) if self._is_support else ()
        )
        if self._content is Content.TRAIN and (
            held_out_content := describe_held_out_content(task, self._held_out)
        ):
            findings.note(NOT_HELD_OUT, seed, held_out_content)
        self._check_history(findings, task, seed)
        self._check_expert(findings, task, environment, seed)
        if is_early:
            if breach := self._find_breach(task):
                findings.note(GOLD_IS_ALLOWED, seed, breach)
            for name, probe in {"shortcut": generator.shortcut, **self._wrong_probes}.items():
                reward = findings.wrong_rewards[name] = _reward_of(probe, task, environment, seed)
                if reward > (0 if name == "nothing" else MAX_WRONG_REWARD):
                    findings.note(f"unpaid: {name}", seed, f"the reward is {reward:g}")
        if number < MAX_LUCK_SEEDS:
            for name, probe in self._lucky_probes.items():
                findings.lucky_rewards[name] = _reward_of(probe, task, environment, seed)

    def _check_repeats(
        self, findings: Findings, task: Task, generator: Generator, second_generator: Generator, seed: int
    ) -> None:
        """Check that repeated requests, also to a second generator, give the same scenario and grades."""
        task_json = task.model_dump_json()
        if second_generator.scenario(seed).model_dump_json() != task_json:
            findings.note(SAME_SCENARIO, seed, "a different scenario the second time")
        if Task.model_validate_json(task_json) != task:
            findings.note(
                SAME_SCENARIO, seed, "the scenario changes when it is written as JSON and read again"
            )
        messages = [*task.history, *generator.shortcut(task)]
        traces = [messages[:end] for end in sorted({len(task.history), len(messages)})]
        grade_requests = [(trace, solved) for trace in traces for solved in (False, True)]
        grades = [generator.grade(task, trace, solved=solved) for trace, solved in grade_requests]
        for grader in (generator, second_generator):
            repeated_grades = [
                grader.grade(task, trace, solved=solved) for trace, solved in reversed(grade_requests)
            ]
            if repeated_grades[::-1] != grades:
                findings.note(SAME_GRADE, seed, "a different grade the second time")

    def _check_history(self, findings: Findings, task: Task, seed: int) -> None:
        """Check that the target world reproduces the history's results and has the gold actions' tools."""
        session = self._world.open()
        session.initialise(task.initial_state)
        calls = [call for message in task.history for call in message.tool_calls or ()]
        results = [message for message in task.history if message.role == "tool"]
        if len(calls) != len(results):
            findings.note(SAME_TOOLS, seed, "the history has calls without a result")
        for call, result in zip(calls, results, strict=False):
            if session.call(call.name, call.arguments, call.requestor).content != result.content:
                findings.note(
                    SAME_TOOLS, seed, f"the result of {call.name} in its history differs from the target's"
                )
        for action in task.actions:
            if not self._world.has_tool(action.name):
                findings.note(SAME_TOOLS, seed, f"the expert uses {action.name!r}, which the target lacks")

    def _check_expert(
        self, findings: Findings, task: Task, environment: ScenarioEnvironment, seed: int
    ) -> None:
        environment.reset(seed)
        expert = self._make_expert(task)
        best_reward, has_dropped = environment.reward(), False
        if best_reward > 0:
            findings.note(NO_REWARD_AT_START, seed, f"{best_reward:g} before any action")
        for _ in range(MAX_MESSAGES):
            is_done = environment.step(expert.reply(environment.trace)).done
            has_dropped = has_dropped or environment.reward() < best_reward
            best_reward = max(best_reward, environment.reward())
            if is_done:
                break
        if environment.reward() != MAX_GRADE:
            findings.note(EXPERT_REACHES_TOP, seed, f"the reward is {environment.reward():g}")
        if has_dropped:
            findings.note(EXPERT_NEVER_DROPS, seed, "its reward dropped on the way")

    def _make_expert(self, task: Task) -> CaseOracle:
        return CaseOracle(task, require_script(task), self._write_tools)

    def _find_breach(self, task: Task) -> str:
        """Play the gold actions from the start, and describe the first broken rule; empty if none."""
        rules = rules_of(self._world)
        if rules is None or task.initial_state is None:
            return ""
        state = task.initial_state.model_copy(update={"message_history": None})
        full_task = task.model_copy(update={"initial_state": state})
        expert, episode = self._make_expert(full_task), Episode(full_task, self._world, 0)
        while episode.end is None:
            episode.step(expert.reply(episode.trace))
        breaches = find_breaches(episode.trace, rules)
        return f"breaks {breaches[0].invariant.value}: {breaches[0].why}" if breaches else ""

    def lines(self) -> Iterator[CheckLine]:
        """Yield one line per check, with the findings of all added scenarios."""
        early_count = f"{min(self._scenario_count, EXPENSIVE_CHECK_SEEDS)} seeds"
        yield self._check_line(PLAYABLE, "made, played and read without an error")
        yield self._check_line(SAME_SCENARIO, f"made twice, {early_count}")
        yield self._check_line(SAME_GRADE, f"asked three times, {early_count}")
        yield self._check_line(SAME_TOOLS, "schemas, and every result in the histories")
        yield self._check_line(NOT_HELD_OUT, self._held_out_detail())
        yield self._check_line(NO_REWARD_AT_START, "0 everywhere")
        yield self._check_line(EXPERT_REACHES_TOP, f"{MAX_GRADE:g} in all of {self._scenario_count}")
        yield self._check_line(EXPERT_NEVER_DROPS, "no step lowers its reward")
        rules = "the world declares no rules" if rules_of(self._world) is None else "the world's rules hold"
        yield self._check_line(GOLD_IS_ALLOWED, f"{rules}, {early_count}")
        yield self._distinct_line()
        for name, rewards in self._wrong_rewards.items():
            figures = f"most {max(rewards):g}, mean {fmean(rewards):.2f} of {len(rewards)}"
            yield self._check_line(f"unpaid: {name}", figures)
        for name, by_difficulty in self._lucky_rewards.items():
            yield luck_line(name, by_difficulty)

    def _check_line(self, check: str, detail_if_passed: str) -> CheckLine:
        problems = self._problems_by_check.get(check)
        detail = f"{len(problems)}×, first: {problems[0]}" if problems else detail_if_passed
        return CheckLine(check=check, passed=not problems, detail=detail)

    def _held_out_detail(self) -> str:
        if self._content is not Content.TRAIN:
            return "not searched: the content itself is held out"
        identifiers = "no id and no customer" if self._held_out else "no project says which ids and customers"
        return f"no name, product or phrasing{',' if self._held_out else ';'} {identifiers}"

    def _distinct_line(self) -> CheckLine:
        distinct_count = len(self._substance_counts)
        share = distinct_count / self._scenario_count if self._scenario_count else 0.0
        detail = f"{distinct_count} of {self._scenario_count} without names, ids and figures"
        return CheckLine(check="seeds differ in substance", passed=share >= MIN_DISTINCT_SHARE, detail=detail)


def _reward_of(probe: Probe, task: Task, environment: ScenarioEnvironment, seed: int) -> float:
    environment.reset(seed)
    for message, _ in zip(probe(task), range(MAX_MESSAGES), strict=False):
        if environment.step(message).done:
            break
    return environment.reward()


def luck_line(name: str, by_difficulty: Mapping[int, Sequence[float]]) -> CheckLine:
    """Compare the mean reward of each difficulty that has enough scenarios with `MAX_LUCKY_REWARD`."""
    means = {
        difficulty: fmean(rewards)
        for difficulty, rewards in sorted(by_difficulty.items())
        if len(rewards) >= MIN_LUCK_SEEDS
    }
    check = f"no luck: {name}"
    if not means:
        max_count = max(map(len, by_difficulty.values()), default=0)
        detail = f"not checked: {max_count} scenarios per difficulty, but {MIN_LUCK_SEEDS} are needed"
        return CheckLine(check=check, passed=True, detail=detail)
    counts = "–".join(map(str, sorted({len(by_difficulty[difficulty]) for difficulty in means})))
    means_text = ", ".join(f"{difficulty}: {mean:.2f}" for difficulty, mean in means.items())
    detail = f"mean by difficulty {means_text} ({counts} scenarios each)"
    return CheckLine(check=check, passed=max(means.values()) <= MAX_LUCKY_REWARD, detail=detail)


def _substance_digest(task: Task, names: Iterable[str]) -> str:
    """Digest of a scenario without its id, its digits, and the names of people and places."""
    text = task.model_copy(update={"id": ""}).model_dump_json().lower()
    if words := sorted({name.lower() for name in names if name}, key=len, reverse=True):
        text = re.sub("|".join(map(re.escape, words)), "*", text)
    return digest(re.sub(r"\d+", "0", text))


def _people_and_places(task: Task) -> Iterator[str]:
    """Yield the strings of a scenario that only name a person or a place."""
    tables = task.tables
    for user in tables["users"].values():
        yield from (*user["name"].values(), user["user_id"], user["email"])
    for record in (*tables["users"].values(), *tables["orders"].values()):
        address = record["address"]
        street = address["address1"].partition(" ")[2]
        yield from (street, address["city"], f'"state":"{address["state"]}"', f" {address['state']} ")
