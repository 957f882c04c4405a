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
from pytest_trace2evolve.models.settings import ModelSettings
from pytest_trace2evolve.models.stored_answers import StoredModel
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

RUNS = 10  # independent runs of the labeller (N)
DISCOVERIES = 3  # independent discoveries, each from different traces
DISCOVERY_TRACES = 6  # traces of each outcome that one discovery reads
MAX_CONCURRENT = 16  # concurrent requests

# For the estimate
CHARACTERS_PER_TOKEN = 4  # approximately, in English text and JSON
LABEL_TOKENS = 45  # tokens of a label with its reason


@dataclass(frozen=True)
class Estimate:
    """Expected usage of labelling. `cost` is in US dollars, or None if no price is known."""

    requests: int
    prompt_tokens: int
    completion_tokens: int
    cost: float | None


@dataclass(frozen=True)
class JudgeSettings:
    """The judge's model, the number of independent runs, and the cache of answers (None for no cache)."""

    model: ModelSettings
    runs: int = RUNS
    cache: Answers | None = None


def estimate(traces: TraceSet, settings: JudgeSettings) -> Estimate:
    """Estimate the usage of discovery and labelling from prompt lengths, as if no answer were cached."""
    length = 0
    for behavior in traces.behaviors:
        messages = prompts.label_messages(traces.policy, behavior.trace, BUILT_IN_CAPABILITIES)
        length += sum(len(message["content"]) for message in messages)
    count, policy = len(traces.behaviors), len(traces.policy)
    discovery = DISCOVERIES * (policy + 2 * DISCOVERY_TRACES * max(length / count - policy, 0))
    tokens = round((length * settings.runs + discovery) / CHARACTERS_PER_TOKEN)
    answers = count * settings.runs * prompts.MAX_PROPOSALS * LABEL_TOKENS
    price = settings.model.price
    used = Usage(prompt_tokens=tokens, completion_tokens=answers)
    return Estimate(
        requests=count * settings.runs + DISCOVERIES + 1,
        prompt_tokens=tokens,
        completion_tokens=answers,
        cost=price.cost(used) if price is not None else None,
    )


class JudgeLabeller:
    """Labels traces with a judge.

    Args:
        on_progress: Called with the number of answered requests and the number of all requests.

    Attributes:
        used: Usage of the judge's answers, without cached answers.
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
        """Discover capabilities, merge them, and label the traces in N runs.

        Raises:
            EndpointError: the endpoint rejects the judge.
            LabelError: the judge proposed no capability, or none of its labels can be trusted.
        """
        return asyncio.run(self._label(traces))

    async def _label(self, traces: TraceSet) -> LabelSet:
        self._total = DISCOVERIES + 1 + len(traces.behaviors) * self._settings.runs
        async with AsyncExitStack() as stack:
            propose = await self._open(stack, prompts.proposals_format())
            group = await self._open(stack, prompts.groups_format())
            label = await self._open(stack, prompts.labels_format())
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
        from pytest_trace2evolve.models.chat import ChatModel  # half a second, if needed

        body = {**self._settings.model.extra_body, "response_format": response_format}
        settings = replace(self._settings.model, extra_body=body)
        model = ChatModel(settings)
        stack.push_async_callback(model.close)
        if self._settings.cache is None:
            return model
        return StoredModel(model, settings, "agent", cache=self._settings.cache)

    async def _discover(self, traces: TraceSet, propose: Model, group: Model) -> list[Capability]:
        outcomes: dict[bool, list[Behavior]] = {False: [], True: []}
        for behavior in traces.behaviors:
            outcomes[behavior.passed].append(behavior)

        def discovery(number: int) -> list[dict[str, str]]:
            sampled = prompts.sampled(outcomes, number, DISCOVERY_TRACES)
            conversations = [(behavior.task.id, behavior.passed, behavior.trace) for behavior in sampled]
            return prompts.discovery_messages(traces.policy, conversations, BUILT_IN_CAPABILITIES)

        answers = await all_of(self._ask(propose, discovery(number), number) for number in range(DISCOVERIES))
        tasks = {behavior.task.id for behavior in traces.behaviors}
        proposals = [proposal for answer in answers for proposal in prompts.read_proposals(answer, tasks)]
        if not proposals:
            raise LabelError(
                f"judge {self._settings.model.model!r} proposed no capability in {DISCOVERIES} discoveries"
                f"{self._failure_note()}; try another judge, or --rules"
            )
        first: dict[str, Capability] = {}
        for proposal in proposals:
            first.setdefault(proposal.name, proposal)
        answer = await self._ask(group, prompts.group_messages(list(first.values())), 0)
        known = [capability.name for capability in BUILT_IN_CAPABILITIES]
        return prompts.merged(proposals, prompts.read_groups(answer, list(first)), known)

    async def _label_runs(
        self, traces: TraceSet, capabilities: Sequence[Capability], model: Model
    ) -> list[LabelRun]:
        slots = asyncio.Semaphore(MAX_CONCURRENT)

        async def labels_of(behavior: Behavior, run: int) -> list[Label]:
            async with slots:
                messages = prompts.label_messages(traces.policy, behavior.trace, capabilities)
                answer = await self._ask(model, messages, run)
            return prompts.read_labels(answer, behavior.simulation.id, behavior.trace, capabilities)

        async def label_run(run: int) -> LabelRun:
            found = await all_of(labels_of(behavior, run) for behavior in traces.behaviors)
            return LabelRun(run=run, labels=tuple(label for labels in found for label in labels))

        return list(await all_of(label_run(run) for run in range(1, self._settings.runs + 1)))

    async def _ask(self, model: Model, messages: Sequence[dict[str, str]], run: int) -> str | None:
        """Return the text of an answer; None if the request failed, so its labels are lost."""
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
