#!/usr/bin/env bash
# Package:   google-adk 2.13.0 (2026-11-30)
# Input:     an agent with one tool and a scripted model. In the first turn the model makes one call of the tool, in the
#            second one two parallel calls; after the results it answers.
# Expected:  a span execute_tool for each call: three.
# Observed:  four. After the two parallel calls there is a span named "execute_tool (merged)", whose gen_ai.tool.name is
#            "(merged tools)". Its gen_ai.tool.call.id is the id of an event, which is the id of no call. A single call
#            has no such span.
# Source:    google/adk/flows/llm_flows/tools/_batch_executor.py, which opens the span to merge the results of parallel
#            calls, and google/adk/telemetry/tracing.py, trace_merged_tool_calls.
# Matters:   the operation's name is that of a tool's execution, so a count of tool calls by spans is one too high for
#            each message with parallel calls. A change that makes a model call tools in parallel looks as if it called
#            more tools, with one that the agent does not have. Leave spans out whose call id no message names.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PIP_DISABLE_PIP_VERSION_CHECK=1
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet google-adk==2.13.0 opentelemetry-sdk==1.44.0
cd "$work"
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import asyncio
import sys

from google.adk.agents import LlmAgent
from google.adk.models import BaseLlm, LlmResponse
from google.adk.runners import InMemoryRunner
from google.genai import types
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)


def call(n):
    return types.Part(function_call=types.FunctionCall(id=f"call_{n}", name="find_order", args={"order": str(n)}))


class Scripted(BaseLlm):
    """Makes one call in the first turn and two in the second, and answers after each."""

    async def generate_content_async(self, llm_request, stream=False):
        script = [[call(1)], [types.Part(text="open")], [call(2), call(3)], [types.Part(text="both open")]]
        turn = sum(content.role == "model" for content in llm_request.contents)
        yield LlmResponse(content=types.Content(role="model", parts=script[turn]))


def find_order(order: str) -> str:
    """Find an order."""
    return "open"


async def talk():
    runner = InMemoryRunner(LlmAgent(name="desk", model=Scripted(model="any"), tools=[find_order]), app_name="desk")
    session = await runner.session_service.create_session(app_name="desk", user_id="u")
    texts = []
    for question in ("Is order 1 open?", "Are orders 2 and 3 open?"):
        message = types.Content(role="user", parts=[types.Part(text=question)])
        async for event in runner.run_async(user_id="u", session_id=session.id, new_message=message):
            texts += [part.text for part in event.content.parts if part.text]
    return texts


texts = asyncio.run(talk())
seen = []
for span in exporter.get_finished_spans():
    if span.attributes.get("gen_ai.operation.name") == "execute_tool":
        identity = span.attributes["gen_ai.tool.call.id"]
        is_call = identity in ("call_1", "call_2", "call_3")
        seen.append((span.name, span.attributes["gen_ai.tool.name"], is_call))
        print(f"{span.name}: tool {span.attributes['gen_ai.tool.name']!r}, id {identity}")
single = ("execute_tool find_order", "find_order", True)
expected = [single, single, single, ("execute_tool (merged)", "(merged tools)", False)]
unchanged = texts == ["open", "both open"] and seen == expected
sys.exit(0 if unchanged else "changed: the spans differ from the description above")
PYTHON
