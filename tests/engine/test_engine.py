"""The engine: slots, budgets, retries and resumption, with simulations that are only counted."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_trace2evolve.engine.budget import Account
from pytest_trace2evolve.engine.conversation import Assignment
from pytest_trace2evolve.engine.engine import Engine, Job, StorageLocation
from pytest_trace2evolve.engine.loop import LoopThread
from pytest_trace2evolve.errors import BudgetError, EndpointError, InfrastructureError
from pytest_trace2evolve.evidence.draws import SimulationStore
from pytest_trace2evolve.evidence.journal import Journal
from pytest_trace2evolve.records.budget import Budgets, SimulationState
from pytest_trace2evolve.records.completion import Usage
from pytest_trace2evolve.records.trace import Simulation, TerminationReason


def simulation(number: int, *, tokens: int = 0, lost: bool = False) -> Simulation:
    reason = TerminationReason.INFRASTRUCTURE_ERROR if lost else TerminationReason.USER_STOP
    usage = {"prompt_tokens": tokens, "completion_tokens": 0}
    message = {"role": "assistant", "content": "hello", "usage": usage, "cost": 0.0}
    return Simulation.model_validate(
        {
            "id": f"s{number}",
            "task_id": "t",
            "termination_reason": reason.value,
            "messages": [message],
            "trial": number,
        }
    )


class Counting:
    """Makes simulations at once, by `answer`.

    Attributes:
        made: The trials that were made, in their order.
        most: How many ran at once.
    """

    def __init__(self, answer: Callable[[int], Simulation] = simulation) -> None:
        self.answer = answer
        self.made: list[int] = []
        self.running = self.most = 0

    async def __call__(
        self,
        assignment: Assignment,
        journal: Journal | None = None,
        before_use: Callable[[], Awaitable[None]] | None = None,
    ) -> Simulation:
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0)
        self.made.append(assignment.trial)
        self.running -= 1
        return self.answer(assignment.trial)


class Bench:
    """An engine with two slots over a folder."""

    def __init__(
        self, folder: Path, budgets: Budgets | None = None, executor: Counting | None = None
    ) -> None:
        self.executor = executor or Counting()
        self.loop = LoopThread(2)
        self.account = Account(folder / "account.sqlite", budgets or Budgets())
        self.store = SimulationStore(folder / "finished")
        self.engine = Engine(self.loop, self.account, folder, self.executor)
        self.declared: list[int] = []

    def job(self, trial: int, *, stored: bool = True, **settings: Any) -> Job:
        assignment = cast(Assignment, SimpleNamespace(trial=trial, task=SimpleNamespace(id=f"task{trial}")))
        place = StorageLocation(self.store, f"key{trial}") if stored else None
        return Job(assignment, lambda: self.declared.append(trial), place, **settings)

    def make(self, *jobs: Job) -> list[Simulation | BaseException]:
        async def work() -> list[Simulation | BaseException]:
            return await asyncio.gather(*map(self.engine.make, jobs), return_exceptions=True)

        return self.loop.run(work())

    def close(self) -> None:
        self.loop.close()
        self.account.close()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.close()


def test_no_more_than_the_slots_run_at_once_and_in_order(bench: Bench) -> None:
    bench.make(*(bench.job(trial, stored=False) for trial in range(6)))
    assert bench.executor.most == 2
    assert bench.executor.made == list(range(6))


def test_a_stored_simulation_is_made_once_and_declared(bench: Bench) -> None:
    first, second = bench.make(bench.job(1), bench.job(1))
    assert isinstance(first, Simulation)
    assert isinstance(second, Simulation)
    assert (first.id, second.id, bench.executor.made) == ("s1", "s1", [1])
    assert bench.declared
    assert bench.engine.totals().states == {SimulationState.MADE: 1}


def test_a_lost_simulation_is_made_again_only_when_asked(tmp_path: Path) -> None:
    bench = Bench(tmp_path, executor=Counting(lambda trial: simulation(trial, lost=True)))
    bench.make(bench.job(1))
    bench.make(bench.job(1))
    assert bench.executor.made == [1]
    assert bench.engine.totals().states == {SimulationState.LOST: 1}
    bench.executor.answer = simulation
    bench.loop.run(bench.engine.retry(bench.job(1)))
    assert bench.executor.made == [1, 1]
    assert bench.engine.totals().states == {SimulationState.MADE: 1}
    bench.close()


def test_a_budget_is_never_promised_twice(tmp_path: Path) -> None:
    """Two slots, 250 tokens, 100 for each simulation: two are made, and the third finds the budget spent."""

    def answer(trial: int) -> Simulation:
        bench.account.spend(Usage(prompt_tokens=100, cost=0.0))
        return simulation(trial, tokens=100)

    bench = Bench(tmp_path, Budgets(tokens=250), Counting(answer))
    expected = Usage(prompt_tokens=100, cost=0.0)
    results = bench.make(*(bench.job(trial, expected_usage=expected) for trial in range(5)))
    assert [isinstance(result, Simulation) for result in results] == [True, True, False, False, False]
    assert all(isinstance(result, BudgetError) for result in results[2:])
    assert bench.account.usage.tokens == 200
    assert "one more simulation takes about 100" in bench.account.stop_reason
    bench.close()


def test_an_endpoint_that_refuses_stops_the_run_unless_it_is_the_baselines(tmp_path: Path) -> None:
    def refuse(trial: int) -> Simulation:
        raise EndpointError("the key is refused")

    bench = Bench(tmp_path, executor=Counting(refuse))
    (baseline,) = bench.make(bench.job(1, is_baseline=True))
    assert isinstance(baseline, InfrastructureError)
    assert bench.account.stop_reason == ""
    results = bench.make(bench.job(2), bench.job(3))
    assert all(isinstance(result, EndpointError) for result in results)
    assert bench.account.stop_reason == "the key is refused"
    bench.close()


def test_a_defect_loses_one_simulation_and_a_stop_loses_none(bench: Bench) -> None:
    def fail(trial: int) -> Simulation:
        raise KeyError("defect")

    bench.executor.answer = fail
    (lost,) = bench.make(bench.job(1))
    assert isinstance(lost, InfrastructureError)
    assert "KeyError" in str(lost)
    bench.account.stop("stopped by the user")
    bench.executor.answer = simulation
    (stopped,) = bench.make(bench.job(2))
    assert isinstance(stopped, BudgetError)
    assert bench.engine.totals().states == {SimulationState.LOST: 1}


def test_urgent_work_gets_the_next_free_slot(bench: Bench) -> None:
    order: list[str] = []

    async def work() -> None:
        gate = asyncio.Event()

        async def hold() -> None:
            async with bench.loop.slot():
                await gate.wait()

        async def note(name: str, *, urgent: bool) -> None:
            async with bench.loop.slot(urgent=urgent):
                order.append(name)

        holders = [asyncio.create_task(hold()) for _ in range(2)]
        await asyncio.sleep(0)
        waiting = [asyncio.create_task(note("ordinary", urgent=False))]
        await asyncio.sleep(0)
        waiting.append(asyncio.create_task(note("urgent", urgent=True)))
        await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(*holders, *waiting)

    bench.loop.run(work())
    assert order == ["urgent", "ordinary"]
