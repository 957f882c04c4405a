"""Logs that SDKs write while they call a model: one conversation with a call, and its answer."""

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests.own_agents import http_server

Item = dict[str, Any]

QUESTION = "Please cancel my flat, which I booked for May."
CANCELLED = {"calls": [{"name": "cancel_booking", "arguments": {"booking": "flat"}}]}

_FUNCTION = {"name": "cancel_booking", "arguments": '{"booking": "flat"}'}
_SCHEMA: Item = {"name": "cancel_booking", "parameters": {"type": "object", "properties": {}}}


def _respond(request: Item, number: int) -> Item:
    """The second response of the Responses API to a call, or else the first one."""
    output: list[Item] = [{"type": "reasoning", "id": f"rs_{number}", "summary": []}]
    if any(
        isinstance(item, dict) and item.get("type") == "function_call_output" for item in request["input"]
    ):
        part = {"type": "output_text", "text": "It is cancelled.", "annotations": []}
        item = {"type": "message", "id": f"msg_{number}", "role": "assistant", "status": "completed"}
        output.append({**item, "content": [part]})
    else:
        output.append({
            "type": "function_call", "id": f"fc_{number}", "call_id": f"call_{number}", "status": "completed",
            **_FUNCTION,
        })  # fmt: skip
    return {
        "id": f"resp_{number}", "object": "response", "created_at": 1, "status": "completed", "model": "m",
        "output": output, "parallel_tool_calls": True, "tool_choice": "auto", "tools": [],
        "previous_response_id": request.get("previous_response_id"),
    }  # fmt: skip


def _complete(request: Item, number: int) -> Item:
    """The second completion of the Chat Completions API after a result, or else the first one."""
    is_last = any(message["role"] == "tool" for message in request["messages"])
    call = {"id": f"call_{number}", "type": "function", "function": _FUNCTION}
    message: Item = {"role": "assistant", "content": None, "tool_calls": [call]}
    if is_last:
        message = {"role": "assistant", "content": "It is cancelled."}
    choice = {"index": 0, "message": message, "finish_reason": "stop" if is_last else "tool_calls"}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    return {
        "id": f"c{number}", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice],
        "usage": usage,
    }  # fmt: skip


@contextmanager
def model_server() -> Iterator[str]:
    """A server of both APIs; yields its URL."""
    requests: list[Item] = []

    def answer(method: str, request: Item) -> tuple[int, bytes]:
        requests.append(request)
        reply = _respond if "input" in request else _complete
        return 200, json.dumps(reply(request, len(requests))).encode()

    with http_server(answer) as url:
        yield url.removesuffix("/chat")


def chat(client: Any, **options: Any) -> None:
    """Have the conversation over the Chat Completions API."""
    messages: list[Item] = [{"role": "user", "content": QUESTION}]
    tools = [{"type": "function", "function": _SCHEMA}]
    completion = client.chat.completions.create(model="m", messages=messages, tools=tools, **options)
    message = completion.choices[0].message
    messages.append(message.model_dump(exclude_none=True))
    messages.append({"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "cancelled"})
    client.chat.completions.create(model="m", messages=messages, tools=tools, **options)


def respond(client: Any, **options: Any) -> list[tuple[Item, Any]]:
    """Have the conversation over the Responses API; the second request continues the first response."""
    request: Item = {"model": "m", "input": QUESTION, "tools": [{"type": "function", **_SCHEMA}]}
    response = client.responses.create(**request, **options)
    call = next(item for item in response.output if item.type == "function_call")
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "cancelled"}
    later = {**request, "input": [result], "previous_response_id": response.id}
    return [(request, response), (later, client.responses.create(**later, **options))]


def _write(folder: Path, *values: Any) -> Path:
    path = folder / "log.jsonl"
    path.write_text("".join(f"{json.dumps(value)}\n" for value in values), encoding="utf-8")
    return path


def responses_log(folder: Path) -> Path:
    """Requests and responses, as `model_dump` of OpenAI's SDK writes them."""
    openai = pytest.importorskip("openai")
    with model_server() as url, openai.OpenAI(base_url=url, api_key="k") as client:
        calls = respond(client)
    return _write(
        folder, *({"request": request, "response": response.model_dump()} for request, response in calls)
    )


def langfuse_openai_log(folder: Path, have: Callable[..., object]) -> Path:
    """A trace of Langfuse's wrapper of OpenAI's SDK."""
    langfuse = pytest.importorskip("langfuse")
    memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    trace = pytest.importorskip("opentelemetry.sdk.trace")
    finished = memory.InMemorySpanExporter()
    key = f"pk-{have.__name__}"
    client = langfuse.Langfuse(
        public_key=key,
        secret_key="sk",
        base_url="http://127.0.0.1:9",
        span_exporter=finished,
        tracer_provider=trace.TracerProvider(),
    )
    wrapped = pytest.importorskip("langfuse.openai")
    with (
        model_server() as url,
        wrapped.OpenAI(base_url=url, api_key="k") as model,
        client.start_as_current_observation(as_type="span", name="conversation"),
    ):
        have(model, langfuse_public_key=key)
    client.flush()
    spans = [(span, dict(span.attributes)) for span in finished.get_finished_spans()]
    client.shutdown()
    observations = [
        {
            "id": f"{span.context.span_id:016x}",
            "traceId": f"{span.context.trace_id:032x}",
            "type": str(attributes["langfuse.observation.type"]).upper(),
            "startTime": f"{span.start_time}",
            **{name: attributes.get(f"langfuse.observation.{name}") for name in ("input", "output")},
        }
        for span, attributes in spans
    ]
    return _write(folder, {"id": observations[0]["traceId"], "observations": observations})


def _providers() -> tuple[Any, Any, Any, Any]:
    """A provider of spans and one of log records, and their exporters."""
    trace = pytest.importorskip("opentelemetry.sdk.trace")
    logs = pytest.importorskip("opentelemetry.sdk._logs")
    export = pytest.importorskip("opentelemetry.sdk.trace.export")
    log_export = pytest.importorskip("opentelemetry.sdk._logs.export")
    memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    spans, records = memory.InMemorySpanExporter(), log_export.InMemoryLogRecordExporter()
    tracers, loggers = trace.TracerProvider(), logs.LoggerProvider()
    tracers.add_span_processor(export.SimpleSpanProcessor(spans))
    loggers.add_log_record_processor(log_export.SimpleLogRecordProcessor(records))
    return tracers, loggers, spans, records


def _otlp(spans: Any, records: Any) -> list[Item]:
    """OTLP JSON of the spans, and of the log records if there are any."""
    common = "opentelemetry.exporter.otlp.proto.common"
    encode_spans = pytest.importorskip(f"{common}.trace_encoder").encode_spans
    encode_logs = pytest.importorskip(f"{common}._log_encoder").encode_logs
    from google.protobuf.json_format import MessageToDict

    exports = [MessageToDict(encode_spans(spans.get_finished_spans()))]
    if records.get_finished_logs():
        exports.append(MessageToDict(encode_logs(records.get_finished_logs())))
    return exports


def instrumented_log(folder: Path, form: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What `opentelemetry-instrumentation-openai-v2` exports, in one of the forms `logs` and `both`."""
    openai = pytest.importorskip("openai")
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "true")
    instrumentation = pytest.importorskip("opentelemetry.instrumentation.openai_v2")
    tracers, loggers, spans, records = _providers()
    instrumentor = instrumentation.OpenAIInstrumentor()
    instrumentor.instrument(tracer_provider=tracers, logger_provider=loggers)
    try:
        with (
            model_server() as url,
            openai.OpenAI(base_url=url, api_key="k") as client,
            tracers.get_tracer("bookings").start_as_current_span("conversation"),
        ):
            chat(client)
    finally:
        instrumentor.uninstrument()
    exports = _otlp(spans, records)
    return _write(folder, *(exports[1:] if form == "logs" else exports))


def pydantic_ai_log(folder: Path, api: str, outcome: str = "succeeds") -> Path:
    """The spans of a pydantic-ai agent over one of the APIs `chat` and `responses`.

    The tool `succeeds`, `fails`, or asks the model to `retry`.
    """
    openai = pytest.importorskip("openai")
    pydantic_ai = pytest.importorskip("pydantic_ai")
    capabilities = pytest.importorskip("pydantic_ai.capabilities")
    instrumented = pytest.importorskip("pydantic_ai.models.instrumented")
    models = pytest.importorskip("pydantic_ai.models.openai")
    providers = pytest.importorskip("pydantic_ai.providers.openai")
    tracers, _, spans, records = _providers()
    model_class = models.OpenAIResponsesModel if api == "responses" else models.OpenAIChatModel

    def cancel_booking(booking: str) -> str:
        """Cancel a booking."""
        if outcome == "fails":
            raise ValueError("unknown booking")
        if outcome == "retries":
            raise pydantic_ai.ModelRetry("unknown booking")
        return "cancelled"

    async def run(url: str) -> None:
        settings = instrumented.InstrumentationSettings(tracer_provider=tracers)
        async with openai.AsyncOpenAI(base_url=url, api_key="k") as client:
            agent = pydantic_ai.Agent(
                model_class("m", provider=providers.OpenAIProvider(openai_client=client)),
                tools=[cancel_booking],
                capabilities=[capabilities.Instrumentation(settings=settings)],
            )
            with pytest.raises(ValueError, match="unknown booking") if outcome == "fails" else nullcontext():
                await agent.run(QUESTION)

    with model_server() as url:
        asyncio.run(run(url))
    return _write(folder, *_otlp(spans, records))


def tau2_of_inspect_log(folder: Path, epochs: int) -> Path:
    """A log of `inspect_evals/tau2_telecom` with scripted models; the customer has tools too."""
    inspect_ai = pytest.importorskip("inspect_ai")
    tau2 = pytest.importorskip("inspect_evals.tau2")
    from inspect_ai.model import ModelOutput, ModelUsage, get_model

    def say(text: str) -> ModelOutput:
        return ModelOutput.from_content("mockllm/model", text)

    def call(name: str, **arguments: Any) -> ModelOutput:
        return ModelOutput.for_tool_call("mockllm/model", name, arguments)

    def scripted(*outputs: ModelOutput) -> Any:
        def with_usage() -> Iterator[ModelOutput]:
            for output in outputs * epochs:
                # Without usage, inspect_ai downloads a tokenizer to count the tokens.
                yield output.model_copy(deep=True, update={"usage": ModelUsage()})

        return get_model("mockllm/model", custom_outputs=with_usage(), memoize=False)

    agent = scripted(
        say("Please look at the status bar."),
        call("enable_roaming", customer_id="C1001", line_id="L1002"),
        say("Roaming is enabled now."),
    )
    customer = scripted(
        say("My mobile data does not work abroad."),
        call("check_status_bar"),
        say("It shows no signal."),
        say("###STOP###"),
    )
    (log,) = inspect_ai.eval(
        tau2.tau2_telecom(shuffle=False),
        model=agent,
        model_roles={"user": customer},
        limit=1,
        epochs=epochs,
        max_samples=1,
        score=False,
        log_dir=str(folder / "logs"),
        log_format="json",
        display="none",
    )
    assert log.status == "success"
    return Path(log.location)
