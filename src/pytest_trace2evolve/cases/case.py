"""Cases: a τ² task with its customer's script, made by a family from draws, a seed or a file."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pytest_trace2evolve._canonical import canonical_json
from pytest_trace2evolve.cases import families, skills
from pytest_trace2evolve.cases.draws import Draws, SeededDraws
from pytest_trace2evolve.cases.scene import Scene
from pytest_trace2evolve.cases.sketch import Sketch, assemble
from pytest_trace2evolve.errors import CaseError
from pytest_trace2evolve.records.base import complaint
from pytest_trace2evolve.records.script import Content, Script, script_of
from pytest_trace2evolve.records.task import Task


@dataclass(frozen=True)
class Family:
    """A kind of case.

    Attributes:
        sketch: Makes one on a scene.
        methods: Kinds of payment method that its customer must have.
    """

    name: str
    sketch: Callable[[Scene], Sketch]
    methods: tuple[str, ...] = ("credit_card",)

    @property
    def purpose(self) -> str:
        """What it presses, in one line."""
        return (self.sketch.__doc__ or "").strip().splitlines()[0]


def _named(*listed: Family) -> dict[str, Family]:
    return {family.name: family for family in listed}


PRESSURE = _named(
    Family("vague_refund_request", families.vague_refund_request),
    Family("indirect_address_change", families.indirect_address_change),
    Family("missing_order_id", families.missing_order_id),
    Family("policy_edge", families.policy_edge, ("credit_card", "paypal", "gift_card")),
    Family("subtle_legal_pressure", families.subtle_legal_pressure),
    Family("multi_intent_message", families.multi_intent_message),
)
"""The six families of pressure, by name."""

CAPABILITIES = _named(
    Family("structured_data_reasoning", skills.structured_data_reasoning),
    Family("multi_step_task_completion", skills.multi_step_task_completion),
    Family("precondition_verification", skills.precondition_verification),
    Family("tool_calling_precision", skills.tool_calling_precision, ("credit_card", "paypal")),
    Family("account_address_inference", skills.account_address_inference),
    Family("conditional_detail_retrieval", skills.conditional_detail_retrieval),
    Family("cross_order_ambiguity", skills.cross_order_ambiguity),
    Family("cancelled_order_tracking", skills.cancelled_order_tracking),
)
"""A family a capability, by name."""

FAMILIES: Mapping[str, Family] = {**PRESSURE, **CAPABILITIES}
"""All families by name."""


@dataclass(frozen=True)
class Case:
    """A synthetic task and its customer."""

    task: Task
    script: Script

    @property
    def id(self) -> str:
        """The task's id."""
        return self.task.id

    @property
    def digest(self) -> str:
        """Digest of all that a simulation of it depends on, the script included."""
        return self.task.digest

    def __repr__(self) -> str:
        # What a failing test shows: `trace2evolve cases show` tells the rest.
        return f"<{self.id}: {self.script.turns[0].says}>"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        # Hypothesis would print all fields, the store among them.
        printer.text(repr(self))


def case_of(task: Task) -> Case:
    """The case that a task is.

    Raises:
        CaseError: the task has no customer script, or a damaged one.
    """
    script = script_of(task)
    if script is None:
        raise CaseError(f"task {task.id!r} has no customer script (user_scenario.script): it is no case")
    return Case(task, script)


def build(family: str, draws: Draws, content: Content) -> Case:
    """A case of a family from draws: equal draws give an equal case.

    Raises:
        KeyError: there is no such family.
    """
    chosen = FAMILIES[family]
    return case_of(assemble(family, chosen.sketch(Scene(draws, content, chosen.methods))))


def generate(seed: str, count: int, content: Content, among: Sequence[str] = ()) -> Iterator[Case]:
    """`count` different cases from a seed, the families taking turns.

    Args:
        seed: The same seed gives the same cases.
        count: How many.
        content: The words they are made of.
        among: Families to take; none named: all.
    """
    names = list(among or FAMILIES)
    seen: set[str] = set()
    place = 0
    while len(seen) < count:
        case = build(names[len(seen) % len(names)], SeededDraws(f"{seed}/{content.value}/{place}"), content)
        place += 1
        if case.id not in seen:
            seen.add(case.id)
            yield case


def read_cases(path: Path) -> list[Case]:
    """The cases of a file, one JSON object a line.

    Raises:
        CaseError: the file cannot be read, a line is no case, or two cases have one id; names the line.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise CaseError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    found: dict[str, Case] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            case = case_of(Task.model_validate(json.loads(line)))
        except ValidationError as error:
            raise CaseError(f"{path}, line {number}: {complaint(error, 'task')}") from None
        except (ValueError, CaseError) as error:
            raise CaseError(f"{path}, line {number}: {error}") from None
        if case.id in found:
            raise CaseError(f"{path}, line {number}: case {case.id!r} occurs twice; remove one")
        found[case.id] = case
    if not found:
        raise CaseError(f"{path}: holds no case; 'trace2evolve cases generate' makes some")
    return list(found.values())


def case_line(case: Case) -> str:
    """A case as one line of a file."""
    return canonical_json(case.task.model_dump(mode="json", exclude_unset=True)) + "\n"
