"""When the embedded model talks: where nobody else was named, and every customer follows a script."""

from typing import Any

import pytest

from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.models.settings import ModelSettings
from pytest_trace2evolve.suites import Suite
from pytest_trace2evolve.workflow.planning.live import LiveSettings
from pytest_trace2evolve.workflow.planning.plan import Options
from pytest_trace2evolve.workflow.planning.planner import with_embedded

POCKET = ModelSettings(model="pocket")
EMBEDDED = LiveSettings(agent=POCKET, user=POCKET)


def suite(*, cases: bool, default_agent: str | None = None) -> Suite:
    split: Any = {"cases": "cases.jsonl"} if cases else ["task-1"]
    return Suite(
        name="some",
        domain="support",
        provider="trace2evolve",
        default_agent=default_agent,
        splits={"heldout": split},
    )


def test_it_talks_to_customers_who_follow_a_script() -> None:
    options = Options(embedded=EMBEDDED, unheard="--t2e-temperature")
    assert with_embedded(options, [suite(cases=True)] * 2).live is EMBEDDED


@pytest.mark.parametrize(
    "suites",
    [
        [suite(cases=False)],
        [suite(cases=True), suite(cases=False)],
        [suite(cases=True, default_agent="mine")],
    ],
)
def test_it_is_silent_where_a_customer_needs_a_model_or_a_suite_names_an_agent(suites: list[Suite]) -> None:
    assert with_embedded(Options(embedded=EMBEDDED), suites).live is None
    with pytest.raises(ConfigError, match="--t2e-temperature says nothing without --t2e-model"):
        with_embedded(Options(embedded=EMBEDDED, unheard="--t2e-temperature"), suites)


def test_a_model_that_was_named_stays() -> None:
    named = Options(live=LiveSettings(agent=ModelSettings(model="named"), user=POCKET))
    assert with_embedded(named, [suite(cases=True)]) is named
