#!/usr/bin/env bash
# Packages:  opentelemetry-instrumentation-langchain 0.62.4 with langchain-core 1.8.3 (2026-11-28)
# Input:     a tool of langchain-core, called with a tool call of a model: the arguments {"order": "7"} and an id.
# Expected:  in the span execute_tool, gen_ai.tool.call.arguments holds the arguments, gen_ai.tool.call.result what the
#            tool returned, and gen_ai.tool.call.id the call's id, as OpenTelemetry's conventions define them.
# Observed:  gen_ai.tool.call.arguments holds the parameters of LangChain's callback: an object with the keys input_str,
#            tags, metadata, inputs and kwargs. The arguments are its field "inputs". gen_ai.tool.call.result holds
#            LangChain's serialized message, with the returned text in output.kwargs.content. There is no
#            gen_ai.tool.call.id; the id is a field of both objects.
# Source:    opentelemetry/instrumentation/langchain/callback_handler.py, on_tool_start and on_tool_end.
# Matters:   a reader that takes the attributes as the conventions define them sees other arguments for each call: a
#            comparison with expected arguments fails for correct calls, and one that asks for a subset of the keys finds
#            none. The messages of the model's spans hold the plain arguments.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PIP_DISABLE_PIP_VERSION_CHECK=1
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet opentelemetry-instrumentation-langchain==0.62.4 \
    langchain-core==1.8.3 opentelemetry-sdk==1.45.2
cd "$work"
export LANGSMITH_TRACING=false
"$work/venv/bin/python" - <<'PYTHON'
import json
import sys

from opentelemetry.instrumentation.langchain import LangchainInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
LangchainInstrumentor().instrument(tracer_provider=provider)

from langchain_core.tools import tool  # noqa: E402


@tool
def find_order(order: str) -> str:
    """Find an order."""
    return "open"


ARGUMENTS = {"order": "7"}
message = find_order.invoke({"name": "find_order", "args": ARGUMENTS, "id": "call_1", "type": "tool_call"})
(span,) = [s for s in exporter.get_finished_spans() if s.attributes.get("gen_ai.operation.name") == "execute_tool"]
arguments = json.loads(span.attributes["gen_ai.tool.call.arguments"])
result = json.loads(span.attributes["gen_ai.tool.call.result"])
print(f"{span.name}: the tool returned {message.content!r} for {ARGUMENTS}")
print(f"arguments: {json.dumps(arguments)}")
print(f"result: {json.dumps(result)}")
print(f"id: {span.attributes.get('gen_ai.tool.call.id')}")
unchanged = (
    message.content == "open"
    and arguments.keys() == {"input_str", "tags", "metadata", "inputs", "kwargs"}
    and arguments["inputs"] == ARGUMENTS
    and arguments["kwargs"]["tool_call_id"] == "call_1"
    and result["output"]["kwargs"]["content"] == "open"
    and "gen_ai.tool.call.id" not in span.attributes
)
sys.exit(0 if unchanged else "changed: the attributes differ from the description above")
PYTHON
