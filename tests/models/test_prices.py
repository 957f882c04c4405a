"""Prices: what a table says, what usage costs, and that the shipped table is what runs were billed."""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.models.prices import Price, read_prices
from pytest_trace2evolve.records.completion import NO_USAGE, Usage, usage_of
from pytest_trace2evolve.records.message import Message
from tests.conftest import RECORDED

REPOSITORY = Path(__file__).resolve().parents[2]
COUNTS = st.integers(0, 10**7)


def write(folder: Path, text: str) -> Path:
    path = folder / "prices.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_cached_tokens_have_their_own_price(tmp_path: Path) -> None:
    prices = read_prices(write(tmp_path, '["m.1"]\ninput = 2.0\ncached_input = 0.5\noutput = 8.0\n'))
    usage = Usage(prompt_tokens=1_000_000, cached_tokens=400_000, completion_tokens=100_000)
    assert prices["m.1"].cost(usage) == pytest.approx(0.6 * 2.0 + 0.4 * 0.5 + 0.1 * 8.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[m\n", "not valid TOML: "),
        ("[m]\ninput = 1\n", "['m'] output: Field required"),
        ("[m]\ninput = -1\noutput = 1\n", "['m'] input: Input should be greater than or equal to 0, not -1"),
        ("[m]\ninput = nan\noutput = 1\n", "m.input: is not a finite number"),
        ("[m]\ninput = 1\noutput = 1\nper = 1000\n", "['m'] unknown key 'per'; known are "),
        ("[gpt-4.1]\ninput = 1\noutput = 1\n", "['gpt-4'] input: Field required"),
        ("m = 3\n", "['m'] price: "),
    ],
)
def test_an_invalid_table_is_an_error_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        read_prices(path)
    assert str(caught.value).startswith(f"{path}: {message}")
    assert "\n" not in str(caught.value)


@given(
    st.builds(Usage, prompt_tokens=COUNTS, cached_tokens=COUNTS, completion_tokens=COUNTS),
    st.builds(Usage, prompt_tokens=COUNTS, completion_tokens=COUNTS),
    st.builds(Price, input=st.floats(0, 100), output=st.floats(0, 100)),
)
def test_usage_and_cost_are_additive(one: Usage, two: Usage, price: Price) -> None:
    both = one + two
    assert both.tokens == one.tokens + two.tokens
    assert price.cost(both) == pytest.approx(price.cost(one) + price.cost(two))
    assert NO_USAGE + one.model_copy(update={"cost": 1.0}) == one.model_copy(update={"cost": 1.0})
    assert (NO_USAGE + one).cost is None


@pytest.mark.skipif(not RECORDED.exists(), reason="needs the recorded runs")
def test_shipped_prices_are_those_of_recorded_runs() -> None:
    """Each call of a recorded run of gpt-4.1-mini cost what the table and its usage say."""
    prices = read_prices(REPOSITORY / "prices.toml")
    with gzip.open(RECORDED / "retail-gpt-4.1-mini-base.json.gz") as file:
        simulations = json.load(file)["simulations"]
    checked = 0
    for simulation in simulations:
        for record in simulation["messages"]:
            message = Message.model_validate(record)
            for role in ("assistant", "user"):
                usage = usage_of([message], role)
                if usage.calls and usage.cost:
                    assert prices["gpt-4.1-mini"].cost(usage) == pytest.approx(usage.cost, abs=1e-9)
                    checked += 1
    assert checked > 2000
