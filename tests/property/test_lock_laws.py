"""What holds of any lock."""

from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pytest_trace2evolve.errors import LockError
from pytest_trace2evolve.project.lock import Lock, SuiteLock, changes, parse_lock, render_lock, verify
from tests.gate_helpers import NAMES, SUITE_LOCKS

LAW = settings(deadline=None, max_examples=80)
PATH = Path("suites/shop.toml")
LOCKS = st.builds(Lock, suites=st.dictionaries(NAMES, SUITE_LOCKS, max_size=3))
FIELDS = ["definition", "provider", "domain", "policy", "tools", "data"]


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
@given(SUITE_LOCKS, st.text(max_size=4))
def test_a_suite_equals_itself_under_any_version_of_its_provider(locked, version):
    now = locked.model_copy(update={"provider_version": version})
    verify(PATH, locked, now)
    assert now.digest == locked.digest


@LAW
@given(SUITE_LOCKS, st.sampled_from(FIELDS), st.text(max_size=4))
def test_every_other_field_is_part_of_the_digest_and_of_the_comparison(locked, field, value):
    now = locked.model_copy(update={field: value})
    assert (now.digest == locked.digest) is (getattr(locked, field) == value)
    told = list(changes(locked, now))
    word = "settings" if field == "definition" else field
    assert [one.startswith(f"its {word} changed") for one in told] == [True] * (
        getattr(locked, field) != value
    )


@LAW
@given(SUITE_LOCKS, st.data())
def test_a_changed_task_is_named_alone(locked, data):
    split = data.draw(st.sampled_from(sorted(locked.splits)))
    task = data.draw(st.sampled_from(sorted(locked.splits[split])))
    now = with_split(locked, split, locked.splits[split] | {task: locked.splits[split][task] + "x"})
    assert list(changes(locked, now)) == [f"the content of task {task!r} in split {split!r} changed"]
    with pytest.raises(LockError):
        verify(PATH, locked, now)


@LAW
@given(SUITE_LOCKS, NAMES, st.data())
def test_a_task_that_comes_or_goes_is_named_alone(locked, task, data):
    split = data.draw(st.sampled_from(sorted(locked.splits)))
    without = {name: value for name, value in locked.splits[split].items() if name != task}
    fewer, more = with_split(locked, split, without), with_split(locked, split, without | {task: "x"})
    assert list(changes(fewer, more)) == [f"task {task!r} was added to split {split!r}"]
    assert list(changes(more, fewer)) == [f"task {task!r} was taken out of split {split!r}"]
    assert fewer.digest != more.digest


@LAW
@given(SUITE_LOCKS)
def test_the_order_of_splits_and_tasks_is_no_difference(locked):
    turned = {split: dict(reversed(locked.splits[split].items())) for split in reversed(list(locked.splits))}
    now = locked.model_copy(update={"splits": turned})
    assert not list(changes(locked, now))
    assert now.digest == locked.digest
