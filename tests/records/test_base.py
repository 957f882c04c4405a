"""Fields of later versions: files of older versions keep their content, and so their digests."""

import pytest

from pytest_trace2evolve.records.base import Later, LaterTuple, Record
from tests.ledger_helpers import judged


class Grown(Record):
    """A record that got two fields."""

    first: int
    second: Later[int] = None
    third: LaterTuple[int] = ()


@pytest.mark.parametrize(
    "text",
    [
        '{"first":1}',
        '{"first":1,"second":0}',
        '{"first":1,"third":[0]}',
        '{"first":1,"second":2,"third":[3]}',
    ],
)
def test_a_field_of_a_later_version_is_written_only_with_a_value(text: str) -> None:
    assert Grown.model_validate_json(text).model_dump_json() == text
    assert Grown.model_validate({"first": 1, "second": None, "third": ()}).model_dump_json() == '{"first":1}'


def test_an_evaluation_without_later_fields_is_written_as_an_older_version_did() -> None:
    later = {"analysis", "baseline_identity", "baseline_evidence", "evidence", "verdict", "draw", "figures"}
    assert not later & judged(baseline_identity=None, analysis=None).to_json().keys()
