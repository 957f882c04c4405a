"""What a report page takes from recorded evidence, and which traces it may not take."""

import pytest

from pytest_trace2evolve.records.evidence import Evidence, Provenance
from pytest_trace2evolve.records.trace import Simulation
from pytest_trace2evolve.session.page_data import PageSuite, page_suite
from pytest_trace2evolve.worlds.registry import Worlds
from tests.report.test_page import trial


def shown(reward: float, **provenance: str) -> PageSuite:
    """The page of a comparison, outside of any project, whose traces are all at hand."""
    origin = Provenance(domain="desk", provider="fake", **provenance)  # type: ignore[arg-type]
    evidence = Evidence(provenance=origin, simulations=(trial("close", 0, reward),))
    simulation = Simulation(id="close-0", task_id="close", termination_reason="user_stop", messages=[])
    read = {"close-0": simulation}.get
    return page_suite("", evidence, evidence, {}, (read, read), None, Worlds())


def test_files_of_no_suite_may_be_shown() -> None:
    suite = shown(0.0)
    assert [[trace.simulation.id for trace in side] for side in suite.traces["close"]] == [["close-0"]] * 2
    assert suite.sealed == frozenset()


def test_traces_of_a_suite_need_the_project_that_says_which_are_sealed() -> None:
    suite = shown(0.0, suite="desk")
    assert (suite.traces, suite.sealed) == ({}, {"close"})


@pytest.mark.parametrize("reward", [1.0, 0.9999999])
def test_a_task_that_passes_everywhere_needs_no_trace(reward: float) -> None:
    assert shown(reward).traces == {}
