"""A toy environment for the tiny model: it looks at an order, says what it found, and a customer answers.

Run as a program it trains there in two processes together, and then in processes that are killed at random.
"""

import json
import os
import random
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pytest_trace2evolve.records.environment import Reaction
from pytest_trace2evolve.records.message import Message
from pytest_trace2evolve.records.protocols import ToolSchema
from tests.tiny_model import TOOLS

SCHEMAS = [ToolSchema(**tool["function"]) for tool in TOOLS]  # type: ignore[arg-type]  # all of it is there
PROMPT = "Help."

KILLED = {"steps": 6, "seed": 4}
"""The recipe of trainings that are killed. With this seed no answer is drawn at a tie but for rounding, which
differs with the rows that the engine happens to decode together."""


class ToyEnvironment:
    """Two texts of the agent end it; the customer answers the first. Any text is worth something else."""

    def __init__(self, worth: Callable[[Sequence[Message]], float]) -> None:
        self._worth = worth
        self.trace: list[Message] = []

    def reset(self, seed: int) -> Sequence[Message]:
        """Begin."""
        self.trace = [Message(role="user", content=f"Look at W{seed % 5 + 1}.")]
        return tuple(self.trace)

    def step(self, message: Message) -> Reaction:
        """Take the agent's next message."""
        self.trace.append(message)
        back: list[Message] = []
        if message.tool_calls:
            back = [
                Message(role="tool", id=call.id, content=f"{call.arguments.get('id')} is open")
                for call in message.tool_calls
            ]
        elif sum(one.role == "user" for one in self.trace) < 2:
            back = [Message(role="user", content="And is all well?")]
        self.trace += back
        return Reaction(messages=tuple(back), done=not back)

    def reward(self) -> float:
        """The worth of what was said."""
        return self._worth(self.trace)


def by_letters(trace: Sequence[Message]) -> float:
    """A reward that differs with every letter that the agent said."""
    said = "".join(one.content or "" for one in trace if one.role == "assistant")
    return sum(map(ord, said)) % 7 / 6


def toy_plan(base: Path, unfinished: Path, worth: Any = by_letters, **recipe: Any) -> Any:
    """A training of the tiny model in the toy environment."""
    from pytest_trace2evolve.serving.folder import read_model
    from pytest_trace2evolve.serving.loading import load_tokenizer
    from pytest_trace2evolve.training.chat_encoding import ChatEncoder, read_end_tokens
    from pytest_trace2evolve.training.grpo import TrainingPlan
    from pytest_trace2evolve.training.recipe import Recipe

    folder = read_model(base)
    tokenizer = load_tokenizer(folder)
    ends = read_end_tokens(folder, tokenizer)
    settings = {
        "groups": 2,
        "rollouts": 4,
        "steps": 2,
        "rate": 1e-2,
        "rank": 4,
        "alpha": 8,
        "temperature": 1.0,
        "redraws": 1,
        "answer_tokens": 24,
        "rollout_tokens": 160,
        "kl_every": 1,
        "keep_every": 1,
        "threads": 1,
        "autocast": False,
        "seed": 3,
    }
    return TrainingPlan(
        recipe=Recipe.model_validate({**settings, **recipe}),
        base=folder,
        identity={"base": "tiny"},
        environments={"toy": partial(ToyEnvironment, worth)},
        encoder=ChatEncoder(tokenizer, ends, {"toy": (PROMPT, SCHEMAS)}),
        end_tokens=ends,
        checkpoint_folder=unfinished,
    )


def _fork(run: Callable[[], object]) -> int:
    """Run a function in a process of its own; returns the process's id.

    It is forked from one that has loaded all packages, which takes longer than a training.
    """
    child = os.fork()
    if child == 0:
        status = 1
        try:
            run()
            status = 0
        finally:
            os._exit(status)
    return child


def train_together(base: Path, folder: Path, rank: int) -> None:
    """Train as one of two processes, and write the result as `rank-N.json`."""
    from pytest_trace2evolve.training.grpo import train

    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    done = train(toy_plan(base, folder / "kept", groups=4, steps=2, beta=0.1, keep_every=1))
    weights = [float(weight.sum()) for weight in done.model.parameters() if weight.requires_grad]
    result = {"writes": done.is_main_process, "curve": done.curve, "weights": weights}
    (folder / f"rank-{rank}.json").write_text(json.dumps(result))


def train_until_killed(base: Path, unfinished: Path) -> int:
    """Train in a process that is killed at some moment after its first step; returns the step it reached."""
    from pytest_trace2evolve.training.grpo import train

    reading, writing = os.pipe()

    def run() -> None:
        train(
            toy_plan(base, unfinished, **KILLED),
            on_step=lambda stats: os.write(writing, b"%d\n" % stats.step),
        )

    child = _fork(run)
    reached = int(os.read(reading, 100).split()[0])
    time.sleep(random.uniform(0, 0.4))  # while it rolls out, learns, or writes
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return reached


def main(base: Path, folder: Path, kills: int) -> None:
    """Train together in `together`, and with kills in `killed`; prints the steps that were reached."""
    import pytest_trace2evolve.training.grpo  # noqa: F401  # loaded before forks

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    os.environ |= {"ACCELERATE_USE_CPU": "true", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    (folder / "together").mkdir()
    children = [_fork(partial(train_together, base, folder / "together", rank)) for rank in (0, 1)]
    statuses = [os.waitpid(child, 0)[1] for child in children]
    if any(statuses):
        sys.exit("a process that trains together with another failed")
    for name in ("ACCELERATE_USE_CPU", "MASTER_ADDR", "MASTER_PORT"):
        del os.environ[name]
    for _ in range(kills):
        print(train_until_killed(base, folder / "killed"), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
