"""What may be compared: field by field, both values named; and what only one side recorded."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_trace2evolve.gate.comparable import (
    provenance_differences,
    unrecorded_fields,
)
from pytest_trace2evolve.records.evidence import CandidateRef, Code, LockParts, Provenance, Settings
from pytest_trace2evolve.session.ledger import baseline_identity

PARTS = LockParts(policy="p1", tools="t1", data="d1")
USER = Settings(implementation="chat", model="m1", arguments={"temperature": 0.0}, guidelines="g1")
FULL: dict[str, Any] = {
    "domain": "retail",
    "provider": "inspect_evals",
    "suite": "shop",
    "lock": "l1",
    "lock_parts": PARTS,
    "provider_version": "1.0",
    "scorer_version": 1,
    "judge": "j1",
    "max_steps": 200,
    "max_errors": 10,
    "timeout": 60.0,
    "call_timeout": 600.0,
    "user": USER,
}


def origin(**changed: Any) -> Provenance:
    """Provenance with every field recorded, some of them changed."""
    return Provenance(**{**FULL, **changed})


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"domain": "airline"}, "domain 'retail' and 'airline'"),
        ({"provider": "tau2"}, "provider 'inspect_evals' and 'tau2'"),
        ({"suite": "shop2"}, "suite 'shop' and 'shop2'"),
        ({"scorer_version": 2}, "scorer version 1 and 2"),
        ({"judge": "j2"}, "judge 'j1' and 'j2'"),
        ({"max_steps": 100}, "max steps 200 and 100"),
        ({"max_errors": 5}, "max errors 10 and 5"),
        ({"call_timeout": 30.0}, "call timeout 600.0 and 30.0"),
        ({"timeout": 30.0}, "timeout 60.0 and 30.0"),
        ({"user": USER.model_copy(update={"model": "m2"})}, "user model 'm1' and 'm2'"),
        ({"user": USER.model_copy(update={"guidelines": "g2"})}, "user guidelines 'g1' and 'g2'"),
        (
            {"user": USER.model_copy(update={"implementation": "dummy_user"})},
            "user implementation 'chat' and 'dummy_user'",
        ),
        (
            {"user": USER.model_copy(update={"arguments": {"temperature": 1.0}})},
            "user temperature 0.0 and 1.0",
        ),
    ],
)
def test_every_difference_is_named_with_both_values(changed: dict[str, Any], message: str) -> None:
    assert list(provenance_differences(origin(), origin(**changed))) == [message]


@pytest.mark.parametrize("part", ["policy", "tools", "data"])
def test_of_two_locks_the_part_that_differs_is_named(part: str) -> None:
    other = origin(lock="l2", lock_parts=PARTS.model_copy(update={part: "x2"}))
    assert list(provenance_differences(origin(), other)) == [f"{part} {getattr(PARTS, part)!r} and 'x2'"]


def test_of_two_locks_the_tasks_that_differ_are_named() -> None:
    old, new = {"1": "a", "2": "b", "3": "c"}, {"1": "a", "2": "x", "9": "c"}
    message = list(
        provenance_differences(origin(), origin(lock="l2"), baseline_tasks=old, candidate_tasks=new)
    )
    assert message == ["content of task '2' 'b' and 'x'"]
    many = {str(number): "x" for number in range(12)}
    message = list(
        provenance_differences(
            origin(), origin(lock="l2"), baseline_tasks=dict.fromkeys(many, "a"), candidate_tasks=many
        )
    )
    assert message == [
        "content of task '0' 'a' and 'x'",
        "content of task '1' 'a' and 'x'",
        "content of task '2' 'a' and 'x'",
        "content of 9 further tasks",
    ]


def test_two_locks_whose_parts_agree_differ_in_tasks_or_settings() -> None:
    (message,) = provenance_differences(origin(), origin(lock="l2"))
    assert message == (
        "lock 'l1' and 'l2' (policy, tools, data and common tasks agree: "
        "tasks were added or removed, or the suite has different settings)"
    )


def test_candidate_agent_and_package_versions_may_differ() -> None:
    other = origin(
        provider_version="2.0",
        agent=Settings(implementation="chat", model="another", arguments={"temperature": 1.0}),
        candidate=CandidateRef(id="v9", digest="x"),
        run_id="r2",
        created_at="2026-01-01",
    )
    assert list(provenance_differences(origin(), other)) == []
    assert unrecorded_fields(origin(), other) == ""


def test_what_one_side_did_not_record_is_told_and_refuses_nothing() -> None:
    bare = Provenance(domain="retail", provider="inspect_evals")
    assert list(provenance_differences(bare, origin())) == []
    assert unrecorded_fields(bare, origin()) == (
        "not recorded on the baseline: scorer version, judge, max steps, max errors, timeout, lock, "
        "user implementation, user model, user guidelines, user arguments, policy"
    )
    assert unrecorded_fields(origin(judge=None), origin(user=USER.model_copy(update={"arguments": {}}))) == (
        "not recorded on the baseline: judge; not recorded on the candidate: user temperature"
    )
    assert unrecorded_fields(bare, bare) == ""


FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "suite": st.sampled_from(["a", "b", None]),
        "lock": st.sampled_from(["a", "b", None]),
        "lock_parts": st.sampled_from([PARTS, PARTS.model_copy(update={"tools": "t2"}), None]),
        "judge": st.sampled_from(["a", "b", None]),
        "max_errors": st.sampled_from([1, 2, None]),
        "policy": st.sampled_from(["a", "b", None]),
        "user": st.sampled_from([USER, Settings(), Settings(implementation="dummy_user")]),
    },
)


@given(FIELDS, FIELDS)
def test_comparing_is_symmetric_and_a_side_never_differs_from_itself(
    old: dict[str, Any], new: dict[str, Any]
) -> None:
    one, other = origin(**old), origin(**new)
    assert list(provenance_differences(one, one)) == []
    assert unrecorded_fields(one, one) == ""
    assert len(list(provenance_differences(one, other))) == len(list(provenance_differences(other, one)))
    assert bool(unrecorded_fields(one, other)) == bool(unrecorded_fields(other, one))


KNOWN, UNKNOWN = Code(files={"a.py": "1"}), Code(unknown="its source is gone")


@pytest.mark.parametrize(
    ("old", "new", "side"),
    [
        (KNOWN, UNKNOWN, "candidate"),
        (UNKNOWN, KNOWN, "baseline"),
        (UNKNOWN, UNKNOWN, ""),
        (None, UNKNOWN, ""),
    ],
)
def test_code_that_is_identified_on_one_side_alone_has_changed(
    old: Code | None, new: Code | None, side: str
) -> None:
    found = list(provenance_differences(origin(world=old), origin(world=new)))
    what = f"cannot be identified on the {side}: its source is gone"
    assert found == ([f"code of the world ({what}): measure the baseline again"] if side else [])


def test_a_baselines_identity_covers_fingerprints_and_never_guesses() -> None:
    agent, candidate = Settings(implementation="chat"), CandidateRef(id="v0", digest="d")

    def identity(world: Code) -> str | None:
        return baseline_identity(origin(agent=agent, candidate=candidate, world=world))

    assert identity(Code(fingerprint="one")) != identity(Code(fingerprint="two"))
    assert identity(UNKNOWN) is None
    # What is not the project's own code changes no identity, as before.
    assert identity(Code(distributions={"a": "1"})) == identity(Code(distributions={"a": "2"}))
