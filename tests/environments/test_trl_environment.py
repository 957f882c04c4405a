"""The class of which trl makes tools: the world's own schemas, and nothing else that is public."""

from pathlib import Path
from typing import Any

import pytest

from pytest_trace2evolve.environments.registry import Environments
from pytest_trace2evolve.environments.trl_environment import CONVERSATION_OVER, rollout_class
from pytest_trace2evolve.errors import GeneratorError
from pytest_trace2evolve.records.protocols import ToolSchema
from pytest_trace2evolve.utils.resources import embedded_model
from pytest_trace2evolve.worlds.support.world import SupportWorld

TOOLS = SupportWorld().tools("assistant")


POLICY = SupportWorld().policy()


def make() -> Any:
    return Environments().environment("precondition_verification", 5)


def test_the_methods_schemas_are_the_worlds() -> None:
    utils = pytest.importorskip("transformers.utils")
    made = rollout_class(TOOLS, make, policy=POLICY)()
    for tool in TOOLS:
        found = utils.get_json_schema(getattr(made, tool.name))["function"]
        found["parameters"].setdefault("required", [])  # left out if nothing is required
        parameters = {key: value for key, value in tool.parameters.items() if key != "additionalProperties"}
        assert found == {"name": tool.name, "description": tool.description, "parameters": parameters}


def test_tools_answer_as_in_the_target_and_nothing_after_the_end() -> None:
    rollout: Any = rollout_class(TOOLS, make, policy=POLICY)()
    rollout.reset(seed=3, prompt=[], further="column")
    assert (
        rollout.get_order_details(order_id="#W0")
        == rollout.get_order_details("#W0")
        == "Error: Order not found"
    )
    assert rollout.get_order_details(number="#W0").startswith("Error: ")
    rollout.cancel_pending_order(order_id="#W0", reason="no longer needed")
    assert rollout.get_reward() == 0.0
    assert rollout.get_order_details("#W0") == CONVERSATION_OVER
    rollout.reset(seed=3)
    assert rollout.get_order_details("#W0") == "Error: Order not found"


@pytest.mark.parametrize(
    ("name", "schema", "told"),
    [
        ("reset", {}, "tool 'reset' cannot be a method: rename it to a public identifier"),
        *(
            (
                "put",
                {"properties": {name: {"type": "string"}}},
                f"tool 'put': parameter {name!r} cannot be a parameter of a method: rename it",
            )
            for name in ("from", "class", "order-id", "self")
        ),
        ("get-it", {}, "tool 'get-it' cannot be a method: rename it to a public identifier"),
        (
            "put",
            {"properties": {"x": {"type": "null"}}},
            (
                "tool 'put': parameter 'x' has type 'null'; "
                "must be one of string, integer, number, boolean, object, array"
            ),
        ),
    ],
)
def test_what_no_method_can_say_is_refused(name: str, schema: dict[str, Any], told: str) -> None:
    with pytest.raises(GeneratorError) as raised:
        rollout_class([ToolSchema(name=name, description="", parameters=schema)], make, policy=POLICY)
    assert str(raised.value) == told


@pytest.mark.filterwarnings("ignore")
def test_trls_own_trainer_trains_two_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the embedded model, as a user would call it."""
    trl = pytest.importorskip("trl")
    datasets = pytest.importorskip("datasets")
    transformers = pytest.importorskip("transformers")
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    tokenizer = transformers.AutoTokenizer.from_pretrained(embedded_model(), padding_side="left")
    tokenizer.response_template = trl.chat_template_utils.qwen3_template
    row = {"prompt": [{"role": "user", "content": ""}]}
    rewards: list[float] = []

    class Recording(rollout_class(TOOLS, make, policy=POLICY)):  # type: ignore[misc]  # made at run time
        def get_reward(self) -> float:
            rewards.append(float(super().get_reward()))
            return rewards[-1]

    trainer = trl.GRPOTrainer(
        str(embedded_model()),
        args=trl.GRPOConfig(
            output_dir=str(tmp_path),
            use_cpu=True,
            per_device_train_batch_size=2,
            num_generations=2,
            max_completion_length=24,
            max_steps=2,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
        ),
        train_dataset=datasets.Dataset.from_list([{**row, "seed": seed} for seed in range(4)]),
        processing_class=tokenizer,
        environment_factory=Recording,
    )
    assert trainer.train().global_step == 2
    assert len(rewards) == 4
