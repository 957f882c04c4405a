"""Milestones and minefields, on scenarios of our own."""

import itertools
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_trace2evolve.errors import MissingExtraError
from pytest_trace2evolve.scoring.milestones import (
    SANDBOX,
    START,
    Column,
    Constraint,
    Extractor,
    Graph,
    Measure,
    Rule,
    constraint_similarity,
    evaluate,
)

EXACT = Column(measure=Measure.EXACT)
CALLS = Column(measure=Measure.CALLS)


def chain(*milestones):
    """Milestones in order; each is a constraint or a list of them."""
    parts = tuple(tuple(part) if isinstance(part, list) else (part,) for part in milestones)
    numbers = range(len(parts))
    return Graph(milestones=parts, order=tuple(numbers), edges=tuple(itertools.pairwise(numbers)))


def says(text, sender="AGENT"):
    """A snapshot's message."""
    return {"sender": sender, "content": text, "tool_trace": None}


def called(name, result=None, **arguments):
    trace = json.dumps({"tool_name": name, "arguments": arguments, "result": result})
    return {"sender": "EXECUTION_ENVIRONMENT", "content": repr(result), "tool_trace": (trace,)}


def snapshots(*messages, **tables):
    """One snapshot after each message; `tables` holds each table's states, the last of which stays."""
    return [
        {
            SANDBOX: (message,),
            **{name: states[min(number, len(states) - 1)] for name, states in tables.items()},
        }
        for number, message in enumerate(messages)
    ]


def message_like(**row):
    return Constraint(
        table=SANDBOX,
        rule=Rule.MATCH,
        rows=(row,),
        columns={name: CALLS if name == "tool_trace" else EXACT for name in row},
    )


def call_like(name, /, tolerance=None, **arguments):
    wanted = json.dumps({"tool_name": name, "arguments": arguments})
    columns = {"tool_trace": Column(measure=Measure.CALLS, tolerance=tolerance or {})}
    return Constraint(table=SANDBOX, rule=Rule.MATCH, rows=({"tool_trace": wanted},), columns=columns)


def rows_like(rule, *rows, reference=START, **columns):
    measures = {name: columns.get(name, EXACT) for row in rows for name in row}
    return Constraint(table="BOOKS", rule=rule, reference=reference, rows=rows, columns=measures)


def similarity(trajectory, *milestones):
    return evaluate(trajectory, chain(*milestones), Graph()).similarity


TALK = snapshots(says("hi", "USER"), says("a"), says("b"), says("c"))


def test_a_trajectory_without_milestones_is_perfect_unless_a_minefield_was_hit():
    assert evaluate(TALK, Graph(), Graph()).similarity == 1.0
    hit = evaluate(TALK, Graph(), chain(message_like(content="c")))
    assert (hit.similarity, hit.minefields.snapshots) == (0.0, {0: (3, 1.0)})
    assert evaluate(TALK, Graph(), chain(message_like(content="x"))).similarity == 1.0


def test_one_traced_call_may_be_any_of_several_with_arguments_within_a_tolerance():
    trajectory = snapshots(says("hi", "USER"), called("find", 3, place="here", radius=2.0))
    assert similarity(trajectory, call_like("find", place="here")) == 1.0
    assert similarity(trajectory, call_like("find", place="there")) == 0.0
    assert similarity(trajectory, call_like("find", radius=2.4)) == 0.0
    assert similarity(trajectory, call_like("find", radius=2.4, tolerance={"radius": 0.5})) == 1.0
    assert similarity(trajectory, call_like("find", radius=99, tolerance={"radius": None})) == 1.0
    assert similarity(trajectory, call_like("find", radius="2.0", tolerance={"radius": None})) == 0.0
    assert similarity(trajectory, call_like("find", unit="km")) == 0.0


OLD = ({"id": "1", "name": "Emma", "price": 3.0}, {"id": "2", "name": "Dune", "price": None})
NEW = {"id": "3", "name": "Ulysses", "price": 7.5}


def books(*states):
    return snapshots(*[says("hi", "USER"), *[says("done")] * (len(states) - 1)], BOOKS=list(states))


def test_added_rows_are_compared_with_the_target():
    added = rows_like(Rule.ADDED, {"name": "Ulysses", "price": 7.5})
    assert similarity(books(OLD, (*OLD, NEW)), added) == 1.0
    assert similarity(books(OLD, (*OLD, NEW, NEW)), added) == 0.0
    assert similarity(books(OLD, (OLD[0], NEW)), added) == 0.0
    assert similarity(books(OLD), added) == 0.0


def test_updated_rows_are_compared_with_the_target():
    updated = rows_like(Rule.UPDATED, {"id": "2", "price": 4.0})
    assert similarity(books(OLD, (OLD[0], {**OLD[1], "price": 4.0})), updated) == 1.0
    assert similarity(books(OLD, (OLD[0], {**OLD[1], "price": 5.0})), updated) == 0.0
    assert similarity(books(OLD, OLD[:1]), updated) == 0.0


def test_a_changed_database_that_nothing_constrains_ends_the_match():
    guard = Constraint(table="BOOKS", rule=Rule.UNCHANGED, reference=START)
    milestone = [message_like(content="done"), guard]
    assert similarity(books(OLD, OLD), milestone) == 1.0
    assert similarity(books(OLD, OLD[::-1]), milestone) == 0.0


def test_unchanged_databases_do_not_raise_the_mean():
    guard = Constraint(table="BOOKS", rule=Rule.UNCHANGED, reference=START)
    pytest.importorskip("rouge_score")
    half = rows_like(
        Rule.MATCH, {"name": "Emma Woodhouse"}, reference=None, name=Column(measure=Measure.ROUGE)
    )
    alone, guarded = similarity(books(OLD[:1]), half), similarity(books(OLD[:1]), [half, guard])
    assert alone == guarded == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("convert", "text", "expected"), [("int", "3 days", 1.0), ("text", "2.50 days", 1.0), ("none", "x", 0.0)]
)
def test_a_target_is_filled_with_a_value_from_an_earlier_result(convert, text, expected):
    trajectory = snapshots(
        says("hi", "USER"), called("gap", {"days": 3 if convert == "int" else 2.5}), says(text)
    )
    filled = Constraint(
        table=SANDBOX,
        rule=Rule.FILLED,
        reference=0,
        rows=({"sender": "AGENT", "content": "{days} days"},),
        columns={"sender": EXACT, "content": EXACT},
        extractor=Extractor(names={"days": ("days",)}, convert=convert, column="content"),
    )
    found = evaluate(trajectory, chain(call_like("gap"), filled), Graph())
    assert found.milestones.snapshots[1][1] == expected


def test_a_null_cell_does_not_count_and_a_row_of_nulls_matches_nothing():
    match = rows_like(Rule.MATCH, {"name": "Emma", "price": 1.0}, reference=None)
    assert similarity(books(({"name": "Emma", "price": None},)), match) == 1.0
    assert similarity(books(({"name": None, "price": None},)), match) == 0.0


def test_texts_are_compared_by_the_stemmed_longest_common_subsequence():
    pytest.importorskip("rouge_score")
    match = rows_like(
        Rule.MATCH,
        {"name": "opening the window", "price": 1.0},
        reference=None,
        name=Column(measure=Measure.ROUGE),
        price=Column(measure=Measure.ALWAYS),
    )
    assert similarity(books(({"name": "Opened the windows!", "price": None},)), match) == 1.0
    # The F1 is 2/3, and the geometric mean is over two columns.
    assert similarity(books(({"name": "open the door", "price": 9.0},)), match) == pytest.approx(
        math.sqrt(2 / 3)
    )
    assert similarity(books(({"name": "", "price": 9.0},)), match) == 0.0


def test_a_missing_library_names_the_extra(monkeypatch):
    from pytest_trace2evolve.scoring import milestones

    milestones._scorer.cache_clear()
    monkeypatch.setitem(__import__("sys").modules, "rouge_score", None)
    monkeypatch.setitem(__import__("sys").modules, "rouge_score.rouge_scorer", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'pytest-trace2evolve\[toolsandbox\]'"):
        milestones.rouge_l("a", "a new text")


WORDS = st.sampled_from("abc")
TEXTS = st.lists(WORDS, min_size=1, max_size=6)
GRAPHS = st.integers(1, 4).flatmap(
    lambda size: st.tuples(
        st.lists(WORDS, min_size=size, max_size=size),
        st.sets(st.sampled_from(list(itertools.combinations(range(max(size, 2)), 2)))),
    )
)


def graph_of(words, edges):
    return Graph(
        milestones=tuple((message_like(content=word),) for word in words),
        order=tuple(range(len(words))),
        edges=tuple(edge for edge in edges if edge[1] < len(words)),
    )


def brute_force(words, edges, texts):
    """The greatest share of matched milestones over all orders and all non-decreasing snapshots."""
    best = 0
    for order in itertools.permutations(range(len(words))):
        if any(order.index(first) > order.index(second) for first, second in edges if second < len(words)):
            continue
        for places in itertools.combinations_with_replacement(range(len(texts)), len(words)):
            matched = sum(texts[place] == words[index] for index, place in zip(order, places, strict=True))
            best = max(best, matched)
    return best / len(words)


@given(GRAPHS, TEXTS)
def test_the_match_is_the_best_of_all(graph, texts):
    words, edges = graph
    trajectory = snapshots(*map(says, texts))
    assert evaluate(trajectory, graph_of(words, edges), Graph()).similarity == brute_force(
        words, edges, texts
    )


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([None, 0.0, 1.0])), max_size=4),
    st.permutations(range(4)),
)
def test_the_order_of_added_rows_does_not_matter(rows, order):
    table = tuple(
        {"id": str(number), "name": name, "price": price} for number, (name, price) in enumerate(rows)
    )
    shuffled = tuple(table[number] for number in order if number < len(table))
    added = rows_like(Rule.ADDED, {"name": "a"}, {"name": "b"})
    assert constraint_similarity(added, table, ()) == constraint_similarity(added, shuffled, ())


def test_a_long_trajectory_that_matches_nothing_is_evaluated_at_once():
    trajectory = snapshots(*[says("x")] * 31)
    assert similarity(trajectory, *[message_like(content=str(number)) for number in range(6)]) == 0.0
