"""An environment as trl drives one: a class whose public methods are the tools, made from their schemas.

`GRPOTrainer(environment_factory=…)` makes a tool of every public method but `reset`, and reads its schema
from signature, annotations and docstring (`transformers.utils.get_json_schema`). So nothing else here is
public; what a trainer needs beside the tools begins with an underscore. One thing of a schema cannot be said
in a signature: `additionalProperties`.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Optional

from pytest_trace2evolve.environments.environment import PlayedEnvironment
from pytest_trace2evolve.errors import GeneratorError
from pytest_trace2evolve.records.message import Message, ToolCall
from pytest_trace2evolve.records.protocols import ToolSchema

OVER = "Error: this conversation is over."
"""What a tool answers once nothing can change the reward any more."""

_TYPES: Mapping[str, Any] = {"string": str, "integer": int, "number": float, "boolean": bool, "object": dict}

_OWN = frozenset({"reset", "get_reward"})
"""Names that trl takes for something else than a tool."""


class Rollouts:
    """Base of the classes that `rollout_class` makes: plays one scenario after another."""

    _open: Callable[[], PlayedEnvironment]

    def __init__(self) -> None:
        self._environment = type(self)._open()
        self._calls = 0
        self._done = False

    def reset(self, seed: int, **columns: object) -> None:
        """Begin the scenario of a seed from nothing.

        Args:
            seed: The scenario.
            columns: What else the row of the data set holds; it is passed over.
        """
        self._environment.reset(int(seed))
        self._calls = 0
        self._done = False

    def _call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Make one call; its result as text."""
        self._calls += 1
        call = ToolCall(id=f"call_{self._calls}", name=name, arguments=dict(arguments))
        said = self._step(Message(role="assistant", content=None, tool_calls=[call]))
        return next((one.content or "" for one in said if one.role == "tool"), OVER)

    def _say(self, text: str) -> str | None:
        """Say something to the customer; what they answer, None where the conversation is over."""
        said = self._step(Message(role="assistant", content=text))
        answer = next((one.content for one in said if one.role == "user"), None)
        return None if self._done else answer

    def _step(self, message: Message) -> Sequence[Message]:
        reaction = self._environment.step(message)
        self._done = reaction.done
        return reaction.messages

    def _reward(self) -> float:
        return self._environment.reward()


def rollout_class(
    tools: Sequence[ToolSchema], make: Callable[[], PlayedEnvironment], name: str = "Rollout"
) -> type[Rollouts]:
    """A class with one public method a tool, to be given to trl as its `environment_factory`.

    Args:
        tools: The tools; the methods' schemas are exactly theirs.
        make: Makes the environment that an instance plays; each has its own.
        name: The class's name; trl logs rewards under it.

    Raises:
        GeneratorError: a tool's name or schema cannot be said as a method.
    """
    methods: dict[str, Any] = {tool.name: _method(tool) for tool in tools}
    return type(name, (Rollouts,), {**methods, "_open": staticmethod(make), "__doc__": "Plays scenarios."})


def _method(tool: ToolSchema) -> Callable[..., str]:
    """A method whose signature, annotations and docstring say a tool's schema."""
    if not tool.name.isidentifier() or tool.name.startswith("_") or tool.name in _OWN:
        raise GeneratorError(f"tool {tool.name!r} cannot be a method: rename it, in letters and digits")
    properties: Mapping[str, Any] = tool.parameters.get("properties") or {}
    required = tool.parameters.get("required", ())
    hints = {name: _hint(tool.name, name, one) for name, one in properties.items()}
    hints = {name: hint if name in required else Optional[hint] for name, hint in hints.items()}  # noqa: UP045
    # A parameter with a default cannot stand before one without.
    order = sorted(properties, key=lambda name: name not in required)

    def method(self: Rollouts, *given: Any, **named: Any) -> str:
        # Whatever is wrong with the arguments, the world says so in its own words, as in the target.
        return self._call(tool.name, {**dict(zip(order, given, strict=False)), **named})

    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    signature = inspect.Signature([own, *(_parameter(name, hints[name], name in required) for name in order)])
    lines = [
        f"    {name}: {' '.join(str(properties[name].get('description', name)).split())}" for name in order
    ]
    method.__name__ = method.__qualname__ = tool.name
    method.__doc__ = "\n".join([tool.description, *(["", "Args:", *lines] if lines else [])])
    method.__annotations__ = {name: hints[name] for name in order}
    method.__signature__ = signature  # type: ignore[attr-defined]  # every function may carry one
    return method


def _parameter(name: str, hint: Any, required: bool) -> inspect.Parameter:
    default = inspect.Parameter.empty if required else None
    return inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=hint, default=default)


def _hint(tool: str, name: str, schema: Mapping[str, Any]) -> Any:
    """The annotation that says a parameter's schema."""
    if "enum" in schema:
        return Literal[tuple(schema["enum"])]
    kind = schema.get("type")
    if kind == "array":
        return list[_hint(tool, name, schema.get("items") or {})]  # type: ignore[misc]  # made at run time
    if not isinstance(kind, str) or kind not in _TYPES:
        known = ", ".join([*_TYPES, "array"])
        raise GeneratorError(f"tool {tool!r}: parameter {name!r} has type {kind!r}; methods can say {known}")
    return _TYPES[kind]
