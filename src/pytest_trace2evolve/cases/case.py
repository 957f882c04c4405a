"""Cases are τ² tasks with a customer's script. A family generates them, or a file contains them."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pytest_trace2evolve.cases import families
from pytest_trace2evolve.cases.content import ChoiceSource, SeededChoices, Vocabulary
from pytest_trace2evolve.cases.scene import Scene, Sketch, assemble
from pytest_trace2evolve.errors import CaseError
from pytest_trace2evolve.records.task import Content, Script, Task, script_of
from pytest_trace2evolve.utils.canonical import canonical_json
from pytest_trace2evolve.utils.reading import convert_failures, first_problem, parse_json, read_lines

MAX_TRIES = 1_000
"""Consecutive draws without a new case after which a family counts as exhausted."""


@dataclass(frozen=True)
class Family:
    """A family of cases.

    Attributes:
        sketch: The function that sketches a case of the family in a scene.
        methods: Kinds of payment method that each customer of the family has.
    """

    sketch: Callable[[Scene], Sketch]
    methods: tuple[str, ...] = ("credit_card",)

    @property
    def name(self) -> str:
        return self.sketch.__name__

    @property
    def purpose(self) -> str:
        """The first line of the sketch's docstring, which describes the family."""
        return (self.sketch.__doc__ or "").strip().splitlines()[0]


def _index_by_name(*members: Family) -> dict[str, Family]:
    return {family.name: family for family in members}


PRESSURE = _index_by_name(
    Family(families.vague_refund_request),
    Family(families.indirect_address_change),
    Family(families.missing_order_id),
    Family(families.policy_edge, ("credit_card", "paypal", "gift_card")),
    Family(families.subtle_legal_pressure),
    Family(families.multi_intent_message),
)
"""The six families that put pressure on the agent, by name."""

CAPABILITIES = _index_by_name(
    Family(families.structured_data_reasoning),
    Family(families.multi_step_task_completion),
    Family(families.precondition_verification),
    Family(families.tool_calling_precision, ("credit_card", "paypal")),
    Family(families.account_address_inference),
    Family(families.conditional_detail_retrieval),
    Family(families.cross_order_ambiguity),
    Family(families.cancelled_order_tracking),
)
"""One family for each capability, by name."""

FAMILIES: Mapping[str, Family] = {**PRESSURE, **CAPABILITIES}


@dataclass(frozen=True)
class Case:
    """A synthetic task and its customer."""

    task: Task
    script: Script

    @property
    def id(self) -> str:
        return self.task.id

    @cached_property
    def digest(self) -> str:
        """Digest of everything that a simulation of the case depends on, including the script."""
        return self.task.digest

    @property
    def demands(self) -> tuple[object, ...]:
        """The tools of the gold actions, in order, and which of the customer's requests are refused."""
        tools = tuple(action.name for action in self.task.actions)
        return tools, tuple(request.refused for turn in self.script.turns for request in turn.requests)

    def __repr__(self) -> str:
        # A failing test shows this line; `trace2evolve cases show` prints the rest.
        return f"<{self.id}: {self.script.turns[0].says}>"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        # Otherwise Hypothesis prints all fields, including the store.
        printer.text(repr(self))


def to_case(task: Task) -> Case:
    """Return a task as a case.

    Raises:
        CaseError: the task has no customer script, or the script is invalid.
    """
    script = script_of(task)
    if script is None:
        raise CaseError(
            f"task {task.id!r} has no customer script (user_scenario.script), so it is not a case"
        )
    return Case(task, script)


def build_case(family: str, choices: ChoiceSource, content: Content) -> Case:
    """Build a case of the named family; equal choices give equal cases."""
    return to_case(assemble(family, sketch_case(family, choices, content)))


def sketch_case(
    family: str, choices: ChoiceSource, content: Content, words: Vocabulary | None = None
) -> Sketch:
    """Sketch a case of the named family, without gold actions; `words` replaces the content's vocabulary."""
    family_spec = FAMILIES[family]
    return family_spec.sketch(Scene(choices, content, family_spec.methods, words))


def generate(seed: str, count: int, content: Content, family_names: Sequence[str] = ()) -> Iterator[Case]:
    """Yield `count` different cases from a seed, taking the families in turn (all families by default).

    Raises:
        CaseError: a family is exhausted.
    """
    names = list(family_names or FAMILIES)
    seen_ids: set[str] = set()
    seed_index = tries = 0
    while len(seen_ids) < count:
        family = names[len(seen_ids) % len(names)]
        case = build_case(family, SeededChoices(f"{seed}/{content.value}/{seed_index}"), content)
        seed_index, tries = seed_index + 1, tries + 1
        if case.id not in seen_ids:
            seen_ids.add(case.id)
            tries = 0
            yield case
        elif tries == MAX_TRIES:
            raise CaseError(
                f"family {family!r} gave no new case in {MAX_TRIES} tries, after {len(seen_ids)} of {count} "
                "cases; ask for fewer cases, or for more families"
            )


def variants(case: Case, seed: str, content: Content) -> Iterator[Case]:
    """Yield different cases with a case's family and demands, but other records and wording.

    The demands are the tools of the gold actions, in order, and which of the customer's requests are refused.

    Raises:
        CaseError: no generator makes the case's family, or it makes no further variant.
    """
    family = case.script.family
    if family not in FAMILIES:
        raise CaseError(f"task {case.id!r}: its family {family!r} has no generator, so it has no variants")
    seen_ids, tries = {case.id}, 0
    for seed_index in itertools.count():
        variant = build_case(family, SeededChoices(f"{seed}/{content.value}/{seed_index}"), content)
        if variant.demands == case.demands and variant.id not in seen_ids:
            seen_ids.add(variant.id)
            tries = 0
            yield variant
        elif (tries := tries + 1) == MAX_TRIES:
            raise CaseError(f"task {case.id!r}: {len(seen_ids) - 1} variants and no more; ask for fewer")


def read_cases(path: Path) -> list[Case]:
    """Return all cases of a file as a list. Raises the same errors as `iter_cases`."""
    return list(iter_cases(path))


def iter_cases(path: Path) -> Iterator[Case]:
    """Yield the cases of a file with one JSON object per line.

    Only a newline ends a line, since a string may contain other line separators.

    Raises:
        CaseError: the file cannot be read, the file holds no case, a line is not a case, or two cases share
            an id. The message gives the number of an invalid line.
    """
    ids: set[str] = set()
    for number, line in enumerate(read_lines(path, CaseError), start=1):
        if not line.strip():
            continue
        case = _parse_line(line, f"{path}, line {number}")
        if case.id in ids:
            raise CaseError(f"{path}, line {number}: case {case.id!r} occurs twice; remove one")
        ids.add(case.id)
        yield case
    if not ids:
        raise CaseError(f"{path}: has no cases; run 'trace2evolve cases generate' to make some")


def _parse_line(line: str, location: str) -> Case:
    with convert_failures(location, CaseError, "expected one JSON object per line"):
        task_json = parse_json(line, require_unique=True, allow_nul=False)
    if not isinstance(task_json, dict):
        raise CaseError(f"{location}: expected one JSON object per line, got {type(task_json).__name__}")
    try:
        return to_case(Task.model_validate(task_json))
    except ValidationError as error:
        raise CaseError(f"{location}: {first_problem(error, 'task')}") from None
    except CaseError as error:
        raise CaseError(f"{location}: {error}") from None


def format_case_line(case: Case) -> str:
    """Format a case as one line of a file."""
    return canonical_json(case.task.model_dump(mode="json", exclude_unset=True)) + "\n"
