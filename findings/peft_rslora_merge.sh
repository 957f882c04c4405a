#!/usr/bin/env bash
# Package:   peft 0.21.2 with torch 2.13.0 and transformers 5.24.0 (2026-11-30)
# Input:     two LoRA adapters of rank 16 on one layer, without and with use_rslora, which scales an update by
#            alpha / sqrt(r) instead of alpha / r. add_weighted_adapter joins them with the weights 0.5 and 0.5, as "cat"
#            and as "svd", which the method's documentation calls precise.
# Expected:  the update of the joined adapter is the weighted sum of the two updates.
# Observed:  without use_rslora it is. With it, the joined update is 5.66 times the sum for "cat" and 4 times for "svd":
#            sqrt(r) for the new ranks 32 and 16. A saved and reloaded joined adapter has the same factor. There is no
#            warning.
# Source:    peft/tuners/lora/model.py, add_weighted_adapter: the new config copies the first adapter's, with lora_alpha
#            set to the new rank. That is a scale of 1, but sqrt(r) for the copied use_rslora.
# Matters:   the joined adapter is another model than its parts. In an evaluation it looks as if the adapters disagreed,
#            or as if the mix had broken the model. Divide the weights by sqrt of the new rank, or check the update.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PIP_DISABLE_PIP_VERSION_CHECK=1
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet peft==0.21.2 torch==2.13.0 transformers==5.24.0
cd "$work"
export HF_HUB_OFFLINE=1
"$work/venv/bin/python" - <<'PYTHON'
import sys
import warnings

import torch
from peft import LoraConfig, PeftModel, get_peft_model

SIZE, RANK = 64, 16
PARTS = ["first", "second"]


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(SIZE, SIZE, bias=False)

    def forward(self, x):
        return self.linear(x)


def update(model, adapter):
    """What an adapter adds to the layer's outputs for the unit vectors."""
    model.set_adapter(adapter)
    with torch.no_grad():
        adapted = model(torch.eye(SIZE))
        with model.disable_adapter():
            return adapted - model(torch.eye(SIZE))


def factor(joined, parts):
    """The number by which the parts' sum is multiplied, if the joined update is a multiple of it."""
    ratio = (joined * parts).sum() / (parts * parts).sum()
    assert torch.allclose(joined, ratio * parts, atol=1e-2 * parts.abs().max().item() * ratio.item())
    return round(ratio.item(), 2)


def observe(use_rslora, combination):
    config = LoraConfig(r=RANK, lora_alpha=RANK, target_modules=["linear"], use_rslora=use_rslora)
    model = get_peft_model(Layer(), config, adapter_name="first")
    model.add_adapter("second", config)
    for name in PARTS:
        # Half of the rank is used, so that the sum has rank 16 and "svd" is exact.
        left, right = torch.zeros(2, SIZE, RANK)
        left[:, : RANK // 2], right[:, : RANK // 2] = torch.randn(2, SIZE, RANK // 2) / SIZE**0.5
        model.base_model.model.linear.lora_B[name].weight.data = left
        model.base_model.model.linear.lora_A[name].weight.data = right.T.contiguous()
    parts = 0.5 * update(model, "first") + 0.5 * update(model, "second")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.add_weighted_adapter(PARTS, [0.5, 0.5], "joined", combination_type=combination)
    new = model.peft_config["joined"]
    model.save_pretrained(f"{combination}-{use_rslora}", selected_adapters=["joined"])
    reloaded = PeftModel.from_pretrained(Layer(), f"{combination}-{use_rslora}/joined", adapter_name="joined")
    seen = factor(update(model, "joined"), parts), factor(update(reloaded, "joined"), parts)
    print(f"{combination}, use_rslora={use_rslora}: rank {new.r}, alpha {new.lora_alpha}, times the sum: {seen}")
    return seen


seen = {(kind, rs): observe(rs, kind) for kind in ("cat", "svd") for rs in (False, True)}
expected = {
    ("cat", False): (1.0, 1.0),
    ("cat", True): (5.66, 5.66),
    ("svd", False): (1.0, 1.0),
    ("svd", True): (4.0, 4.0),
}
sys.exit(0 if seen == expected else "changed: the factors differ from the description above")
PYTHON
