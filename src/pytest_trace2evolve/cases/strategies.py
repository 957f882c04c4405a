"""Hypothesis strategies for cases and stores, for property tests of agents.

A failing case shrinks towards the first family and wording, one customer, one order and one item.
"""

from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from pytest_trace2evolve.cases.case import FAMILIES, PRESSURE, Case, build_case
from pytest_trace2evolve.cases.store import JsonRecord, build_store
from pytest_trace2evolve.records.task import Content

pressure = settings(
    deadline=None,
    max_examples=25,
    report_multiple_bugs=False,
    phases=[phase for phase in Phase if phase is not Phase.explain],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
"""Settings for tests that run an agent: no deadline, few examples, one failure at a time."""


class _HypothesisChoices:
    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw

    def draw_number(self, low: int, high: int) -> int:
        return self._draw(st.integers(low, high))


def cases(*families: str, content: str = "heldout") -> st.SearchStrategy[Case]:
    """Return a strategy for cases of the given families.

    Args:
        families: Names of families; if none are given, the six pressure families.
        content: The vocabulary, "train" or "heldout". With words from training, an agent may pass by recall
            alone.

    Raises:
        ValueError: a family or the content is unknown.
    """
    unknown_names = [name for name in families if name not in FAMILIES]
    if unknown_names:
        raise ValueError(f"unknown family {unknown_names[0]!r}; expected one of {', '.join(FAMILIES)}")
    return _cases(families or tuple(PRESSURE), _parse_content(content))


@st.composite
def _cases(draw: st.DrawFn, families: tuple[str, ...], content: Content) -> Case:
    return build_case(draw(st.sampled_from(families)), _HypothesisChoices(draw), content)


def stores(
    *, content: str = "heldout", customers: int = 5, orders: int = 10
) -> st.SearchStrategy[dict[str, dict[str, Any]]]:
    """Return a strategy for stores of the support world, as tables by name.

    Args:
        content: The vocabulary, "train" or "heldout".
        customers: The maximum number of customers.
        orders: The maximum number of orders.

    Raises:
        ValueError: the content is unknown, or `customers` or `orders` is less than 1.
    """
    if min(customers, orders) < 1:
        raise ValueError(f"customers and orders must be at least 1, got {customers} and {orders}")
    return _stores(_parse_content(content), customers, orders)


@st.composite
def _stores(
    draw: st.DrawFn, content: Content, customers: int, orders: int
) -> dict[str, dict[str, JsonRecord]]:
    customer_count = draw(st.integers(1, customers))
    return build_store(
        _HypothesisChoices(draw), content, customers=customer_count, orders=draw(st.integers(1, orders))
    )


def _parse_content(name: str) -> Content:
    if name not in list(Content):
        raise ValueError(f"unknown content {name!r}; expected one of {', '.join(Content)}")
    return Content(name)
