"""Evidence read as columns, a stretch of lines at a time: a side of half a million simulations in seconds.

Only files as we write them are read so: one simulation a line. Any other evidence is read whole.
"""

import contextlib
import gc
import hashlib
import json
import multiprocessing
import re
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from math import isnan, nan
from pathlib import Path
from typing import Annotated, Any, BinaryIO, NotRequired

import numpy as np
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict

from pytest_trace2evolve.errors import ResultsError
from pytest_trace2evolve.evidence.baselines import DIGEST, parse_evidence
from pytest_trace2evolve.evidence.results import decode
from pytest_trace2evolve.gate.columns import Columns, ColumnsBuilder, Pattern, breaches_of, columns
from pytest_trace2evolve.records.evidence import SCHEMA, Count, Provenance
from pytest_trace2evolve.records.rules import Invariant
from pytest_trace2evolve.records.score import Status, Unit
from pytest_trace2evolve.utils.canonical import DIGEST_LENGTH
from pytest_trace2evolve.utils.reading import COLUMNS, LINE, cause_of, complaint, open_regular

_STRETCH = 1 << 20
"""Bytes that are validated at once."""

_PRICED = 20_000
"""Simulations of a side from which the mean use of one is taken."""

_LARGE = 16 << 20
"""Bytes from which a second process is worth its start."""

_START = re.compile(rb'\{"schema_version": %d,(?: "%b": "([0-9a-f]+)",)?\r?\n' % (SCHEMA, DIGEST.encode()))
"""The first line; its group is the digest of the rest, which files written before digests lack."""

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
    invariants: NotRequired[dict[Invariant, Count] | None]


_LINES: TypeAdapter[list[_Simulation]] = TypeAdapter(list[_Simulation])


def read_both(paths: tuple[Path, Path]) -> list[tuple[Provenance, Columns]]:
    """Two saved baselines as columns, where they are large in a process each.

    Raises:
        ResultsError: one is missing, damaged, edited or not evidence; names the file and the place.
    """
    if min(path.stat().st_size for path in paths) < _LARGE:
        return [read_columns(path) for path in paths]
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as beside:
        second = beside.submit(read_columns, paths[1])
        return [read_columns(paths[0]), second.result()]


def read_columns(path: Path) -> tuple[Provenance, Columns]:
    """A saved baseline as columns.

    Raises:
        ResultsError: the file is missing, damaged, edited or not evidence; names the file and the place.
    """
    try:
        with open_regular(path, COLUMNS) as raw:
            file = _Hashed(raw)
            provenance = _head(path, file)
            if provenance is not None:
                with _no_collection():
                    built = _body(path, file)
                if file.as_written:
                    return provenance, built
    except (OSError, ValueError) as error:
        raise ResultsError(f"{path}: {cause_of(error)}") from None
    # Laid out in another way, or edited, which is said.
    evidence = parse_evidence(decode(path), path)
    return evidence.provenance, columns(evidence.simulations)


class _Hashed:
    """A file of evidence, whose bytes are hashed as they are read."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._sum = hashlib.sha256()
        self._says: bytes | None = None

    def first_line(self) -> bool:
        """Read the first line; whether it is as we write it."""
        found = _START.fullmatch(line := self._file.readline(LINE))
        if found is None:
            return False
        self._says = found[1]
        self._sum.update(line.partition(b",")[0] + b",\n")
        return True

    def readline(self) -> bytes:
        """The next line, at most `LINE` bytes of it."""
        line = self._file.readline(LINE)
        self._sum.update(line)
        return line

    def read(self, size: int) -> bytes:
        """The next bytes, at most `size`."""
        block = self._file.read(size)
        self._sum.update(block)
        return block

    @property
    def as_written(self) -> bool:
        """Whether the bytes read have the digest that the file says; a file that says none is believed."""
        return self._says is None or self._sum.hexdigest()[:DIGEST_LENGTH].encode() == self._says


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Without the garbage collector, which takes a third of the time over records that form no cycles."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _head(path: Path, file: _Hashed) -> Provenance | None:
    """Where the evidence comes from; None where the file is laid out in another way."""
    if not file.first_line():
        return None
    second, third = file.readline().strip(), file.readline().strip()
    if not second.startswith(_PROVENANCE) or third != _LIST:
        return None
    try:
        return Provenance.model_validate_json(second[len(_PROVENANCE) :].rstrip(b","))
    except ValidationError as error:
        raise ResultsError(f"{path}: damaged at provenance.{complaint(error)}; restore the file") from None


def _body(path: Path, file: _Hashed) -> Columns:
    builder = ColumnsBuilder()
    first = 4
    for text in _stretches(path, file):
        if builder.size >= _PRICED and (plain := _plain_lines(text)):
            _take_plain(builder, plain, path, first)
            first += len(plain)
            continue
        try:
            records = _LINES.validate_json(b"[" + text + b"]")
        except ValidationError as error:
            place, told = _place(error, first)
            raise ResultsError(f"{path}: damaged at line {place}: {told}; restore the file") from None
        _take(builder, records, path, first)
        first += len(records)
    built = builder.build()
    _refuse_doubles(path, built, builder.trials)
    return built


def _stretches(path: Path, file: _Hashed) -> Iterator[bytes]:
    """Whole lines of simulations, some megabytes at a time, without the comma after the last."""
    rest = b""
    while block := file.read(_STRETCH):
        rest += block
        end = rest.rfind(b",\n")
        # The last simulation waits for what follows: no stretch may hold the end of the list.
        if end > 0 and len(block) == _STRETCH:
            yield rest[:end]
            rest = rest[end + 2 :]
        elif len(rest) > LINE:
            raise ResultsError(f"{path}: damaged: a line is longer than {LINE >> 20} MiB; restore the file")
    text, end_of_list, after = rest.rpartition(_END)
    if not end_of_list:
        raise ResultsError(f"{path}: damaged: the file ends too early; restore the file")
    if after.strip():
        raise ResultsError(f"{path}: damaged: text after the end; restore the file")
    if text.strip():
        yield text


_NUMBER = rb"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?"
_TEXT = rb'"([^"\\\x00-\x1f]+)"'
_BROKEN = rb'"(?:' + "|".join(Invariant).encode() + rb')":(?:0|[1-9]\d{0,8})'
_PLAIN = re.compile(
    rb'^  \{(?:"actions":\{((?:"[a-z]+":\{"matched":\d{1,15},"total":\d{1,15}\},?)+)\},)?'
    rb'(?:"components":\{(?:"[A-Z_]+":[01]\.0,?)*\},)?(?:"cost":' + _NUMBER + rb",)?"
    rb'"id":' + _TEXT + rb',(?:"invariants":(\{(?:' + _BROKEN + rb"(?:," + _BROKEN + rb")*)?\}),)?"
    rb'(?:"recorded_reward":[01]\.0,)?"reward":([01]\.0),(?:"seed":\d+,)?'
    rb'"status":"measured","task_digest":' + _TEXT + rb',"task_id":' + _TEXT + rb","
    rb'"termination_reason":"([a-z_]+)","trial":(\d{1,9})'
    rb'(?:,"usage":\{(?:"[a-z]+":\{(?:"[a-z_]+":' + _NUMBER + rb",?)*\},?)*\})?\},?$",
    re.MULTILINE,
)
"""A measured simulation exactly as it is written: what a line of nearly all large files is."""

_Plain = tuple[bytes, bytes, bytes, bytes, bytes, bytes, bytes, bytes]


def _plain_lines(text: bytes) -> list[_Plain]:
    """The fields of each line where all are plain; else none, and every line is validated as any other."""
    found: list[_Plain] = _PLAIN.findall(text)
    return found if len(found) == text.strip(b"\n").count(b"\n") + 1 else []


def _take_plain(builder: ColumnsBuilder, lines: list[_Plain], path: Path, first: int) -> None:
    actions, ids, broken, rewards, digests, tasks, ends, trials = zip(*lines, strict=True)
    patterns = {one: _plain_pattern(one) for one in set(actions)}
    for one, pattern in patterns.items():
        _refuse_overmatched(pattern, path, first + actions.index(one))
    breaches = {one: breaches_of(json.loads(one) if one else None) for one in set(broken)}
    unknown = [nan] * len(lines)
    builder.extend(
        ids=[one.decode() for one in ids],
        tasks=[one.decode() for one in tasks],
        trials=[int(one) for one in trials],
        digests=[one.decode() for one in digests],
        rewards=[1.0 if one == b"1.0" else 0.0 for one in rewards],
        ends=[one.decode() for one in ends],
        patterns=[patterns[one] for one in actions],
        costs=unknown,
        tokens=unknown,
        breaches=[breaches[one] for one in broken],
    )


def _plain_pattern(actions: bytes) -> Pattern:
    counts = json.loads(b"{" + actions + b"}") if actions else {}
    return tuple((kind, count["total"], count["matched"]) for kind, count in counts.items())


def _refuse_overmatched(pattern: Pattern, path: Path, line: int) -> None:
    for kind, total, matched in pattern:
        if matched is not None and matched > total:
            raise ResultsError(
                f"{path}: damaged at line {line}: {matched} {kind} actions matched of {total}; "
                "restore the file"
            )


def _place(error: ValidationError, first: int) -> tuple[int, str]:
    details = error.errors(include_url=False)[0]
    where = details["loc"]
    if where and isinstance(where[0], int):
        rest = ".".join(str(part) for part in where[1:]) or "the simulation"
        return first + where[0], f"{rest}: {details['msg']}"
    return first, str(details["msg"])


def _take(builder: ColumnsBuilder, records: list[_Simulation], path: Path, first: int) -> None:
    """A stretch into columns, a field at a time: a loop over records would take three times as long."""
    rewards = [record.get("reward") for record in records]
    measured = [record["status"] is Status.MEASURED for record in records]
    for number, (reward, known) in enumerate(zip(rewards, measured, strict=True), start=first):
        if (reward is not None) != known:
            status = records[number - first]["status"].value
            raise ResultsError(
                f"{path}: damaged at line {number}: a reward ({reward!r}) and status {status!r} "
                "exclude each other; restore the file"
            )
    patterns = [_pattern(record.get("actions")) for record in records]
    for pattern in set(patterns):
        _refuse_overmatched(pattern, path, first + patterns.index(pattern))
    if builder.size < _PRICED:
        used = [_used(record.get("usage"), record.get("cost")) for record in records]
    else:
        used = [(nan, nan)] * len(records)
    builder.extend(
        ids=[record["id"] for record in records],
        tasks=[record["task_id"] for record in records],
        trials=[record["trial"] for record in records],
        digests=[record["task_digest"] for record in records],
        rewards=[nan if reward is None else reward for reward in rewards],
        ends=[record["termination_reason"] for record in records],
        patterns=patterns,
        costs=[cost for cost, _ in used],
        tokens=[tokens for _, tokens in used],
        breaches=[breaches_of(record.get("invariants")) for record in records],
    )


def _pattern(actions: dict[str, _Actions] | None) -> Pattern:
    if not actions:
        return ()
    return tuple([(kind, count["total"], count.get("matched")) for kind, count in actions.items()])


def _used(usage: dict[str, _Usage] | None, cost: float | None) -> tuple[float, float]:
    """Dollars and tokens; NaN where they are not known."""
    given = nan if cost is None else cost
    if not usage:
        return given, nan
    costs, tokens = 0.0, 0
    for one in usage.values():
        price = one.get("cost")
        costs += nan if price is None else price
        tokens += one.get("prompt_tokens", 0) + one.get("completion_tokens", 0)
    return (given if isnan(costs) else costs), float(tokens)


def _refuse_doubles(path: Path, side: Columns, trials: Any) -> None:
    if not side.size:
        return
    # By their places, since numbers of trials times those of tasks may not fit into 64 bits.
    numbers, place = np.unique(trials, return_inverse=True)
    distinct, counts = np.unique(side.task * numbers.size + place, return_counts=True)
    if distinct.size < side.size:
        task, trial = divmod(int(distinct[counts > 1][0]), numbers.size)
        raise ResultsError(
            f"{path}: damaged: two simulations of task {side.tasks[task]!r}, trial {numbers[trial]}; "
            "restore the file"
        )


def is_compact(path: Path) -> bool:
    """Whether a file is evidence in the layout that is read fast."""
    try:
        with open_regular(path) as file:
            return _START.fullmatch(file.readline(LINE)) is not None
    except (OSError, ValueError):
        return False
