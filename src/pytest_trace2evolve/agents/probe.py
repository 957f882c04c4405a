"""The router's probe, which names the capability that a text needs from a base model's hidden states.

It is one safetensors file with the matrix `probe`, shape (features + 1, labels), whose last row is the bias.
The file's metadata holds the labels and the digest of the base model.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_trace2evolve.errors import ModelFolderError
from pytest_trace2evolve.utils.optional import require
from pytest_trace2evolve.utils.reading import check_regular

if TYPE_CHECKING:
    import torch

PROBE_FILE = "router.safetensors"
"""The name of the probe's file in the folder of adapters."""

MAX_TOKENS = 1024
"""Maximum tokens of which the probe sees the hidden states, the last ones of a text."""

POOLED_LAYERS = (0, 0.25, 0.5, 0.75, 1)
"""The layers whose hidden states are features, as shares of the model's depth; 0 is the embeddings."""

MIN_SHARE = 1e-4
"""The probability of a label for which the probe's score is lower."""

Router = Callable[[Sequence[int]], dict[str, float]]
"""Returns the log-probabilities of labels for the tokens of a text."""

_TENSOR, _LABELS, _BASE = "probe", "labels", "base_digest"


@dataclass(frozen=True)
class Probe:
    """A checked file, the name under which it is served, and its labels: capabilities, and `none`."""

    path: Path
    name: str
    labels: tuple[str, ...]

    def router(self, read_states: Callable[[Sequence[int]], "torch.Tensor"]) -> Router:
        """Load the matrix, and return the router. `read_states` returns the features of a text's tokens."""
        from safetensors.torch import load_file

        matrix = load_file(self.path)[_TENSOR]
        return lambda tokens: label_logprobs(self.labels, read_states(tokens) @ matrix[:-1] + matrix[-1])


def label_logprobs(labels: Sequence[str], scores: "torch.Tensor") -> dict[str, float]:
    """Return the log-probability of each label from its score, which is an estimated probability."""
    shares = scores.clamp(min=MIN_SHARE)
    return dict(zip(labels, (shares / shares.sum()).log().tolist(), strict=True))


def read_probe(name: str, path: Path, base: Path, base_digest: str) -> Probe:
    """Check a probe's file, and return its description.

    Args:
        base, base_digest: The folder of the model whose hidden states the probe will see, and its digest.

    Raises:
        ModelFolderError: the file is missing, damaged, or was trained on a different base.
    """
    remedy = f"train it with: trace2evolve train --router --base {base}"
    if not path.exists():
        raise ModelFolderError(f"router {name!r}: {path}: no such file; {remedy}")
    check_regular(path, ModelFolderError)
    safetensors = require("safetensors", extra="local")
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            metadata, shape = file.metadata() or {}, file.get_slice(_TENSOR).get_shape()
        labels = tuple(json.loads(metadata[_LABELS]))
        if len(shape) != 2 or shape[1] != len(labels):
            raise ValueError(f"{len(labels)} labels, but a matrix of shape {shape}")
    except (safetensors.SafetensorError, OSError, KeyError, ValueError, TypeError) as error:
        cause = " ".join(str(error).split())[:200]
        raise ModelFolderError(f"router {name!r}: {path}: not a router's file ({cause}); {remedy}") from None
    if metadata.get(_BASE) != base_digest:
        raise ModelFolderError(
            f"router {name!r}: {path}: was trained on a different base than {base} "
            f"(base_digest {str(metadata.get(_BASE))[:12]}…); {remedy}"
        )
    return Probe(path, name, labels)


def write_probe(path: Path, matrix: Any, labels: Sequence[str], base_digest: str) -> None:
    """Write a probe's file; `matrix` has shape (features + 1, labels)."""
    from safetensors.torch import save

    path.parent.mkdir(parents=True, exist_ok=True)
    temporary_path = path.with_name(f".{path.name}")
    metadata = {_LABELS: json.dumps(labels), _BASE: base_digest}
    temporary_path.write_bytes(save({_TENSOR: matrix.contiguous()}, metadata=metadata))
    temporary_path.replace(path)


def pool_states(states: Sequence["torch.Tensor"]) -> "torch.Tensor":
    """Return a text's features: mean, maximum and last state of `POOLED_LAYERS`, a tensor of one axis.

    `states` are the hidden states of all layers, (tokens, width) each.
    """
    import torch

    layers = [states[round(share * (len(states) - 1))].float() for share in POOLED_LAYERS]
    return torch.cat([part for layer in layers for part in (layer.mean(0), layer.amax(0), layer[-1])]).cpu()
