"""The tiny models that the trainings of these tests begin from."""

import os
import warnings
from pathlib import Path

import pytest

from tests.tiny_model import build_model


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that knows the toy's dialogues, built once a process."""
    import torch

    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return build_model(tmp_path_factory.mktemp("tiny") / "base")


@pytest.fixture(scope="session")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Qwen3 of random weights: three layers, grouped-query attention, and Qwen's own chat template."""
    trl = pytest.importorskip("trl")
    folder = build_model(
        tmp_path_factory.mktemp("qwen3") / "qwen3",
        steps=0,
        num_hidden_layers=3,
        hidden_size=64,
        intermediate_size=128,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=4096,
    )
    template = Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja"
    (folder / "chat_template.jinja").write_text(template.read_text(encoding="utf-8"), encoding="utf-8")
    return folder
