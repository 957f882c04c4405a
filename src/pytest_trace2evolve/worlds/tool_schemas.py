"""Makes tool schemas from the type hints and docstrings of the public methods of a class."""

import contextlib
import inspect
import re
import types
import typing
import warnings
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, PydanticUserError, ValidationError, create_model
from pydantic.errors import PydanticSchemaGenerationError
from pydantic.json_schema import PydanticJsonSchemaWarning

from pytest_trace2evolve.errors import WorldError, name_suggestion
from pytest_trace2evolve.records.protocols import ToolSchema
from pytest_trace2evolve.utils.reading import first_problem, main_problem
from pytest_trace2evolve.worlds.plain_data import to_json

_LIBRARIES = frozenset({"pydantic", "abc", "typing", "builtins", "collections", "enum"})
"""Top-level modules whose base classes have no tools."""

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
            # A tool may store an argument in the database and change it there.
            model = self.arguments.model_validate(deepcopy(dict(arguments)))
        except ValidationError as error:
            raise ValueError(_problem(error, self.schema)) from None
        # An absent argument is left out, so that the method's own default applies.
        return {
            str(field.alias): getattr(model, name)
            for name, field in self.arguments.model_fields.items()
            if name in model.model_fields_set
        }

    def convert_argument(self, name: str, value: Any) -> Any:
        """Convert one argument of a call, as JSON; an invalid or unknown one is returned unchanged."""
        fields = {field.alias: key for key, field in self.arguments.model_fields.items()}
        with contextlib.suppress(Exception):  # from a validator of the project's own
            model = self.arguments.model_construct()
            model.__pydantic_validator__.validate_assignment(model, fields[name], deepcopy(value))
            return to_json(getattr(model, fields[name]))
        return value


def _problem(error: ValidationError, schema: ToolSchema) -> str:
    problem = main_problem(error)
    if problem["type"] == "extra_forbidden" and len(problem["loc"]) == 1:
        name = str(problem["loc"][0])
        return f"unknown argument {name!r}; {name_suggestion(name, schema.parameters['properties'])}"
    return first_problem(error, "arguments")


def tool_methods(cls: type) -> dict[str, ToolMethod]:
    """Return the tools of a class by name: its public methods, in the order of their definition.

    Inherited methods are tools too, except those of base classes of pydantic and other libraries.

    Raises:
        WorldError: the class has no public method, or a method cannot be a tool, for example because a
            parameter has no type hint.
    """
    methods: dict[str, ToolMethod] = {}
    for base in reversed(cls.__mro__[:-1]):
        if base.__module__.partition(".")[0] in _LIBRARIES:
            continue
        for name in vars(base):
            function = inspect.getattr_static(cls, name, None)
            if isinstance(function, staticmethod | classmethod):
                function = function.__func__
            if not name.startswith("_") and inspect.isfunction(function):
                methods[name] = _tool_method(cls, name, function)
    if not methods:
        raise WorldError(
            f"{cls.__name__} has no public method; each public method becomes a tool of the agent"
        )
    return methods


def _tool_method(cls: type, name: str, function: Any) -> ToolMethod:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise WorldError(
            f"{cls.__name__}.{name} is a generator; return a list, because a tool has one result"
        )
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,63}", name):
        raise WorldError(
            f"{cls.__name__}.{name}: models reject this name of a tool; use ASCII, at most 64 letters"
        )
    description, parameter_descriptions = parse_docstring(_docstring(cls, name))
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except Exception as error:  # a hint may be any expression
        raise WorldError(f"{cls.__name__}.{name}: its type hints cannot be read ({error})") from None
    is_static = isinstance(inspect.getattr_static(cls, name), staticmethod)
    fields: dict[str, Any] = {}
    for position, parameter in enumerate(inspect.signature(function).parameters.values()):
        if position == 0 and not is_static:
            continue  # self or cls
        label = f"{cls.__name__}.{name}: parameter {parameter.name!r}"
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise WorldError(f"{label} has no name in a call of a tool; use a named parameter")
        if parameter.name not in hints:
            raise WorldError(f"{label} has no type hint; add one, because the tool's schema is made from it")
        default = ... if parameter.default is parameter.empty else parameter.default
        # The alias lets a parameter have any name, even one of pydantic's own, such as `copy`.
        options: dict[str, Any] = {"alias": parameter.name}
        if text := parameter_descriptions.get(parameter.name):
            options["description"] = text
        fields[f"argument_{position}"] = (
            _hint_with_descriptions(hints[parameter.name]),
            Field(default, **options),
        )
    try:
        arguments = create_model("parameters", __config__=ConfigDict(extra="forbid"), **fields)
        with warnings.catch_warnings():  # a default that has no JSON form is left out of the schema
            warnings.simplefilter("ignore", PydanticJsonSchemaWarning)
            parameters = arguments.model_json_schema()
    except (PydanticUserError, PydanticSchemaGenerationError) as error:
        cause = " ".join(str(error).split())[:200]
        raise WorldError(f"{cls.__name__}.{name}: its parameters have no JSON schema ({cause})") from None
    for key in ("additionalProperties", "title"):
        parameters.pop(key, None)
    parameters.setdefault("properties", {})
    for value in parameters["properties"].values():
        value.pop("title", None)
    return ToolMethod(ToolSchema(name=name, description=description, parameters=parameters), arguments)


def _docstring(cls: type, name: str) -> str:
    """The docstring of a method, or of the method that it overrides."""
    for base in cls.__mro__:
        member = vars(base).get(name)
        function = member.__func__ if isinstance(member, staticmethod | classmethod) else member
        if inspect.isfunction(function) and function.__doc__:
            return inspect.cleandoc(function.__doc__)
    return ""


def _hint_with_descriptions(hint: Any) -> Any:
    """Return a hint with the texts in its `Annotated` as descriptions, as other libraries read them."""
    if typing.get_origin(hint) is not typing.Annotated:
        return hint
    inner, *notes = typing.get_args(hint)
    fields = tuple(Field(description=note) if isinstance(note, str) else note for note in notes)
    return typing.Annotated[(inner, *fields)]


def strip_hint(hint: Any) -> Any:
    """A type hint without `Annotated` and `Optional` around it."""
    while True:
        if typing.get_origin(hint) is typing.Annotated:
            hint = typing.get_args(hint)[0]
            continue
        arguments = (
            typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else ()
        )
        inner = [argument for argument in arguments if argument is not type(None)]
        if len(inner) != 1:
            return hint
        hint = inner[0]


def own_annotation(owner: Any, name: str) -> bool:
    """Whether a class, one of its bases, or a function annotates a name."""
    owners = owner.__mro__ if inspect.isclass(owner) else [owner]
    return any(name in getattr(base, "__annotations__", ()) for base in owners)


def parse_docstring(text: str) -> tuple[str, dict[str, str]]:
    """Split a docstring into the description and the descriptions of its parameters.

    Google style (`Args:`) and reStructuredText fields (`:param name:`) are supported.
    """
    description: list[str] = []
    parameter_descriptions: dict[str, str] = {}
    section, current, indent = "", "", 0
    for line in text.splitlines():
        stripped = line.strip()
        if heading := _SECTION.match(stripped):
            section, current = heading[1], ""
        elif field := _FIELD.match(stripped):
            section, current = "Args", field[1]
            parameter_descriptions[current] = field[2]
        elif stripped.startswith(":") and ":" in stripped[1:]:
            section, current = "Returns", ""
        elif not section:
            description.append(stripped)
        elif section in ("Args", "Arguments", "Parameters") and stripped:
            depth = len(line) - len(line.lstrip())
            argument = _ARGUMENT.match(stripped)
            if argument and (not current or depth <= indent):
                current, indent = argument[1], depth
                parameter_descriptions[current] = argument[2]
            elif current:
                parameter_descriptions[current] = f"{parameter_descriptions[current]} {stripped}".strip()
    paragraphs = re.split(r"\n\s*\n", "\n".join(description).strip())
    return "\n\n".join(" ".join(part.split()) for part in paragraphs).strip(), parameter_descriptions
