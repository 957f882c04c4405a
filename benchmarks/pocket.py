"""What the pocket model costs at several sizes: tokens a dialogue, training and answering speed.

    python benchmarks/pocket.py [--groups 12]

Prints tables: lengths of lessons by kind of case under the model's own template and tokenizer; then, for each
size, seconds per step of training (a group of 8 dialogues with whole prompts), and tokens per second of 32
answers decoded together after a prompt of usual length. With two threads that wait as those of
`python -m research.pocket train` do, and untrained weights.
"""

import argparse
import os
import time
from collections import defaultdict

os.environ.update(GOMP_SPINCOUNT="20000", HF_HUB_OFFLINE="1")

import numpy as np
import torch

from pytest_trace2evolve.worlds.support.world import SupportWorld
from research.pocket.lessons import Encoded, encode, lesson_group, wire_tools
from research.pocket.network import Size, build_network
from research.pocket.recipe import Recipe
from research.pocket.train import common_length, make_optimizers, make_tokenizer, train_step

SIZES = {
    "0.5M": Size(width=96, layers=2, heads=4, inner=256),
    "1.25M (shipped)": Size(),
    "3M": Size(width=192, layers=4, heads=4, inner=768),
}
ANSWER, ROWS = 32, 32


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--groups", type=int, default=12)
    groups = parser.parse_args().groups
    torch.set_num_threads(2)
    world = SupportWorld()
    tokenizer, tools = make_tokenizer("1", world), wire_tools(world)
    stage = Recipe().stages[-1]
    lengths: dict[str, list[tuple[int, int]]] = defaultdict(list)
    data: list[list[Encoded]] = []
    for number in range(groups):
        lessons = lesson_group("benchmark", number, world, stage)
        data.append([encode(lesson.messages, tokenizer, tools) for lesson in lessons])
        for lesson, dialogue in zip(lessons, data[-1], strict=True):
            lengths[lesson.family].append((len(dialogue.ids), int(sum(dialogue.weights))))
    print(f"{'kind of case':30} {'tokens':>7} {'most':>6} {'own':>5}")
    for family, found in sorted(lengths.items()):
        whole, own = (np.mean(column) for column in zip(*found, strict=True))
        print(f"{family:30} {whole:7.0f} {max(length for length, _ in found):6} {own:5.0f}")
    everything = [length for found in lengths.values() for length, _ in found]
    prompt = float(np.mean([common_length(group) for group in data]))
    print(f"{'all':30} {np.mean(everything):7.0f} {max(everything):6}; prompt {prompt:.0f}")
    print(f"\n{'size':14} {'parameters':>10} {'step, s':>8} {'train tok/s':>12} {'answer tok/s':>13}")
    for name, size in SIZES.items():
        torch.manual_seed(1)
        network = build_network(size, tokenizer)
        step, trained = _training(network, Recipe(size=size), data, tokenizer.pad_token_id)
        answered = _answering(network, int(np.mean(everything)), tokenizer.pad_token_id)
        print(f"{name:14} {network.num_parameters():10,} {step:8.2f} {trained:12,.0f} {answered:13,.0f}")


def _training(network: object, recipe: Recipe, data: list[list[Encoded]], pad: int) -> tuple[float, float]:
    """Median seconds per step, and tokens per second."""
    optimizers = make_optimizers(network, recipe)
    spent = []
    for group in data:
        began = time.perf_counter()
        train_step(network, optimizers, group, pad, recipe.stages[-1].context)
        spent.append(time.perf_counter() - began)
    tokens = np.mean([sum(len(dialogue.ids) for dialogue in group) for group in data])
    return float(np.median(spent)), float(tokens / np.median(spent))


@torch.no_grad()
def _answering(network: torch.nn.Module, prompt: int, pad: int) -> float:
    """Tokens per second of answers, including the work for their prompts."""
    network.eval()
    ids = torch.randint(300, 3000, (ROWS, prompt))
    began = time.perf_counter()
    network.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        min_new_tokens=ANSWER,
        max_new_tokens=ANSWER,
        pad_token_id=pad,
    )
    return ROWS * ANSWER / (time.perf_counter() - began)


if __name__ == "__main__":
    main()
