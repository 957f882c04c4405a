"""Attention of a step that reads a shared beginning once: the same numbers as with a mask."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AttentionInterface

from pytest_trace2evolve.serving.attention import ATTENTION_NAME, Group, StepLayout, step_layout


class Module:
    """The parts of an attention layer that transformers reads."""

    is_causal = True

    def __init__(self, num_key_value_groups: int) -> None:
        self.num_key_value_groups = num_key_value_groups


def attend(*arguments: Any, **options: Any) -> torch.Tensor:
    result: torch.Tensor = AttentionInterface()[ATTENTION_NAME](*arguments, scaling=0.3, **options)[0]
    return result


@st.composite
def steps(draw: st.DrawFn) -> tuple[list[int], list[Group], int]:
    """The lengths of some rows, their groups, and the number of query heads for each key head."""
    lengths, groups = [], []
    for _ in range(draw(st.integers(1, 3))):
        shared = draw(st.integers(0, 70))
        members = draw(st.lists(st.integers(shared + 1, 90), min_size=1, max_size=4))
        groups.append(Group(range(len(lengths), len(lengths) + len(members)), shared))
        lengths += members
    order = draw(st.permutations(range(len(lengths))))
    places = {old: new for new, old in enumerate(order)}
    moved = [Group([places[row] for row in group.rows], group.shared) for group in groups]
    return [lengths[old] for old in order], moved, draw(st.sampled_from([1, 2, 4]))


@given(step=steps(), seed=st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_a_shared_beginning_changes_nothing(step: tuple[list[int], list[Group], int], seed: int) -> None:
    lengths, groups, queries_per_key = step
    torch.manual_seed(seed)
    rows, slots = len(lengths), max(lengths)
    query = torch.randn(rows, 4, 1, 8)
    key, value = (torch.randn(rows, 4 // queries_per_key, slots, 8) for _ in range(2))
    for group in groups:
        first = slots - lengths[group.rows[0]]
        for row in group.rows:
            start = slots - lengths[row]
            for states in (key, value):
                states[row, :, start : start + group.shared] = states[
                    group.rows[0], :, first : first + group.shared
                ].clone()
    mask = torch.arange(slots) >= slots - torch.tensor(lengths).view(-1, 1, 1, 1)
    expected = attend(Module(queries_per_key), query, key, value, mask)
    with step_layout(StepLayout(lengths, groups)):
        found = attend(Module(queries_per_key), query, key, value, mask)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("option", [{"sliding_window": 4}, {"position_bias": torch.zeros(2, 4, 1, 9)}])
def test_a_layer_with_other_rules_uses_its_mask(option: dict[str, Any]) -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(2, 4, 1, 8), torch.randn(2, 4, 9, 8), torch.randn(2, 4, 9, 8)
    mask = torch.arange(9) >= torch.tensor([5, 7]).view(-1, 1, 1, 1)
    expected = attend(Module(1), query, key, value, mask, **option)
    with step_layout(StepLayout([9, 9], [Group([0, 1], 3)])):
        assert torch.equal(attend(Module(1), query, key, value, mask, **option), expected)
