"""Labels by a judge: discovery, merging and N independent runs; their cost is told before, and counted."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any

from pytest_trace2evolve.diagnose.behavior_features import Conduct
from pytest_trace2evolve.diagnose.diagnosis import Labelled
from pytest_trace2evolve.diagnose.traces import Gathered
from pytest_trace2evolve.errors import ContextWindowError, InfrastructureError, LabelError
from pytest_trace2evolve.judges import capabilities as asked
from pytest_trace2evolve.models.answers import StoredModel
from pytest_trace2evolve.models.settings import ModelSettings
from pytest_trace2evolve.records.capability import BUILT_IN, Capability, Label, LabelRun, Presence
from pytest_trace2evolve.records.completion import NOTHING_USED, Usage
from pytest_trace2evolve.records.protocols import Answers, Model
from pytest_trace2evolve.utils.concurrency import all_of

RUNS = 10
"""Independent runs of the labeller (N)."""

DISCOVERIES = 3
"""Independent discoveries, each from other traces."""

DISCOVERY_TRACES = 6
"""Traces of each outcome that one discovery reads."""

AT_ONCE = 16
"""Requests at once."""

LETTERS_A_TOKEN = 4
"""For the estimate: English text and JSON have about so many."""

LABEL_TOKENS = 45
"""For the estimate: what a label with its reason takes."""


@dataclass(frozen=True)
class Estimate:
    """What labelling will take; `cost` in US dollars, None where no price is known."""

    requests: int
    prompt_tokens: int
    completion_tokens: int
    cost: float | None


@dataclass(frozen=True)
class JudgeSettings:
    """Who judges, and how often.

    Attributes:
        model: The judge.
        runs: Independent runs of the labeller.
        cache: Where answers are kept; None: nowhere.
    """

    model: ModelSettings
    runs: int = RUNS
    cache: Answers | None = None


def estimate(gathered: Gathered, settings: JudgeSettings) -> Estimate:
    """What discovery and labelling will take, by the length of what is sent, as if no answer were kept."""
    known = list(BUILT_IN)
    policy = gathered.policy
    prompts = [
        _letters(asked.label_messages(policy, one.trace, known)) * settings.runs for one in gathered.conducts
    ]
    mean = sum(prompts) / len(prompts) / settings.runs
    sought = DISCOVERIES * (len(policy) + 2 * DISCOVERY_TRACES * max(mean - len(policy), 0))
    tokens = round((sum(prompts) + sought) / LETTERS_A_TOKEN)
    answers = len(prompts) * settings.runs * asked.PROPOSED_MOST * LABEL_TOKENS
    price = settings.model.price
    used = Usage(prompt_tokens=tokens, completion_tokens=answers)
    return Estimate(
        requests=len(prompts) * settings.runs + DISCOVERIES + 1,
        prompt_tokens=tokens,
        completion_tokens=answers,
        cost=price.cost(used) if price is not None else None,
    )


def _letters(messages: Sequence[dict[str, str]]) -> int:
    return sum(len(one["content"]) for one in messages)


class Judged:
    """Asks a judge; counts what it used.

    Args:
        settings: Who, and how often.
        told: Hears how many requests of how many are answered.

    Attributes:
        used: What its answers used, those taken from the cache left out.
    """

    def __init__(
        self, settings: JudgeSettings, told: Callable[[int, int], None] = lambda done, total: None
    ) -> None:
        self._settings = settings
        self._told = told
        self.used = NOTHING_USED
        self._done = 0
        self._total = 0
        self._troubles: list[str] = []

    def label(self, gathered: Gathered) -> Labelled:
        """Discover, merge, and label in N runs.

        Raises:
            EndpointError: the endpoint refuses the judge.
            LabelError: the judge proposed no capability, or no label of it can be trusted.
        """
        return asyncio.run(self._label(gathered))

    async def _label(self, gathered: Gathered) -> Labelled:
        self._total = DISCOVERIES + 1 + len(gathered.conducts) * self._settings.runs
        async with AsyncExitStack() as stack:
            ask = [
                await self._opened(stack, wanted)
                for wanted in (asked.proposals_format(), asked.groups_format(), asked.labels_format())
            ]
            capabilities = await self._discover(gathered, ask[0], ask[1])
            runs = await self._runs(gathered, capabilities, ask[2])
        labels = [label for run in runs for label in run.labels]
        lost = [label for label in labels if label.presence is Presence.LOST]
        name = self._settings.model.model
        if len(lost) == len(labels):
            raise LabelError(
                f"judge {name!r} gave no label that can be trusted; the first: {lost[0].why}"
                f"{self._trouble()}; try another judge, or --rules"
            )
        notes = [f"judge {name!r}, prompt {asked.PROMPT_VERSION}"]
        if lost:
            notes.append(
                f"{len(lost)} of {len(labels)} labels are lost, the first: {lost[0].why}{self._trouble()}"
            )
        return Labelled(name, capabilities, runs, tuple(notes))

    def _trouble(self) -> str:
        return f" ({len(self._troubles)} requests failed: {self._troubles[0]})" if self._troubles else ""

    async def _opened(self, stack: AsyncExitStack, response_format: dict[str, Any]) -> Model:
        from pytest_trace2evolve.models.chat import ChatModel  # half a second: only who asks pays it

        body = {**self._settings.model.extra_body, "response_format": response_format}
        settings = replace(self._settings.model, extra_body=body)
        model = ChatModel(settings)
        stack.push_async_callback(model.close)
        if self._settings.cache is None:
            return model
        return StoredModel(model, settings, "agent", cache=self._settings.cache)

    async def _discover(self, gathered: Gathered, propose: Model, group: Model) -> list[Capability]:
        outcomes: dict[bool, list[Conduct]] = {False: [], True: []}
        for one in gathered.conducts:
            outcomes[one.passed].append(one)
        tasks = {one.task.id for one in gathered.conducts}
        proposals: list[Capability] = []
        answers = await all_of(
            self._ask(
                propose,
                asked.discovery_messages(
                    gathered.policy,
                    [
                        (one.task.id, one.passed, one.trace)
                        for one in asked.sampled(outcomes, number, DISCOVERY_TRACES)
                    ],
                    BUILT_IN,
                ),
                number,
            )
            for number in range(DISCOVERIES)
        )
        for answer in answers:
            proposals += asked.read_proposals(answer, tasks)
        if not proposals:
            raise LabelError(
                f"judge {self._settings.model.model!r} proposed no capability in {DISCOVERIES} discoveries"
                f"{self._trouble()}; try another judge, or --rules"
            )
        names = list(dict.fromkeys(one.name for one in proposals))
        firsts = {one.name: one for one in reversed(proposals)}
        answer = await self._ask(group, asked.group_messages([firsts[name] for name in names]), 0)
        return asked.merged(proposals, asked.read_groups(answer, names), [one.name for one in BUILT_IN])

    async def _runs(
        self, gathered: Gathered, capabilities: Sequence[Capability], label: Model
    ) -> list[LabelRun]:
        room = asyncio.Semaphore(AT_ONCE)

        async def labelled(one: Conduct, run: int) -> list[Label]:
            async with room:
                messages = asked.label_messages(gathered.policy, one.trace, capabilities)
                answer = await self._ask(label, messages, run)
            return asked.read_labels(answer, one.simulation.id, one.trace, capabilities)

        numbers = range(1, self._settings.runs + 1)
        found = await all_of(labelled(one, run) for run in numbers for one in gathered.conducts)
        size = len(gathered.conducts)
        return [
            LabelRun(
                run=run,
                labels=tuple(one for labels in found[place * size : (place + 1) * size] for one in labels),
            )
            for place, run in enumerate(numbers)
        ]

    async def _ask(self, model: Model, messages: Sequence[dict[str, str]], run: int) -> str | None:
        """An answer's text; None where this one request failed: its labels are lost."""
        try:
            completion = await model.complete(messages, (), trial=run)
        except (InfrastructureError, ContextWindowError) as error:
            self._troubles.append(str(error))
            return None
        finally:
            self._done += 1
            self._told(self._done, self._total)
        if not completion.cached:
            self.used += completion.usage
        return completion.content
