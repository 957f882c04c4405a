"""The labeller by a judge: discovery, merging and N independent runs, with an estimate of their cost."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any

from pytest_trace2evolve.diagnose.behavior_features import Behavior
from pytest_trace2evolve.diagnose.diagnosis import LabelSet
from pytest_trace2evolve.diagnose.traces import TraceSet
from pytest_trace2evolve.errors import ContextWindowError, InfrastructureError, LabelError
from pytest_trace2evolve.judges import capabilities as prompts
from pytest_trace2evolve.models.answers import StoredModel
from pytest_trace2evolve.models.settings import ModelSettings
from pytest_trace2evolve.records.capability import (
    BUILT_IN_CAPABILITIES,
    Capability,
    Label,
    LabelRun,
    Presence,
)
from pytest_trace2evolve.records.completion import NOTHING_USED, Usage
from pytest_trace2evolve.records.protocols import Answers, Model
from pytest_trace2evolve.utils.concurrency import all_of

RUNS = 10
"""Independent runs of the labeller (N)."""

DISCOVERIES = 3
"""Independent discoveries, each from other traces."""

DISCOVERY_TRACES = 6
"""Traces of each outcome that one discovery reads."""

MAX_CONCURRENT = 16
"""Requests at once."""

CHARACTERS_PER_TOKEN = 4
"""For the estimate: roughly, in English text and JSON."""

LABEL_TOKENS = 45
"""For the estimate: the tokens of a label with its reason."""


@dataclass(frozen=True)
class Estimate:
    """What labelling will take; `cost` in US dollars, None if no price is known."""

    requests: int
    prompt_tokens: int
    completion_tokens: int
    cost: float | None


@dataclass(frozen=True)
class JudgeSettings:
    """The judge.

    Attributes:
        model: Its model.
        runs: Independent runs of the labeller.
        cache: Where answers are kept; None: nowhere.
    """

    model: ModelSettings
    runs: int = RUNS
    cache: Answers | None = None


def estimate(traces: TraceSet, settings: JudgeSettings) -> Estimate:
    """What discovery and labelling will take, by the length of the prompts, as if no answer were cached."""
    lengths = [
        settings.runs * sum(len(message["content"]) for message in messages)
        for messages in (
            prompts.label_messages(traces.policy, one.trace, BUILT_IN_CAPABILITIES)
            for one in traces.behaviors
        )
    ]
    mean, policy = sum(lengths) / len(lengths) / settings.runs, len(traces.policy)
    discovery = DISCOVERIES * (policy + 2 * DISCOVERY_TRACES * max(mean - policy, 0))
    tokens = round((sum(lengths) + discovery) / CHARACTERS_PER_TOKEN)
    answers = len(lengths) * settings.runs * prompts.MAX_PROPOSALS * LABEL_TOKENS
    price = settings.model.price
    used = Usage(prompt_tokens=tokens, completion_tokens=answers)
    return Estimate(
        requests=len(lengths) * settings.runs + DISCOVERIES + 1,
        prompt_tokens=tokens,
        completion_tokens=answers,
        cost=price.cost(used) if price is not None else None,
    )


class JudgeLabeller:
    """Asks a judge; counts what it used.

    Args:
        settings: The judge, and how often it is asked.
        on_progress: Called with the number of answered requests and of all.

    Attributes:
        used: Usage of its answers, except those from the cache.
    """

    def __init__(
        self, settings: JudgeSettings, on_progress: Callable[[int, int], None] = lambda done, total: None
    ) -> None:
        self._settings = settings
        self._on_progress = on_progress
        self.used = NOTHING_USED
        self._done = 0
        self._total = 0
        self._failures: list[str] = []

    def label(self, traces: TraceSet) -> LabelSet:
        """Discover, merge, and label in N runs.

        Raises:
            EndpointError: the endpoint rejects the judge.
            LabelError: the judge proposed no capability, or no label of it can be trusted.
        """
        return asyncio.run(self._label(traces))

    async def _label(self, traces: TraceSet) -> LabelSet:
        self._total = DISCOVERIES + 1 + len(traces.behaviors) * self._settings.runs
        async with AsyncExitStack() as stack:
            propose, group, label = [
                await self._open(stack, response_format)
                for response_format in (
                    prompts.proposals_format(),
                    prompts.groups_format(),
                    prompts.labels_format(),
                )
            ]
            capabilities = await self._discover(traces, propose, group)
            runs = await self._label_runs(traces, capabilities, label)
        labels = [label for run in runs for label in run.labels]
        lost = [label for label in labels if label.presence is Presence.LOST]
        name = self._settings.model.model
        if len(lost) == len(labels):
            raise LabelError(
                f"judge {name!r} gave no label that can be trusted; the first: {lost[0].why}"
                f"{self._failure_note()}; try another judge, or --rules"
            )
        notes = [f"judge {name!r}, prompt {prompts.PROMPT_VERSION}"]
        if lost:
            count = f"{len(lost)} of {len(labels)} labels are lost"
            notes.append(f"{count}, the first: {lost[0].why}{self._failure_note()}")
        return LabelSet(name, capabilities, runs, tuple(notes))

    def _failure_note(self) -> str:
        return f" ({len(self._failures)} requests failed: {self._failures[0]})" if self._failures else ""

    async def _open(self, stack: AsyncExitStack, response_format: dict[str, Any]) -> Model:
        from pytest_trace2evolve.models.chat import ChatModel  # half a second, only if a judge is asked

        body = {**self._settings.model.extra_body, "response_format": response_format}
        settings = replace(self._settings.model, extra_body=body)
        model = ChatModel(settings)
        stack.push_async_callback(model.close)
        if self._settings.cache is None:
            return model
        return StoredModel(model, settings, "agent", cache=self._settings.cache)

    async def _discover(self, traces: TraceSet, propose: Model, group: Model) -> list[Capability]:
        outcomes: dict[bool, list[Behavior]] = {False: [], True: []}
        for one in traces.behaviors:
            outcomes[one.passed].append(one)

        def discovery(number: int) -> list[dict[str, str]]:
            shown = prompts.sampled(outcomes, number, DISCOVERY_TRACES)
            conversations = [(one.task.id, one.passed, one.trace) for one in shown]
            return prompts.discovery_messages(traces.policy, conversations, BUILT_IN_CAPABILITIES)

        answers = await all_of(self._ask(propose, discovery(number), number) for number in range(DISCOVERIES))
        tasks = {one.task.id for one in traces.behaviors}
        proposals = [one for answer in answers for one in prompts.read_proposals(answer, tasks)]
        if not proposals:
            raise LabelError(
                f"judge {self._settings.model.model!r} proposed no capability in {DISCOVERIES} discoveries"
                f"{self._failure_note()}; try another judge, or --rules"
            )
        first = {one.name: one for one in reversed(proposals)}
        names = list(dict.fromkeys(one.name for one in proposals))
        answer = await self._ask(group, prompts.group_messages([first[name] for name in names]), 0)
        known = [one.name for one in BUILT_IN_CAPABILITIES]
        return prompts.merged(proposals, prompts.read_groups(answer, names), known)

    async def _label_runs(
        self, traces: TraceSet, capabilities: Sequence[Capability], model: Model
    ) -> list[LabelRun]:
        slots = asyncio.Semaphore(MAX_CONCURRENT)

        async def labels_of(one: Behavior, run: int) -> list[Label]:
            async with slots:
                messages = prompts.label_messages(traces.policy, one.trace, capabilities)
                answer = await self._ask(model, messages, run)
            return prompts.read_labels(answer, one.simulation.id, one.trace, capabilities)

        numbers = range(1, self._settings.runs + 1)
        found = await all_of(labels_of(one, run) for run in numbers for one in traces.behaviors)
        size = len(traces.behaviors)
        return [
            LabelRun(
                run=run,
                labels=tuple(one for labels in found[place * size : (place + 1) * size] for one in labels),
            )
            for place, run in enumerate(numbers)
        ]

    async def _ask(self, model: Model, messages: Sequence[dict[str, str]], run: int) -> str | None:
        """An answer's text; None if this one request failed: its labels are lost."""
        try:
            completion = await model.complete(messages, (), trial=run)
        except (InfrastructureError, ContextWindowError) as error:
            self._failures.append(str(error))
            return None
        finally:
            self._done += 1
            self._on_progress(self._done, self._total)
        if not completion.cached:
            self.used += completion.usage
        return completion.content
