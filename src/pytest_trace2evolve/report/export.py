"""Renders a run's simulations in other tools' formats: Inspect logs, OpenTelemetry spans and CSV tables.

Figures are those that the run recorded. Only sums and means are computed.
"""

import csv
import io
import json
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pytest_trace2evolve import __version__
from pytest_trace2evolve.evidence.results import OWN_BLOCK_KEY, read_findings
from pytest_trace2evolve.records.completion import Usage, usage_of
from pytest_trace2evolve.records.message import Message
from pytest_trace2evolve.records.trace import Simulation

if TYPE_CHECKING:
    from pytest_trace2evolve.session.page_data import ExportedSuite

NAMESPACE = uuid.UUID("5b0c9a3e-0d6c-5a39-8c5e-6f2f8f0a7d11")
"""The namespace of the ids in exports, which are the same in each export of a run."""


# ---- CSV


def csv_tables(suites: Sequence["ExportedSuite"]) -> dict[str, str]:
    """Return `simulations.csv` and `messages.csv`, with a row for each simulation and for each message."""
    simulations = [_row(suite, simulation) for suite in suites for simulation in suite.simulations]
    messages = [
        {
            **_names(suite, simulation),
            "index": index,
            "role": message.role,
            "requestor": message.requestor,
            "content": message.content,
            "tool_calls": _json([call.model_dump() for call in message.tool_calls or []])
            if message.tool_calls
            else None,
            "tool_call_id": message.id if message.role == "tool" else None,
            "error": message.error,
        }
        for suite in suites
        for simulation in suite.simulations
        for index, message in enumerate(simulation.trace)
    ]
    return {"simulations.csv": _csv(simulations), "messages.csv": _csv(messages)}


def _names(suite: "ExportedSuite", simulation: Simulation) -> dict[str, Any]:
    return {
        "run": suite.run,
        "suite": suite.name,
        "task": simulation.task_id,
        "trial": simulation.trial or 0,
    }


def _row(suite: "ExportedSuite", simulation: Simulation) -> dict[str, Any]:
    info = simulation.reward_info or {}
    parts = info.get("reward_breakdown")
    usage = suite.usages[simulation.id]
    candidate = suite.origin.candidate
    return {
        **_names(suite, simulation),
        "splits": " ".join(suite.splits.get(simulation.task_id, ())),
        "sealed": simulation.task_id in suite.sealed,
        "candidate": candidate.id if candidate else None,
        "model": suite.origin.agent.model,
        "id": simulation.id,
        "status": _own_block(simulation).get("status"),
        "reward": simulation.recorded_reward,
        "termination_reason": simulation.termination_reason,
        "seed": simulation.seed,
        "agent_cost": simulation.agent_cost,
        "user_cost": simulation.user_cost,
        "messages": len(simulation.trace) or None,
        "agent_calls": usage.calls or None,
        "agent_prompt_tokens": usage.prompt_tokens if usage.calls else None,
        "agent_completion_tokens": usage.completion_tokens if usage.calls else None,
        **{f"component_{name}": value for name, value in (parts if isinstance(parts, dict) else {}).items()},
        **{f"breaks_{name}": count for name, count in _breaches(simulation).items()},
    }


def _own_block(simulation: Simulation) -> dict[str, Any]:
    info = getattr(simulation, "info", None)
    block = info.get(OWN_BLOCK_KEY) if isinstance(info, dict) else None
    return block if isinstance(block, dict) else {}


def _breaches(simulation: Simulation) -> dict[str, int]:
    return dict(Counter(finding.invariant.value for finding in read_findings(simulation) or ()))


def _csv(rows: Sequence[dict[str, Any]]) -> str:
    """Render rows; columns are in the order of their first occurrence. None is an empty field."""
    output = io.StringIO()
    writer = csv.DictWriter(
        output, list(dict.fromkeys(name for row in rows for name in row)), lineterminator="\n"
    )
    writer.writeheader()
    writer.writerows(rows)
    return output.getvalue()


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


# ---- Inspect


def inspect_logs(suites: Sequence["ExportedSuite"]) -> dict[str, str]:
    """Return a log of Inspect for each suite, in version 2 of its JSON format."""
    logs = {}
    for suite in suites:
        created = _created(suite)
        name = "".join(letter if letter.isalnum() else "-" for letter in suite.name)
        key = str(uuid.uuid5(NAMESPACE, f"{suite.run}/{suite.name}"))
        logs[f"{created.replace(':', '-')}_{name}_{key}.json"] = json.dumps(_inspect_log(suite, created, key))
    return logs


def _created(suite: "ExportedSuite") -> str:
    try:
        created = datetime.fromisoformat(suite.origin.created_at or "")
    except ValueError:
        created = datetime(1970, 1, 1)
    return created.replace(tzinfo=created.tzinfo or UTC, microsecond=0).isoformat()


def _inspect_log(suite: "ExportedSuite", created: str, key: str) -> dict[str, Any]:
    rewards = [simulation.recorded_reward for simulation in suite.simulations]
    measured = [reward for reward in rewards if reward is not None]
    metrics = (
        {"mean": {"name": "mean", "value": sum(measured) / len(measured), "params": {}}} if measured else {}
    )
    candidate = suite.origin.candidate
    tasks = list(dict.fromkeys(simulation.task_id for simulation in suite.simulations))
    trials = Counter(simulation.task_id for simulation in suite.simulations)
    return {
        "version": 2,
        "status": "success",
        "eval": {
            "eval_id": key,
            "run_id": key,
            "task_id": key,
            "created": created,
            "task": suite.name,
            "dataset": {"name": suite.name, "samples": len(tasks), "sample_ids": tasks},
            "model": suite.origin.agent.model or suite.origin.agent.implementation or "none/none",
            "config": {"epochs": max(trials.values(), default=1)},
            "packages": {"pytest_trace2evolve": __version__},
            "metadata": {"run": suite.run, "candidate": candidate.id if candidate else None},
            "scorers": [{"name": "reward"}],
        },
        "plan": {"name": "plan", "steps": [], "config": {}},  # reading only the header needs it
        "results": {
            "total_samples": len(rewards),
            "completed_samples": len(measured),
            "scores": [
                {
                    "name": "reward",
                    "scorer": "reward",
                    "scored_samples": len(measured),
                    "unscored_samples": len(rewards) - len(measured),
                    "metrics": metrics,
                }
            ],
        },
        "stats": {"started_at": created, "completed_at": created},
        "samples": [_inspect_sample(suite, simulation) for simulation in suite.simulations],
    }


def _inspect_sample(suite: "ExportedSuite", simulation: Simulation) -> dict[str, Any]:
    row = {name: value for name, value in _row(suite, simulation).items() if value is not None}
    first = next((message.content for message in simulation.trace if message.role == "user"), None)
    usage = suite.usages[simulation.id]
    counts = {
        "input_tokens": usage.prompt_tokens,
        "output_tokens": usage.completion_tokens,
        "total_tokens": usage.tokens,
    }
    reward = simulation.recorded_reward
    return {
        "id": simulation.task_id,
        "epoch": (simulation.trial or 0) + 1,
        "uuid": str(uuid.uuid5(NAMESPACE, f"{suite.run}/{suite.name}/{simulation.id}")),
        "input": first or "",
        "target": "",
        "messages": _inspect_messages(simulation.trace),
        "scores": {}
        if reward is None
        else {"reward": {"value": reward, "explanation": _explanation(simulation)}},
        "metadata": row,
        "model_usage": {suite.origin.agent.model or "agent": counts} if usage.calls else {},
    }


def _explanation(simulation: Simulation) -> str:
    info = simulation.reward_info or {}
    parts = info.get("reward_breakdown")
    texts = [f"{name} {value}" for name, value in (parts if isinstance(parts, dict) else {}).items()]
    texts += [f"breaks {name}: {count}" for name, count in _breaches(simulation).items()]
    return "; ".join([f"ended by {simulation.termination_reason}", *texts])


def _inspect_messages(trace: Sequence[Message]) -> list[dict[str, Any]]:
    """Return the agent's conversation, without the calls of the user's own tools."""
    messages: list[dict[str, Any]] = []
    names = {call.id: call.name for message in trace for call in message.tool_calls or []}
    for message in trace:
        calls = [
            {"id": call.id, "function": call.name, "arguments": call.arguments, "type": "function"}
            for call in message.tool_calls or []
        ]
        fields: dict[str, Any] = {"role": message.role, "content": message.content or ""}
        is_own_tool = message.role == "tool" and message.requestor == "user"
        if is_own_tool or (message.role == "user" and not message.content):
            continue
        if message.role == "tool":
            fields |= {"tool_call_id": message.id or "", "function": names.get(message.id or "", "")}
            if message.error:
                fields["error"] = {"type": "unknown", "message": message.content or "failed"}
        elif message.role == "assistant" and calls:
            fields["tool_calls"] = calls
        messages.append(fields)
    return messages


# ---- OpenTelemetry


def otel_spans(suites: Sequence["ExportedSuite"]) -> dict[str, str]:
    """Return OTLP spans in JSON by the GenAI conventions: of each simulation, its model and tool calls."""
    groups = [
        {
            "resource": {"attributes": _attributes({"service.name": "pytest-trace2evolve"})},
            "scopeSpans": [
                {
                    "scope": {"name": "pytest_trace2evolve", "version": __version__},
                    "spans": [
                        span
                        for simulation in suite.simulations
                        for span in _otel_simulation(suite, simulation)
                    ],
                }
            ],
        }
        for suite in suites
    ]
    return {"spans.json": _json({"resourceSpans": groups})}


def _otel_simulation(suite: "ExportedSuite", simulation: Simulation) -> Iterator[dict[str, Any]]:
    key = f"{suite.run}/{suite.name}/{simulation.id}"
    times = _times(simulation.trace, _created(suite))
    candidate, model, reward = suite.origin.candidate, suite.origin.agent.model, simulation.recorded_reward
    agent = candidate.id if candidate else suite.origin.agent.implementation or "agent"
    common = {"gen_ai.conversation.id": simulation.id, "gen_ai.agent.name": agent}

    def span(part: str, name: str, interval: tuple[int, int], fields: dict[str, Any]) -> dict[str, Any]:
        parent = {"parentSpanId": uuid.uuid5(NAMESPACE, key).hex[:16]} if part else {}
        operation = name.partition(" ")[0]
        return {
            "traceId": uuid.uuid5(NAMESPACE, f"{key}/trace").hex,
            "spanId": uuid.uuid5(NAMESPACE, key + part).hex[:16],
            **parent,
            "name": name,
            "kind": 3 if operation == "chat" else 1,
            "startTimeUnixNano": str(interval[0]),
            "endTimeUnixNano": str(max(interval)),
            "attributes": _attributes({"gen_ai.operation.name": operation, **common, **fields}),
        }

    sent, answers = _otel_messages(simulation.trace)
    root = {
        "gen_ai.request.model": model,
        "gen_ai.input.messages": _json(sent) if sent else None,
        "gen_ai.output.messages": _json(answers) if answers else None,
        **_token_counts(suite.usages[simulation.id]),
        **{f"trace2evolve.{name}": value for name, value in _row(suite, simulation).items()},
    }
    yield span("", f"invoke_agent {agent}", (times[0], times[-1]), root) | {
        "events": [] if reward is None else [_evaluation(simulation, times[-1])],
        "status": {"code": 2, "message": "not measured"} if reward is None else {"code": 1},
    }
    results = {message.id: index for index, message in enumerate(simulation.trace) if message.role == "tool"}
    for index, message in enumerate(simulation.trace):
        if message.role != "assistant":
            continue
        usage = usage_of([message], "assistant")
        if usage.calls:
            fields = {"gen_ai.request.model": model, **_token_counts(usage)}
            yield span(f"/{index}", f"chat {model or ''}".strip(), (times[index], times[index + 1]), fields)
        for number, call in enumerate(message.tool_calls or []):
            place = results.get(call.id)
            result = None if place is None else simulation.trace[place]
            has_failed = result is not None and bool(result.error)
            fields = {
                "gen_ai.tool.name": call.name,
                "gen_ai.tool.type": "function",
                "gen_ai.tool.call.id": call.id,
                "gen_ai.tool.call.arguments": _json(call.arguments),
                "gen_ai.tool.call.result": result.content if result else None,
                "error.type": "tool_error" if has_failed else None,
            }
            interval = times[index + 1], times[index + 1 if place is None else place + 1]
            name = f"execute_tool {call.name}"
            yield span(f"/{index}/{number}", name, interval, fields) | {
                "status": {"code": 2 if has_failed else 1}
            }


def _token_counts(usage: Usage) -> dict[str, int]:
    if not usage.calls:
        return {}
    return {
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "gen_ai.usage.output_tokens": usage.completion_tokens,
    }


def _evaluation(simulation: Simulation, time: int) -> dict[str, Any]:
    fields = {
        "gen_ai.evaluation.name": "reward",
        "gen_ai.evaluation.score.value": simulation.recorded_reward,
        "gen_ai.evaluation.explanation": _explanation(simulation),
    }
    return {"name": "gen_ai.evaluation.result", "timeUnixNano": str(time), "attributes": _attributes(fields)}


def _otel_messages(trace: Sequence[Message]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the messages of the agent's conversation, and its last answer apart."""
    messages = []
    for message in trace:
        if message.role == "tool" and message.requestor == "user":
            continue
        parts: list[dict[str, Any]] = []
        if message.role == "tool":
            part = {"type": "tool_call_response", "id": message.id or "", "response": message.content or ""}
            parts.append(part | ({"is_error": True} if message.error else {}))
        elif message.content:
            parts.append({"type": "text", "content": message.content})
        for call in message.tool_calls or [] if message.role == "assistant" else ():
            parts.append({"type": "tool_call", "id": call.id, "name": call.name, "arguments": call.arguments})
        if parts:
            messages.append({"role": message.role, "parts": parts})
    last = messages[-1] if messages and messages[-1]["role"] == "assistant" else None
    return messages[:-1] if last else messages, [{**last, "finish_reason": "stop"}] if last else []


def _times(trace: Sequence[Message], created: str) -> list[int]:
    """Return when each message began, and the end of the last, in nanoseconds since 1970.

    A message without a recorded time gets that of the message before it.
    """
    time = int(datetime.fromisoformat(created).timestamp()) * 10**9
    times: list[int] = []
    for message in trace:
        text = getattr(message, "timestamp", None)
        try:
            at = datetime.fromisoformat(text) if isinstance(text, str) else None
        except ValueError:
            at = None
        if at is not None:
            time = max(
                time if times else 0, int(at.replace(tzinfo=at.tzinfo or UTC).timestamp() * 1e6) * 1000
            )
        times.append(time)
    return [*times, time] if times else [time, time]


def _attributes(values: dict[str, Any]) -> list[dict[str, Any]]:
    """Return attributes in OTLP's form, without those that are None."""
    return [{"key": name, "value": _typed(value)} for name, value in values.items() if value is not None]


def _typed(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    return {"doubleValue": value} if isinstance(value, float) else {"stringValue": str(value)}


FORMATS = {"inspect": inspect_logs, "otel": otel_spans, "csv": csv_tables}
"""Renders the files of each format, by their names."""
