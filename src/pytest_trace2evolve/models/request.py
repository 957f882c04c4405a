"""The body of one request, as it is sent to an endpoint."""

from collections.abc import Mapping, Sequence
from typing import Any

from pytest_trace2evolve.models.settings import ModelSettings
from pytest_trace2evolve.records.protocols import ToolSchema


def request_body(
    settings: ModelSettings,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[ToolSchema],
    trial: int,
    tool_choice: str = "auto",
) -> dict[str, Any]:
    """What a chat completion is asked for with, as JSON: all of it, the model's name and seed too."""
    request: dict[str, Any] = {"model": settings.model, "messages": list(messages)}
    if tools:
        request["tools"] = [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": tool.parameters,
                },
            }
            for tool in tools
        ]
        request["tool_choice"] = tool_choice
    if settings.temperature is not None:
        request["temperature"] = settings.temperature
    if settings.seed is not None:
        request["seed"] = settings.seed + trial
    if settings.reasoning_effort is not None:
        request["reasoning_effort"] = settings.reasoning_effort
    return {**request, **settings.extra_body}
