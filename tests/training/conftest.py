"""The tiny model that all trainings of these tests begin from."""

import os
import warnings
from pathlib import Path

import pytest

from tests.tiny_model import build_model

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that knows the toy's dialogues, built once a process."""
    import torch

    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return build_model(tmp_path_factory.mktemp("tiny") / "base")
