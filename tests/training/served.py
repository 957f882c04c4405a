"""What a server and transformers say of the same conversation."""

from pathlib import Path
from typing import Any

import httpx2
import torch

from pytest_trace2evolve.serving.process import LocalServer
from tests.patience import HANG_SECONDS
from tests.tiny_model import TOOLS, dialogue


def logprobs_of_both(base: Path, adapter: Path, most: int = 12) -> tuple[list[float], list[float]]:
    """Log-probabilities of an adapter's greedy answer, told by a server and by transformers."""
    return _served(base, adapter, most), _of_transformers(base, adapter, most)


def _served(base: Path, adapter: Path, most: int) -> list[float]:
    server = LocalServer(base, {"trained": adapter})
    try:
        asked = {
            "model": "trained",
            "messages": dialogue(2),
            "tools": TOOLS,
            "temperature": 0,
            "logprobs": True,
            "max_tokens": most,
        }
        told = httpx2.post(
            f"{server.base_url}/chat/completions",
            json=asked,
            headers={"Authorization": f"Bearer {server.token}"},
            timeout=HANG_SECONDS,
        ).json()
    finally:
        server.close()
    return [one["logprob"] for one in told["choices"][0]["logprobs"]["content"]]


def _of_transformers(base: Path, adapter: Path, most: int) -> list[float]:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(base)
    prompt = tokenizer.apply_chat_template(
        dialogue(2), tools=TOOLS, add_generation_prompt=True, return_dict=True, return_tensors="pt"
    )
    model: Any = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), adapter).eval()
    with torch.no_grad():
        whole = model.generate(**prompt, do_sample=False, max_new_tokens=most)
        length = prompt["input_ids"].shape[1]
        table = torch.log_softmax(model(input_ids=whole).logits[0, length - 1 : -1], -1)
    found: list[float] = table.gather(-1, whole[0, length:].unsqueeze(-1)).squeeze(-1).tolist()
    return found
