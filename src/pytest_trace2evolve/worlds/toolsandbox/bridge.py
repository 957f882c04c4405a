"""Runs inside ToolSandbox's own environment: dumps its scenarios as JSON, and runs its tools.

The file is started by path, so that it imports nothing of this package, whose dependencies are newer.

    python bridge.py export CLOCK SEED > scenarios.json
    python bridge.py serve CLOCK EXPORT     # one JSON request a line on stdin, one answer a line on stdout

The clock is frozen and new ids follow a count, so that the same calls have the same results.
"""

import ast
import contextlib
import datetime
import itertools
import json
import os
import random
import re
import sys
import traceback
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAX_ORDERS = 720
"""The maximum number of orders in which parallel calls are tried; upstream tries all of them."""

ids: dict[str, Any] = {"scope": "", "count": 0}


def _next_id() -> uuid.UUID:
    ids["count"] += 1
    return uuid.uuid5(uuid.NAMESPACE_URL, f"{ids['scope']}/{ids['count']}")


def freeze(clock: float) -> None:
    """Freeze the clock and the ids. Call this before an import of ToolSandbox.

    Args:
        clock: The POSIX time in seconds.
    """
    os.environ["TZ"] = "UTC"

    class Frozen(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> "Frozen":
            return cls.fromtimestamp(clock, tz)

    datetime.datetime = Frozen  # type: ignore[misc]
    uuid.uuid4 = _next_id


# The values that upstream's extractors take from a tool's result: the names that they fill, each with the
# keys that lead to its value, and the conversion.
EXTRACTORS = {
    "days_extractor": ({"days": ["days"]}, "int"),
    "lat_lon_dict_extractor": ({"latitude": ["latitude"], "longitude": ["longitude"]}, "none"),
    "current_temperature_extractor": ({"amount": ["current_temperature"]}, "float"),
    "min_temperature_amount_extractor": ({"amount": ["min_temperature"]}, "float"),
    "search_weather_around_lat_lon_temperature_extractor": ({"temperature": ["current_temperature"]}, "text"),
    "result_to_timestamp0_extractor": ({"timestamp_0": []}, "float"),
    "result_to_timestamp1_extractor": ({"timestamp_1": []}, "float"),
    "result_to_reminder_timestamp_lowerbound_extractor": ({"reminder_timestamp_lowerbound": []}, "float"),
    "result_to_temperature_extractor": ({"temperature": []}, "text"),
    "min_temperature_extractor": ({"min_temperature": []}, "text"),
}

RULES = {
    "snapshot_similarity": "match",
    "addition_similarity": "added",
    "removal_similarity": "removed",
    "update_similarity": "updated",
    "guardrail_similarity": "unchanged",
    "tool_trace_dependant_similarity": "filled",
}

MEASURES = {
    "column_exact_match_similarity": "exact",
    "column_close_similarity": "close",
    "column_one_similarity": "always",
    "column_contains_similarity": "contains",
    "column_tool_trace_exact_match_similarity": "calls",
    "column_rouge_l_similarity": "rouge",
}


def _function(value: Any) -> tuple[str, Mapping[str, Any]]:
    """The function's name and the keywords of a function or of a partial one."""
    inner = getattr(value, "func", value)
    return inner.__name__, getattr(value, "keywords", {})


def _known(names: Mapping[str, Any], name: str) -> Any:
    if name not in names:
        raise SystemExit(
            f"this revision of ToolSandbox has {name!r}, which is not known; use revision 165848b9"
        )
    return names[name]


def dump_graph(matcher: Any) -> dict[str, Any]:
    """The JSON of milestones or minefields: see `Graph` in `scoring/milestones.py`."""
    return {
        "milestones": [
            # Upstream adds guards in the order of a set, which differs between processes.
            sorted(map(_dump_constraint, milestone.snapshot_constraints), key=_guard_order)
            for milestone in matcher.milestones
        ],
        "order": sorted(matcher.milestone_dag.nodes),
        "edges": sorted(matcher.milestone_dag.edges),
    }


def _guard_order(constraint: Mapping[str, Any]) -> tuple[str, int]:
    is_guard = constraint["rule"] == "unchanged"
    return (constraint["table"], constraint["reference"]) if is_guard else ("", 0)


def _dump_constraint(constraint: Any) -> dict[str, Any]:
    name, options = _function(constraint.snapshot_constraint)
    record = {
        "table": str(constraint.database_namespace),
        "rule": _known(RULES, name),
        "reference": constraint.reference_milestone_node_index,
    }
    if constraint.target_dataframe is not None:
        record["rows"] = constraint.target_dataframe.to_dicts()
        record["columns"] = {
            column: _dump_measure(constraint.column_similarity_measure[column])
            for column in constraint.target_dataframe.columns
        }
    if "extractor" in options:
        names, convert = _known(EXTRACTORS, options["extractor"].__name__)
        record["extractor"] = {"names": names, "convert": convert, "column": options["fill_to"]}
    return record


def _dump_measure(measure: Any) -> dict[str, Any]:
    name, options = _function(measure)
    tolerance = {
        key: None if value == float("inf") else value
        for key, value in (options.get("atol_dict") or {}).items()
        if value is not None
    }
    return {"measure": _known(MEASURES, name), "tolerance": tolerance}


def network_tools(names: set[str]) -> list[str]:
    """The tools among `names` that ask RapidAPI."""
    from tool_sandbox.tools import rapid_api_search_tools

    tree = ast.parse(Path(rapid_api_search_tools.__file__).read_text())
    return sorted(
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        and node.name in names
        and any(isinstance(part, ast.Name) and part.id == "rapid_api_get_request" for part in ast.walk(node))
    )


def export(seed: int) -> None:
    """Write every scenario to stdout; scenarios with the same base share what does not differ."""
    from tool_sandbox.common.execution_context import DatabaseNamespace, RoleType, new_context
    from tool_sandbox.common.tool_conversion import convert_to_openai_tools
    from tool_sandbox.common.tool_discovery import ToolBackend
    from tool_sandbox.scenarios import named_scenarios

    random.seed(seed)
    scenarios = named_scenarios(preferred_tool_backend=ToolBackend.DEFAULT)
    network = network_tools(set(next(iter(scenarios.values())).starting_context.name_to_tool))
    bases: dict[str, Any] = {}
    variants: dict[str, Any] = {}
    tools: dict[str, int] = {}
    # A base comes before its variants, and its name begins theirs.
    plain = {name for name, item in scenarios.items() if "NO_DISTRACTION_TOOLS" in map(str, item.categories)}
    for name, scenario in scenarios.items():
        context = scenario.starting_context
        base = max((other for other in plain if name.startswith(other)), key=len)
        messages = context.get_database(DatabaseNamespace.SANDBOX, get_all_history_snapshots=True).to_dicts()
        first = context.first_user_sandbox_message_index
        if first != len(messages) - 1 or scenario.max_messages != 30:
            raise SystemExit(f"scenario {name!r} does not start with one message of the user")
        if name == base:
            bases[name] = {
                "messages": messages,
                "tables": {
                    str(table): context.get_database(table).to_dicts()
                    for table in list(DatabaseNamespace)[1:]  # the first is that of messages
                },
                "milestones": dump_graph(scenario.evaluation.milestone_matcher),
                "minefields": dump_graph(scenario.evaluation.minefield_matcher),
            }
        with new_context(context):
            allowed = context.get_available_tools(scrambling_allowed=True)
            own = {
                tool: schema["function"]
                for tool, schema in zip(allowed, convert_to_openai_tools(allowed), strict=True)
            }
        order = {tool: number for number, tool in enumerate(context.tool_allow_list)}
        sides: dict[str, list[Any]] = {"assistant": [], "user": []}
        for tool in sorted(allowed, key=lambda tool: order[allowed[tool].__name__]):
            key = json.dumps(own[tool], sort_keys=True)
            tools.setdefault(key, len(tools))
            side = "user" if RoleType.AGENT not in allowed[tool].visible_to else "assistant"
            sides[side].append([tool, allowed[tool].__name__, tools[key]])
        variants[name] = {
            "base": base,
            "tools": sides,
            "categories": [str(item) for item in scenario.categories],
        }
    json.dump(
        {
            "bases": bases,
            "scenarios": variants,
            "tools": [json.loads(key) for key in tools],
            "network": network,
        },
        sys.stdout,
        ensure_ascii=False,
    )


@dataclass
class Session:
    """The databases of one simulation. polars frames are never changed in place, so sessions share them."""

    scope: str
    frames: dict[Any, Any]
    count: int = 0


def _with_one_message(context: Any) -> Any:
    """A context that has one message and two snapshots at most, whose indices need no search."""

    class Context(context):  # type: ignore[misc]
        max_sandbox_message_index = 0

        def get_most_recent_snapshot_sandbox_message_index(self, namespace: Any, query_index: int) -> int:
            return int(self._dbs[namespace]["sandbox_message_index"][-1])

    return Context


class Server:
    """Runs tools for many sessions, one request after the other."""

    def __init__(self, dump: dict[str, Any], answers: "Answers") -> None:
        import polars
        from tool_sandbox.common import execution_context
        from tool_sandbox.tools import rapid_api_search_tools

        self.namespaces = execution_context.DatabaseNamespace
        self.polars, self.dump = polars, dump
        self.context = _with_one_message(execution_context.ExecutionContext)()
        self.context.trace_tool = True
        execution_context.set_current_context(self.context)
        self.schemas = self.context.dbs_schemas
        self.sandbox = self._frame("SANDBOX", [{"sender": "AGENT", "recipient": "EXECUTION_ENVIRONMENT"}])
        self.frames: dict[str, Any] = {}
        self.sessions: dict[int, Session] = {}
        self.answers = answers
        self.wifi = rapid_api_search_tools.get_wifi_status
        rapid_api_search_tools.rapid_api_get_request = self.request

    def _frame(self, table: str, rows: Iterable[Mapping[str, Any]]) -> Any:
        schema = self.schemas[self.namespaces[table]]
        guard = dict.fromkeys(schema)
        return self.polars.DataFrame(
            [{**row, "sandbox_message_index": 0} for row in [guard, *rows]], schema=schema
        )

    def request(self, url: str, params: dict[str, Any], headers: dict[str, Any]) -> Any:
        """Answer a request of a network tool from the cassette."""
        if not self.wifi():
            raise ConnectionError("Wifi is not enabled")
        key = json.dumps([url, params], sort_keys=True)
        if key in self.answers.known:
            return json.loads(json.dumps(self.answers.known[key]))
        return self.answers.ask(key, url, params, headers)

    def open(self, session: int, scenario: str) -> dict[str, Any]:
        """Start a session with a scenario's databases."""
        base = self.dump["scenarios"][scenario]["base"]
        if base not in self.frames:
            tables = self.dump["bases"][base]["tables"]
            self.frames[base] = {
                self.namespaces[table]: self._frame(table, rows) for table, rows in tables.items()
            }
        self.sessions[session] = Session(base, self.frames[base])
        return {}

    def close(self, session: int) -> dict[str, Any]:
        """Forget a session."""
        self.sessions.pop(session, None)
        return {}

    def calls(self, session: int, calls: list[dict[str, Any]]) -> dict[str, Any]:
        """Run a batch of calls in every order, as upstream does with parallel calls.

        Returns:
            The results in the order in which the calls ran, and the databases that changed.
        """
        current = self.sessions[session]
        start = current.frames, current.count
        kept: Any = None
        for order in itertools.islice(itertools.permutations(calls), MAX_ORDERS):
            current.frames, current.count = start
            results = [self._call(current, call) for call in order]
            if kept is None:
                kept = results, current.frames, current.count
            if any(result["error"] for result in results):
                break
        else:
            results, current.frames, current.count = kept
        changed = [table for table in current.frames if current.frames[table] is not start[0][table]]
        drop = self.context.drop_headguard
        tables = {
            str(table): drop(current.frames[table].drop("sandbox_message_index")).to_dicts()
            for table in changed
        }
        return {"results": results, "tables": tables}

    def _call(self, current: Session, call: Mapping[str, Any]) -> dict[str, Any]:
        """Run one call as upstream's console does: it prints the result, or the last line of a traceback."""
        self.context._dbs = {**current.frames, self.namespaces.SANDBOX: self.sandbox}
        ids["scope"], ids["count"] = current.scope, current.count
        trace, error, refused = None, False, ""
        try:
            content = repr(self.context.name_to_tool[call["name"]](**call["arguments"]))
            (trace,) = self.context._dbs[self.namespaces.SANDBOX]["tool_trace"][-1].to_list()
        except RefusedError as refusal:
            content, error, refused = f"PermissionError: {refusal}", True, call["name"]
        except Exception as exception:
            lines = "".join(traceback.format_exception_only(exception)).rstrip().split("\n")
            content, error = re.sub(r" at 0x[0-9A-Fa-f]+", " at 0x0", lines[-1]), True
        current.count = ids["count"]
        frames = {table: self.context._dbs[table] for table in current.frames}
        current.frames = {
            # A failed change may have made an equal copy.
            table: old if frames[table] is old or frames[table].equals(old) else self._latest(frames[table])
            for table, old in current.frames.items()
        }
        return {"id": call["id"], "content": content, "error": error, "trace": trace, "refused": refused}

    def _latest(self, frame: Any) -> Any:
        """Keep only the newest snapshot of a table, as the history is kept by the caller."""
        index = self.polars.col("sandbox_message_index")
        newest = frame.filter(index == frame["sandbox_message_index"].max())
        return newest.with_columns(self.polars.lit(0, dtype=self.polars.Int32).alias("sandbox_message_index"))

    def serve(self, lines: Iterable[str]) -> None:
        """Answer each request: the name of a method and its arguments."""
        methods: dict[str, Any] = {"open": self.open, "close": self.close, "calls": self.calls}
        for line in lines:
            request = json.loads(line)
            method = methods[request.pop("do")]
            with contextlib.redirect_stdout(sys.stderr):
                answer = method(**request)
            print(json.dumps(answer, ensure_ascii=True), flush=True)


class RefusedError(Exception):
    """A network tool has no recorded answer, and no key to ask for one."""


class Answers:
    """Recorded answers of RapidAPI, one JSON object a line; new ones are added if there is a key."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.known: dict[str, Any] = {}
        if self.path.exists():
            for line in self.path.read_text(encoding="utf-8").splitlines():
                record = json.loads(line)
                self.known[record["key"]] = record["answer"]

    def ask(self, key: str, url: str, params: dict[str, Any], headers: dict[str, Any]) -> Any:
        """Ask RapidAPI and record the answer."""
        import requests

        if "RAPID_API_KEY" not in os.environ:
            raise RefusedError("the network is not available")
        headers = {**headers, "X-RapidAPI-Key": os.environ["RAPID_API_KEY"]}
        try:
            response = requests.get(url, headers=headers, params=params, timeout=60)
            response.raise_for_status()
            self.known[key] = response.json()
        except requests.RequestException as error:
            raise RefusedError(str(error)) from None
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"key": key, "answer": self.known[key]}) + "\n")
        return self.known[key]


def main(command: str, clock: str, *arguments: str) -> None:
    """Run the command of the command line."""
    freeze(float(clock))
    if command == "export":
        export(int(arguments[0]))
        return
    folder = Path(arguments[0])
    dump = json.loads((folder / "scenarios.json").read_text(encoding="utf-8"))
    Server(dump, Answers(folder / "rapidapi.jsonl")).serve(sys.stdin)


if __name__ == "__main__":
    main(*sys.argv[1:])
