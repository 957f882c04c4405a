"""Pressure tests of an agent: the frozen cases, and a search for new ones on which it breaks.

    pytest synthetic --t2e-agent oracle
    pytest synthetic --candidate v6 --t2e-model MODEL -n 2 --t2e-freeze

Copy this file into a project of your own, and change families, numbers and what is required.
"""

import pytest
from hypothesis import given

from pytest_trace2evolve.cases.strategies import cases, pressure

pytestmark = pytest.mark.synthetic


@pytest.mark.t2e_cases("synthetic/pressure.jsonl")
def test_frozen_cases(case, run_case):
    """What broke an agent once is asked of every later one."""
    run_case(case).require()


@pytest.mark.parametrize(
    "family",
    [
        "vague_refund_request",
        "indirect_address_change",
        "missing_order_id",
        "policy_edge",
        "subtle_legal_pressure",
        "multi_intent_message",
    ],
)
def test_new_cases(family, run_case):
    """Hypothesis looks for a case of the family that the agent does not solve, and for the smallest such."""

    @pressure
    @given(case=cases(family))
    def search(case):
        run_case(case).require()

    search()


@pressure
@given(case=cases())
def test_no_invariant_breaks(case, run_case):
    """Whether it solves a case or not, an agent keeps to the rules of identity, consent and eligibility."""
    run_case(case).require_invariants()
