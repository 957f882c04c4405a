#!/usr/bin/env bash
# Packages:  strands-agents 1.62.0 with opentelemetry-sdk 1.45.1 (2026-11-30)
# Input:     an agent with a scripted model makes one tool call, and then answers. Its spans have the events that the
#            package records by default.
# Expected:  an event means the same in each span, as OpenTelemetry's conventions define it: gen_ai.tool.message is the
#            result of a tool, and gen_ai.choice is what a model answers.
# Observed:  in the span of the model call gen_ai.tool.message is the result, and in the span of the tool it is the
#            arguments of the call. In the span of the tool gen_ai.choice is the tool's result. The span of the event
#            loop's cycle repeats the model's call as gen_ai.choice, and the span of the agent the answer. So one call
#            and one answer leave five events gen_ai.choice.
# Source:    strands/telemetry/tracer.py, start_tool_call_span, end_tool_call_span, end_event_loop_cycle_span and
#            end_agent_span.
# Matters:   a reader that builds a conversation from the events by their names takes the arguments for the tool's result
#            and the result for an answer of the agent. It must drop the events of all spans but those of model calls
#            (gen_ai.operation.name is "chat").
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PIP_DISABLE_PIP_VERSION_CHECK=1
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet strands-agents==1.62.0 opentelemetry-sdk==1.45.1 \
    opentelemetry-instrumentation-threading==0.66b1
cd "$work"
unset OTEL_SEMCONV_STABILITY_OPT_IN
"$work/venv/bin/python" - <<'PYTHON'
import json
import sys

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from strands import Agent, tool
from strands.models import Model

exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)


class Scripted(Model):
    """Calls the tool first, and then answers."""

    def update_config(self, **config):
        pass

    def get_config(self):
        return {}

    async def structured_output(self, *args, **kwargs):
        raise NotImplementedError
        yield

    async def stream(self, messages, *args, **kwargs):
        is_first = len(messages) == 1
        start = {"toolUse": {"toolUseId": "call_1", "name": "find_order"}} if is_first else {}
        delta = {"toolUse": {"input": json.dumps({"order": "7"})}} if is_first else {"text": "Order 7 is open."}
        yield {"messageStart": {"role": "assistant"}}
        yield {"contentBlockStart": {"start": start}}
        yield {"contentBlockDelta": {"delta": delta}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "tool_use" if is_first else "end_turn"}}


@tool
def find_order(order: str) -> str:
    """Find an order."""
    return "open"


Agent(model=Scripted(), tools=[find_order], callback_handler=None)("What is the state of order 7?")
ROLES = {
    '{"order": "7"}': "arguments",
    '[{"text": "open"}]': "result",
    '[{"toolUse": {"toolUseId": "call_1", "name": "find_order", "input": {"order": "7"}}}]': "call",
    '[{"toolResult": {"toolUseId": "call_1", "status": "success", "content": [{"text": "open"}]}}]': "result",
    '[{"text": "Order 7 is open."}]': "answer",
    "Order 7 is open.\n": "answer",
}
seen = []
for span in sorted(exporter.get_finished_spans(), key=lambda span: span.start_time):
    for event in span.events:
        name = event.name.removeprefix("gen_ai.")
        if name in ("tool.message", "choice"):
            value = event.attributes.get("message", event.attributes.get("content"))
            seen.append((span.attributes["gen_ai.operation.name"], name, ROLES.get(value, value)))
            print(*seen[-1], sep=", ")
expected = [
    ("invoke_agent", "choice", "answer"),
    ("execute_event_loop_cycle", "choice", "call"),
    ("chat", "choice", "call"),
    ("execute_tool", "tool.message", "arguments"),
    ("execute_tool", "choice", "result"),
    ("execute_event_loop_cycle", "tool.message", "result"),
    ("chat", "tool.message", "result"),
    ("chat", "choice", "answer"),
]
sys.exit(0 if seen == expected else "changed: the events differ from the description above")
PYTHON
