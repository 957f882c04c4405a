"""Tool schemas from the public methods of a class: type hints give the types, docstrings the descriptions."""

import inspect
import re
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, PydanticUserError, ValidationError, create_model
from pydantic.errors import PydanticSchemaGenerationError

from pytest_trace2evolve.errors import WorldError
from pytest_trace2evolve.records.protocols import ToolSchema
from pytest_trace2evolve.utils.reading import first_problem

_SECTION = re.compile(r"^(Args|Arguments|Parameters|Returns|Return|Raises|Yields|Examples?|Notes?)\s*:?\s*$")
_ARGUMENT = re.compile(r"^\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")
_FIELD = re.compile(r"^:param\s+(?:[\w\[\], .]+\s+)?(\w+)\s*:\s*(.*)$")


@dataclass(frozen=True)
class ToolMethod:
    """A public method that an agent can call.

    Attributes:
        schema: The tool as a model sees it.
        arguments: A model that validates and converts the arguments of a call.
    """

    schema: ToolSchema
    arguments: type[BaseModel]

    def convert(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Convert the arguments of a call to the types of the method's parameters.

        Raises:
            ValueError: an argument is missing, unknown or of the wrong type.
        """
        try:
            model = self.arguments.model_validate(dict(arguments))
        except ValidationError as error:
            raise ValueError(first_problem(error, "arguments")) from None
        return {name: getattr(model, name) for name in model.model_fields_set}


def tool_methods(cls: type) -> dict[str, ToolMethod]:
    """Return the tools of a class by name: its public methods, in the order of their definition.

    Raises:
        WorldError: the class has no public method, or a method has no type hint or one without a JSON schema.
    """
    found: dict[str, ToolMethod] = {}
    for base in reversed(cls.__mro__[:-1]):
        for name in vars(base):
            function = inspect.getattr_static(cls, name, None)
            if isinstance(function, staticmethod | classmethod):
                function = function.__func__
            if not name.startswith("_") and inspect.isfunction(function):
                found[name] = _tool_method(cls, name, function)
    if not found:
        raise WorldError(
            f"{cls.__name__} has no public method; each public method becomes a tool of the agent"
        )
    return found


def _tool_method(cls: type, name: str, function: Any) -> ToolMethod:
    description, described = parse_docstring(inspect.getdoc(function) or "")
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except Exception as error:  # a hint is any expression
        raise WorldError(f"{cls.__name__}.{name}: its type hints cannot be read ({error})") from None
    static = isinstance(inspect.getattr_static(cls, name), staticmethod)
    fields: dict[str, Any] = {}
    for position, parameter in enumerate(inspect.signature(function).parameters.values()):
        if position == 0 and not static:
            continue  # self or cls
        where = f"{cls.__name__}.{name}: parameter {parameter.name!r}"
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise WorldError(f"{where} has no name in a call of a tool; use a named parameter")
        if parameter.name not in hints:
            raise WorldError(f"{where} has no type hint; add one, because the tool's schema is made from it")
        default = ... if parameter.default is parameter.empty else parameter.default
        text = described.get(parameter.name)
        fields[parameter.name] = (
            hints[parameter.name],
            Field(default, description=text) if text else default,
        )
    try:
        arguments = create_model(
            "parameters", __config__=ConfigDict(extra="forbid", arbitrary_types_allowed=False), **fields
        )
        parameters = arguments.model_json_schema()
    except (PydanticUserError, PydanticSchemaGenerationError) as error:
        cause = " ".join(str(error).split())[:200]
        raise WorldError(f"{cls.__name__}.{name}: its parameters have no JSON schema ({cause})") from None
    parameters.pop("additionalProperties", None)
    parameters.setdefault("properties", {})
    for value in parameters["properties"].values():
        value.pop("title", None)
    return ToolMethod(ToolSchema(name=name, description=description, parameters=parameters), arguments)


def parse_docstring(text: str) -> tuple[str, dict[str, str]]:
    """Split a docstring into the description and the descriptions of its parameters.

    Google style (`Args:`) and reStructuredText fields (`:param name:`) are understood.
    """
    description: list[str] = []
    described: dict[str, str] = {}
    section, current, indent = "", "", 0
    for line in text.splitlines():
        stripped = line.strip()
        if heading := _SECTION.match(stripped):
            section, current = heading[1], ""
        elif field := _FIELD.match(stripped):
            section, current = "Args", field[1]
            described[current] = field[2]
        elif stripped.startswith(":") and ":" in stripped[1:]:
            section, current = "Returns", ""
        elif not section:
            description.append(stripped)
        elif section in ("Args", "Arguments", "Parameters") and stripped:
            depth = len(line) - len(line.lstrip())
            argument = _ARGUMENT.match(stripped)
            if argument and (not current or depth <= indent):
                current, indent = argument[1], depth
                described[current] = argument[2]
            elif current:
                described[current] = f"{described[current]} {stripped}".strip()
    paragraphs = re.split(r"\n\s*\n", "\n".join(description).strip())
    return "\n\n".join(" ".join(part.split()) for part in paragraphs).strip(), described
