"""Reads and writes YAML that people edit: rejects repeated keys, and reads text where YAML 1.1 guesses types.

Only `true` and `false` are booleans, so `no` and `on` are texts. Dates, times (`12:30`), and numbers with a
leading zero or plus (`02139`, `+4930901820`) are texts too.
"""

import re
from typing import Any

from pytest_trace2evolve.errors import Trace2EvolveError


class WrittenFloat(float):
    """A number that remembers how it was written, such as `12.50`."""

    text = ""


_BOOLEAN = re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$")
_INTEGER = re.compile(r"^(?:0|-?[1-9][0-9]*)$")
_FLOAT = re.compile(r"^-?(?:0|[1-9][0-9]*)\.[0-9]+(?:[eE][-+]?[0-9]+)?$")


def parse_yaml(text: str, source: object, error: type[Trace2EvolveError], first_line: int = 1) -> Any:
    """Parse a YAML text.

    Args:
        text: The text.
        source: The file or part of a file, for error messages.
        error: The class of the error to raise.
        first_line: The number of the text's first line in its file.

    Raises:
        Trace2EvolveError: the text is not YAML or repeats a key; the class is `error`, and the message names
            the line.
    """
    import yaml

    class Loader(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML has no type hints
        """Reads dates as text, and rejects repeated keys."""

    def construct_mapping(loader: Any, node: Any) -> Any:
        seen_keys: set[Any] = set()
        for key_node, _ in node.value:
            key = loader.construct_object(key_node, deep=True)
            if isinstance(key, list | dict):
                continue  # PyYAML rejects such a key itself
            if key in seen_keys:
                line = first_line + key_node.start_mark.line
                raise error(f"{source}, line {line}: {key!r} occurs twice in one mapping; remove one")
            seen_keys.add(key)
        return yaml.SafeLoader.construct_mapping(loader, node, deep=True)

    Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, construct_mapping)

    def construct_float(loader: Any, node: Any) -> WrittenFloat:
        number = WrittenFloat(node.value)
        number.text = node.value
        return number

    tags = {"bool": _BOOLEAN, "int": _INTEGER, "float": _FLOAT, "timestamp": None, "value": None}
    replaced_tags = {f"tag:yaml.org,2002:{name}" for name in tags}
    Loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag not in replaced_tags]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    for name, pattern in tags.items():
        if pattern is not None:
            Loader.add_implicit_resolver(f"tag:yaml.org,2002:{name}", pattern, list("-0123456789tTfF"))
    Loader.add_constructor("tag:yaml.org,2002:float", construct_float)
    try:
        return yaml.load(text, Loader=Loader)
    except yaml.MarkedYAMLError as problem:
        mark = problem.problem_mark or problem.context_mark
        line = first_line + (mark.line if mark else 0)
        raise error(
            f"{source}, line {line}: is not YAML: {problem.problem}; correct the line, and quote texts that "
            "contain ? : , { or }"
        ) from None
    except (yaml.YAMLError, RecursionError, TypeError, ValueError) as problem:
        cause = " ".join(str(problem).split())[:200]
        raise error(f"{source}: is not YAML: {cause}; correct it") from None


def dump_yaml(value: Any) -> str:
    """Render a value as YAML that `parse_yaml` reads as the same value."""
    import yaml

    base: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)

    class Dumper(base):  # type: ignore[misc]
        """Writes numbers as they were written, and quotes each text that would be read as a number."""

    float_tag = "tag:yaml.org,2002:float"
    Dumper.add_implicit_resolver(float_tag, _FLOAT, list("-0123456789"))
    Dumper.add_representer(
        WrittenFloat, lambda dumper, number: dumper.represent_scalar(float_tag, number.text)
    )
    text: str = yaml.dump(
        value, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=100, default_flow_style=False
    )
    return text
