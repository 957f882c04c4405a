"""Evidence read as columns, a stretch of lines at a time: a side of half a million simulations in seconds.

Only files as we write them are read so: one simulation a line. Any other evidence is read whole.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, BinaryIO, NotRequired

import numpy as np
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict

from pytest_trace2evolve.errors import ResultsError
from pytest_trace2evolve.evidence.baselines import parse_evidence
from pytest_trace2evolve.evidence.results import decode
from pytest_trace2evolve.gate.columns import Columns, ColumnsBuilder
from pytest_trace2evolve.records.base import complaint
from pytest_trace2evolve.records.evidence import SCHEMA, Count, Provenance
from pytest_trace2evolve.records.score import Status, Unit

_STRETCH = 2_000
"""Lines that are validated at once."""

_START = b'{"schema_version": ' + str(SCHEMA).encode() + b","
_PROVENANCE = b'"provenance": '
_LIST = b'"simulations": ['
_END = b"]}"

_FORBID = ConfigDict(extra="forbid", allow_inf_nan=False)


@with_config(_FORBID)
class _Actions(TypedDict):
    total: Count
    matched: NotRequired[Count | None]


@with_config(_FORBID)
class _Usage(TypedDict):
    calls: NotRequired[Count]
    prompt_tokens: NotRequired[Count]
    cached_tokens: NotRequired[Count]
    completion_tokens: NotRequired[Count]
    cost: NotRequired[float | None]


@with_config(_FORBID)
class _Simulation(TypedDict):
    """A line: the fields of `SimulationEvidence`, without the cost of making one."""

    id: str
    task_id: str
    trial: Count
    status: Status
    reward: NotRequired[Unit | None]
    termination_reason: str
    task_digest: str
    recorded_reward: NotRequired[float | None]
    components: NotRequired[dict[str, Unit]]
    actions: NotRequired[dict[str, _Actions]]
    seed: NotRequired[int | None]
    cost: NotRequired[Annotated[float, Field(allow_inf_nan=False)] | None]
    note: NotRequired[str]
    usage: NotRequired[dict[str, _Usage]]


_LINES: TypeAdapter[list[_Simulation]] = TypeAdapter(list[_Simulation])


def read_columns(path: Path) -> tuple[Provenance, Columns]:
    """A saved baseline as columns.

    Raises:
        ResultsError: the file is missing, damaged or not evidence; names the file and the place.
    """
    try:
        with path.open("rb") as file:
            provenance = _head(path, file)
            if provenance is not None:
                return provenance, _body(path, file)
    except OSError as error:
        raise ResultsError(f"{path}: cannot be read: {error.strerror or error}") from None
    evidence = parse_evidence(decode(path), path)
    builder = ColumnsBuilder()
    for record in evidence.simulations:
        builder.add(record)
    return evidence.provenance, builder.build()


def _head(path: Path, file: BinaryIO) -> Provenance | None:
    """Where the evidence comes from; None where the file is laid out in another way."""
    if file.readline().strip() != _START:
        return None
    second, third = file.readline().strip(), file.readline().strip()
    if not second.startswith(_PROVENANCE) or third != _LIST:
        return None
    try:
        return Provenance.model_validate_json(second[len(_PROVENANCE) :].rstrip(b","))
    except ValidationError as error:
        raise ResultsError(f"{path}: damaged at provenance.{complaint(error)}; restore the file") from None


def _body(path: Path, file: BinaryIO) -> Columns:
    builder = ColumnsBuilder()
    for first, lines in _stretches(path, file):
        try:
            records = _LINES.validate_json(b"[" + b",".join(lines) + b"]")
        except ValidationError as error:
            place, told = _place(error, first)
            raise ResultsError(f"{path}: damaged at line {place}: {told}; restore the file") from None
        for number, record in enumerate(records, start=first):
            _add(builder, record, path, number)
    columns = builder.build()
    _refuse_doubles(path, columns, builder.trials)
    return columns


def _stretches(path: Path, file: BinaryIO) -> Iterator[tuple[int, list[bytes]]]:
    """Lines of simulations with the number of the first, without the commas between them."""
    lines: list[bytes] = []
    first = number = 4
    ended = False
    for line in file:
        text = line.strip()
        if text == _END:
            ended = True
        elif ended and text:
            raise ResultsError(f"{path}: damaged at line {number}: text after the end; restore the file")
        elif text:
            lines.append(text[:-1] if text.endswith(b",") else text)
        number += 1
        if len(lines) == _STRETCH:
            yield first, lines
            lines, first = [], number
    if not ended:
        raise ResultsError(f"{path}: damaged at line {number}: the file ends too early; restore the file")
    if lines:
        yield first, lines


def _place(error: ValidationError, first: int) -> tuple[int, str]:
    details = error.errors(include_url=False)[0]
    where = details["loc"]
    if where and isinstance(where[0], int):
        rest = ".".join(str(part) for part in where[1:]) or "the simulation"
        return first + where[0], f"{rest}: {details['msg']}"
    return first, str(details["msg"])


def _add(builder: ColumnsBuilder, record: _Simulation, path: Path, line: int) -> None:
    reward = record.get("reward")
    measured = record["status"] is Status.MEASURED
    if (reward is not None) != measured:
        raise ResultsError(
            f"{path}: damaged at line {line}: a reward ({reward!r}) and status {record['status'].value!r} "
            "exclude each other; restore the file"
        )
    actions = record.get("actions")
    usage = record.get("usage")
    builder.take(
        id=record["id"],
        task_id=record["task_id"],
        trial=record["trial"],
        task_digest=record["task_digest"],
        reward=reward,
        termination_reason=record["termination_reason"],
        actions=_pattern(actions, path, line) if actions else (),
        used=_used(usage, record.get("cost")) if usage else (record.get("cost"), None),
    )


def _pattern(actions: dict[str, _Actions], path: Path, line: int) -> tuple[tuple[str, int, int | None], ...]:
    pattern = tuple((kind, count["total"], count.get("matched")) for kind, count in actions.items())
    for kind, total, matched in pattern:
        if matched is not None and matched > total:
            raise ResultsError(
                f"{path}: damaged at line {line}: {matched} {kind} actions matched of {total}; "
                "restore the file"
            )
    return pattern


def _used(usage: dict[str, _Usage], cost: float | None) -> tuple[float | None, float | None]:
    costs = [one.get("cost") for one in usage.values()]
    tokens = sum(one.get("prompt_tokens", 0) + one.get("completion_tokens", 0) for one in usage.values())
    known = [one for one in costs if one is not None]
    return (sum(known) if len(known) == len(costs) else cost), float(tokens)


def _refuse_doubles(path: Path, columns: Columns, trials: Any) -> None:
    if not columns.size:
        return
    keys = columns.task * (int(trials.max()) + 1) + trials
    distinct, counts = np.unique(keys, return_counts=True)
    if distinct.size < columns.size:
        task, trial = divmod(int(distinct[counts > 1][0]), int(trials.max()) + 1)
        raise ResultsError(
            f"{path}: damaged: two simulations of task {columns.tasks[task]!r}, trial {trial}; "
            "restore the file"
        )


def is_compact(path: Path) -> bool:
    """Whether a file is evidence in the layout that is read fast."""
    try:
        with path.open("rb") as file:
            return file.readline().strip() == _START
    except OSError:
        return False
