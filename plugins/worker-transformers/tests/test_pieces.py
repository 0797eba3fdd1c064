"""Rows that are computed together, and the memory that it takes to join them."""

from __future__ import annotations

import pytest
import torch

from tenonry_worker_transformers.pieces import MOST_PADDING, Batching, Piece, groups, pool_bytes


def test_what_is_never_joined_may_fill_the_device():
    assert pool_bytes(Batching.NONE, 1000) == 1000


@pytest.mark.parametrize("batching", [Batching.EQUAL, Batching.MIXED])
def test_rows_and_their_joined_copy_fit_together(batching):
    pool = pool_bytes(batching, 9_000)
    assert pool == 4_000
    assert pool + MOST_PADDING * pool <= 9_000


def test_a_group_holds_no_more_padding_than_the_plan_counts():
    pieces = [Piece([row], torch.ones(1, 64 + 9 * row), {}) for row in range(12)]
    for group in groups(Batching.MIXED, pieces):
        longest = max(piece.length for piece in group)
        rows = sum(len(piece.rows) for piece in group)
        tokens = sum(piece.num_tokens for piece in group)
        assert rows * longest <= MOST_PADDING * tokens + 16 * rows
