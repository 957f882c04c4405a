"""Parses YAML that people write: no tags, no repeated keys, and dates as text."""

from typing import Any

from pytest_trace2evolve.errors import Trace2EvolveError


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
        keys = [loader.construct_object(key, deep=True) for key, _ in node.value]
        if repeated := [key for key in keys if keys.count(key) > 1]:
            line = first_line + node.start_mark.line
            raise error(f"{source}, line {line}: {repeated[0]!r} occurs twice in one mapping; remove one")
        return yaml.SafeLoader.construct_mapping(loader, node, deep=True)

    Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, construct_mapping)
    Loader.add_constructor("tag:yaml.org,2002:timestamp", lambda loader, node: node.value)
    try:
        return yaml.load(text, Loader=Loader)
    except yaml.MarkedYAMLError as problem:
        mark = problem.problem_mark or problem.context_mark
        line = first_line + (mark.line if mark else 0)
        raise error(f"{source}, line {line}: is not YAML: {problem.problem}; correct the line") from None
    except (yaml.YAMLError, RecursionError, TypeError, ValueError) as problem:
        cause = " ".join(str(problem).split())[:200]
        raise error(f"{source}: is not YAML: {cause}; correct it") from None
