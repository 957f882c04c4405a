"""Reads saved baselines into columns, in blocks of lines: half a million simulations take seconds.

Only files in the layout of `render_evidence`, with one simulation per line, are read in blocks. Any other
evidence is read as a whole.
"""

import contextlib
import gc
import hashlib
import json
import multiprocessing
import re
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from math import nan
from pathlib import Path
from typing import BinaryIO

import numpy as np
from pydantic import TypeAdapter, ValidationError

from pytest_trace2evolve.errors import ResultsError
from pytest_trace2evolve.evidence.baselines import DIGEST, parse_evidence
from pytest_trace2evolve.evidence.results import decode
from pytest_trace2evolve.gate.columns import Columns, ColumnsBuilder, Pattern, breaches_of, columns
from pytest_trace2evolve.records.evidence import SCHEMA, Provenance, SimulationEvidence
from pytest_trace2evolve.records.rules import Invariant
from pytest_trace2evolve.utils.canonical import DIGEST_LENGTH
from pytest_trace2evolve.utils.reading import COLUMNS, LINE, cause_of, open_regular, problem_in

PRICED = 20_000
"""The number of simulations of a side that give the mean cost and tokens of a simulation."""

PARALLEL = 16 << 20
"""The size in bytes of the smaller file from which a second process is worth starting."""

_BLOCK = 1 << 20
"""The number of bytes parsed at a time."""

_FIRST_LINE = re.compile(
    rb'\{"schema_version": %d,(?: "%b": "([0-9a-f]+)",)?\r?\n' % (SCHEMA, DIGEST.encode())
)
"""The first line of a file. The group is the digest of the rest, which older files lack."""

_PROVENANCE = b'"provenance": '
_LIST = b'"simulations": ['
_END = b"]}"
_FIRST_NUMBER = 4
"""The line of the first simulation."""

_RECORDS: TypeAdapter[list[SimulationEvidence]] = TypeAdapter(list[SimulationEvidence])

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
"""The exact form of a measured simulation. Nearly every line of a large file matches."""

_PlainLine = tuple[bytes, bytes, bytes, bytes, bytes, bytes, bytes, bytes]


def is_in_lines(path: Path) -> bool:
    """Whether a file is evidence in the layout that is read in blocks."""
    try:
        with open_regular(path) as file:
            return _FIRST_LINE.fullmatch(file.readline(LINE)) is not None
    except (OSError, ValueError):
        return False


def read_both(paths: tuple[Path, Path], *, parallel_from: int = PARALLEL) -> list[tuple[Provenance, Columns]]:
    """Two saved baselines as columns, read in parallel if both have `parallel_from` bytes or more."""
    if min(path.stat().st_size for path in paths) < parallel_from:
        return [read_columns(path) for path in paths]
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        second = pool.submit(read_columns, paths[1])
        return [read_columns(paths[0]), second.result()]


def read_columns(path: Path, *, priced: int = PRICED) -> tuple[Provenance, Columns]:
    """A saved baseline as columns, with cost and tokens of the first `priced` simulations or more.

    Raises:
        ResultsError: the file is missing, damaged, edited or not evidence. The message names file and place.
    """
    try:
        with open_regular(path, COLUMNS) as raw:
            file = _HashedFile(raw)
            if (provenance := _read_head(path, file)) is not None:
                found = _read_simulations(path, file, priced)
                if file.matches_digest:
                    return provenance, found
    except (OSError, ValueError) as error:
        raise ResultsError(f"{path}: {cause_of(error)}") from None
    # The file has a different layout, or was edited: `parse_evidence` reports an edit.
    evidence = parse_evidence(decode(path), path)
    return evidence.provenance, columns(evidence.simulations)


class _HashedFile:
    """An evidence file that is hashed while it is read."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._sum = hashlib.sha256()
        self._digest: bytes | None = None

    def read_first_line(self) -> bool:
        found = _FIRST_LINE.fullmatch(line := self._file.readline(LINE))
        if found is None:
            return False
        self._digest = found[1]
        self._sum.update(line.partition(b",")[0] + b",\n")
        return True

    def readline(self) -> bytes:
        line = self._file.readline(LINE)
        self._sum.update(line)
        return line

    def read(self, size: int) -> bytes:
        block = self._file.read(size)
        self._sum.update(block)
        return block

    @property
    def matches_digest(self) -> bool:
        """Whether the bytes read have the file's digest; true if the file has none."""
        return self._digest is None or self._sum.hexdigest()[:DIGEST_LENGTH].encode() == self._digest


def _damaged(path: Path, problem: str) -> ResultsError:
    return ResultsError(f"{path}: damaged{problem}; restore the file")


def _read_head(path: Path, file: _HashedFile) -> Provenance | None:
    """The provenance; None if the file has a different layout."""
    if not file.read_first_line():
        return None
    second, third = file.readline().strip(), file.readline().strip()
    if not second.startswith(_PROVENANCE) or third != _LIST:
        return None
    try:
        return Provenance.model_validate_json(second[len(_PROVENANCE) :].rstrip(b","))
    except ValidationError as error:
        raise _damaged(path, f" at provenance.{problem_in(error)}") from None


def _read_simulations(path: Path, file: _HashedFile, priced: int) -> Columns:
    builder = ColumnsBuilder()
    number = _FIRST_NUMBER
    with _without_garbage_collection():
        for block in _blocks(path, file):
            if builder.size >= priced and (lines := _plain_lines(block)):
                _add_plain_lines(builder, lines, path, number)
            else:
                builder.add(_parsed(block, path, number))
            number = _FIRST_NUMBER + builder.size
    found = builder.build()
    _check_unique_trials(path, found, builder)
    return found


@contextlib.contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Disable garbage collection, which would take a third of the time. Records form no cycles."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _blocks(path: Path, file: _HashedFile) -> Iterator[bytes]:
    """Whole lines of simulations, about a megabyte at a time, without the comma after the last one."""
    rest = b""
    while block := file.read(_BLOCK):
        rest += block
        end = rest.rfind(b",\n")
        # The last simulation is kept back, because no block may hold the end of the list.
        if end > 0 and len(block) == _BLOCK:
            yield rest[:end]
            rest = rest[end + 2 :]
        elif len(rest) > LINE:
            raise _damaged(path, f": a line is longer than {LINE >> 20} MiB")
    text, end_of_list, after = rest.rpartition(_END)
    if not end_of_list:
        raise _damaged(path, ": the file ends too early")
    if after.strip():
        raise _damaged(path, ": text after the end")
    if text.strip():
        yield text


def _parsed(block: bytes, path: Path, first: int) -> list[SimulationEvidence]:
    try:
        return _RECORDS.validate_json(b"[" + block + b"]")
    except ValidationError as error:
        details = error.errors(include_url=False)[0]
        line, *place = details["loc"] or (0,)
        problem = ": ".join([".".join(map(str, place)), details["msg"].removeprefix("Value error, ")])
        number = first + line if isinstance(line, int) else first
        raise _damaged(path, f" at line {number}: {problem.removeprefix(': ')}") from None


def _plain_lines(block: bytes) -> list[_PlainLine]:
    """The fields of each line if all lines match `_PLAIN`, otherwise an empty list."""
    found: list[_PlainLine] = _PLAIN.findall(block)
    return found if len(found) == block.strip(b"\n").count(b"\n") + 1 else []


def _add_plain_lines(builder: ColumnsBuilder, lines: list[_PlainLine], path: Path, first: int) -> None:
    """Add lines field by field, because a loop over records would take three times as long."""
    actions, ids, broken, rewards, digests, tasks, ends, trials = zip(*lines, strict=True)
    patterns = {text: _plain_pattern(text) for text in set(actions)}
    for text, pattern in patterns.items():
        for kind, total, matched in pattern:
            if matched is not None and matched > total:
                problem = f"actions.{kind}: {matched} actions matched of {total}"
                raise _damaged(path, f" at line {first + actions.index(text)}: {problem}")
    breaches = {text: breaches_of(json.loads(text) if text else None) for text in set(broken)}
    unknown = [nan] * len(lines)
    builder.extend(
        ids=list(map(bytes.decode, ids)),
        tasks=list(map(bytes.decode, tasks)),
        trials=list(map(int, trials)),
        digests=list(map(bytes.decode, digests)),
        rewards=[1.0 if text == b"1.0" else 0.0 for text in rewards],
        ends=list(map(bytes.decode, ends)),
        patterns=[patterns[text] for text in actions],
        costs=unknown,
        tokens=unknown,
        breaches=[breaches[text] for text in broken],
    )


def _plain_pattern(actions: bytes) -> Pattern:
    counts = json.loads(b"{" + actions + b"}") if actions else {}
    return tuple((kind, count["total"], count["matched"]) for kind, count in counts.items())


def _check_unique_trials(path: Path, side: Columns, builder: ColumnsBuilder) -> None:
    if not side.size:
        return
    # Uses ranks of trial numbers, because a trial number times the number of tasks may exceed 64 bits.
    numbers, place = np.unique(builder.trials, return_inverse=True)
    distinct, counts = np.unique(side.task * numbers.size + place, return_counts=True)
    if distinct.size < side.size:
        task, trial = divmod(int(distinct[counts > 1][0]), numbers.size)
        raise _damaged(path, f": two simulations of task {side.tasks[task]!r}, trial {numbers[trial]}")
