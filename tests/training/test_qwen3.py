"""A real architecture from a folder: Qwen3 of random weights, with the chat template that Qwen ships."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from pytest_trace2evolve.records.message import Message
from pytest_trace2evolve.serving.folder import read_adapter, read_model
from pytest_trace2evolve.training.protocols import Sampler, Then, Wish
from pytest_trace2evolve.training.run import train
from pytest_trace2evolve.training.train import write_weights
from tests.tiny_model import build_model
from tests.training.served import logprobs_of_both
from tests.training.toy import by_letters, toy_plan

pytestmark = pytest.mark.filterwarnings("ignore")

CALL = '<tool_call>\n{"name": "look", "arguments": {"id": "W2"}}\n</tool_call><|im_end|>'


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three layers that were never trained, grouped-query attention, and the stock template."""
    import trl

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
    stock = Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja"
    (folder / "chat_template.jinja").write_text(stock.read_text(encoding="utf-8"), encoding="utf-8")
    return folder


class Opening:
    """A sampler whose first answers are a call: an untrained model would never make one."""

    def __init__(self, sampler: Sampler, call: list[int]) -> None:
        self._sampler = sampler
        self._call = call

    def play(
        self, model: Any, wishes: Sequence[Wish], then: Then, *, temperature: float, fresh: bool
    ) -> None:
        """Every other rollout begins with the call; everything else is drawn."""
        going: list[tuple[int, Wish]] = []
        for place, wish in enumerate(wishes):
            following = then(place, list(self._call)) if place % 2 else wish
            if following is not None:
                going.append((place, following))
        self._sampler.play(
            model,
            [wish for _, wish in going],
            lambda row, answer: then(going[row][0], answer),
            temperature=temperature,
            fresh=fresh,
        )

    def close(self) -> None:
        """Give back what the sampler holds."""
        self._sampler.close()


def test_it_rolls_out_reads_calls_learns_is_saved_and_served(qwen3: Path, tmp_path: Path) -> None:
    from peft import get_peft_model_state_dict
    from transformers import AutoTokenizer

    call = AutoTokenizer.from_pretrained(qwen3)(CALL, add_special_tokens=False)["input_ids"]
    traces: list[list[Message]] = []

    def worth(trace: Sequence[Message]) -> float:
        traces.append(list(trace))
        return by_letters(trace)

    plan = toy_plan(qwen3, tmp_path / "kept", worth, redraws=0, rollout_tokens=400)
    made = plan.sampler
    plan = type(plan)(**{**vars(plan), "sampler": lambda base: Opening(made(base), call)})
    done = train(plan)
    assert [one["rollouts"] for one in done.curve] == [8, 8]
    called = [trace for trace in traces if trace[1].tool_calls]
    assert called, "calls were read as calls"
    for trace in called:
        assert [(one.name, one.arguments) for one in trace[1].tool_calls or ()] == [("look", {"id": "W2"})]
        assert (trace[2].role, trace[2].content) == ("tool", "W2 is open")
        assert len(trace) > 3, "and the rollout went on"
    changed = [
        name for name, one in done.model.named_parameters() if "lora_B" in name and one.abs().max() > 0
    ]
    assert len(changed) == 3 * 7, "all linear layers of all layers"
    folder = tmp_path / "adapter"
    folder.mkdir()
    write_weights(done.model, "qwen3", folder)
    assert json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"] == "qwen3"
    assert str(tmp_path) not in (folder / "adapter_config.json").read_text()
    read_adapter("trained", folder, read_model(qwen3))
    kept, own = load_file(folder / "adapter_model.safetensors"), get_peft_model_state_dict(done.model)
    assert kept.keys() == own.keys()
    for name, one in kept.items():
        torch.testing.assert_close(one, own[name], atol=0, rtol=0, msg=name)
    found, wanted = logprobs_of_both(qwen3, folder)
    assert len(found) == len(wanted) == 12
    assert found == pytest.approx(wanted, abs=1e-4)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="wants a GPU, and torch finds none")
def test_the_gpu_preset_trains_it(qwen3: Path, tmp_path: Path) -> None:
    from pytest_trace2evolve.training.recipe import PRESETS, Drawing

    preset = {**PRESETS["gpu"], "groups": 2, "rollouts": 4, "backward": 4, "steps": 2}
    told = {**preset, "answer_tokens": 24, "rollout_tokens": 400, "drawing": Drawing.TRANSFORMERS}
    done = train(toy_plan(qwen3, tmp_path / "kept", **told))
    assert len(done.curve) == 2
