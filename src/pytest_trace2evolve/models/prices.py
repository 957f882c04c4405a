"""Reads the prices of models from a table that the user writes, in US dollars per million tokens.

# prices.toml
["gpt-4.1"]
input = 2.00
cached_input = 0.50
output = 8.00
"""

import os
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.records.base import Record
from pytest_trace2evolve.records.completion import Usage
from pytest_trace2evolve.utils.reading import first_problem, read_toml

PRICES_NAME = "prices.toml"
"""The name of the table's file, in a project's top folder."""

Dollars = Annotated[float, Field(ge=0, le=1e6)]


class Price(Record):
    """One model's price, in US dollars per million tokens; `cached_input` defaults to `input`."""

    input: Dollars
    output: Dollars
    cached_input: Dollars | None = None

    def cost(self, usage: Usage) -> float:
        """The cost of `usage` in US dollars."""
        cached_count = min(usage.cached_tokens, usage.prompt_tokens)
        cached_price = self.input if self.cached_input is None else self.cached_input
        uncached_count = usage.prompt_tokens - cached_count
        return (
            uncached_count * self.input + cached_count * cached_price + usage.completion_tokens * self.output
        ) / 1_000_000


FREE_PRICE = Price(input=0.0, output=0.0)
"""The price of a model that runs on this machine."""


def read_prices(path: Path) -> dict[str, Price]:
    """Prices by model name; empty if the file does not exist.

    Raises:
        ConfigError: the file is invalid; the message names the model and the field.
    """
    prices: dict[str, Price] = {}
    if not os.path.lexists(path):
        return prices
    for model, entry in read_toml(path, ConfigError).items():
        try:
            prices[model] = Price.model_validate(entry)
        except ValidationError as error:
            raise ConfigError(
                f"{path}: [{model!r}] {first_problem(error, 'price')}; a price has input, output and, if "
                "different, cached_input, in US dollars per million tokens (quote names that contain a dot)"
            ) from None
    return prices
