"""An event loop in a thread of its own, with slots in which jobs run: urgent ones first, then those ahead."""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Job:
    """One simulation to be made: a trial of a suite's task, of the candidate or of the baseline."""

    suite: str
    task_id: str
    trial: int
    baseline: bool = False


Perform = Callable[[Job], Coroutine[Any, Any, None]]
"""Makes one simulation, or sees that nothing is to be done."""


class Pool:
    """Runs at most `concurrency` jobs at once.

    Attributes:
        slots: How many those are.

    A job may be handed in several times; that it is made once is the business of whoever performs it.
    """

    def __init__(self, concurrency: int) -> None:
        self.slots = concurrency
        self._loop = asyncio.new_event_loop()
        self._urgent: deque[Job] = deque()
        self._ahead: Iterator[Job] = iter(())
        self._perform: Perform | None = None
        self._idle: deque[asyncio.Future[None]] = deque()
        self._busy: set[asyncio.Task[None]] = set()
        self._closing = False
        self._closers: list[Callable[[], Coroutine[Any, Any, None]]] = []
        self._thread = threading.Thread(target=self._run, name="trace2evolve-simulations", daemon=True)
        self._thread.start()

    def begin(self, perform: Perform) -> None:
        """Open the slots."""
        self._perform = perform
        self._loop.call_soon_threadsafe(self._open)

    def urgent(self, jobs: Iterable[Job]) -> None:
        """Put jobs before all others: somebody waits for them."""
        wanted = tuple(jobs)
        self._loop.call_soon_threadsafe(self._take_in, wanted)

    def ahead(self, jobs: Iterator[Job]) -> None:
        """What to do while nothing is urgent; consumed as slots get free."""
        self._loop.call_soon_threadsafe(self._look_ahead, jobs)

    def on_close(self, closer: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Call something in the loop before it ends."""
        self._closers.append(closer)

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something beside the slots, and wait for what it returns."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def drain(self, go_on: Callable[[], bool]) -> None:
        """Start nothing more and wait for what runs, as long as `go_on` says so."""
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._drained(go_on), self._loop).result()

    def close(self) -> None:
        """Cancel what runs, close what was opened, end the thread."""
        if not self._thread.is_alive():
            return
        asyncio.run_coroutine_threadsafe(self._shut(), self._loop).result()
        self._loop.call_soon_threadsafe(self._end)
        self._thread.join()
        self._loop.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        while not self._closing:
            # Asyncio lets `SystemExit` and `KeyboardInterrupt` of any task end the loop, also of a task that
            # an agent left behind.
            with contextlib.suppress(SystemExit, KeyboardInterrupt):
                self._loop.run_forever()

    def _end(self) -> None:
        self._closing = True
        self._loop.stop()

    def _open(self) -> None:
        for _ in range(self.slots):
            task = self._loop.create_task(self._slot())
            self._busy.add(task)

    def _take_in(self, jobs: tuple[Job, ...]) -> None:
        self._urgent.extend(jobs)
        self._wake(len(jobs))

    def _look_ahead(self, jobs: Iterator[Job]) -> None:
        self._ahead = jobs
        self._wake(self.slots)

    def _wake(self, count: int) -> None:
        for _ in range(min(count, len(self._idle))):
            self._idle.popleft().set_result(None)

    async def _slot(self) -> None:
        assert self._perform is not None
        while True:
            job = self._urgent.popleft() if self._urgent else next(self._ahead, None)
            if job is None:
                waiting = self._loop.create_future()
                self._idle.append(waiting)
                await waiting
            else:
                # Whoever waits for the job learns by itself what became of it; the slot must live on.
                with contextlib.suppress(Exception):
                    await self._perform(job)

    async def _drained(self, go_on: Callable[[], bool]) -> None:
        self._urgent.clear()
        self._ahead = iter(())
        while len(self._idle) < len(self._busy) and go_on():
            await asyncio.sleep(0.02)

    async def _shut(self) -> None:
        mine = asyncio.current_task()
        others = [task for task in asyncio.all_tasks() if task is not mine]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        for closer in self._closers:
            # What cannot be closed ends with the process; the others are closed all the same.
            with contextlib.suppress(Exception):
                await closer()
