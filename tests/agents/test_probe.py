"""The router's file: what it holds, and what is refused in one line."""

import json
from pathlib import Path

import pytest

from pytest_trace2evolve.agents.probe import PROBE_FILE, read_probe, write_probe
from pytest_trace2evolve.errors import ModelFolderError

torch = pytest.importorskip("torch")
LABELS = ("reads", "adds", "none")


def test_a_file_is_what_was_written(tmp_path: Path) -> None:
    matrix = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.5]])
    path = tmp_path / "adapters" / PROBE_FILE
    write_probe(path, matrix, LABELS, "d1")
    probe = read_probe("router", path, Path("base"), "d1")
    assert probe.labels == LABELS
    route = probe.router(lambda tokens: torch.tensor([float(tokens[0]), 0.0]))
    shares = {label: round(2.718281828**logprob, 3) for label, logprob in route([1]).items()}
    assert shares == {"reads": 0.667, "adds": 0.0, "none": 0.333}
    assert [item.name for item in path.parent.iterdir()] == [PROBE_FILE]


def test_what_is_no_router_of_this_base_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    path = tmp_path / PROBE_FILE
    remedy = "; train it with: trace2evolve train --router --base base"

    def refused(message: str) -> None:
        with pytest.raises(ModelFolderError) as error:
            read_probe("router", path, Path("base"), "d2")
        assert str(error.value).startswith(f"router 'router': {path}: {message}")
        assert str(error.value).endswith(remedy)
        assert "\n" not in str(error.value)

    refused("no such file")
    path.write_bytes(b"nonsense")
    refused("not a router's file (")
    save_file({"weights": torch.zeros(2, 2)}, path)
    refused("not a router's file (")
    save_file({"probe": torch.zeros(2, 2)}, path, metadata={"labels": json.dumps(LABELS)})
    refused("not a router's file (3 labels, but a matrix of shape [2, 2])")
    write_probe(path, torch.zeros(3, 3), LABELS, "d1")
    refused("was trained on a different base than base (base_digest d1…)")
