"""Visible keys are read off a mask function, and only known rules are accepted."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import masking_utils

from tenonry_torch_base.attention.masks import (
    CAUSAL,
    Reach,
    make_mask,
    reach_of,
    read_reach,
    reading_masks,
)

POSITIONS = 1000


def padding(length=0):
    return torch.full((1,), length)


@given(size=st.integers(1, 1200), kind=st.sampled_from(["window", "chunk"]))
def test_windows_and_chunks_of_any_size(size, kind):
    if kind == "window":
        function = masking_utils.sliding_window_causal_mask_function(size)
    else:
        function = masking_utils.chunked_causal_mask_function(size, padding())
    found = read_reach(function, POSITIONS)
    positions = torch.arange(POSITIONS)
    assert torch.equal(found.first(positions), Reach(**{kind: size}).first(positions))


def test_what_is_longer_than_the_longest_sequence_is_plain():
    function = masking_utils.sliding_window_causal_mask_function(POSITIONS)
    assert read_reach(function, POSITIONS) == CAUSAL
    assert read_reach(function, POSITIONS + 1) == Reach(window=POSITIONS)


def everything(batch, head, query, key):
    return query >= 0


def every_second(batch, head, query, key):
    return (key <= query) & ((query - key) % 2 == 0)


def prefix(batch, head, query, key):
    return (key <= query) | (key < 5)


def growing_window(batch, head, query, key):
    return (key <= query) & (key > query // 2 - 3)


def sink_and_window(batch, head, query, key):
    return (key <= query) & ((key > query - 8) | (key == 0))


UNKNOWN = [everything, every_second, prefix, growing_window, sink_and_window]


@pytest.mark.parametrize("function", UNKNOWN)
def test_other_rules_are_not_taken_for_one(function):
    assert read_reach(function, POSITIONS) is None


def test_a_rule_that_depends_on_the_prompt_is_not_known():
    groups = torch.tensor([[0, 0, -1, -1]])
    function = masking_utils.or_masks(
        masking_utils.causal_mask_function, masking_utils.blockwise_overlay(groups)
    )
    assert read_reach(function, POSITIONS) is None
    left = masking_utils.chunked_causal_mask_function(8, padding(3))
    assert read_reach(left, POSITIONS) is None


def test_a_function_of_single_numbers_is_read_too():
    def of_numbers(batch, head, query, key):
        table = torch.arange(POSITIONS)
        return (table[key] <= query) & (table[key] > query - 7)

    assert read_reach(of_numbers, POSITIONS, use_vmap=True) == Reach(window=7)


def ask(function):
    return make_mask(
        batch_size=1, q_length=4, kv_length=4, mask_function=function, dtype=torch.float32
    )


def test_masks_are_made_in_a_first_run_only_and_only_where_they_say_something():
    window = masking_utils.sliding_window_causal_mask_function(2)
    assert ask(window) is None
    with reading_masks(POSITIONS):
        mask = ask(window)
        assert ask(masking_utils.causal_mask_function) is None
        assert reach_of(ask(everything)) is None
        assert reach_of(mask) == Reach(window=2)
        assert reach_of(mask[:, :, 0:, :]) == Reach(window=2), "all of it"
        assert reach_of(mask[:, :, 1:, :]) is None
        assert reach_of(mask + 1) is None, "a mask that the model changed"
    assert reach_of(mask) is None, "of another run"
    assert (mask[0, 0] == 0).int().tolist() == [
        [1, 0, 0, 0],
        [1, 1, 0, 0],
        [0, 1, 1, 0],
        [0, 0, 1, 1],
    ]
    assert reach_of(None) == CAUSAL
