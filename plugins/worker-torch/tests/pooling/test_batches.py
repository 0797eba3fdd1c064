"""Batches of prompts: all of them, once, within the bounds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tenonry_worker_torch.pooling.batches import LEAST_SHARE, BatchLimits, batch_ends


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=40), st.integers(1, 300), st.integers(1, 300)
)
def test_batches_hold_little_padding_and_keep_the_bounds(lengths, places, full):
    lengths.sort(reverse=True)
    ends = list(batch_ends(lengths, BatchLimits(places, full)))
    starts = [0, *ends[:-1]]
    assert ends[-1] == len(lengths)
    assert ends == sorted(set(ends))
    for start, end in zip(starts, ends, strict=True):
        batch = lengths[start:end]
        assert len(batch) == 1 or len(batch) * batch[0] <= places
        filled = 0
        for length in batch:
            assert filled < full or length >= LEAST_SHARE * batch[0]
            filled += length


def test_prompts_of_one_length_stay_together():
    assert list(batch_ends([8] * 40, BatchLimits(10_000, 16))) == [40]
    assert list(batch_ends([], BatchLimits(10, 10))) == []


def test_short_ones_leave_a_full_batch():
    limits = BatchLimits(10_000, 60)
    assert list(batch_ends([40, 39, 10, 10, 10], limits)) == [2, 5]
    assert list(batch_ends([40, 10, 10, 10, 10], limits)) == [3, 5]
