"""When the embedded model talks: where nobody else was named, and every customer follows a script."""

from typing import Any

import pytest

from pytest_trace2evolve.engine.live import LiveSettings
from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.models.settings import ModelSettings
from pytest_trace2evolve.project.suites import Suite
from pytest_trace2evolve.session.plan import Options
from pytest_trace2evolve.session.planner import use_embedded_model

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
    options, suites = (
        Options(embedded_settings=EMBEDDED, unused_option="--t2e-temperature"),
        [suite(cases=True)] * 2,
    )
    found, served = use_embedded_model(options, suites)
    assert (found.live, served) == (EMBEDDED, suites)


def test_it_talks_where_only_cases_are_run() -> None:
    found, served = use_embedded_model(
        Options(embedded_settings=EMBEDDED, unused_option="--t2e-temperature"), []
    )
    assert (found.live, served) == (EMBEDDED, [])


def test_suites_whose_customers_need_a_model_are_left_out_where_none_was_named() -> None:
    scripted, other = suite(cases=True), suite(cases=False)
    found, served = use_embedded_model(Options(embedded_settings=EMBEDDED), [other, scripted])
    assert (found.live, served) == (EMBEDDED, [scripted])
    named = Options(embedded_settings=EMBEDDED, suites=("some",))
    assert use_embedded_model(named, [other, scripted]) == (named, [other, scripted])


@pytest.mark.parametrize(
    "suites",
    [
        [suite(cases=False)],
        [suite(cases=True), suite(cases=True, default_agent="mine")],
        [suite(cases=True, default_agent="mine")],
    ],
)
def test_it_is_silent_where_a_customer_needs_a_model_or_a_suite_names_an_agent(suites: list[Suite]) -> None:
    options = Options(embedded_settings=EMBEDDED)
    assert use_embedded_model(options, suites) == (options, suites)
    with pytest.raises(ConfigError, match="--t2e-temperature has no effect without --t2e-model"):
        use_embedded_model(Options(embedded_settings=EMBEDDED, unused_option="--t2e-temperature"), suites)


def test_a_model_that_was_named_stays() -> None:
    named = Options(live=LiveSettings(agent=ModelSettings(model="named"), user=POCKET))
    suites = [suite(cases=False), suite(cases=True)]
    assert use_embedded_model(named, suites) == (named, suites)
