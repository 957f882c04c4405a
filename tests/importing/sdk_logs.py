"""Writes `CONVERSATIONS` as logs, with the real SDKs of OpenTelemetry, Langfuse and Inspect."""

import functools
import io
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.importing.conversations import CONVERSATIONS, Message

Calls = Iterator[tuple[list[Message], Message]]


def model_calls(messages: list[Message]) -> Calls:
    """The calls of the model that made a conversation: what it was sent, and its answer."""
    for place, message in enumerate(messages):
        if message["role"] == "assistant":
            yield messages[:place], message


def parts(message: Message) -> dict[str, Any]:
    """A message in the form of OpenTelemetry's `gen_ai.input.messages`."""
    found: list[dict[str, Any]] = []
    if message["role"] == "tool":
        found = [
            {"type": "tool_call_response", "id": message["tool_call_id"], "response": message["content"]}
        ]
    elif message["content"]:
        found = [{"type": "text", "content": message["content"]}]
    for call in message.get("tool_calls", ()):
        arguments = json.loads(call["function"]["arguments"])
        found.append(
            {"type": "tool_call", "id": call["id"], "name": call["function"]["name"], "arguments": arguments}
        )
    return {"role": message["role"], "parts": found}


# ---- OpenTelemetry


def record(span: Any, sent: list[Message], answer: Message) -> None:
    """Record a model call by the current conventions."""
    span.set_attribute("gen_ai.operation.name", "chat")
    span.set_attribute("gen_ai.input.messages", json.dumps([parts(message) for message in sent]))
    span.set_attribute("gen_ai.output.messages", json.dumps([{**parts(answer), "finish_reason": "stop"}]))


def otel_spans() -> tuple[str, list[Any]]:
    """The text of the console exporter, and the finished spans, of all conversations."""
    trace = pytest.importorskip("opentelemetry.sdk.trace")
    export = pytest.importorskip("opentelemetry.sdk.trace.export")
    memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    out = io.StringIO()
    finished = memory.InMemorySpanExporter()
    provider = trace.TracerProvider()
    provider.add_span_processor(export.SimpleSpanProcessor(export.ConsoleSpanExporter(out=out)))
    provider.add_span_processor(export.SimpleSpanProcessor(finished))
    tracer = provider.get_tracer("bookings")
    for messages in CONVERSATIONS:
        with tracer.start_as_current_span("invoke_agent"):
            for sent, answer in model_calls(messages):
                with tracer.start_as_current_span("chat model") as span:
                    record(span, sent, answer)
    provider.shutdown()
    return out.getvalue(), list(finished.get_finished_spans())


def otlp_json(spans: list[Any]) -> str:
    """Spans as OTLP JSON."""
    encoder = pytest.importorskip("opentelemetry.exporter.otlp.proto.common.trace_encoder")
    from google.protobuf.json_format import MessageToJson

    text: str = MessageToJson(encoder.encode_spans(spans))
    return text


def otel_log(folder: Path, form: str) -> Path:
    """A log in one of the forms `console` and `otlp`."""
    console, spans = otel_spans()
    path = folder / "spans.json"
    path.write_text(console if form == "console" else otlp_json(spans), encoding="utf-8")
    return path


# ---- Langfuse


@functools.cache  # the SDK has one client for each key in a process
def langfuse_observations() -> list[dict[str, Any]]:
    """Observations in the form of Langfuse's API, from what its SDK would send to the server."""
    langfuse = pytest.importorskip("langfuse")
    memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    trace = pytest.importorskip("opentelemetry.sdk.trace")
    from langfuse.api.commons.types.observation_v2 import ObservationV2

    finished = memory.InMemorySpanExporter()
    client = langfuse.Langfuse(
        public_key="pk",
        secret_key="sk",
        base_url="http://127.0.0.1:9",
        span_exporter=finished,
        tracer_provider=trace.TracerProvider(),
    )
    for messages in CONVERSATIONS:
        with client.start_as_current_observation(as_type="span", name="conversation"):
            for sent, answer in model_calls(messages):
                with client.start_as_current_observation(
                    as_type="generation", name="chat", model="m", input=sent
                ) as generation:
                    generation.update(output=answer)
    client.flush()
    client.shutdown()
    observations = []
    for place, span in enumerate(finished.get_finished_spans()):
        attributes = dict(span.attributes)
        parent = None if span.parent is None else f"{span.parent.span_id:016x}"
        observation = ObservationV2(
            id=f"{span.context.span_id:016x}",
            trace_id=f"{span.context.trace_id:032x}",
            parent_observation_id=parent,
            project_id="p",
            type=str(attributes["langfuse.observation.type"]).upper(),
            name=span.name,
            start_time=datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=place),
            input=attributes.get("langfuse.observation.input"),
            output=attributes.get("langfuse.observation.output"),
        )
        observations.append(json.loads(observation.json()))
    return observations


def langfuse_log(folder: Path, form: str) -> Path:
    """A log in one of the forms `page` and `traces`."""
    observations = langfuse_observations()
    path = folder / "langfuse.json"
    if form == "page":
        text = json.dumps({"data": observations, "meta": {"cursor": None}})
    else:
        traces: dict[str, dict[str, Any]] = {}
        for observation in observations:
            trace = traces.setdefault(
                observation["traceId"], {"id": observation["traceId"], "observations": []}
            )
            trace["observations"].append(observation)
        text = json.dumps(list(traces.values()), indent=2)
    path.write_text(text, encoding="utf-8")
    return path


# ---- Inspect


def inspect_log(folder: Path, suffix: str) -> Path:
    """A log that Inspect's own writer made."""
    log = pytest.importorskip("inspect_ai.log")
    from inspect_ai.model import (
        ChatMessage,
        ChatMessageAssistant,
        ChatMessageSystem,
        ChatMessageTool,
        ChatMessageUser,
    )
    from inspect_ai.tool import ToolCall

    def message_of(message: Message) -> ChatMessage:
        text = message["content"] or ""
        if message["role"] == "system":
            return ChatMessageSystem(content=text)
        if message["role"] == "user":
            return ChatMessageUser(content=text)
        if message["role"] == "tool":
            return ChatMessageTool(content=text, tool_call_id=message["tool_call_id"])
        calls = [
            ToolCall(call["id"], call["function"]["name"], json.loads(call["function"]["arguments"]))
            for call in message.get("tool_calls", ())
        ]
        return ChatMessageAssistant(content=text, tool_calls=calls or None)

    samples = [
        log.EvalSample(
            id=number,
            epoch=1,
            input=messages[1]["content"],
            target="",
            messages=list(map(message_of, messages)),
        )
        for number, messages in enumerate(CONVERSATIONS)
    ]
    spec = log.EvalSpec(
        created="2026-01-01T00:00:00+00:00",
        task="bookings",
        dataset=log.EvalDataset(name="bookings", samples=len(samples)),
        model="mockllm/model",
        config=log.EvalConfig(),
    )
    path = folder / f"log{suffix}"
    log.write_eval_log(log.EvalLog(eval=spec, status="success", samples=samples), str(path))
    return path


# ---- OpenAI


def openai_log(folder: Path, form: str) -> Path:
    """A log in one of the forms `objects` and `requests`."""
    lines: list[Any] = [{"messages": messages, "model": "m"} for messages in CONVERSATIONS]
    if form == "requests":
        lines = [
            {"request": {"messages": messages[:-1]}, "response": {"choices": [{"message": messages[-1]}]}}
            for messages in CONVERSATIONS
        ]
    path = folder / "chats.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    return path
