"""Laws of synthetic cases: whatever is drawn can be solved, is not trivial, and survives tau2's format."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_trace2evolve.cases.case import FAMILIES, build, case_line, case_of, generate
from pytest_trace2evolve.cases.draws import SeededDraws
from pytest_trace2evolve.cases.strategies import cases, pressure, stores
from pytest_trace2evolve.evidence.tau2_format import header
from pytest_trace2evolve.records.evidence import Provenance
from pytest_trace2evolve.records.script import Content, script_of
from pytest_trace2evolve.records.task import Task
from pytest_trace2evolve.workflow.cases.admission import admit
from pytest_trace2evolve.worlds.support.world import SupportWorld

WORLD = SupportWorld()


@pytest.mark.parametrize("content", list(Content))
@settings(pressure, max_examples=100)
@given(data=st.data())
def test_every_case_is_admitted(content, data):
    """The oracle's reward 1, no invariant broken, `nop` at 0 unless refusing is right, and the format."""
    case = data.draw(cases(*FAMILIES, content=content.value))
    (found,) = admit([case], WORLD)
    assert found.problems == ()


@settings(pressure, max_examples=50)
@given(seed=st.text(max_size=8), family=st.sampled_from(list(FAMILIES)))
def test_a_case_is_a_function_of_its_seed(seed, family):
    first, again = (build(family, SeededDraws(seed), Content.TRAIN) for _ in range(2))
    assert case_line(first) == case_line(again)
    assert first.digest == again.digest


def test_cases_survive_a_results_file_of_tau2(tmp_path):
    made = [*generate("format", 14, Content.TRAIN), *generate("format", 14, Content.HELDOUT)]
    provenance = Provenance(domain="support", provider="trace2evolve")
    record = header(
        provenance, [case.task for case in made], [], policy="p", git_commit="g", trials=1, max_errors=1
    )
    path = tmp_path / "results.json"
    path.write_text(json.dumps({**record, "simulations": []}), encoding="utf-8")
    again = json.loads(path.read_text(encoding="utf-8"))["tasks"]
    for case, raw in zip(made, again, strict=True):
        task = Task.model_validate(raw)
        assert task.digest == case.digest
        assert script_of(task) == case.script
        assert case_of(task).task.actions == case.task.actions


@settings(pressure, max_examples=20)
@given(tables=stores(customers=3, orders=4))
def test_a_generated_store_opens_as_a_world(tables):
    world = SupportWorld(store=tables)
    session = world.open()
    for order_id, order in tables["orders"].items():
        answer = session.call("get_order_details", {"order_id": order_id}, "assistant")
        assert not answer.error
        assert json.loads(answer.content)["items"] == order["items"]
