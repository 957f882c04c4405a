"""The account of a run: what is counted, when nothing more may start, what processes see of one another."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_trace2evolve.engine.budget import Account
from pytest_trace2evolve.errors import BudgetError, EndpointError
from pytest_trace2evolve.records.budget import Budgets
from pytest_trace2evolve.records.completion import Usage

CALL = Usage(prompt_tokens=90, completion_tokens=10, cost=0.25)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "account.sqlite"


@pytest.fixture
def account(path: Path) -> Iterator[Account]:
    account = Account(path)
    yield account
    account.close()


@pytest.fixture
def other(path: Path, account: Account) -> Iterator[Account]:
    """The view of another process."""
    other = Account(path)
    yield other
    other.close()


def test_processes_count_together(account: Account, other: Account) -> None:
    for view in (account, other, other):
        view.spend(CALL)
    for view in (account, other):
        used = view.usage
        assert (used.calls, used.prompt_tokens, used.completion_tokens, used.cost) == (3, 270, 30, 0.75)


@pytest.mark.parametrize("budgets", [Budgets(tokens=100), Budgets(cost=1.0)])
def test_answers_without_usage_cannot_keep_a_budget(path: Path, budgets: Budgets) -> None:
    account = Account(path, budgets)
    account.spend(Usage(calls=0))
    account.raise_if_stopped()
    account.spend(Usage())
    with pytest.raises(
        EndpointError, match=r"reports no usage, so --t2e-max-tokens and --t2e-max-cost cannot"
    ):
        account.raise_if_stopped()
    assert account.unmetered_calls == 1
    account.close()


@pytest.mark.parametrize(
    ("budgets", "text"),
    [
        ({"cost": 0.5}, "the budget is spent: $0.50 of --t2e-max-cost 0.5"),
        ({"tokens": 200}, "the budget is spent: 200 tokens of --t2e-max-tokens 200"),
        ({"minutes": 1e-9}, "the budget is spent: --t2e-max-minutes 1e-09 is exceeded"),
    ],
)
def test_a_spent_budget_stops_every_process(path: Path, budgets: dict[str, float], text: str) -> None:
    account, other = (Account(path, Budgets(**budgets)) for _ in range(2))  # type: ignore[arg-type]
    account.spend(CALL)
    account.spend(CALL)
    for ask in (account.pause_before_request, other.raise_if_stopped, other.pause_before_request):
        with pytest.raises(BudgetError) as caught:
            ask()
        assert str(caught.value) == text
    assert account.stop_reason == other.stop_reason == text
    account.close()
    other.close()


def test_the_rate_limit_spaces_the_requests_of_all_processes(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("time.time", lambda: now)
    account, other = (Account(path, Budgets(requests_per_minute=600)) for _ in range(2))
    pauses = [view.pause_before_request() for view in (account, other) * 3]
    assert pauses == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4, 0.5])
    now = 1060.0
    assert [account.pause_before_request(), other.pause_before_request()] == pytest.approx(
        [0.0, 0.1]
    )  # an idle minute saves up nothing
    account.close()
    other.close()


def test_threads_and_processes_at_once_lose_nothing(path: Path, account: Account) -> None:
    """Two processes count 250 calls each, next to two threads of this one."""
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from pytest_trace2evolve.engine.budget import Account\n"
        "from pytest_trace2evolve.records.completion import Usage\n"
        "account = Account(Path(sys.argv[1]))\n"
        "for _ in range(250): account.spend(Usage(prompt_tokens=1, cost=0.0))\n"
    )
    children = [subprocess.Popen([sys.executable, "-c", code, str(path)]) for _ in range(2)]

    def work() -> None:
        for _ in range(100):
            account.spend(Usage(prompt_tokens=1, cost=0.0))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert [child.wait() for child in children] == [0, 0]
    for thread in threads:
        thread.join()
    assert account.usage.calls == 700


def test_a_shortage_names_the_budget_and_what_one_more_simulation_takes(path: Path) -> None:
    account = Account(path, Budgets(cost=1.0, tokens=1000))
    account.spend(CALL)
    ahead = Usage(prompt_tokens=300, cost=0.3)
    assert account.shortage(Usage(prompt_tokens=100, cost=0.5), ahead) == ""
    assert account.shortage(Usage(prompt_tokens=100, cost=0.8), ahead) == (
        "the budget is spent: $0.25 of --t2e-max-cost 1, and one more simulation takes about $0.80"
    )
    assert account.shortage(Usage(prompt_tokens=800, cost=0.1), ahead) == (
        "the budget is spent: 100 tokens of --t2e-max-tokens 1000, and one more simulation takes about 800"
    )
    account.close()


@settings(max_examples=25)
@given(st.integers(0, 2000), st.integers(0, 2000), st.integers(1, 2000), st.integers(1, 3000))
def test_what_is_promised_and_used_never_exceeds_the_budget(
    tmp_path_factory: pytest.TempPathFactory, used: int, ahead: int, expected: int, budget: int
) -> None:
    account = Account(tmp_path_factory.mktemp("a") / "account.sqlite", Budgets(tokens=budget))
    account.spend(Usage(prompt_tokens=used))
    shortage = account.shortage(Usage(prompt_tokens=expected), Usage(prompt_tokens=ahead))
    assert bool(shortage) == (max(used, ahead) + expected > budget)
    account.close()
