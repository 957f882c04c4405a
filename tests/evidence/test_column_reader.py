"""Evidence read as columns: the same as read whole, and rejected if it is damaged."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_trace2evolve.errors import ResultsError
from pytest_trace2evolve.evidence.baselines import read_evidence, write_evidence
from pytest_trace2evolve.evidence.column_reader import has_line_layout, read_columns, read_pair
from pytest_trace2evolve.gate.columns import build_columns
from pytest_trace2evolve.records.completion import Usage
from pytest_trace2evolve.records.evidence import Evidence, Provenance
from pytest_trace2evolve.records.rules import Invariant
from tests.gate_helpers import NAMES, Side, side, sim


def written(path: Path, records: Side) -> Path:
    write_evidence(
        path, Evidence(provenance=Provenance(domain="desk", provider="fake"), simulations=tuple(records))
    )
    return path


BROKEN = st.none() | st.dictionaries(st.sampled_from(Invariant), st.integers(0, 30), max_size=3)


@st.composite
def evidence(draw: st.DrawFn) -> Side:
    """Simulations with all that a line may hold."""
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
                    }
                )
            )
    return records


@settings(max_examples=60)
@given(evidence(), st.sampled_from([0, 20_000]))
def test_columns_of_a_file_are_those_of_its_records(
    tmp_path_factory: pytest.TempPathFactory, records: Side, priced: int
) -> None:
    path = written(tmp_path_factory.mktemp("e") / "one.json", records)
    provenance, found = read_columns(path, min_priced=priced)
    wanted = build_columns(read_evidence(path).simulations)
    assert provenance == read_evidence(path).provenance
    assert (found.tasks, found.digests, found.ids) == (wanted.tasks, wanted.digests, wanted.ids)
    used = ("cost", "tokens") if priced else ()
    for name in ("task_index", "digest_index", "measured", "reward", "max_steps", *used):
        np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name))
    assert found.shares.keys() == wanted.shares.keys()
    for kind in wanted.shares:
        np.testing.assert_array_equal(found.shares[kind], wanted.shares[kind])
    for kind in wanted.has_actions:
        np.testing.assert_array_equal(found.has_actions[kind], wanted.has_actions[kind])


def test_a_file_laid_out_otherwise_is_read_whole(tmp_path: Path) -> None:
    path = written(tmp_path / "one.json", side(1, 0))
    other = tmp_path / "other.json"
    other.write_text(json.dumps(json.loads(path.read_text()), indent=2), encoding="utf-8")
    assert has_line_layout(path)
    assert not has_line_layout(other)
    assert read_columns(other)[1].ids == read_columns(path)[1].ids


DAMAGE = [
    ('"reward":1.0', '"reward":NaN', "at line 4: "),
    ('"reward":1.0', '"reward":1e999', "at line 4: "),
    ('"reward":1.0', '"reward":2.0', "at line 4: reward: Input should be less than or equal to 1"),
    ('"reward":1.0,', "", "at line 4: reward None does not match status 'measured'"),
    ('"status":"measured"', '"status":"fine"', "at line 4: status: "),
    ('"task_id":"0"', '"task_idd":"0"', "at line 4: task_id: Field required"),
    ('"trial":0}', '"trial":0,"shoe_size":9}', "at line 4: shoe_size: Extra inputs are not permitted"),
    ('"task_id":"1"', '"task_id":"0"', "two simulations of task '0', trial 0"),
    ('"matched":1,', '"matched":3,', "at line 4: actions.read: 3 of 2 actions matched"),
    (
        '"trial":0}',
        '"trial":1000000000000000000000000}',
        "at line 4: trial: Input should be less than or equal",
    ),
    ("\n]}", "", "the file ends too early"),
    ("\n]}", "\n]}\n{}", "text after the end"),
    ('"domain":"desk"', '"domian":"desk"', "at provenance."),
]


@pytest.mark.parametrize("priced", [0, 20_000])
@pytest.mark.parametrize(("good", "bad", "told"), DAMAGE, ids=[f"{d[1][:20]}" for d in DAMAGE])
def test_damage_is_told_by_its_line(tmp_path: Path, good: str, bad: str, told: str, priced: int) -> None:
    records = [sim(task, 1.0, read=(2, 1)) for task in range(2)]
    path = written(tmp_path / "one.json", records)
    text = path.read_text(encoding="utf-8")
    assert good in text
    path.write_text(text.replace(good, bad, 1), encoding="utf-8")
    with pytest.raises(ResultsError, match=r"^[^\n]*one\.json: damaged[^\n]*; restore the file$") as error:
        read_columns(path, min_priced=priced)
    assert told in str(error.value)


def test_the_largest_numbers_of_trials_are_told_apart(tmp_path: Path) -> None:
    large = 1 << 53
    apart = [sim(task, trial=trial) for task in range(3_000) for trial in (0, large)]
    _, found = read_columns(written(tmp_path / "apart.json", apart))
    assert found.size == len(apart)
    path = written(tmp_path / "twice.json", [sim(0, trial=large), sim(1, trial=large)])
    path.write_text(path.read_text(encoding="utf-8").replace('"task_id":"1"', '"task_id":"0"'))
    with pytest.raises(ResultsError, match=rf"two simulations of task '0', trial {large}; restore the file"):
        read_columns(path)


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match=r"none\.json: cannot be read: No such file or directory"):
        read_columns(tmp_path / "none.json")


def test_two_large_files_are_read_in_parallel(tmp_path: Path) -> None:
    paths = written(tmp_path / "a.json", side(1, 0)), written(tmp_path / "b.json", side(1, 1))
    alone = read_pair(paths)
    beside = read_pair(paths, min_parallel_bytes=0)
    for one, other in zip(alone, beside, strict=True):
        assert (one[0], one[1].ids) == (other[0], other[1].ids)
        np.testing.assert_array_equal(one[1].reward, other[1].reward)
    paths[1].write_text(paths[1].read_text().replace("]}", ""), encoding="utf-8")
    with pytest.raises(ResultsError, match=r"b\.json: damaged: the file ends too early"):
        read_pair(paths, min_parallel_bytes=0)


def test_lines_as_they_are_written_skip_validation_beyond_the_priced_ones(tmp_path: Path) -> None:
    records = [sim(task, 1.0, read=(2, 1)).model_copy(update={"cost": 0.5}) for task in range(3)]
    path = written(tmp_path / "one.json", records)
    assert np.isnan(read_columns(path, min_priced=0)[1].cost).all()
    lost = sim(3, None, read=(2, 0))
    path = written(tmp_path / "two.json", [*records, lost])
    assert not np.isnan(read_columns(path, min_priced=0)[1].cost[:3]).any()
