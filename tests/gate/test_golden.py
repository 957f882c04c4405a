"""The gate decides as it did before decision 15, with the same figures."""

import json
from pathlib import Path

import pytest

from tests.gate.golden import GOLDEN, summary, verdicts


def test_verdicts_and_figures_are_those_of_the_golden_file(tmp_path: Path) -> None:
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    found = {key: json.loads(json.dumps(summary(one))) for key, one in verdicts(tmp_path).items()}
    assert found.keys() == golden.keys()
    for key, expected in golden.items():
        checks = {name: answer[0] for name, answer in found[key]["checks"].items()}
        assert checks == {name: answer[0] for name, answer in expected["checks"].items()}, key
        for name, (_, *figures) in expected["checks"].items():
            close = [None if figure is None else pytest.approx(figure, rel=1e-7) for figure in figures]
            assert found[key]["checks"][name][1:] == close, (key, name)
        assert {**found[key], "checks": None} == {**expected, "checks": None}, key
