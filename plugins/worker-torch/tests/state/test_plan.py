"""Tokens of a step that are computed together; padded rows are computed as they are alone."""

from __future__ import annotations

import functools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import worker_families
import worker_tools
from hypothesis import given
from hypothesis import strategies as some

from tenonry_torch_base.attention.base import AttentionBatch
from tenonry_torch_base.cache_argument import cache_argument
from tenonry_worker_torch.state import mixers
from tenonry_worker_torch.state.plan import plan_of

SPARE = 99


def batch_of(lengths, starts, rows=None, generation=None):
    """Rows of these lengths, one after another."""
    count = len(lengths)
    lengths = np.array(lengths, np.int32)
    starts = np.array(starts, np.int32)
    return AttentionBatch(
        row=np.arange(count, dtype=np.int32) if rows is None else np.array(rows, np.int32),
        num_tokens=lengths,
        start=starts,
        seq_lens=starts + lengths,
        block_table=np.zeros((count, 1), np.int32),
        slot_mapping=np.zeros(int(lengths.sum()), np.int64),
        generation=np.zeros(count, np.int64) if generation is None else np.array(generation),
        put=lambda _, array: torch.from_numpy(array),
    )


def numbers(places):
    if isinstance(places, slice):
        return list(range(places.start, places.stop))
    return places.tolist()


def test_a_layer_that_only_has_experts_is_none_with_state(monkeypatch):
    """transformers 5.17 adds a layer of state to the cache, which stays empty."""
    from transformers.cache_utils import DynamicLayer, LinearAttentionLayer

    config = SimpleNamespace(layer_types=["linear_attention", "moe", "full_attention", "mlp"])
    layers = [
        LinearAttentionLayer(),
        LinearAttentionLayer(),
        DynamicLayer(),
        LinearAttentionLayer(),
    ]
    monkeypatch.setattr(mixers, "cache_layers", lambda _: layers)
    assert mixers.state_layers(config) == {0}


@given(
    rows=some.lists(
        some.tuples(some.integers(1, 40), some.sampled_from([0, 0, 3])), min_size=1, max_size=12
    ),
    fills_up=some.booleans(),
)
def test_every_token_is_computed_once_with_its_own_row(rows, fills_up):
    lengths, starts = zip(*rows, strict=True)
    plan = plan_of(batch_of(lengths, starts), SPARE, fills_up=fills_up)
    ends = np.cumsum(lengths).tolist()
    own = {row: list(range(end - lengths[row], end)) for row, end in enumerate(ends)}
    found = {}
    if plan.decode is not None:
        decoded = zip(numbers(plan.decode.rows), numbers(plan.decode.tokens), strict=True)
        found.update((row, [token]) for row, token in decoded)
    for pieces in plan.pieces:
        places = np.array(numbers(pieces.places)).reshape(pieces.count, pieces.length)
        mask = pieces.mask()
        mask = np.ones(places.shape, bool) if mask is None else mask.numpy()
        for row, line, here in zip(numbers(pieces.rows), places, mask, strict=True):
            found[row] = line[here].tolist()
            assert (starts[row] > 0) == pieces.has_state
            assert here[-1]  # filled up on the left
        flat = places.reshape(-1)
        if pieces.kept is not None:
            flat = flat[pieces.kept.numpy()]
            assert fills_up
            assert not pieces.has_state
        assert flat.tolist() == numbers(pieces.tokens)
    assert found == own


def test_rows_of_similar_length_share_a_call_which_is_no_larger_than_the_step():
    lengths = [9, 12, 16, 17, 30, 3]
    apart = plan_of(batch_of(lengths, [0] * 6), SPARE)
    together = plan_of(batch_of(lengths, [0] * 6), SPARE, fills_up=True)
    assert [pieces.count for pieces in apart.pieces] == [1] * 6
    assert sorted(pieces.count for pieces in together.pieces) == [2, 4]
    assert all(p.count * p.length <= sum(lengths) for p in together.pieces)
    wasteful = plan_of(batch_of([33] * 3 + [64], [0] * 4), SPARE, fills_up=True)
    assert [pieces.count for pieces in wasteful.pieces] == [2, 2]


def test_tokens_of_no_request_go_to_the_spare_row():
    plan = plan_of(batch_of([2, 3], [0, 0], generation=[-1, 4]), SPARE)
    assert sorted(numbers(pieces.rows)[0] for pieces in plan.pieces) == [1, SPARE]


@pytest.mark.parametrize("family", ["qwen3_next", "mamba2", "mamba", "lfm2", "kimi_linear"])
def test_rows_of_several_lengths_are_filled_up_where_the_mask_is_obeyed(family):
    model = worker_tools.loaded(worker_families.build(family), fuse=False, skip_check=True)
    assert all(mixer.fills_up for mixer in model.states.mixers)


def ignores_the_mask(kind):
    class Deaf(kind):
        @functools.wraps(kind.forward)
        def forward(self, *arguments, **named):
            return super().forward(*arguments, **named | {"attention_mask": None})

    return Deaf


def leaves_another_state(kind):
    cache = cache_argument(kind.forward)

    class Careless(kind):
        @functools.wraps(kind.forward)
        def forward(self, *arguments, **named):
            made = super().forward(*arguments, **named)
            if named["attention_mask"] is not None:
                named[cache].layers[self.layer_idx].conv_states[0].add_(0.1)
            return made

    return Careless


@pytest.mark.parametrize("change", [ignores_the_mask, leaves_another_state])
def test_a_layer_that_does_not_obey_the_mask_is_not_filled_up(change):
    module = worker_families.build("lfm2")
    for layer in module.model.layers:
        if hasattr(layer, "conv"):
            layer.conv.__class__ = change(type(layer.conv))
    model = worker_tools.loaded(module, fuse=False)
    assert not any(mixer.fills_up for mixer in model.states.mixers)


@pytest.fixture(scope="module")
def model():
    return worker_tools.loaded(worker_families.build("qwen3_next"), skip_check=True)


@pytest.fixture
def states(model):
    """Of a model with layers of state."""
    yield model.states
    model.states.release()


class TestReuse:
    def planned(self, states, *batch):
        states.plan(batch_of(*batch))
        return states.step.plan

    def test_plan_of_decoding_rows_lasts_until_one_changes(self, states):
        first = self.planned(states, [1, 1, 1], [5, 6, 7], [2, 0, 1], [4, 5, 6])
        assert self.planned(states, [1, 1, 1], [6, 7, 8], [2, 0, 1], [4, 5, 6]) is first
        left = self.planned(states, [1, 1], [7, 8], [2, 0], [4, 5])
        assert (numbers(left.decode.tokens), numbers(left.decode.rows)) == ([0, 1], [2, 0])
        other = self.planned(states, [1, 1], [8, 9], [2, 1], [4, 5])
        assert numbers(other.decode.rows) == [1, 2]

    def test_plan_of_rows_with_a_prompt_is_made_anew(self, states):
        self.planned(states, [1, 1], [5, 6])
        chunk = self.planned(states, [1, 4], [6, 7])
        assert chunk.pieces
        assert not self.planned(states, [1, 1], [7, 11]).pieces

    def test_row_that_was_filled_anew_starts_without_a_state(self, states):
        self.planned(states, [1, 1], [5, 6])
        again = self.planned(states, [1, 1], [6, 0], [0, 1], [0, 1])
        assert (again.decode.count, again.pieces[0].has_state) == (1, False)

    def test_array_that_the_caller_uses_again_changes_no_plan(self, states):
        batch = batch_of([1, 1], [5, 6])
        states.plan(batch)
        batch.row[:] = [3, 1]
        states.plan(batch)
        assert numbers(states.step.plan.decode.rows) == [3, 1]

    def test_plan_does_not_outlast_the_states(self, states):
        batch = batch_of([1, 1], [5, 6])
        states.plan(batch)
        states.release()
        states.plan(batch)
        assert states.step.plan is not None
        assert all(len(pool) > 2 for mixer in states.mixers for pool in mixer.pools.values())


def test_rows_in_another_order_than_their_states_are_known_in_the_order_of_the_batch():
    decode = plan_of(batch_of([1, 1, 1], [5, 6, 7], [2, 0, 1]), SPARE).decode
    assert numbers(decode.rows) == [0, 1, 2]
    assert numbers(decode.tokens) == [1, 2, 0]
    assert decode.rows_in_order.tolist() == [2, 0, 1]
    assert plan_of(batch_of([1, 1], [5, 6]), SPARE).decode.rows_in_order is None
    mixed = plan_of(batch_of([1, 4, 1], [5, 6, 7], [2, 0, 1]), SPARE).decode
    assert mixed.rows_in_order is None
