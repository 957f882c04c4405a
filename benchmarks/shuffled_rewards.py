"""A known answer: adapters trained on shuffled rewards are never promoted.

python benchmarks/shuffled_rewards.py [--seeds 1] [--steps 12] [--out build/shuffled-rewards]

Each seed trains an adapter on whole tasks with the rewards of each group shuffled, so that they say nothing
about the rollouts, and gates v0 with this adapter on the suite `support`. Prints a line of JSON a seed, and
keeps it in OUT/seed-N.json; rerun to resume.
"""

import argparse
import json
import random
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from improve_seeds import REPOSITORY, call, make_project


def train_on_shuffled_rewards(arguments: Sequence[str]) -> int:
    """Run `trace2evolve` with a trainer that shuffles the rewards within each group; returns its status."""
    from pytest_trace2evolve.cli.main import main
    from pytest_trace2evolve.training.trainer import CustomerTrainer

    collect_rewards = CustomerTrainer._collect_rewards

    def shuffled(self: Any, environments: Any, **columns: object) -> list[float]:
        rewards = collect_rewards(self, environments, **columns)
        rng, size = random.Random(f"shuffled/{self._recipe.seed}/{self.step}"), self._recipe.rollouts
        groups = [rewards[start : start + size] for start in range(0, len(rewards), size)]
        return [reward for group in groups for reward in rng.sample(group, len(group))]

    CustomerTrainer._collect_rewards = shuffled  # type: ignore[method-assign]
    return main(list(arguments))


def run_seed(seed: int, steps: int, root: Path) -> dict[str, Any]:
    """Train with a seed, and gate the adapter."""
    make_project(root, seed, fresh=14)
    shutil.copytree(REPOSITORY / "baselines" / "support", root / "baselines" / "support", dirs_exist_ok=True)
    name = f"shuffled_{seed}"
    (root / "recipe.toml").write_text(f"seed = {seed}\nsteps = {steps}\nthreads = 1\n")
    if not (root / "adapters" / name).exists():
        train = ["--root", str(root), "train", "--capability", "whole_tasks", "--adapter-name", name]
        options = ["--config", str(root / "recipe.toml"), "--candidate", "v0", "--heldout", "0"]
        call(root, [str(Path(__file__).resolve()), "--train", *train, *options])
    gate = ["--candidate", f"v0+{name}", "--t2e-suite", "support", "--t2e-run-folder", "gated"]
    call(root, ["-m", "pytest", "-q", "-p", "no:cacheprovider", *gate], {0, 1, 5, 10})
    verdict = json.loads((root / "gated" / "verdict.json").read_text())
    return {"seed": seed, "steps": steps, **verdict["suites"]["support"]}


def main() -> None:
    """Run all seeds that have no result yet, and print all results."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--out", type=Path, default=REPOSITORY / "build" / "shuffled-rewards")
    options = parser.parse_args()
    for seed in options.seeds:
        path = options.out / f"seed-{seed}.json"
        if not path.exists():
            found = run_seed(seed, options.steps, options.out / f"seed-{seed}")
            path.write_text(json.dumps(found) + "\n")
        print(path.read_text().strip(), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--train"]:
        sys.exit(train_on_shuffled_rewards(sys.argv[2:]))
    main()
