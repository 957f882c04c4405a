"""Drafts the records that a conversation names into the data of a task, from the results of its tools."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from pytest_trace2evolve.importing.conversation import inner_json
from pytest_trace2evolve.records.protocols import World
from pytest_trace2evolve.worlds.plain import ToolsWorld

Table = Mapping[str, Mapping[str, Any]]
"""Records of the world's database by id."""


def tables_of(world: World | None) -> dict[str, Table]:
    """Return the tables of a world whose data a task can set: the entries that map ids to records."""
    database = world.open().data() if isinstance(world, ToolsWorld) else None
    return {
        name: table
        for name, table in (database.items() if isinstance(database, dict) else ())
        if isinstance(table, dict) and table and all(isinstance(row, dict) for row in table.values())
    }


def find_records(
    result: str, arguments: Mapping[str, Any], tables: Mapping[str, Table]
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield the records in a tool's result: the table whose fields they have, the id, and those fields.

    A record without its id gets the argument of the call that looks like an id of the table.
    """
    value = inner_json(result)
    fields_by_table = {name: set().union(*table.values()) for name, table in tables.items()}
    for found in _mappings(value):
        rows = [(len(found.keys() & fields), name) for name, fields in fields_by_table.items()]
        overlap, name = max(rows, default=(0, ""))
        if not overlap or 2 * overlap < max(len(found), min(map(len, tables[name].values()))):
            continue
        if record_id := _id_of(found, arguments if found is value else {}, tables[name]):
            yield name, record_id, {key: found[key] for key in found if key in fields_by_table[name]}


def _mappings(value: object) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _mappings(item)


def _id_of(record: Mapping[str, Any], arguments: Mapping[str, Any], table: Table) -> str:
    """Return the id of a record; empty if neither the record nor exactly one argument names it."""
    for field, value in record.items():
        if all(str(row.get(field)) == key for key, row in table.items()):
            return str(value)
    shapes = {re.sub(r"\d+", "0", key) for key in table}
    ids = [str(value) for value in arguments.values() if re.sub(r"\d+", "0", str(value)) in shapes]
    return ids[0] if len(ids) == 1 else ""
