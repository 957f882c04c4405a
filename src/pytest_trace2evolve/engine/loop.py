"""An event loop on its own thread, with a limited number of slots for simulations."""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """Runs coroutines on an event loop; `slot` limits the number of concurrent simulations.

    Args:
        slots: The number of concurrent simulations.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._n_free = slots
        self._urgent_waiters: deque[asyncio.Future[None]] = deque()
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._closers: list[Callable[[], Coroutine[Any, Any, None]]] = []
        self._is_closing = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="trace2evolve-engine", daemon=True)
        self._thread.start()

    def start(self, coroutine: Coroutine[Any, Any, T]) -> "Future[T]":
        """Start a coroutine from another thread."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine from another thread, and wait for its result."""
        return self.start(coroutine).result()

    @contextlib.asynccontextmanager
    async def slot(self, *, urgent: bool = False) -> AsyncIterator[None]:
        """Hold a slot. Urgent work gets the next free slot; other work waits in order of arrival."""
        if self._n_free:
            self._n_free -= 1
        else:
            waiter = self._loop.create_future()
            (self._urgent_waiters if urgent else self._waiters).append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():
                    self._release()
                raise
        try:
            yield
        finally:
            self._release()

    def on_close(self, closer: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Register a coroutine function to call in the loop before the loop ends."""
        self._closers.append(closer)

    def close(self) -> None:
        """Cancel all running tasks, call the registered closers, and end the thread."""
        if not self._thread.is_alive():
            return
        self.run(self._shut_down())
        self._is_closing = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _release(self) -> None:
        for queue in (self._urgent_waiters, self._waiters):
            while queue:
                waiter = queue.popleft()
                if not waiter.done():
                    waiter.set_result(None)
                    return
        self._n_free += 1

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        while not self._is_closing:
            # A `SystemExit` or `KeyboardInterrupt` in any task ends `run_forever`, even in a task that an
            # agent left behind.
            with contextlib.suppress(SystemExit, KeyboardInterrupt):
                self._loop.run_forever()

    async def _shut_down(self) -> None:
        other_tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in other_tasks:
            task.cancel()
        await asyncio.gather(*other_tasks, return_exceptions=True)
        for closer in self._closers:
            with contextlib.suppress(Exception):  # the other closers must run too
                await closer()
