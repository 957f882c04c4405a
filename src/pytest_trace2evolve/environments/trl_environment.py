"""Environments for trl: classes whose public methods are the tools, generated from the tools' schemas.

`GRPOTrainer(environment_factory=…)` makes a tool of every public method except `reset` and `get_reward`, and
reads the schema from the signature, the annotations and the docstring (`transformers.utils.get_json_schema`).
All other methods that a trainer needs are therefore private: their names begin with an underscore. A
signature cannot express the `additionalProperties` of a schema.
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

    def __init__(self) -> None:
        self._environment = type(self)._make_environment()
        self._call_count = 0
        self._is_done = False

    def reset(self, seed: int, **columns: object) -> None:
        """Start the scenario of a seed. The other columns of the data set's row are ignored."""
        self._environment.reset(int(seed))
        self._call_count = 0
        self._is_done = False

    def _call(self, name: str, arguments: Mapping[str, Any]) -> str:
        self._call_count += 1
        call = ToolCall(id=f"call_{self._call_count}", name=name, arguments=dict(arguments))
        replies = self._step(Message(role="assistant", content=None, tool_calls=[call]))
        return next((reply.content or "" for reply in replies if reply.role == "tool"), CONVERSATION_OVER)

    def _step(self, message: Message) -> Sequence[Message]:
        """Process the agent's next message, and return the replies."""
        reaction = self._environment.step(message)
        self._is_done = reaction.done
        return reaction.messages

    def _history(self) -> Sequence[Message]:
        """All messages so far."""
        return self._environment.trace

    def _reward(self) -> float:
        return self._environment.reward()


class PlainTrlEnvironment(TrlEnvironment):
    """For trl's own trainer, which gets the request and the reward from here."""

    _policy: str

    def reset(self, seed: int, **columns: object) -> str:  # type: ignore[override]  # trl's own contract
        """Start the scenario of a seed; return the policy and the conversation so far, for the prompt."""
        super().reset(seed)
        lines = [f"{message.role}: {line}" for message in self._history() for line in _texts_of(message)]
        return "\n".join([self._policy, "", "The conversation so far:", *lines])

    def get_reward(self) -> float:
        """The reward of the scenario so far."""
        return self._reward()


def _texts_of(message: Message) -> Sequence[str]:
    """The text of a message, and its calls as JSON."""
    calls = [
        json.dumps({"name": call.name, "arguments": call.arguments}) for call in message.tool_calls or ()
    ]
    return [*([message.text] if message.text else []), *calls]


def rollout_class(
    tools: Sequence[ToolSchema],
    make_environment: Callable[[], ScenarioEnvironment],
    name: str = "Rollout",
    *,
    policy: str | None = None,
) -> type[TrlEnvironment]:
    """Make a class with one public method per tool, to pass to trl as its `environment_factory`.

    Args:
        tools: The tools. Each method has exactly the schema of its tool.
        make_environment: Makes the environment that an instance plays.
        name: The class's name; trl logs rewards under it.
        policy: The system prompt, for trl's own trainer: the class then gives it the policy, the conversation
            and the reward. None for trainers of this package, which read these elsewhere.

    Raises:
        GeneratorError: a method cannot express a tool's name or schema.
    """
    methods: dict[str, Any] = {tool.name: _tool_method(tool) for tool in tools}
    attributes = {
        **methods,
        "_make_environment": staticmethod(make_environment),
        "__doc__": "Plays scenarios.",
    }
    if policy is None:
        return type(name, (TrlEnvironment,), attributes)
    return type(name, (PlainTrlEnvironment,), {**attributes, "_policy": policy})


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
