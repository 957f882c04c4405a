"""Labels traces with a judge, and estimates the cost.

The judge discovers capabilities and merges them. Then it labels the traces in N independent runs.
"""

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
from pytest_trace2evolve.records.completion import NO_USAGE, Usage
from pytest_trace2evolve.records.protocols import AnswerStore, Model
from pytest_trace2evolve.utils.concurrency import run_concurrently

DEFAULT_RUNS = 10  # independent runs of the labeller (N)
DISCOVERY_COUNT = 3  # independent discoveries, each from different traces
DISCOVERY_TRACES = 6  # maximum number of failed or passed traces in one discovery
MAX_CONCURRENT = 16  # concurrent requests

# For the estimate
CHARACTERS_PER_TOKEN = 4  # approximately, in English text and JSON
LABEL_TOKENS = 45  # tokens of a label with its reason


@dataclass(frozen=True)
class UsageEstimate:
    """Expected usage of labelling. `cost` is in US dollars, or None if no price is known."""

    requests: int
    prompt_tokens: int
    completion_tokens: int
    cost: float | None


@dataclass(frozen=True)
class JudgeSettings:
    """The judge's model, the number of independent runs, and the cache of answers (None for no cache)."""

    model: ModelSettings
    runs: int = DEFAULT_RUNS
    cache: AnswerStore | None = None


def estimate_usage(traces: TraceSet, settings: JudgeSettings) -> UsageEstimate:
    """Estimate the usage of discovery and labelling from prompt lengths, as if no answer were cached."""
    prompt_length = 0
    for behavior in traces.behaviors:
        messages = prompts.label_messages(traces.policy, behavior.trace, BUILT_IN_CAPABILITIES)
        prompt_length += sum(len(message["content"]) for message in messages)
    trace_count, policy_length = len(traces.behaviors), len(traces.policy)
    discovery_length = DISCOVERY_COUNT * (
        policy_length + 2 * DISCOVERY_TRACES * max(prompt_length / trace_count - policy_length, 0)
    )
    prompt_tokens = round((prompt_length * settings.runs + discovery_length) / CHARACTERS_PER_TOKEN)
    completion_tokens = trace_count * settings.runs * prompts.MAX_PROPOSALS * LABEL_TOKENS
    price = settings.model.price
    usage = Usage(prompt_tokens=prompt_tokens, completion_tokens=completion_tokens)
    return UsageEstimate(
        requests=trace_count * settings.runs + DISCOVERY_COUNT + 1,
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        cost=price.cost(usage) if price is not None else None,
    )


class JudgeLabeller:
    """Labels traces with a judge.

    Args:
        on_progress: Called with the number of answered requests and the number of all requests.

    Attributes:
        usage: Usage of the judge's answers, without cached answers.
    """

    def __init__(
        self, settings: JudgeSettings, on_progress: Callable[[int, int], None] = lambda done, total: None
    ) -> None:
        self._settings = settings
        self._on_progress = on_progress
        self.usage = NO_USAGE
        self._done_count = 0
        self._request_count = 0
        self._failures: list[str] = []

    def label(self, traces: TraceSet) -> LabelSet:
        """Discover capabilities, merge them, and label the traces in N runs.

        Raises:
            EndpointError: the endpoint rejects the requests.
            LabelError: the judge proposed no capability, or none of its labels is usable.
        """
        return asyncio.run(self._label(traces))

    async def _label(self, traces: TraceSet) -> LabelSet:
        self._request_count = DISCOVERY_COUNT + 1 + len(traces.behaviors) * self._settings.runs
        async with AsyncExitStack() as stack:
            proposal_model = await self._open_model(stack, prompts.proposals_format())
            group_model = await self._open_model(stack, prompts.groups_format())
            label_model = await self._open_model(stack, prompts.labels_format())
            capabilities = await self._discover(traces, proposal_model, group_model)
            runs = await self._label_runs(traces, capabilities, label_model)
        labels = [label for run in runs for label in run.labels]
        lost_labels = [label for label in labels if label.presence is Presence.LOST]
        name = self._settings.model.model
        if len(lost_labels) == len(labels):
            raise LabelError(
                f"judge {name!r} gave no usable label; first: {lost_labels[0].why}"
                f"{self._failure_note()}; try a different judge, or leave out --judge"
            )
        notes = [f"judge {name!r}, prompt {prompts.PROMPT_VERSION}"]
        if lost_labels:
            lost_share = f"{len(lost_labels)} of {len(labels)} labels are lost"
            notes.append(f"{lost_share}; first: {lost_labels[0].why}{self._failure_note()}")
        return LabelSet(name, capabilities, runs, tuple(notes))

    def _failure_note(self) -> str:
        return f" ({len(self._failures)} requests failed: {self._failures[0]})" if self._failures else ""

    async def _open_model(self, stack: AsyncExitStack, response_format: dict[str, Any]) -> Model:
        from pytest_trace2evolve.models.chat import ChatModel  # imported only if needed: half a second

        body = {**self._settings.model.extra_body, "response_format": response_format}
        settings = replace(self._settings.model, extra_body=body)
        model = ChatModel(settings)
        stack.push_async_callback(model.close)
        if self._settings.cache is None:
            return model
        return StoredModel(model, settings, "agent", cache=self._settings.cache)

    async def _discover(
        self, traces: TraceSet, proposal_model: Model, group_model: Model
    ) -> list[Capability]:
        behaviors_by_outcome: dict[bool, list[Behavior]] = {False: [], True: []}
        for behavior in traces.behaviors:
            behaviors_by_outcome[behavior.passed].append(behavior)

        def discovery_messages(number: int) -> list[dict[str, str]]:
            sample = prompts.sample_traces(behaviors_by_outcome, number, DISCOVERY_TRACES)
            conversations = [(behavior.task.id, behavior.passed, behavior.trace) for behavior in sample]
            return prompts.discovery_messages(traces.policy, conversations, BUILT_IN_CAPABILITIES)

        answers = await run_concurrently(
            self._ask(proposal_model, discovery_messages(number), number) for number in range(DISCOVERY_COUNT)
        )
        tasks = {behavior.task.id for behavior in traces.behaviors}
        proposals = [proposal for answer in answers for proposal in prompts.read_proposals(answer, tasks)]
        if not proposals:
            raise LabelError(
                f"judge {self._settings.model.model!r} proposed no capability in {DISCOVERY_COUNT} "
                f"discoveries{self._failure_note()}; try a different judge, or leave out --judge"
            )
        first_proposals: dict[str, Capability] = {}
        for proposal in proposals:
            first_proposals.setdefault(proposal.name, proposal)
        answer = await self._ask(group_model, prompts.group_messages(list(first_proposals.values())), 0)
        built_in_names = [capability.name for capability in BUILT_IN_CAPABILITIES]
        return prompts.merge_proposals(
            proposals, prompts.read_groups(answer, list(first_proposals)), built_in_names
        )

    async def _label_runs(
        self, traces: TraceSet, capabilities: Sequence[Capability], model: Model
    ) -> list[LabelRun]:
        semaphore = asyncio.Semaphore(MAX_CONCURRENT)

        async def label_trace(behavior: Behavior, run: int) -> list[Label]:
            async with semaphore:
                messages = prompts.label_messages(traces.policy, behavior.trace, capabilities)
                answer = await self._ask(model, messages, run)
            return prompts.read_labels(answer, behavior.simulation.id, behavior.trace, capabilities)

        async def label_run(run: int) -> LabelRun:
            label_lists = await run_concurrently(label_trace(behavior, run) for behavior in traces.behaviors)
            return LabelRun(run=run, labels=tuple(label for labels in label_lists for label in labels))

        return list(await run_concurrently(label_run(run) for run in range(1, self._settings.runs + 1)))

    async def _ask(self, model: Model, messages: Sequence[dict[str, str]], run: int) -> str | None:
        """Return the text of an answer; None if the request failed, so its labels are lost."""
        try:
            completion = await model.complete(messages, (), trial=run)
        except (InfrastructureError, ContextWindowError) as error:
            self._failures.append(str(error))
            return None
        finally:
            self._done_count += 1
            self._on_progress(self._done_count, self._request_count)
        if not completion.cached:
            self.usage += completion.usage
        return completion.content
