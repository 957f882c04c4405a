"""What we override of trl is there, with the parameters that it had: an update must not fail in silence."""

import inspect

import pytest

pytest.importorskip("trl")

from trl import GRPOTrainer

from pytest_trace2evolve.training.trainer import OVERRIDDEN, CustomerTrainer

TAKEN = ("compute_loss",)
"""Public methods that are overridden too."""


@pytest.mark.parametrize("name", OVERRIDDEN)
def test_the_private_methods_that_are_overridden_have_their_parameters(name: str) -> None:
    found = tuple(inspect.signature(getattr(GRPOTrainer, name)).parameters)
    assert found == ("self", *OVERRIDDEN[name]), f"trl has changed {name}: read it, then mend ours"


def test_nothing_else_of_trl_is_overridden() -> None:
    theirs = {name for kind in GRPOTrainer.__mro__ for name in vars(kind)}
    ours = {name for name in vars(CustomerTrainer) if not name.startswith("__")}
    assert ours & theirs == {*OVERRIDDEN, *TAKEN}


def test_what_the_trainer_reads_of_trl_is_set_there() -> None:
    source = inspect.getsource(GRPOTrainer)
    for name in ("self.environments", "self._batch_environments", "self._tokenizer", "self.eos_token_ids"):
        assert f"{name} = " in source, f"trl sets no {name} any more"
    assert '"tool_mask"' in source
    assert 'output["old_per_token_logps"]' in source
