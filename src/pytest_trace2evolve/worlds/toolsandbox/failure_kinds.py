"""The kind of a failure, from the milestones that a trajectory missed."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pytest_trace2evolve.scoring.milestones import (
    SANDBOX,
    START,
    Constraint,
    Evaluation,
    Graph,
    Rule,
    Snapshot,
    evaluate,
)


def failure_kind(snapshots: Sequence[Snapshot], milestones: Graph, found: Evaluation) -> str:
    """The first kind that explains a similarity below 1; empty for a perfect trajectory."""
    if found.similarity == 1.0:
        return ""
    if found.minefields.similarity:
        return "minefield"
    missed = [index for index, (_, similarity) in found.milestones.snapshots.items() if similarity < 1.0]
    missed_constraints = [constraint for index in missed for constraint in milestones.milestones[index]]
    rows = [row for snapshot in snapshots for row in snapshot[SANDBOX]]
    results = [
        row for row in rows if row["sender"] == "EXECUTION_ENVIRONMENT" and row["recipient"] == "AGENT"
    ]
    if not results and any(
        _wanted_call(constraint) or (constraint.table != SANDBOX and constraint.rule is not Rule.UNCHANGED)
        for constraints in milestones.milestones
        for constraint in constraints
    ):
        return "no call at all"
    if all(_is_said(milestones.milestones[index]) for index in missed):
        return "tool result not reported"
    if results and results[-1]["failed"]:
        return "no recovery from a tool error"
    if evaluate(snapshots, _without_order(milestones), Graph()).similarity == 1.0:
        return "wrong order"
    called = {json.loads(trace)["tool_name"] for row in rows for trace in row["tool_trace"] or ()}
    if any(_wanted_call(constraint) in called for constraint in missed_constraints):
        return "wrong arguments"
    return "partial"


def _without_order(graph: Graph) -> Graph:
    """The milestones in any order that their references allow, without guards."""
    milestones = tuple(
        tuple(constraint for constraint in constraints if constraint.rule is not Rule.UNCHANGED)
        for constraints in graph.milestones
    )
    edges = {
        (constraint.reference, index)
        for index, constraints in enumerate(milestones)
        for constraint in constraints
        if constraint.reference is not None and constraint.reference != START
    }
    return Graph(milestones=milestones, order=graph.order, edges=tuple(sorted(edges)))


def _is_said(constraints: Sequence[Constraint]) -> bool:
    """Whether a milestone only asks for a text of the agent."""
    return all(
        constraint.rule is Rule.UNCHANGED or any("content" in row for row in constraint.rows)
        for constraint in constraints
    )


def _wanted_call(constraint: Constraint) -> str:
    """The tool that a constraint asks for; empty if it asks for none."""
    for row in constraint.rows:
        if "tool_trace" in row:
            wanted: Any = json.loads(row["tool_trace"])
            call: Mapping[str, Any] = wanted[0] if isinstance(wanted, list) else wanted
            return str(call["tool_name"])
    return ""
