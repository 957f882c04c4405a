"""Live simulations: who talks in them, and the pool that runs many at once in one process."""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from pytest_trace2evolve.models.settings import ModelSettings
from pytest_trace2evolve.records.evidence import Settings

CHAT = "chat"
"""The agent that talks through a model."""

EXTRA_INSTRUCTION_VAR = "TAU2_AGENT_EXTRA_INSTRUCTION"
"""An instruction from the environment, honoured as τ²'s own tools honour it."""

DEFAULT_CONCURRENCY = 16

T = TypeVar("T")


@dataclass(frozen=True)
class LiveSettings:
    """Who talks in a live run: the agent's model and the user's."""

    agent: ModelSettings
    user: ModelSettings
    extra_instruction: str = ""

    def agent_settings(self) -> Settings:
        """What evidence records of the agent."""
        arguments = self.agent.recorded()
        if self.extra_instruction:
            arguments["extra_instruction"] = self.extra_instruction
        return Settings(implementation=CHAT, model=self.agent.model, arguments=arguments)

    def user_settings(self) -> Settings:
        """What evidence records of the user simulator."""
        return Settings(implementation=CHAT, model=self.user.model, arguments=self.user.recorded())


def extra_instruction() -> str:
    """The instruction that the environment adds; empty where it adds none."""
    return os.environ.get(EXTRA_INSTRUCTION_VAR, "").strip()


class Pool:
    """An event loop in a thread of its own, which runs at most `concurrency` coroutines at once."""

    def __init__(self, concurrency: int) -> None:
        self._concurrency = concurrency
        self._loop = asyncio.new_event_loop()
        self._slots: asyncio.Semaphore | None = None
        self._closers: list[Callable[[], Coroutine[Any, Any, None]]] = []
        self._thread = threading.Thread(target=self._run, name="trace2evolve-simulations", daemon=True)
        self._thread.start()

    @property
    def concurrency(self) -> int:
        """How many coroutines run at once."""
        return self._concurrency

    def submit(self, work: Callable[[], Coroutine[Any, Any, T]]) -> "Future[T]":
        """Start a coroutine as soon as a slot is free."""
        return asyncio.run_coroutine_threadsafe(self._in_slot(work), self._loop)

    def on_close(self, closer: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Call something in the loop before it ends."""
        self._closers.append(closer)

    def close(self) -> None:
        """Cancel what is waiting, close what was opened, end the thread."""
        if not self._thread.is_alive():
            return
        asyncio.run_coroutine_threadsafe(self._shut(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    async def _in_slot(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        if self._slots is None:
            self._slots = asyncio.Semaphore(self._concurrency)
        async with self._slots:
            return await work()

    async def _shut(self) -> None:
        mine = asyncio.current_task()
        others = [task for task in asyncio.all_tasks() if task is not mine]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        for closer in self._closers:
            await closer()
