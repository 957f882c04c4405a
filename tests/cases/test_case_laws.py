"""Laws of synthetic cases: each case can be solved, is not trivial, and survives tau2's format."""

import copy
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_trace2evolve.cases.case import (
    FAMILIES,
    build_case,
    format_case_line,
    generate,
    read_cases,
    to_case,
)
from pytest_trace2evolve.cases.content import SeededChoices
from pytest_trace2evolve.cases.strategies import cases, pressure, stores
from pytest_trace2evolve.errors import CaseError
from pytest_trace2evolve.evidence.run_folder import results_header
from pytest_trace2evolve.records.evidence import Provenance
from pytest_trace2evolve.records.task import Content, Task, script_of
from pytest_trace2evolve.report.cases import case_text
from pytest_trace2evolve.session.admission import admit
from pytest_trace2evolve.worlds.support.world import SupportWorld

WORLD = SupportWorld()


@pytest.mark.parametrize("content", list(Content))
@settings(pressure, max_examples=30)
@given(data=st.data())
def test_every_case_is_admitted(content, data):
    """The oracle's reward 1, no invariant broken, `nop` at 0 unless refusing is right, and the format."""
    case = data.draw(cases(*FAMILIES, content=content.value))
    ((_, problems),) = admit([case], WORLD)
    assert problems == ()


@settings(pressure, max_examples=25)
@given(seed=st.text(max_size=8), family=st.sampled_from(list(FAMILIES)))
def test_a_case_is_a_function_of_its_seed(seed, family):
    first, again = (build_case(family, SeededChoices(seed), Content.TRAIN) for _ in range(2))
    assert format_case_line(first) == format_case_line(again)
    assert first.digest == again.digest


SIGNS = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
TEXTS = st.text(SIGNS, min_size=1).filter(str.strip)
"""All that a customer can say, separators of lines and control characters too. No half of a sign, no NUL."""
SAID = build_case("missing_order_id", SeededChoices("said"), Content.TRAIN).task.model_dump(mode="json")


@settings(pressure, max_examples=20)
@given(says=TEXTS, reply=TEXTS, details=TEXTS)
def test_a_file_gives_back_what_was_written_whatever_is_said(tmp_path_factory, says, reply, details):
    record = copy.deepcopy(SAID)
    turn = record["user_scenario"]["script"]["turns"][0]
    turn["says"] = says
    turn["requests"][0]["details"] = {"order": details}
    record["user_scenario"]["script"]["replies"]["wait"] = [reply]
    made = [to_case(Task.model_validate({**record, "id": name})) for name in ("one", "two")]
    path = tmp_path_factory.getbasetemp() / "said.jsonl"
    path.write_text("".join(map(format_case_line, made)), encoding="utf-8", newline="\n")
    assert read_cases(path) == made
    assert [case.digest for case in read_cases(path)] == [case.digest for case in made]


@settings(pressure, max_examples=15)
@given(before=TEXTS, half=st.characters(categories=["Cs"]))
def test_half_a_sign_is_refused_in_one_line(tmp_path_factory, before, half):
    record = copy.deepcopy(SAID)
    record["user_scenario"]["script"]["turns"][0]["says"] = before + half
    path = tmp_path_factory.getbasetemp() / "half.jsonl"
    path.write_text(json.dumps(record), encoding="utf-8")
    with pytest.raises(CaseError, match="not valid JSON") as caught:
        read_cases(path)
    assert str(caught.value).encode().isascii()
    assert "\n" not in str(caught.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
STORE = SAID["initial_state"]["initialization_data"]["agent_data"]


def places(value, above=()):
    """All places in a JSON value, as paths."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in items:
        yield (*above, name)
        yield from places(inner, (*above, name))


@settings(pressure, max_examples=30)
@given(place=st.sampled_from(list(places(STORE))), put=JSON, absent=st.booleans())
def test_a_damaged_store_is_shown_and_its_case_checked_without_a_traceback(place, put, absent):
    record = copy.deepcopy(SAID)
    holder = record["initial_state"]["initialization_data"]["agent_data"]
    for step in place[:-1]:
        holder = holder[step]
    if absent:
        del holder[place[-1]]
    else:
        holder[place[-1]] = put
    case = to_case(Task.model_validate(record))
    assert case.script.turns[0].says in case_text(case)
    ((_, problems),) = admit([case], WORLD)
    assert all("\n" not in problem for problem in problems)


def test_cases_survive_a_results_file_of_tau2(tmp_path):
    made = [*generate("format", 14, Content.TRAIN), *generate("format", 14, Content.HELDOUT)]
    provenance = Provenance(domain="support", provider="trace2evolve")
    record = results_header(
        provenance, [case.task for case in made], [], policy="p", git_commit="g", trials=1, max_errors=1
    )
    path = tmp_path / "results.json"
    path.write_text(json.dumps({**record, "simulations": []}), encoding="utf-8")
    again = json.loads(path.read_text(encoding="utf-8"))["tasks"]
    for case, raw in zip(made, again, strict=True):
        task = Task.model_validate(raw)
        assert task.digest == case.digest
        assert script_of(task) == case.script
        assert to_case(task).task.actions == case.task.actions


@settings(pressure, max_examples=10)
@given(tables=stores(customers=3, orders=4))
def test_a_generated_store_opens_as_a_world(tables):
    world = SupportWorld(store=tables)
    session = world.open()
    for order_id, order in tables["orders"].items():
        answer = session.call("get_order_details", {"order_id": order_id}, "assistant")
        assert not answer.error
        assert json.loads(answer.content)["items"] == order["items"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: cases("policy_egde"),
            "unknown family 'policy_egde'; expected one of vague_refund_request, ",
        ),
        (lambda: cases(content="test"), "unknown content 'test'; expected one of train, heldout"),
        (lambda: stores(content="test"), "unknown content 'test'"),
        (lambda: stores(orders=0), "customers and orders must be at least 1, got 5 and 0"),
    ],
)
def test_what_cannot_be_drawn_is_told(make, message):
    with pytest.raises(ValueError, match=message):
        make()
