"""What the pocket model costs at several sizes: tokens a dialogue, training and answering speed.

    python benchmarks/pocket.py [--groups 12]

Prints tables: lengths of lessons by kind of case under the model's own template and tokenizer; then, for each
size, seconds a step of training (a group of 8 dialogues with whole prompts), and tokens a second of 32
answers decoded together after a prompt of usual length. Two threads that wait as those of `pocket train` do;
weights that are not trained.
"""

import argparse
import os
import time
from collections import defaultdict

os.environ.update(GOMP_SPINCOUNT="20000", HF_HUB_OFFLINE="1")

import numpy as np
import torch

from pytest_trace2evolve.worlds.support.world import SupportWorld
from research.pocket.lessons import lesson_group
from research.pocket.loop import Encoded, common_beginning
from research.pocket.make import encoded, made_tokenizer, wire_tools
from research.pocket.network import Size, build_network
from research.pocket.recipe import Recipe
from research.pocket.train import one_step, optimizers_of

SIZES = {
    "0.5M": Size(width=96, layers=2, heads=4, inner=256),
    "1M (shipped)": Size(),
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
    tokenizer, tools = made_tokenizer("1", world), wire_tools(world)
    lengths: dict[str, list[tuple[int, int]]] = defaultdict(list)
    data: list[list[Encoded]] = []
    for number in range(groups):
        lessons = lesson_group("benchmark", number, world)
        data.append([encoded(one, tokenizer, tools) for one in lessons])
        for lesson, one in zip(lessons, data[-1], strict=True):
            lengths[lesson.family].append((len(one.ids), sum(one.own)))
    print(f"{'kind of case':30} {'tokens':>7} {'most':>6} {'own':>5}")
    for family, found in sorted(lengths.items()):
        whole, own = (np.mean(column) for column in zip(*found, strict=True))
        print(f"{family:30} {whole:7.0f} {max(length for length, _ in found):6} {own:5.0f}")
    everything = [length for found in lengths.values() for length, _ in found]
    prompt = float(np.mean([common_beginning(group) for group in data]))
    print(f"{'all':30} {np.mean(everything):7.0f} {max(everything):6}; prompt {prompt:.0f}")
    print(f"\n{'size':14} {'parameters':>10} {'step, s':>8} {'train tok/s':>12} {'answer tok/s':>13}")
    for name, size in SIZES.items():
        torch.manual_seed(1)
        network = build_network(size, tokenizer)
        step, trained = _training(network, Recipe(size=size), data, tokenizer.pad_token_id)
        answered = _answering(network, int(np.mean(everything)), tokenizer.pad_token_id)
        print(f"{name:14} {network.num_parameters():10,} {step:8.2f} {trained:12,.0f} {answered:13,.0f}")


def _training(network: object, recipe: Recipe, data: list[list[Encoded]], pad: int) -> tuple[float, float]:
    """Median seconds a step, and tokens a second."""
    optimizers = optimizers_of(network, recipe)
    spent = []
    for group in data:
        began = time.perf_counter()
        one_step(network, optimizers, group, pad, recipe.stages[-1].context)
        spent.append(time.perf_counter() - began)
    tokens = np.mean([sum(len(one.ids) for one in group) for group in data])
    return float(np.median(spent)), float(tokens / np.median(spent))


@torch.no_grad()
def _answering(network: torch.nn.Module, prompt: int, pad: int) -> float:
    """Tokens a second of answers, their prompts' work included."""
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
