"""Scores a trajectory by milestones and minefields, by the rules of ToolSandbox.

A trajectory is a list of snapshots, one after each message. A snapshot holds every table: the message itself
in `SANDBOX`, and the databases. A milestone is a set of constraints on one snapshot, some of which compare it
with the snapshot of an earlier milestone. Milestones are matched to snapshots in non-decreasing order so that
the sum of their similarities is greatest.

Upstream computes with polars. Columns of similarities are 32-bit floats there, so this module rounds at the
same places. Otherwise results would differ by up to 1e-7.
"""

import ctypes
import functools
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import fmean
from typing import Any, cast

from pydantic import Field

from pytest_trace2evolve.records.base import Record
from pytest_trace2evolve.utils.optional import require

SANDBOX = "SANDBOX"
"""The table of messages; each snapshot has one row of it."""

START = -1
"""The index by which a constraint refers to the snapshot of the first user message."""

Row = Mapping[str, Any]
Table = tuple[Row, ...]
Snapshot = Mapping[str, Table]
"""Every table after a message, by name. Snapshots share the tables that did not change."""


class Measure(StrEnum):
    """The similarity of a cell and a target value."""

    EXACT = "exact"
    CLOSE = "close"
    ALWAYS = "always"
    CONTAINS = "contains"
    CALLS = "calls"
    ROUGE = "rouge"


class Rule(StrEnum):
    """The way in which a constraint compares a table with its target rows."""

    MATCH = "match"
    ADDED = "added"
    REMOVED = "removed"
    UPDATED = "updated"
    FILLED = "filled"
    UNCHANGED = "unchanged"


class Column(Record):
    """How the cells of one column are compared.

    Attributes:
        tolerance: The greatest absolute difference of numbers, by the name of the column or argument; None
            stands for any difference.
    """

    measure: Measure
    tolerance: dict[str, float | None] = Field(default_factory=dict)

    def is_close(self, name: str, actual: Any, expected: Any) -> bool:
        """Whether two values are equal, or are numbers within the tolerance of a name."""
        if name in self.tolerance and isinstance(actual, int | float) and isinstance(expected, int | float):
            limit = self.tolerance[name]
            return limit is None or abs(actual - expected) <= limit
        return bool(actual == expected)


class Extractor(Record):
    """A value that a constraint takes from a tool's result in the reference snapshot.

    Attributes:
        names: The placeholders or arguments that get values, each with the keys that lead to its value.
        convert: The conversion: `none`, `int`, `float`, or `text` for the number with 0 to 3 decimals.
        column: The column of the target that is filled: `content` or `tool_trace`.
    """

    names: dict[str, tuple[str, ...]]
    convert: str
    column: str

    def values(self, call: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The values from one traced call, in each of their forms; empty if the call has no such value."""
        try:
            found = {
                name: functools.reduce(lambda part, key: part[key], path, call["result"])
                for name, path in self.names.items()
            }
            if self.convert == "int":
                return [{name: int(value) for name, value in found.items()}]
            if self.convert == "float":
                return [{name: float(value) for name, value in found.items()}]
            if self.convert == "text":
                return [
                    {name: f"{float(value):.{digits}f}" for name, value in found.items()}
                    for digits in range(4)
                ]
            return [found]
        except (KeyError, IndexError, TypeError, ValueError):
            return []


class Constraint(Record):
    """A condition on one table of a snapshot.

    Attributes:
        reference: The milestone whose snapshot the table is compared with; `START` for the first user
            message, None if the constraint compares with no other snapshot.
        rows: The target rows.
        columns: How each column of the target is compared.
    """

    table: str
    rule: Rule
    reference: int | None = None
    rows: tuple[dict[str, Any], ...] = ()
    columns: dict[str, Column] = Field(default_factory=dict)
    extractor: Extractor | None = None


class Graph(Record):
    """Milestones or minefields, and the order in which they may be matched.

    Attributes:
        milestones: The constraints of each milestone.
        order: The indices of the milestones that are matched, in the order in which they are tried.
        edges: Pairs of a milestone and one that must not come before it.
    """

    milestones: tuple[tuple[Constraint, ...], ...] = ()
    order: tuple[int, ...] = ()
    edges: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Match:
    """The best match of a graph: each milestone's snapshot and similarity, and the mean similarity."""

    snapshots: Mapping[int, tuple[int, float]]
    similarity: float


@dataclass(frozen=True)
class Evaluation:
    """The evaluation of a trajectory; `similarity` is 0 if a minefield was hit."""

    milestones: Match
    minefields: Match

    @property
    def similarity(self) -> float:
        return self.milestones.similarity if self.minefields.similarity == 0 else 0.0


def evaluate(
    snapshots: Sequence[Snapshot], milestones: Graph, minefields: Graph, *, first: int = 0
) -> Evaluation:
    """Evaluate a trajectory.

    Args:
        snapshots: The tables after each message.
        milestones: The milestones; without any, their similarity is 1.
        minefields: The minefields; without any, their similarity is 0.
        first: The index of the first user message, before which nothing is matched.
    """
    return Evaluation(
        _match(snapshots, milestones, first, default=1.0), _match(snapshots, minefields, first, default=0.0)
    )


def _match(snapshots: Sequence[Snapshot], graph: Graph, first: int, *, default: float) -> Match:
    if not graph.order:
        return Match({}, default)
    search = _Search(snapshots, graph, first)
    search.extend({}, 0.0, first)
    return Match(dict(sorted(search.best.items())), search.best_sum / len(graph.milestones))


@dataclass
class _Search:
    """Finds the match with the greatest sum; among equal ones, upstream's first.

    Upstream's search has a bound of 1 for each milestone that is left. The bound here is each milestone's
    greatest similarity with any reference, so a trajectory that matches little takes no longer.
    """

    snapshots: Sequence[Snapshot]
    graph: Graph
    first: int
    best: dict[int, tuple[int, float]] = field(default_factory=dict)
    best_sum: float = -1.0

    def __post_init__(self) -> None:
        self._cache: dict[tuple[int, int, int, int], float] = {}
        self._bounds = {index: self._bound(index) for index in self.graph.order}

    def extend(self, assigned: dict[int, tuple[int, float]], total: float, start: int) -> None:
        """Try each next milestone at each snapshot from `start`, the most similar first."""
        left = [index for index in self.graph.order if index not in assigned]
        if not left:
            if total > self.best_sum:
                self.best, self.best_sum = assigned, total
            return
        blocked = {after for before, after in self.graph.edges if before not in assigned}
        options = sorted(
            (-self._similarity(index, number, assigned), index, number)
            for index in left
            if index not in blocked
            for number in range(start, len(self.snapshots))
        )
        for negative, index, number in options:
            bound = sum(self._bounds[other][number] for other in left if other != index)
            if total - negative + bound > self.best_sum:
                self.extend({**assigned, index: (number, -negative)}, total - negative, number)

    def _bound(self, index: int) -> list[float]:
        """The greatest similarity of a milestone at or after each snapshot, for any references."""
        constraints = self.graph.milestones[index]
        bounds = [0.0] * (len(self.snapshots) + 1)
        for number in reversed(range(self.first, len(self.snapshots))):
            product = 1.0
            for position, constraint in enumerate(constraints):
                references = (
                    range(self.first, number + 1) if constraint.reference is not None else (self.first,)
                )
                product *= max(self._constraint(index, position, number, other) for other in references)
            bounds[number] = max(bounds[number + 1], self._mean(index, product))
        return bounds

    def _similarity(self, index: int, number: int, assigned: Mapping[int, tuple[int, float]]) -> float:
        """The geometric mean of a milestone's constraints at a snapshot."""
        product = 1.0
        for position, constraint in enumerate(self.graph.milestones[index]):
            reference = constraint.reference
            other = self.first if reference in (None, START) else assigned[reference][0]
            product *= self._constraint(index, position, number, other)
        return self._mean(index, product)

    def _mean(self, index: int, product: float) -> float:
        # Unchanged databases do not count in the mean, so that they cannot raise it.
        count = sum(constraint.rule is not Rule.UNCHANGED for constraint in self.graph.milestones[index])
        return math.pow(product, 1 / count)

    def _constraint(self, index: int, position: int, number: int, other: int) -> float:
        constraint = self.graph.milestones[index][position]
        table = self.snapshots[number][constraint.table]
        reference = self.snapshots[other][constraint.table]
        # Snapshots share unchanged tables, and `self.snapshots` keeps each table alive.
        key = (index, position, id(table), 0 if constraint.reference is None else id(reference))
        if key not in self._cache:
            self._cache[key] = constraint_similarity(constraint, table, reference)
        return self._cache[key]


def constraint_similarity(constraint: Constraint, table: Table, reference: Table) -> float:
    """The similarity of a table and a constraint, between 0 and 1.

    Args:
        constraint: The constraint.
        table: The table in the matched snapshot.
        reference: The table in the reference snapshot; ignored by rules without a reference.
    """
    match constraint.rule:
        case Rule.UNCHANGED:
            return float(table == reference)
        case Rule.MATCH:
            return _rows_similarity(table, constraint.rows, constraint.columns)
        case Rule.FILLED:
            return _filled_similarity(constraint, table, reference)
    # Upstream joins tables on all columns, where a null equals nothing, so it replaces nulls first.
    old, new, target = _without_nulls(reference, table, constraint.rows)
    if constraint.rule is Rule.REMOVED:
        old, new = new, old
    if constraint.rule is Rule.UPDATED:
        if len(old) != len(new):
            return 0.0
    elif not _contains(new, old):
        return 0.0
    kept = {_row_key(row) for row in old}
    changed = tuple(row for row in new if _row_key(row) not in kept)
    return _rows_similarity(changed, target, constraint.columns)


def _contains(rows: Table, others: Table) -> bool:
    """Whether an inner join of two tables has as many rows as the second, as upstream tests it."""
    counts = Counter(map(_row_key, rows))
    return sum(counts[_row_key(row)] for row in others) == len(others)


def _row_key(row: Row) -> str:
    return json.dumps(row, sort_keys=True)


_ZEROS: Mapping[type, Any] = {str: "", bool: False, int: 0, float: 0.0}


def _without_nulls(*tables: Table) -> list[Table]:
    """Replace nulls by the empty value of their column's type, which is known from any row of the tables."""
    zeros = {
        name: _ZEROS.get(type(value))
        for table in tables
        for row in table
        for name, value in row.items()
        if value is not None
    }
    return [
        tuple(
            {name: zeros.get(name) if value is None else value for name, value in row.items()}
            for row in table
        )
        for table in tables
    ]


def _filled_similarity(constraint: Constraint, table: Table, reference: Table) -> float:
    """The greatest similarity with a target that is completed by a value from the reference's calls."""
    extractor = constraint.extractor
    assert extractor is not None
    traces = [json.loads(text) for row in reference for text in row["tool_trace"] or ()]
    values = [value for trace in traces for value in extractor.values(trace)]
    (row,) = constraint.rows
    similarity = 0.0
    try:
        for value in values:
            if extractor.column == "tool_trace":
                filled: str = json.dumps(list(_filled_calls(row["tool_trace"], value)), ensure_ascii=False)
            else:
                filled = row["content"].format(**value)
            target = ({**row, extractor.column: filled},)
            similarity = max(similarity, _rows_similarity(table, target, constraint.columns))
    except (IndexError, KeyError):
        return 0.0
    return similarity


def _filled_calls(text: str, value: Mapping[str, Any]) -> Iterator[Row]:
    """Each expected call with a value added, which may replace an expected argument or not."""
    for call in _as_list(json.loads(text)):
        for arguments in ({**call["arguments"], **value}, {**value, **call["arguments"]}):
            yield {**call, "arguments": arguments}


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _rows_similarity(table: Table, target: Sequence[Row], columns: Mapping[str, Column]) -> float:
    """The geometric mean over the best assignment of rows; 0 if the numbers of rows or the columns differ."""
    if len(table) != len(target) or any(name not in row for row in table for name in target[0]):
        return 0.0
    if not target:
        return 0.0
    from scipy.optimize import linear_sum_assignment  # takes a quarter of a second to import

    cost = [[_row_cost(row, wanted, columns) for row in table] for wanted in target]
    try:
        rows, assigned = linear_sum_assignment(cost)
    except ValueError:  # every assignment has a row without similarity
        return 0.0
    mean = fmean(cost[row][other] for row, other in zip(rows, assigned, strict=True))
    if [columns[name].measure is Measure.ALWAYS for name in target[0]] == [False]:
        return _to_float32(math.exp(-_to_float32(mean)))  # the mean of one 32-bit column stays one upstream
    return math.exp(-mean)


def _row_cost(row: Row, wanted: Row, columns: Mapping[str, Column]) -> float:
    """The mean of the columns' negative logarithms; a null cell of a compared column does not count."""
    similarities = [_cell(columns[name], name, row[name], value) for name, value in wanted.items()]
    costs = [_negative_log(similarity) for similarity in similarities if similarity is not None]
    if not costs:
        return math.nan
    # `ALWAYS` is a 64-bit column upstream, and so is its sum with others.
    is_wide = any(columns[name].measure is Measure.ALWAYS for name in wanted)
    total = 0.0
    for cost in costs:
        total = total + cost if is_wide else _to_float32(total + cost)
    return total / len(costs)


def _to_float32(value: float) -> float:
    return ctypes.c_float(value).value


_LOG_OF_BASE = 1 - 2**-24
"""The logarithm of e as a 32-bit float. polars divides by it."""


@functools.cache
def _logf() -> Callable[[float], float]:
    """The C library's logarithm of 32-bit floats, which polars calls; NumPy's has other last bits."""
    try:
        function = ctypes.CDLL(None).logf
    except (
        AttributeError,
        OSError,
        TypeError,
    ):  # Windows: the correctly rounded value, off by one bit at most
        return math.log
    function.argtypes, function.restype = [ctypes.c_float], ctypes.c_float
    return cast(Callable[[float], float], function)


def _negative_log(similarity: float) -> float:
    rounded = _to_float32(similarity)
    return _to_float32(-_to_float32(_logf()(rounded)) / _LOG_OF_BASE) if rounded else math.inf


def _cell(column: Column, name: str, actual: Any, wanted: Any) -> float | None:
    """The similarity of a cell and its target; None if the cell is null and does not count."""
    match column.measure:
        case Measure.ALWAYS:
            return 1.0
        case Measure.EXACT:
            if wanted is None:
                return float(actual is None)
            return None if actual is None else float(actual == wanted)
        case Measure.CLOSE:
            return float(column.is_close(name, actual, wanted))
        case Measure.CONTAINS:
            return None if actual is None else float(wanted in actual)
        case Measure.CALLS:
            return float(_has_call(column, actual, wanted))
        case Measure.ROUGE:
            return rouge_l(wanted, actual)


_MISSING = object()


def _has_call(column: Column, traces: Sequence[str] | None, wanted: str) -> bool:
    """Whether any traced call is one of the wanted ones; arguments that are not wanted do not count."""
    wanted_calls = _as_list(json.loads(wanted))
    return any(
        call["tool_name"] == expected["tool_name"]
        and all(
            column.is_close(name, call["arguments"].get(name, _MISSING), value)
            for name, value in expected["arguments"].items()
        )
        for call in map(json.loads, traces or ())
        for expected in wanted_calls
    )


@functools.cache
def _scorer() -> Any:
    return require("rouge_score.rouge_scorer", extra="toolsandbox").RougeScorer(["rougeL"], use_stemmer=True)


@functools.lru_cache(maxsize=4096)
def rouge_l(target: str, text: str) -> float:
    """The F1 of ROUGE-L with Porter's stemmer.

    Raises:
        MissingExtraError: the extra `toolsandbox` is not installed.
    """
    return float(_scorer().score(target, text)["rougeL"].fmeasure)
