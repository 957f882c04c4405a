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
from pytest_trace2evolve.evidence.baselines import DIGEST_FIELD, parse_evidence
from pytest_trace2evolve.evidence.results import decode_results
from pytest_trace2evolve.gate.columns import ActionTotals, Columns, ColumnsBuilder, breach_bits, build_columns
from pytest_trace2evolve.records.evidence import EVIDENCE_SCHEMA, Provenance, SimulationEvidence
from pytest_trace2evolve.records.rules import Invariant
from pytest_trace2evolve.records.trace_check import CheckOutcome
from pytest_trace2evolve.utils.canonical import DIGEST_LENGTH
from pytest_trace2evolve.utils.reading import (
    MAX_COLUMNS_BYTES,
    MAX_LINE_BYTES,
    describe_failure,
    first_problem,
    open_regular,
)

MIN_PRICED_SIMULATIONS = 20_000
"""The minimum number of simulations that the mean cost and tokens are computed from."""

MIN_PARALLEL_BYTES = 16 << 20
"""The minimum size of the smaller file, in bytes, for which a second process is started."""

_BLOCK_SIZE = 1 << 20
"""The number of bytes parsed at once."""

_FIRST_LINE = re.compile(
    rb'\{"schema_version": %d,(?: "%b": "([0-9a-f]+)",)?\r?\n' % (EVIDENCE_SCHEMA, DIGEST_FIELD.encode())
)
"""The first line of a file. The group is the digest of the rest, which older files lack."""

_PROVENANCE_START = b'"provenance": '
_LIST_START = b'"simulations": ['
_LIST_END = b"]}"
_FIRST_SIMULATION_LINE = 4
"""The line of the first simulation."""

_SIMULATIONS_ADAPTER: TypeAdapter[list[SimulationEvidence]] = TypeAdapter(list[SimulationEvidence])

_NUMBER_PATTERN = rb"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?"
_TEXT_PATTERN = rb'"([^"\\\x00-\x1f]+)"'
_BREACH_PATTERN = rb'"(?:' + "|".join(Invariant).encode() + rb')":(?:0|[1-9]\d{0,8})'
_CHECK_PATTERN = rb'"[A-Za-z0-9_-]+":"(?:' + "|".join(CheckOutcome).encode() + rb')"'
_PLAIN_LINE = re.compile(
    rb'^  \{(?:"actions":\{((?:"[a-z]+":\{"matched":\d{1,15},"total":\d{1,15}\},?)+)\},)?'
    rb'(?:"checks":(\{' + _CHECK_PATTERN + rb"(?:," + _CHECK_PATTERN + rb")*\}),)?"
    rb'(?:"components":\{(?:"[A-Z_]+":[01]\.0,?)*\},)?(?:"cost":' + _NUMBER_PATTERN + rb",)?"
    rb'"id":'
    + _TEXT_PATTERN
    + rb',(?:"invariants":(\{(?:'
    + _BREACH_PATTERN
    + rb"(?:,"
    + _BREACH_PATTERN
    + rb")*)?\}),)?"
    rb'(?:"recorded_reward":[01]\.0,)?"reward":([01]\.0),(?:"seed":\d+,)?'
    rb'"status":"measured","task_digest":' + _TEXT_PATTERN + rb',"task_id":' + _TEXT_PATTERN + rb","
    rb'"termination_reason":"([a-z_]+)","trial":(\d{1,9})'
    rb'(?:,"usage":\{(?:"[a-z]+":\{(?:"[a-z_]+":' + _NUMBER_PATTERN + rb",?)*\},?)*\})?\},?$",
    re.MULTILINE,
)
"""The exact form of a measured simulation. Nearly every line of a large file matches."""

_PlainFields = tuple[bytes, bytes, bytes, bytes, bytes, bytes, bytes, bytes, bytes]


def has_line_layout(path: Path) -> bool:
    """Whether a file is evidence in the layout that is read in blocks."""
    try:
        with open_regular(path) as file:
            return _FIRST_LINE.fullmatch(file.readline(MAX_LINE_BYTES)) is not None
    except (OSError, ValueError):
        return False


def read_pair(
    paths: tuple[Path, Path], *, min_parallel_bytes: int = MIN_PARALLEL_BYTES
) -> list[tuple[Provenance, Columns]]:
    """Read two saved baselines as columns, in parallel if both have `min_parallel_bytes` bytes or more."""
    if min(path.stat().st_size for path in paths) < min_parallel_bytes:
        return [read_columns(path) for path in paths]
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        second_future = pool.submit(read_columns, paths[1])
        return [read_columns(paths[0]), second_future.result()]


def read_columns(path: Path, *, min_priced: int = MIN_PRICED_SIMULATIONS) -> tuple[Provenance, Columns]:
    """Read a saved baseline as columns, with cost and tokens for at least `min_priced` simulations.

    Raises:
        ResultsError: the file is missing, damaged, edited or not evidence. The message names file and place.
    """
    try:
        with open_regular(path, MAX_COLUMNS_BYTES) as raw_file:
            file = _HashedFile(raw_file)
            if (provenance := _read_head(path, file)) is not None:
                simulation_columns = _read_simulations(path, file, min_priced)
                if file.matches_digest:
                    return provenance, simulation_columns
    except (OSError, ValueError) as error:
        raise ResultsError(f"{path}: {describe_failure(error)}") from None
    # The file has a different layout, or was edited: `parse_evidence` reports an edit.
    evidence = parse_evidence(decode_results(path), path)
    return evidence.provenance, build_columns(evidence.simulations)


class _HashedFile:
    """An evidence file that is hashed while it is read."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self._digest: bytes | None = None

    def read_first_line(self) -> bool:
        match = _FIRST_LINE.fullmatch(line := self._file.readline(MAX_LINE_BYTES))
        if match is None:
            return False
        self._digest = match[1]
        self._hash.update(line.partition(b",")[0] + b",\n")
        return True

    def readline(self) -> bytes:
        line = self._file.readline(MAX_LINE_BYTES)
        self._hash.update(line)
        return line

    def read(self, size: int) -> bytes:
        block = self._file.read(size)
        self._hash.update(block)
        return block

    @property
    def matches_digest(self) -> bool:
        """Whether the bytes read have the file's digest; true if the file has none."""
        return self._digest is None or self._hash.hexdigest()[:DIGEST_LENGTH].encode() == self._digest


def _damage_error(path: Path, problem: str) -> ResultsError:
    return ResultsError(f"{path}: damaged{problem}; restore the file")


def _read_head(path: Path, file: _HashedFile) -> Provenance | None:
    """Read the provenance; None if the file has a different layout."""
    if not file.read_first_line():
        return None
    provenance_line, list_line = file.readline().strip(), file.readline().strip()
    if not provenance_line.startswith(_PROVENANCE_START) or list_line != _LIST_START:
        return None
    try:
        return Provenance.model_validate_json(provenance_line[len(_PROVENANCE_START) :].rstrip(b","))
    except ValidationError as error:
        raise _damage_error(path, f" at provenance.{first_problem(error)}") from None


def _read_simulations(path: Path, file: _HashedFile, min_priced: int) -> Columns:
    builder = ColumnsBuilder()
    line_number = _FIRST_SIMULATION_LINE
    with _without_garbage_collection():
        for block in _read_blocks(path, file):
            if builder.size >= min_priced and (lines := _match_plain_lines(block)):
                _add_plain_lines(builder, lines, path, line_number)
            else:
                builder.add(_parse_block(block, path, line_number))
            line_number = _FIRST_SIMULATION_LINE + builder.size
    simulation_columns = builder.build()
    _check_unique_trials(path, simulation_columns, builder)
    return simulation_columns


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


def _read_blocks(path: Path, file: _HashedFile) -> Iterator[bytes]:
    """Yield whole lines of simulations, about a megabyte at a time, without the comma after the last line."""
    buffer = b""
    while block := file.read(_BLOCK_SIZE):
        buffer += block
        end = buffer.rfind(b",\n")
        # The last simulation is kept back, because no block may hold the end of the list.
        if end > 0 and len(block) == _BLOCK_SIZE:
            yield buffer[:end]
            buffer = buffer[end + 2 :]
        elif len(buffer) > MAX_LINE_BYTES:
            raise _damage_error(path, f": a line is longer than {MAX_LINE_BYTES >> 20} MiB")
    text, end_of_list, trailing_text = buffer.rpartition(_LIST_END)
    if not end_of_list:
        raise _damage_error(path, ": the file ends too early")
    if trailing_text.strip():
        raise _damage_error(path, ": text after the end")
    if text.strip():
        yield text


def _parse_block(block: bytes, path: Path, first_line: int) -> list[SimulationEvidence]:
    try:
        return _SIMULATIONS_ADAPTER.validate_json(b"[" + block + b"]")
    except ValidationError as error:
        details = error.errors(include_url=False)[0]
        line, *location = details["loc"] or (0,)
        problem = ": ".join([".".join(map(str, location)), details["msg"].removeprefix("Value error, ")])
        line_number = first_line + line if isinstance(line, int) else first_line
        raise _damage_error(path, f" at line {line_number}: {problem.removeprefix(': ')}") from None


def _match_plain_lines(block: bytes) -> list[_PlainFields]:
    """Return the fields of each line if all lines match `_PLAIN_LINE`, otherwise an empty list."""
    lines: list[_PlainFields] = _PLAIN_LINE.findall(block)
    return lines if len(lines) == block.strip(b"\n").count(b"\n") + 1 else []


def _add_plain_lines(builder: ColumnsBuilder, lines: list[_PlainFields], path: Path, first_line: int) -> None:
    """Add lines field by field, because a loop over records would take three times as long."""
    actions, checks, ids, breach_counts, rewards, digests, tasks, reasons, trials = zip(*lines, strict=True)
    patterns = {text: _parse_pattern(text) for text in set(actions)}
    for text, pattern in patterns.items():
        for tool_type, total, matched in pattern:
            if matched is not None and matched > total:
                problem = f"actions.{tool_type}: {matched} of {total} actions matched"
                raise _damage_error(path, f" at line {first_line + actions.index(text)}: {problem}")
    breaches = {text: breach_bits(json.loads(text) if text else None) for text in set(breach_counts)}
    outcomes = {text: tuple(json.loads(text).items()) if text else () for text in set(checks)}
    missing_values = [nan] * len(lines)
    builder.extend(
        ids=list(map(bytes.decode, ids)),
        tasks=list(map(bytes.decode, tasks)),
        trials=list(map(int, trials)),
        digests=list(map(bytes.decode, digests)),
        rewards=[1.0 if text == b"1.0" else 0.0 for text in rewards],
        termination_reasons=list(map(bytes.decode, reasons)),
        action_totals=[patterns[text] for text in actions],
        costs=missing_values,
        tokens=missing_values,
        breaches=[breaches[text] for text in breach_counts],
        check_outcomes=[outcomes[text] for text in checks],
    )


def _parse_pattern(actions: bytes) -> ActionTotals:
    counts = json.loads(b"{" + actions + b"}") if actions else {}
    return tuple((tool_type, count["total"], count["matched"]) for tool_type, count in counts.items())


def _check_unique_trials(path: Path, simulation_columns: Columns, builder: ColumnsBuilder) -> None:
    if not simulation_columns.size:
        return
    # Uses ranks of trial numbers, because a trial number times the number of tasks may exceed 64 bits.
    numbers, ranks = np.unique(builder.trials, return_inverse=True)
    distinct, counts = np.unique(simulation_columns.task_index * numbers.size + ranks, return_counts=True)
    if distinct.size < simulation_columns.size:
        task, trial = divmod(int(distinct[counts > 1][0]), numbers.size)
        raise _damage_error(
            path, f": two simulations of task {simulation_columns.tasks[task]!r}, trial {numbers[trial]}"
        )
