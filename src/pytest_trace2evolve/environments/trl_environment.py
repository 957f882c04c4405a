"""Environments for trl: classes whose public methods are the tools, generated from the tools' schemas.

`GRPOTrainer(environment_factory=…)` makes a tool of every public method except `reset` and `get_reward`, and
reads the schema from the signature, the annotations and the docstring (`transformers.utils.get_json_schema`).
A signature cannot express the `additionalProperties` of a schema. The trainer of this package needs no such
class, so it takes any schema.
"""

import inspect
import json
import keyword
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Optional

from pytest_trace2evolve.environments.environment import ScenarioEnvironment
from pytest_trace2evolve.errors import GeneratorError
from pytest_trace2evolve.records.message import Message, ToolCall
from pytest_trace2evolve.records.protocols import ToolSchema

CONVERSATION_OVER = "Error: this conversation is over."
"""The answer of every tool once nothing can change the reward."""

_TYPES: Mapping[str, Any] = {"string": str, "integer": int, "number": float, "boolean": bool, "object": dict}

_RESERVED = frozenset({"reset", "get_reward"})
"""Names of methods that trl does not treat as tools."""


class TrlEnvironment:
    """Base of the classes that `rollout_class` makes. An instance plays one scenario after another."""

    _make_environment: Callable[[], ScenarioEnvironment]
    _policy: str

    def __init__(self) -> None:
        self._environment = type(self)._make_environment()
        self._call_count = 0

    def reset(self, seed: int, **columns: object) -> str:
        """Start the scenario of a seed; return the policy and the conversation so far, for the prompt.

        The other columns of the data set's row are ignored.
        """
        history = self._environment.reset(int(seed))
        self._call_count = 0
        lines = [f"{message.role}: {line}" for message in history for line in _texts_of(message)]
        return "\n".join([self._policy, "", "The conversation so far:", *lines])

    def get_reward(self) -> float:
        """The reward of the scenario so far."""
        return self._environment.reward()

    def _call(self, name: str, arguments: Mapping[str, Any]) -> str:
        self._call_count += 1
        call = ToolCall(id=f"call_{self._call_count}", name=name, arguments=dict(arguments))
        reaction = self._environment.step(Message(role="assistant", content=None, tool_calls=[call]))
        results = (reply.content or "" for reply in reaction.messages if reply.role == "tool")
        return next(results, CONVERSATION_OVER)


def _texts_of(message: Message) -> Sequence[str]:
    """The text of a message, and its calls as JSON."""
    calls = [
        json.dumps({"name": call.name, "arguments": call.arguments}) for call in message.tool_calls or ()
    ]
    return [*([message.text] if message.text else []), *calls]


def rollout_class(
    tools: Sequence[ToolSchema],
    make_environment: Callable[[], ScenarioEnvironment],
    *,
    policy: str,
) -> type[TrlEnvironment]:
    """Make a class with one public method per tool, to pass to trl as its `environment_factory`.

    Args:
        tools: The tools. Each method has exactly the schema of its tool.
        make_environment: Makes the environment that an instance plays.
        policy: The system prompt, which precedes the conversation in the prompt.

    Raises:
        GeneratorError: a method cannot express a tool's name or schema.
    """
    attributes: dict[str, Any] = {
        **{tool.name: _tool_method(tool) for tool in tools},
        "_make_environment": staticmethod(make_environment),
        "_policy": policy,
        "__doc__": "Plays scenarios.",
    }
    return type("Rollout", (TrlEnvironment,), attributes)


def _tool_method(tool: ToolSchema) -> Callable[..., str]:
    """A method whose signature, annotations and docstring express a tool's schema."""
    if not tool.name.isidentifier() or tool.name.startswith("_") or tool.name in _RESERVED:
        raise GeneratorError(f"tool {tool.name!r} cannot be a method: rename it to a public identifier")
    properties: Mapping[str, Any] = tool.parameters.get("properties") or {}
    required_names = tool.parameters.get("required", ())
    for parameter in properties:
        if not parameter.isidentifier() or keyword.iskeyword(parameter) or parameter == "self":
            raise GeneratorError(
                f"tool {tool.name!r}: parameter {parameter!r} cannot be a parameter of a method: rename it"
            )
    # A parameter with a default cannot precede a parameter without a default.
    names = sorted(properties, key=lambda name: name not in required_names)
    annotations = {name: _annotation(tool.name, name, properties[name]) for name in names}
    annotations = {
        name: annotation if name in required_names else Optional[annotation]  # noqa: UP045
        for name, annotation in annotations.items()
    }

    def method(self: TrlEnvironment, *values: Any, **named_values: Any) -> str:
        # The world reports wrong arguments in its own words, as it does to any agent.
        return self._call(tool.name, {**dict(zip(names, values, strict=False)), **named_values})

    parameter_kind, no_default = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.empty
    parameters = [
        inspect.Parameter(
            name,
            parameter_kind,
            annotation=annotations[name],
            default=no_default if name in required_names else None,
        )
        for name in names
    ]
    parameter_lines = [
        f"    {name}: {' '.join(str(properties[name].get('description', name)).split())}" for name in names
    ]
    method.__name__ = method.__qualname__ = tool.name
    method.__doc__ = "\n".join(
        [tool.description, *(["", "Args:", *parameter_lines] if parameter_lines else [])]
    )
    method.__annotations__ = annotations
    signature = inspect.Signature([inspect.Parameter("self", parameter_kind), *parameters])
    method.__signature__ = signature  # type: ignore[attr-defined]  # a function may carry a signature
    return method


def _annotation(tool: str, name: str, schema: Mapping[str, Any]) -> Any:
    """The annotation that expresses a parameter's schema."""
    if "enum" in schema:
        return Literal[tuple(schema["enum"])]
    json_type = schema.get("type")
    if json_type == "array":
        return list[_annotation(tool, name, schema.get("items") or {})]  # type: ignore[misc]  # made at run time
    if not isinstance(json_type, str) or json_type not in _TYPES:
        known_types = ", ".join([*_TYPES, "array"])
        raise GeneratorError(
            f"tool {tool!r}: parameter {name!r} has type {json_type!r}; must be one of {known_types}"
        )
    return _TYPES[json_type]
