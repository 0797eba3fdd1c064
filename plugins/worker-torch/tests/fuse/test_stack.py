"""Decoder layers of a model, and the attention in each."""

from __future__ import annotations

import worker_families

from tenonry_worker_torch.fuse.stack import blocks_of


def test_a_model_that_counts_more_layers_than_it_has_is_not_taken_apart():
    """LongCat-Flash counts two for each of its own, which has two layers of attention."""
    model = worker_families.build("llama")
    assert blocks_of(model, []) is None  # no attention is bound
    model.config.num_hidden_layers *= 2
    assert blocks_of(model, []) is None
