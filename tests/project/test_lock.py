"""The lock: a silent edit of a suite or its world is named, and nothing else is a difference."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pytest_trace2evolve.errors import LockError
from pytest_trace2evolve.project.lock import (
    Lock,
    SuiteLock,
    lock_differences,
    lock_suite,
    parse_lock,
    render_lock,
    verify_lock,
)
from pytest_trace2evolve.project.suites import Suite
from pytest_trace2evolve.records.evidence import Code
from tests.gate_helpers import NAMES, SUITE_LOCKS, ShopWorld

PATH = Path("suites/shop.toml")
SUITE = Suite.model_validate(
    {"name": "shop", "provider": "fake", "domain": "shop", "splits": {"heldout": {"benchmark": "base"}}}
)


def locked(tasks: str = "123", suite: Suite = SUITE, scorer: int = 1, **world: Any) -> SuiteLock:
    """The lock of a suite whose world has a task for each letter."""
    return lock_suite(suite, ShopWorld(tasks, {"base": tasks}, **world), PATH, scorer)


BEFORE = locked()


EDITS = [
    (locked("1234"), "task '4' was added to split 'heldout'"),
    (locked("13"), "task '2' was removed from split 'heldout'"),
    (locked(said={"2": "Cancel it."}), "the content of task '2' in split 'heldout' changed"),
    (
        locked(policy="be quick"),
        f"its policy changed from {BEFORE.policy} to {locked(policy='be quick').policy}",
    ),
    (locked(tools=["find", "cancel"]), f"its tools changed from {BEFORE.tools} to "),
    (locked(data="data-2"), "its data changed from data-1 to data-2"),
    (locked(scorer=2), "its scorer version changed from 1 to 2"),
    (locked(suite=SUITE.model_copy(update={"provider": "tau2"})), "its provider changed from fake to tau2"),
    (locked(suite=SUITE.model_copy(update={"domain": "store"})), "its domain changed from shop to store"),
    (locked(suite=SUITE.model_copy(update={"max_steps": 9})), "its settings changed"),
]


@pytest.mark.parametrize(("now", "expected"), EDITS, ids=[expected[:40] for _, expected in EDITS])
def test_a_silent_edit_is_named_with_the_file_and_how_to_accept_it(now, expected):
    with pytest.raises(LockError) as caught:
        verify_lock(PATH, BEFORE, now)
    message = str(caught.value)
    assert message.startswith(f"{PATH}: {expected}")
    assert message.endswith(
        "since suites.lock was written; run 'trace2evolve lock' if the change is intended"
    )
    assert "\n" not in message
    assert now.digest != BEFORE.digest


def test_a_task_moved_to_another_split_is_named_with_both():
    before = BEFORE.model_copy(update={"splits": {"heldout": {"1": "a", "2": "b"}, "discovery": {"3": "c"}}})
    after = BEFORE.model_copy(update={"splits": {"heldout": {"1": "a"}, "discovery": {"3": "c", "2": "b"}}})
    assert list(lock_differences(before, after)) == [
        "task '2' was added to split 'discovery'",
        "task '2' was removed from split 'heldout'",
    ]


TEXT = render_lock(Lock(suites={"shop": BEFORE, "[a]|b": locked("12")}))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        TEXT[:-5],
        TEXT.replace('"policy"', '"polity"'),
        TEXT.replace('"scorer_version":1', '"scorer_version":"one"'),
        "<<<<<<< ours\n" + TEXT,
    ],
    ids=["empty", "no object", "cut off", "unknown field", "wrong type", "conflict marks"],
)
def test_a_damaged_lock_is_refused_with_its_file_and_a_mend(text):
    with pytest.raises(LockError) as caught:
        parse_lock(text, PATH)
    message = str(caught.value)
    assert message.startswith((f"{PATH}: damaged (", f"{PATH}: not valid JSON"))
    assert message.endswith("restore it or run 'trace2evolve lock' if the change is intended")
    assert "\n" not in message


CODE = Code(files={"shop/tools.py": "1", "shop/fees.json": "2"}, distributions={"pydantic": "2.10"})


def test_another_implementation_of_the_tools_is_named_by_its_files():
    before = BEFORE.model_copy(update={"code": CODE})
    now = BEFORE.model_copy(update={"code": Code(files={"shop/tools.py": "9", "shop/fees.json": "2"})})
    with pytest.raises(LockError) as caught:
        verify_lock(PATH, before, now)
    assert str(caught.value).startswith(
        "suites/shop.toml: the implementation of its tools changed (shop/tools.py) since suites.lock was"
    )
    other = BEFORE.model_copy(update={"code": Code(fingerprint="2")})
    assert list(lock_differences(BEFORE.model_copy(update={"code": Code(fingerprint="1")}), other)) == [
        "the implementation of its tools changed (fingerprint '1' and '2')"
    ]


@pytest.mark.parametrize(
    ("locked", "now", "why"),
    [
        (CODE, Code(unknown="no source"), "it cannot be identified: no source"),
        (Code(unknown="no source"), CODE, "it could not be identified before"),
        (Code(unknown="no source"), Code(unknown="no folder"), "it cannot be identified: no folder"),
    ],
)
def test_code_that_can_no_longer_be_identified_is_not_that_of_the_lock(locked, now, why):
    before, after = (BEFORE.model_copy(update={"code": code}) for code in (locked, now))
    assert list(lock_differences(before, after)) == [
        f"the implementation of its tools differs from that of the lock ({why})"
    ]
    assert list(lock_differences(after, after)) == []


def test_a_lock_without_code_is_read_and_keeps_its_digest():
    with_code = BEFORE.model_copy(update={"code": CODE})
    assert with_code.digest == BEFORE.digest
    assert list(lock_differences(BEFORE, with_code)) == []
    for item in (BEFORE, with_code):
        lock = Lock(suites={"shop": item})
        assert parse_lock(render_lock(lock), PATH) == lock
    assert '"code"' not in render_lock(Lock(suites={"shop": BEFORE}))


LAW = settings(max_examples=25)
LOCKS = st.builds(Lock, suites=st.dictionaries(NAMES, SUITE_LOCKS, max_size=3))


def with_split(locked: SuiteLock, split: str, tasks: dict[str, str]) -> SuiteLock:
    return locked.model_copy(update={"splits": locked.splits | {split: tasks}})


@LAW
@given(LOCKS)
@example(Lock())
def test_a_lock_survives_its_file(lock):
    text = render_lock(lock)
    assert parse_lock(text, PATH) == lock
    assert render_lock(parse_lock(text, PATH)) == text


@LAW
@given(SUITE_LOCKS, NAMES, st.data())
def test_a_task_that_comes_or_goes_is_named_alone(locked, task, data):
    split = data.draw(st.sampled_from(sorted(locked.splits)))
    without = {name: value for name, value in locked.splits[split].items() if name != task}
    fewer, more = with_split(locked, split, without), with_split(locked, split, without | {task: "x"})
    assert list(lock_differences(fewer, more)) == [f"task {task!r} was added to split {split!r}"]
    assert list(lock_differences(more, fewer)) == [f"task {task!r} was removed from split {split!r}"]
    assert fewer.digest != more.digest


@LAW
@given(SUITE_LOCKS)
def test_the_order_of_splits_and_tasks_is_no_difference(locked):
    turned = {split: dict(reversed(locked.splits[split].items())) for split in reversed(list(locked.splits))}
    now = locked.model_copy(update={"splits": turned})
    assert not list(lock_differences(locked, now))
    assert now.digest == locked.digest
