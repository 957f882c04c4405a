"""JSON schemas of the files that a person writes, with which editors complete and check them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter

from pytest_trace2evolve.cases.written import WrittenTask
from pytest_trace2evolve.project.candidates import Candidate
from pytest_trace2evolve.project.suites import Suite

_INTERNAL_FIELDS = ("name", "instruction", "weights")
"""Fields of records that do not come from a key of a file."""


def schema_files() -> dict[str, str]:
    """Return the schemas of tasks, suites and candidates, by their paths in a project."""
    schemas = {
        "tasks": TypeAdapter(list[WrittenTask]).json_schema(),
        # A suite may take its world and its agent from pyproject.toml.
        "suite": _file_schema(
            Suite.model_json_schema(), {key: {"type": "string"} for key in Suite.SHORT_KEYS}
        ),
        "candidate": _file_schema(Candidate.model_json_schema(), {}, required=["id"]),
    }
    return {
        f"suites/schemas/{name}.json": json.dumps(schema, indent=1, ensure_ascii=False) + "\n"
        for name, schema in schemas.items()
    }


def _file_schema(
    schema: dict[str, Any], keys: Mapping[str, Any], required: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the schema of a file from that of its record, with further keys and the required keys."""
    fields = {name: value for name, value in schema["properties"].items() if name not in _INTERNAL_FIELDS}
    return {**schema, "properties": {**fields, **keys}, "required": list(required)}
