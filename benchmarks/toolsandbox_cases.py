"""Random trajectories and milestones over ToolSandbox's tables, with content of our own.

They have every rule, measure and kind of reference. `toolsandbox.py` scores them with ToolSandbox, and
tests compare with those scores.
"""

import json
import random
from typing import Any

WORDS = ["open", "closing", "the", "red", "garden", "gates", "quickly", "near", "3", "old", "rivers"]
NAMES = ("Ada", "Bo", "Cy")
TOOLS = ("find_place", "set_alarm", "measure")
COLUMNS = {
    "SETTING": ("wifi", "cellular", "latitude"),
    "CONTACT": ("person_id", "name", "relationship", "is_self"),
    "REMINDER": ("reminder_id", "content", "reminder_timestamp", "latitude"),
    "MESSAGING": ("message_id", "content", "recipient_phone_number", "creation_timestamp"),
}
CHANGES = ("added", "removed", "updated")


class Maker:
    """Makes one case: snapshots, milestones and minefields, as JSON."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def case(self) -> dict[str, Any]:
        """A trajectory with milestones that are partly taken from it, so that many match."""
        snapshots = self.snapshots()
        milestones = [self.milestone(snapshots, index) for index in range(self.random.randint(1, 4))]
        minefields = [self.milestone(snapshots, 0)] if self.random.random() < 0.3 else []
        return {
            "snapshots": snapshots,
            "milestones": self.graph(milestones),
            "minefields": self.graph(minefields),
        }

    def graph(self, milestones: list[Any]) -> dict[str, Any]:
        size = len(milestones)
        edges = [[index, index + 1] for index in range(size - 1)]
        if size > 2 and self.random.random() < 0.4:
            edges = [[0, 1], *[[0, index] for index in range(2, size)]]
        return {"milestones": milestones, "order": list(range(size)), "edges": edges}

    def text(self) -> str:
        return " ".join(self.random.choices(WORDS, k=self.random.randint(1, 7)))

    def value(self, column: str) -> Any:
        pick = self.random.choice
        if column in ("wifi", "cellular", "is_self"):
            return pick([True, False])
        if column in ("latitude", "reminder_timestamp", "creation_timestamp"):
            return pick([0.0, 1.5, 1.5004, 40.25])
        return self.text() if column == "content" else pick(NAMES)

    def row(self, table: str) -> dict[str, Any]:
        row = {column: self.value(column) for column in COLUMNS[table]}
        for column in ("latitude", "relationship", "recipient_phone_number"):
            if column in row and table != "SETTING" and self.random.random() < 0.3:
                row[column] = None
        return row

    def snapshots(self) -> list[dict[str, Any]]:
        tables = {
            table: [self.row(table) for _ in range(1 if table == "SETTING" else self.random.randint(0, 3))]
            for table in COLUMNS
        }
        snapshots = [{"SANDBOX": [self.message("USER", "AGENT")], **tables}]
        for _ in range(self.random.randint(2, 7)):
            if self.random.random() < 0.5:
                tables = {**tables, **self.changed(tables)}
            kind = self.random.random()
            message = (
                self.result()
                if kind < 0.5
                else self.message(*(("AGENT", "USER") if kind < 0.8 else ("USER", "AGENT")))
            )
            snapshots.append({"SANDBOX": [message], **tables})
        return snapshots

    def changed(self, tables: dict[str, list[Any]]) -> dict[str, list[Any]]:
        table = self.random.choice(list(tables))
        rows = list(tables[table])
        if table == "SETTING" or (rows and self.random.random() < 0.4):
            place = self.random.randrange(len(rows))
            column = self.random.choice(COLUMNS[table][1:])
            rows[place] = {**rows[place], column: self.value(column)}
        elif rows and self.random.random() < 0.4:
            rows.pop(self.random.randrange(len(rows)))
        else:
            rows.append(self.row(table))
        return {table: rows}

    def message(self, sender: str, recipient: str) -> dict[str, Any]:
        return {"sender": sender, "recipient": recipient, "content": self.text(), "tool_trace": None}

    def arguments(self) -> dict[str, Any]:
        pool = {"place": self.random.choice(NAMES), "amount": self.random.choice([1, 2.5, 2.6]), "on": True}
        return {name: pool[name] for name in self.random.sample(sorted(pool), self.random.randint(0, 3))}

    def result(self) -> dict[str, Any]:
        result = self.random.choice([None, 2.5, {"days": 3}, {"latitude": 1.5, "longitude": 2}, "x"])
        trace = {"tool_name": self.random.choice(TOOLS), "arguments": self.arguments(), "result": result}
        failed = self.random.random() < 0.2
        return {
            "sender": "EXECUTION_ENVIRONMENT",
            "recipient": "AGENT",
            "content": repr(result),
            "tool_trace": None if failed else [json.dumps(trace)],
        }

    def milestone(self, snapshots: list[dict[str, Any]], index: int) -> list[dict[str, Any]]:
        chosen = self.random.choice(snapshots)
        reference = self.random.choice([-1, *range(index)])
        makers = [self.message_like, self.state_like, self.change_like, self.filled_like]
        parts = self.random.sample(makers, self.random.randint(1, 2))
        constraints = [make(chosen, reference) for make in parts]
        if self.random.random() < 0.6:
            table = self.random.choice(list(COLUMNS))
            constraints.append({"table": table, "rule": "unchanged", "reference": reference})
        return constraints

    def message_like(self, snapshot: dict[str, Any], reference: int) -> dict[str, Any]:
        (row,) = snapshot["SANDBOX"]
        target = {"sender": row["sender"], "recipient": row["recipient"]}
        columns = {"sender": {"measure": "exact"}, "recipient": {"measure": "exact"}}
        if row["tool_trace"] is not None:
            calls = [
                json.loads(row["tool_trace"][0]),
                {"tool_name": "measure", "arguments": self.arguments()},
            ]
            wanted = [{"tool_name": call["tool_name"], "arguments": call["arguments"]} for call in calls]
            target["tool_trace"] = json.dumps(self.random.choice([wanted, wanted[0], wanted[1]]))
            tolerance = self.random.choice([{}, {"amount": 0.2}, {"amount": None}])
            columns["tool_trace"] = {"measure": "calls", "tolerance": tolerance}
        else:
            words = row["content"].split()
            target["content"] = " ".join(self.random.choice([words, words[:3], [*words, "gate"]]))
            columns["content"] = {"measure": self.random.choice(["rouge", "contains", "exact", "always"])}
        return {"table": "SANDBOX", "rule": "match", "reference": None, "rows": [target], "columns": columns}

    def state_like(self, snapshot: dict[str, Any], reference: int) -> dict[str, Any]:
        table = self.random.choice(list(COLUMNS))
        return self.rows_like(table, "match", snapshot[table], None)

    def change_like(self, snapshot: dict[str, Any], reference: int) -> dict[str, Any]:
        table = self.random.choice(list(COLUMNS)[1:])
        rows = snapshot[table][-self.random.randint(1, 2) :]
        return self.rows_like(table, self.random.choice(CHANGES), rows, reference)

    def rows_like(self, table: str, rule: str, rows: list[Any], reference: int | None) -> dict[str, Any]:
        rows = rows or [self.row(table)]
        names = self.random.sample(COLUMNS[table], self.random.randint(1, len(COLUMNS[table])))
        measures = {}
        for name in names:
            is_number = isinstance(next((row[name] for row in rows if row[name] is not None), None), float)
            is_known = all(isinstance(row[name], float) for row in rows)
            if is_number and is_known and self.random.random() < 0.5:
                measures[name] = {"measure": "close", "tolerance": {name: 0.001}}
            else:
                measures[name] = {"measure": "rouge" if name == "content" else "exact"}
        wanted = [{name: row[name] for name in names} for row in rows]
        return {"table": table, "rule": rule, "reference": reference, "rows": wanted, "columns": measures}

    def filled_like(self, snapshot: dict[str, Any], reference: int) -> dict[str, Any]:
        extractor, row = self.random.choice(
            [
                ("days_extractor", {"content": "it is {days} days"}),
                ("result_to_temperature_extractor", {"content": "the old {temperature}"}),
                ("lat_lon_dict_extractor", {"tool_trace": {"tool_name": "measure", "arguments": {}}}),
                (
                    "result_to_timestamp0_extractor",
                    {"tool_trace": {"tool_name": "measure", "arguments": {"on": True}}},
                ),
            ]
        )
        column = next(iter(row))
        value = row[column] if column == "content" else json.dumps(row[column])
        return {
            "table": "SANDBOX",
            "rule": "filled",
            "reference": reference,
            "rows": [{column: value}],
            "columns": {column: {"measure": "rouge" if column == "content" else "calls"}},
            "extractor": extractor,
        }
