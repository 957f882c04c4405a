"""A toy environment for the tiny model: it looks at an order, says what it found, and a customer answers.

Run as a program it trains there, is killed at random, and prints how far it was.
"""

import os
import random
import signal
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pytest_trace2evolve.environments.trl_environment import TrlEnvironment, rollout_class
from pytest_trace2evolve.records.environment import Reaction
from pytest_trace2evolve.records.message import Message
from pytest_trace2evolve.records.protocols import ToolSchema
from tests.tiny_model import TOOLS

SCHEMAS = [ToolSchema(**tool["function"]) for tool in TOOLS]  # type: ignore[arg-type]  # all of it is there
PROMPT = "Help."


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


def toy_class(worth: Callable[[Sequence[Message]], float] = by_letters) -> type[TrlEnvironment]:
    """The class that trl gets."""
    make: Any = lambda: ToyEnvironment(worth)  # noqa: E731 - not a `PlayedEnvironment`, but plays like one
    return rollout_class(SCHEMAS, make, "Toy")


def toy_plan(base: Path, unfinished: Path, worth: Any = by_letters, **recipe: Any) -> Any:
    """A training of the tiny model in the toy environment."""
    from pytest_trace2evolve.serving.folder import read_model
    from pytest_trace2evolve.serving.loading import end_tokens, load_tokenizer
    from pytest_trace2evolve.training.chat_encoding import ChatEncoder
    from pytest_trace2evolve.training.recipe import Recipe
    from pytest_trace2evolve.training.run import Plan

    folder = read_model(base)
    tokenizer = load_tokenizer(folder)
    ends = end_tokens(folder, tokenizer)
    settings = {
        "groups": 2,
        "rollouts": 4,
        "steps": 2,
        "rate": 1e-2,
        "rank": 4,
        "alpha": 8,
        "answer_tokens": 24,
        "rollout_tokens": 160,
        "kl_every": 1,
        "keep_every": 1,
        "threads": 1,
        "autocast": False,
        "seed": 3,
    }
    return Plan(
        recipe=Recipe.model_validate({**settings, **recipe}),
        base=base,
        identity={"base": "tiny"},
        environments={"toy": toy_class(worth)},
        encoder=ChatEncoder(tokenizer, ends, {"toy": (PROMPT, SCHEMAS)}),
        ends=ends,
        unfinished=unfinished,
    )


def _report(pipe: int, stats: Any) -> None:
    os.write(pipe, b"%d\n" % stats.step)


def main(base: Path, unfinished: Path, steps: int, kills: int) -> None:
    """Train in processes of their own, and kill each at some moment after its first step.

    They are forked from one that has loaded all packages, which takes longer than a training.
    """
    from pytest_trace2evolve.training.run import train

    for _ in range(kills):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            plan = toy_plan(base, unfinished, steps=steps)
            train(plan, on_step=partial(_report, writing))
            os._exit(0)
        reached = int(os.read(reading, 100).split()[0])
        time.sleep(random.uniform(0, 0.4))  # while it rolls out, learns, or writes
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        print(reached, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
