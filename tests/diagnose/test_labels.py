"""Labels by rules, on simulations whose deficits are known, and on recorded runs of real models."""

from collections import Counter
from pathlib import Path

import pytest

from benchmarks.deficits import HARMLESS, SPOILERS, Deficit
from pytest_trace2evolve.cases.case import FAMILIES
from pytest_trace2evolve.diagnose.behavior_features import Behavior
from pytest_trace2evolve.diagnose.diagnosis import count_failure_kinds
from pytest_trace2evolve.diagnose.labels import RULES, label_by_rules
from pytest_trace2evolve.evidence.results import read_results
from pytest_trace2evolve.records.capability import BUILT_IN_CAPABILITIES, Presence
from pytest_trace2evolve.session.evidence_sources import rescore
from pytest_trace2evolve.worlds.registry import Worlds
from tests.diagnose.deficient import behavior_of, cases, simulated

WHERE = {
    "precondition_verification": "precondition_verification",
    "structured_data_reasoning": "structured_data_reasoning",
    "multi_step_task_completion": "multi_step_task_completion",
    "tool_calling_precision": "missing_order_id",
    "account_address_inference": "account_address_inference",
    "conditional_detail_retrieval": "conditional_detail_retrieval",
}
"""A kind of case that calls for each capability."""


def test_every_capability_and_kind_has_a_rule() -> None:
    assert list(RULES) == [one.name for one in BUILT_IN_CAPABILITIES]
    assert set(SPOILERS) == set(RULES)


@pytest.mark.parametrize("family", FAMILIES)
def test_who_follows_the_gold_actions_lacks_nothing(family: str) -> None:
    seen = Counter[str]()
    for case in cases(family, 6):
        found = behavior_of(case, simulated(case))
        assert found.passed
        for name, rule in RULES.items():
            shown = rule(found)
            assert shown.presence is not Presence.LACKING, (case.id, name, shown.why)
            seen[shown.presence] += 1
    assert seen[Presence.PRESENT] > 0


@pytest.mark.parametrize("name", WHERE)
def test_harm_is_seen_as_what_it_is_and_fails_the_task(name: str) -> None:
    lacking = 0
    for case in cases(WHERE[name], 14):
        found = behavior_of(case, simulated(case, {name: Deficit.HARM}))
        seen = RULES[name](found)
        # Of some products there is no other variant to be had: what is left is a slip.
        if seen.presence is Presence.LACKING and "without having read" not in seen.why:
            lacking += 1
            assert not found.passed, (case.id, seen.why)
            assert seen.message is not None
            assert found.trace[seen.message].role == "assistant"
            others = {
                other
                for other, rule in RULES.items()
                if other != name and rule(found).presence is Presence.LACKING
            }
            assert others == set(), (case.id, others)
    assert lacking >= 5


@pytest.mark.parametrize("name", sorted(HARMLESS))
def test_a_slip_is_seen_though_nothing_came_of_it(name: str) -> None:
    lacking = 0
    for case in cases(WHERE[name], 14):
        found = behavior_of(case, simulated(case, {name: Deficit.SLIP}))
        assert found.passed
        lacking += RULES[name](found).presence is Presence.LACKING
    assert lacking >= 5


def test_labels_partition_the_traces_and_rules_agree_with_themselves() -> None:
    read = [behavior_of(case, simulated(case)) for family in FAMILIES for case in cases(family, 2)]
    one, other = label_by_rules(read), label_by_rules(read)
    assert one == other
    assert len(one.labels) == len(read) * len(BUILT_IN_CAPABILITIES)
    assert len({(label.trace, label.capability) for label in one.labels}) == len(one.labels)


def recorded_behaviors(path: Path, worlds: Worlds, domain: str) -> list[Behavior]:
    world = worlds.open("inspect_evals", domain)
    return [
        Behavior(one.simulation, one.task, world, passed=one.record.reward == 1, findings=one.findings)
        for one in rescore(read_results(path), worlds, None)
        if one.record.reward is not None
    ]


LEFT = ["3", "14", "34", "38", "45", "72", "91", "95", "98", "106"]
"""Failures that nothing explains by rules."""


@pytest.mark.parametrize(
    ("name", "domain", "failed", "unexplained"),
    [
        (
            "retail-gpt-4.1-mini-base",
            "retail",
            48,
            LEFT,
        ),
        ("retail-gpt-4.1", "retail", 6, []),
        ("airline-gpt-4.1", "airline", 10, None),
        ("telecom-gpt-4.1", "telecom", 22, None),
        ("telecom-solo-gpt-4.1", "telecom", 20, None),
    ],
)
def test_recorded_failures_get_labels_or_are_unexplained(
    name: str, domain: str, failed: int, unexplained: list[str] | None, recorded: Path, worlds: Worlds
) -> None:
    read = recorded_behaviors(recorded / f"{name}.json.gz", worlds, domain)
    run = label_by_rules(read)
    lacking = {label.trace for label in run.labels if label.presence is Presence.LACKING}
    _, named = count_failure_kinds(read)
    left = [one.task.id for one in read if not one.passed and one.simulation.id not in lacking | named]
    assert sum(not one.passed for one in read) == failed
    if unexplained is None:
        assert len(left) <= failed * 0.5
    else:
        assert left == unexplained
    for label in run.labels:
        if label.presence in (Presence.LACKING, Presence.PRESENT):
            trace = next(one.trace for one in read if one.simulation.id == label.trace)
            assert label.message is not None
            assert trace[label.message].role == "assistant"
            assert label.why
        else:
            assert label.message is None


# A world whose tools create records.
