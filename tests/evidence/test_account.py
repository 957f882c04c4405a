"""The account of a run: what is counted, who may start what, and what processes see of one another."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_trace2evolve.errors import BudgetError, EndpointError
from pytest_trace2evolve.evidence.account import Account
from pytest_trace2evolve.records.budget import NO_BUDGETS, Budgets, Claim, Entry, State
from pytest_trace2evolve.records.completion import NOTHING_USED, Usage

CALL = Usage(prompt_tokens=90, completion_tokens=10, cost=0.25)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "account.sqlite"


@pytest.fixture
def account(path: Path) -> Iterator[Account]:
    one = Account(path, "gw0")
    yield one
    one.close()


def with_budgets(path: Path, **budgets: float) -> Account:
    return Account(path, "gw0", Budgets(**budgets))  # type: ignore[arg-type]


def test_processes_count_together(path: Path, account: Account) -> None:
    other = Account(path, "gw1")
    for one in (account, other, other):
        one.spend(CALL)
    for one in (account, other):
        used = one.totals().usage
        assert (used.calls, used.prompt_tokens, used.completion_tokens, used.cost) == (3, 270, 30, 0.75)
    other.close()


def test_one_call_without_a_price_makes_the_cost_unknown(account: Account) -> None:
    account.spend(CALL)
    account.spend(CALL.model_copy(update={"cost": None}))
    assert account.totals().usage.cost is None


def test_a_simulation_is_made_by_who_claims_it_first(path: Path, account: Account) -> None:
    other = Account(path, "gw1")
    assert account.claim("a") is Claim.YOURS
    assert other.claim("a") is Claim.TAKEN
    assert account.claim("a") is Claim.TAKEN
    assert other.entries(["a", "b"]) == {"a": Entry(State.RUNNING)}
    account.settle("a", State.LOST, note="gone")
    assert other.entries(["a"]) == {"a": Entry(State.LOST, "gone")}
    other.close()


def test_what_a_dead_worker_had_begun_is_free_and_what_it_finished_stays(
    path: Path, account: Account
) -> None:
    other = Account(path, "gw1")
    other.claim("begun")
    other.claim("finished")
    other.settle("finished", State.MADE)
    other.close()
    account.release("gw1")
    assert account.entries(["begun", "finished"]) == {"finished": Entry(State.MADE)}
    assert account.claim("begun") is Claim.YOURS


def test_what_was_kept_is_counted_and_needs_no_budget(path: Path) -> None:
    account = with_budgets(path, tokens=1)
    account.spend(CALL)
    account.keep("a")
    assert account.entries(["a"]) == {"a": Entry(State.KEPT)}
    with pytest.raises(BudgetError):
        account.claim("b")
    account.close()


@pytest.mark.parametrize(
    ("budgets", "text"),
    [
        ({"cost": 0.5}, "the budget is spent: $0.50 of --t2e-max-cost 0.5"),
        ({"tokens": 200}, "the budget is spent: 200 tokens of --t2e-max-tokens 200"),
        ({"minutes": 1e-9}, "the budget is spent: --t2e-max-minutes 1e-09 are over"),
    ],
)
def test_a_spent_budget_stops_every_process(path: Path, budgets: dict[str, float], text: str) -> None:
    account = with_budgets(path, **budgets)
    other = Account(path, "gw1", account.budgets)
    account.spend(CALL)
    account.spend(CALL)
    for ask in (account.admit, other.stand, lambda: other.claim("a")):
        with pytest.raises(BudgetError) as caught:
            ask()
        assert str(caught.value) == text
    assert account.stopped == other.stopped == text
    account.close()
    other.close()


def test_the_first_reason_stays(account: Account) -> None:
    account.stop("one")
    account.stop("two", refused=True)
    assert account.stopped == "one"
    with pytest.raises(BudgetError, match="one"):
        account.admit()


def test_a_refusal_is_told_as_one_and_by_one(path: Path, account: Account) -> None:
    other = Account(path, "gw1")
    account.stop("the endpoint refuses", refused=True)
    with pytest.raises(EndpointError, match="the endpoint refuses"):
        other.admit()
    assert [one.first_to_tell() for one in (account, other, account)] == [True, False, False]
    other.close()


def test_a_simulation_starts_only_where_the_budget_reaches(path: Path) -> None:
    """Beside one that runs it waits; alone, it ends the run."""
    account = with_budgets(path, cost=1.0)
    expected = Usage(calls=0, prompt_tokens=10, cost=0.4)
    assert account.claim("a", expected) is Claim.YOURS
    assert account.claim("b", expected) is Claim.YOURS
    assert account.claim("c", expected) is Claim.LATER
    account.settle("a", State.MADE, Usage(cost=0.1))
    assert account.claim("c", expected) is Claim.YOURS
    account.settle("b", State.MADE, Usage(cost=0.5))
    account.settle("c", State.MADE, Usage(cost=0.3))
    with pytest.raises(BudgetError, match=r"\$0.00 of --t2e-max-cost 1, and one more .* takes about \$0.40"):
        account.claim("d", expected)
    account.close()


def test_what_is_expected_is_the_mean_of_what_was_made(account: Account) -> None:
    assert account.mean_used() == NOTHING_USED
    for key, tokens in (("a", 100), ("b", 300)):
        account.claim(key)
        account.settle(key, State.MADE, Usage(prompt_tokens=tokens, cost=tokens / 100))
    account.keep("c")
    assert (account.mean_used().tokens, account.mean_used().cost) == (200, 2.0)


def test_the_rate_limit_spaces_the_requests_of_all_processes(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("pytest_trace2evolve.evidence.account.time.time", lambda: now)
    account = with_budgets(path, requests_per_minute=600)
    other = Account(path, "gw1", account.budgets)
    pauses = [one.admit() for one in (account, other) * 3]
    assert pauses == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4, 0.5])
    now = 1060.0
    assert [account.admit(), other.admit()] == pytest.approx([0.0, 0.1])  # an idle minute saves up nothing
    account.close()
    other.close()


def test_threads_and_processes_at_once_lose_nothing(path: Path, account: Account) -> None:
    """Four processes count 250 calls each and fight for 100 simulations, beside two threads of this one."""
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from pytest_trace2evolve.evidence.account import Account\n"
        "from pytest_trace2evolve.records.budget import Claim\n"
        "from pytest_trace2evolve.records.completion import Usage\n"
        "account = Account(Path(sys.argv[1]), sys.argv[2])\n"
        "for _ in range(250): account.spend(Usage(prompt_tokens=1, cost=0.0))\n"
        "print(sum(account.claim(f'k{i}') is Claim.YOURS for i in range(100)))\n"
    )
    children = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(path), f"gw{number}"], stdout=subprocess.PIPE, text=True
        )
        for number in range(4)
    ]
    mine: list[int] = []

    def work() -> None:
        for _ in range(100):
            account.spend(Usage(prompt_tokens=1, cost=0.0))
        mine.append(sum(account.claim(f"k{i}") is Claim.YOURS for i in range(100)))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    theirs = [int(child.communicate()[0]) for child in children]
    for thread in threads:
        thread.join()
    assert sum(mine) + sum(theirs) == 100
    assert account.totals().usage.calls == 1200
    assert account.totals().states == {State.RUNNING: 100}


@given(
    st.lists(st.integers(1, 400), min_size=1, max_size=12),
    st.integers(1, 1500),
    st.integers(0, 2**32 - 1),
)
def test_a_budget_is_never_promised_twice(sizes: list[int], budget: int, seed: int) -> None:
    """However claims and ends interleave: what was made and what may run sum to the budget at most."""
    import random
    import tempfile

    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        account = Account(Path(folder) / "a.sqlite", "gw0", Budgets(tokens=budget))
        running: dict[str, int] = {}
        promised = 0
        try:
            for number, size in enumerate(sizes):
                claim = account.claim(str(number), Usage(prompt_tokens=size))
                if claim is Claim.YOURS:
                    running[str(number)] = size
                    promised += size
                elif claim is Claim.LATER:
                    assert running
                assert promised <= budget
                if running and rng.random() < 0.5:
                    key = rng.choice(sorted(running))
                    account.settle(key, State.MADE, Usage(prompt_tokens=running.pop(key)))
        except BudgetError:
            assert not running
        finally:
            account.close()


def test_without_budgets_everything_is_admitted(account: Account) -> None:
    assert account.budgets == NO_BUDGETS
    account.spend(Usage(prompt_tokens=10**9, cost=1e6))
    assert account.admit() == 0.0
    assert account.seconds_left is None


def test_fresh_simulations_are_set_aside_once_for_what_they_are_for(path: Path, account: Account) -> None:
    other = Account(path, "gw1")
    assert account.reserve("a", 16, 40)
    assert other.reserve("b", 16, 40)
    assert not other.reserve("c", 16, 40)
    assert account.reserve("b", 16, 40)  # the same again takes nothing more
    assert other.reserve("d", 8, 40)
    assert account.totals().fresh == 40
    other.close()


def test_the_budget_of_fresh_simulations_holds_whoever_asks(path: Path, account: Account) -> None:
    """Four processes and this one ask for 16 of 100 at the same time, each for 20 tasks."""
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from pytest_trace2evolve.evidence.account import Account\n"
        "account = Account(Path(sys.argv[1]), sys.argv[2])\n"
        "print(sum(account.reserve(f'{sys.argv[2]} {i}', 16, 100) for i in range(20)))\n"
    )
    children = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(path), f"gw{number}"], stdout=subprocess.PIPE, text=True
        )
        for number in range(1, 5)
    ]
    mine = sum(account.reserve(f"gw0 {number}", 16, 100) for number in range(20))
    granted = mine + sum(int(child.communicate()[0]) for child in children)
    assert granted == 6
    assert account.totals().fresh == 96


def test_what_was_lost_can_be_forgotten_and_nothing_else(account: Account) -> None:
    for key, state in (("a", State.LOST), ("b", State.LOST), ("c", State.MADE)):
        account.claim(key)
        account.settle(key, state)
    account.claim("d")
    account.keep("e")
    account.forget_lost(["a", "c", "d"])
    assert account.entries(["a"]) == {}
    account.forget_lost()
    assert account.totals().states == {State.MADE: 1, State.RUNNING: 1, State.KEPT: 1}
    assert account.finished() == {"c", "e"}
