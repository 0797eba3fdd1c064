"""Masks of bits over logits: on the host, on a device, and the best allowed token without either."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tenonry_grammars.bits import num_words, unpacked
from tenonry_torch_base.sampler.token_masks import best_on_host, forbid_on_device, forbid_on_host

ODD = 75  # tokens in three words, of which the last is not full


def random_masks(seed: int, rows: int, width: int, share: float) -> np.ndarray:
    """Each token is allowed with this probability."""
    bits = np.random.default_rng(seed).random((rows, num_words(width) * 32)) < share
    return np.packbits(bits, axis=-1, bitorder="little").view(np.int32)


def expected(logits: torch.Tensor, masks: np.ndarray) -> torch.Tensor:
    allowed = torch.from_numpy(unpacked(masks)[:, : logits.shape[1]].astype(bool))
    return torch.where(allowed, logits, float("-inf"))


@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 1.0])
def test_what_has_no_bit_is_forbidden_alike_on_every_device(share):
    """Device code, run on the CPU."""
    masks = random_masks(1, 5, ODD, share)
    logits = torch.randn(5, ODD)
    on_host = logits.clone()
    on_device = logits.clone()
    forbid_on_host(on_host, masks)
    forbid_on_device(on_device, torch.from_numpy(masks))
    assert torch.equal(on_host, expected(logits, masks))
    assert torch.equal(on_device, expected(logits, masks))


@given(
    seed=st.integers(0, 2**20),
    rows=st.integers(1, 6),
    share=st.sampled_from([0.0, 0.004, 0.05, 0.9, 1.0]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_the_best_allowed_token_is_the_first_maximum_of_what_is_left(seed, rows, share, dtype):
    masks = random_masks(seed, rows, 96, share)
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randint(-3, 3, (rows, 96), generator=generator).to(dtype)  # with ties
    logits[torch.rand(rows, 96, generator=generator) < 0.1] = float("-inf")
    before = logits.clone()
    ids, best = best_on_host(logits, masks)
    left = expected(logits.float(), masks)
    assert torch.equal(best, left.amax(-1))
    some = best > float("-inf")
    assert torch.equal(ids[some], left.argmax(-1)[some])
    assert torch.equal(logits, before)


@pytest.mark.parametrize("is_allowed", [True, False])
def test_a_row_with_a_nan_says_so(is_allowed):
    logits = torch.zeros(2, 64)
    logits[1, 40] = float("nan")
    masks = np.full((2, 2), -1 if is_allowed else 1, np.int32)
    _, best = best_on_host(logits, masks)
    assert best.isnan().tolist() == [False, True]
