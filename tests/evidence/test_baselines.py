"""Saved baselines: a comparison reads the same simulations as a session, and rejects damaged files."""

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_trace2evolve.errors import ResultsError
from pytest_trace2evolve.evidence.baselines import (
    read_evidence,
    render_evidence,
    stream_evidence,
    write_evidence,
)
from pytest_trace2evolve.gate.columns import Columns, build_columns
from pytest_trace2evolve.records.completion import Usage
from pytest_trace2evolve.records.evidence import Evidence, Provenance, Settings
from pytest_trace2evolve.records.rules import Invariant
from pytest_trace2evolve.records.trace_check import CheckOutcome
from pytest_trace2evolve.session.compare import read_side
from pytest_trace2evolve.worlds.registry import Worlds
from tests.gate_helpers import NAMES, Side, side, sim


def written(path: Path, records: Side) -> Path:
    write_evidence(
        path, Evidence(provenance=Provenance(domain="desk", provider="fake"), simulations=tuple(records))
    )
    return path


CHECKS = st.dictionaries(st.sampled_from(["asks", "B-2", "_x"]), st.sampled_from(CheckOutcome), max_size=3)
BROKEN = st.none() | st.dictionaries(st.sampled_from(Invariant), st.integers(0, 30), max_size=3)


@st.composite
def evidence(draw: st.DrawFn) -> Side:
    """Simulations with every field that the gate reads."""
    records = []
    for task in draw(st.lists(NAMES, min_size=1, max_size=4, unique=True)):
        for trial in range(draw(st.integers(1, 3))):
            reward = draw(st.sampled_from([0.0, 1.0, 0.5, None]))
            record = sim(task, reward, trial=trial, read=(2, draw(st.integers(0, 2))), write=(0, 0))
            cost = draw(st.none() | st.floats(0, 9))
            usage = {
                "assistant": Usage(
                    calls=1, prompt_tokens=draw(st.integers(0, 9)), completion_tokens=1, cost=cost
                )
            }
            records.append(
                record.model_copy(
                    update={
                        "cost": draw(st.none() | st.floats(0, 9)),
                        "usage": usage if draw(st.booleans()) else {},
                        "termination_reason": draw(st.sampled_from(["user_stop", "max_steps"])),
                        "invariants": draw(BROKEN) if reward is not None else None,
                        "checks": draw(CHECKS) if reward is not None else {},
                        "models": draw(st.sampled_from([(), ("small", "large")])),
                    }
                )
            )
    return records


def columns_of(path: Path) -> Columns:
    return read_side([path], Worlds(), None, None).columns


def assert_equal_columns(found: Columns, expected: Columns) -> None:
    for field in dataclasses.fields(Columns):
        values = getattr(found, field.name), getattr(expected, field.name)
        if field.name in ("shares", "has_actions", "usage"):
            assert values[0].keys() == values[1].keys()
            values = tuple(list(arrays.values()) for arrays in values)
        np.testing.assert_array_equal(*values)


LAYOUTS: dict[str, Callable[[str], str]] = {
    "as written": lambda text: text,
    "other line ends": lambda text: text.replace("\n", "\r\n"),
    "indented": lambda text: json.dumps(json.loads(text), indent=2),
    "keys in another order": lambda text: json.dumps(dict(reversed(json.loads(text).items()))),
    "without a digest": lambda text: json.dumps(
        {name: value for name, value in json.loads(text).items() if name != "digest"}
    ),
}


@settings(max_examples=60)
@given(evidence(), st.sampled_from(sorted(LAYOUTS)))
def test_a_comparison_reads_what_a_session_reads(
    tmp_path_factory: pytest.TempPathFactory, records: Side, layout: str
) -> None:
    """After a formatter or a checkout changed the layout of the file."""
    path = written(tmp_path_factory.mktemp("e") / "one.json", records)
    path.write_bytes(LAYOUTS[layout](path.read_text(encoding="utf-8")).encode())
    found = read_side([path], Worlds(), None, None)
    expected = read_evidence(path)
    assert list(expected.simulations) == records
    assert found.provenance == expected.provenance
    assert_equal_columns(found.columns, build_columns(records))


def test_a_written_file_is_read_without_keeping_its_records(tmp_path: Path) -> None:
    """Records of half a million simulations do not fit into memory."""
    path = written(tmp_path / "one.json", side(1, 0))
    ids: list[str] = []
    assert stream_evidence(path, lambda record: ids.append(record.id)) == read_evidence(path).provenance
    assert ids == ["0-0", "1-0"]


DAMAGE = [
    ('"reward":1.0', '"reward":NaN', "not valid JSON with finite numbers"),
    ('"reward":1.0', '"reward":1e999', "not valid JSON with finite numbers: simulations.0.reward"),
    ('"reward":1.0', '"reward":2.0', "simulations.0.reward: Input should be less than or equal to 1"),
    ('"reward":1.0,', "", "reward None does not match status 'measured'"),
    ('"status":"measured"', '"status":"fine"', "simulations.0.status: "),
    ('"task_id":"0"', '"task_idd":"0"', "simulations.0: unknown key 'task_idd'; did you mean 'task_id'?"),
    ('"trial":0}', '"trial":0,"shoe_size":9}', "simulations.0: unknown key 'shoe_size'"),
    ('"task_id":"1"', '"task_id":"0"', "two simulations of task '0', trial 0"),
    ('"matched":1,', '"matched":3,', "3 of 2 actions matched"),
    ('"trial":0}', f'"trial":{10**24}}}', "simulations.0.trial: Input should be less than or equal"),
    ("\n]}", "", "not valid JSON with finite numbers: EOF"),
    ("\n]}", "\n]}\n{}", "not valid JSON with finite numbers: trailing characters"),
    ('"domain":"desk"', '"domian":"desk"', "unknown key 'domian'; did you mean 'domain'?"),
    ('"schema_version": 1', '"schema_version": 2', "has evidence format 2"),
    ('"arguments":{"top_p":1}', '"arguments":{"top_p":NaN}', "not valid JSON with finite numbers"),
    ('"arguments":{"top_p":1}', '"arguments":{"top_p":1e999}', "not valid JSON with finite numbers"),
    ('"simulations": [', '"simulations": [' + "[" * 300, "nested more than 200 levels deep"),
    ('"id":"0-0"', '"id":"\\ud800"', "not valid JSON with finite numbers"),
]


@pytest.mark.parametrize("has_digest", [True, False])
@pytest.mark.parametrize(("good", "bad", "problem"), DAMAGE, ids=[f"{d[1][:30]}" for d in DAMAGE])
def test_damage_is_reported_in_one_line(
    tmp_path: Path, good: str, bad: str, problem: str, has_digest: bool
) -> None:
    """Also in files from before the digest, where only the schema can show the damage."""
    origin = Provenance(domain="desk", provider="fake", agent=Settings(arguments={"top_p": 1}))
    records = tuple(sim(task, 1.0, read=(2, 1)) for task in range(2))
    text = render_evidence(Evidence(provenance=origin, simulations=records))
    if not has_digest:
        text = text.replace(f', "digest": "{json.loads(text)["digest"]}"', "")
    assert good in text
    path = tmp_path / "one.json"
    path.write_text(text.replace(good, bad, 1), encoding="utf-8")
    for read in (columns_of, read_evidence):
        with pytest.raises(ResultsError, match=r"^[^\n]*one\.json: [^\n]*$") as error:
            read(path)
        assert problem in str(error.value)


def test_a_large_list_of_wrong_values_is_rejected_at_the_first(tmp_path: Path) -> None:
    """A problem for every value would take a hundred times the memory of the file."""
    path = written(tmp_path / "one.json", side(1))
    text = path.read_text(encoding="utf-8")
    path.write_text(text[: text.index("[\n")] + "[" + "1," * 3_000_000 + "1]}", encoding="utf-8")
    script = (
        "import re, sys; from pathlib import Path\n"
        "from pytest_trace2evolve.errors import ResultsError\n"
        "from pytest_trace2evolve.session.compare import read_side\n"
        "from pytest_trace2evolve.worlds.registry import Worlds\n"
        "try: read_side([Path(sys.argv[1])], Worlds(), None, None)\n"
        "except ResultsError as error: print(error)\n"
        "print(re.search(r'VmHWM:\\s*(\\d+)', Path('/proc/self/status').read_text())[1])\n"
    )
    command = [sys.executable, "-c", script, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    message, kibibytes = done.stdout.splitlines()
    assert "damaged at simulations.0: " in message
    assert int(kibibytes) < 600 << 10  # `ru_maxrss` would include the memory of this process


def test_the_layout_of_evidence_without_checks_is_unchanged() -> None:
    """Evidence from before checks of one's own is written as it was, with the same digest."""
    paths = sorted((Path(__file__).parents[2] / "baselines").rglob("*.json"))
    assert len(paths) > 10
    for path in paths:
        assert render_evidence(read_evidence(path)) == path.read_text(encoding="utf-8")
