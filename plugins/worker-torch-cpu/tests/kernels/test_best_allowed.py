"""The search for the best allowed tokens: by a kernel if it is correct and faster, else by our own."""

from __future__ import annotations

import pytest
import torch

from tenonry_torch_base.kernel_parts import BestAllowedParts
from tenonry_torch_base.sampler.token_masks import best_on_host
from tenonry_torch_base.step_kernels import StepKernels, makes
from tenonry_worker_torch.step_kernels import FoundKernels
from tenonry_worker_torch_cpu.kernels.best_allowed import TRIAL_WORDS, best_allowed

WIDTH = 96


class Given(StepKernels):
    """Offers this kernel."""

    name = "given"

    def __init__(self, kernel):
        self.kernel = kernel

    @classmethod
    def refusal(cls):
        return None

    @makes(BestAllowedParts)
    def best_allowed(self, parts):
        return self.kernel


def right(logits, masks):
    return best_on_host(logits, masks.numpy())


def of_the_next_row(logits, masks):
    ids, best = right(logits, masks)
    return ids.roll(1), best


def slow(logits, masks):
    for _ in range(100):
        right(logits, masks)
    return right(logits, masks)


def used(kernel, *, dtype=torch.bfloat16, width=WIDTH, is_asked_for=True):
    found = FoundKernels(Given(kernel), is_asked_for=is_asked_for)
    return best_allowed(found, dtype, width)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_kernel_that_is_right_is_used(dtype):
    assert used(right, dtype=dtype) is right


def test_a_kernel_that_names_another_token_is_not_used():
    assert used(of_the_next_row) is None


def test_a_kernel_that_is_one_token_off_in_one_of_many_rows_is_not_used():
    def nearly_right(logits, masks):
        ids, best = right(logits, masks)
        if len(ids) > 3:
            ids[-1] += 1
        return ids, best

    assert used(nearly_right, width=8192) is None


def test_the_trial_of_a_large_vocabulary_is_as_small_as_that_of_another():
    """Every start makes it, whether or not a request has a grammar."""
    widths = set()

    def remembers(logits, masks):
        widths.add(logits.shape[1])
        return right(logits, masks)

    assert used(remembers, width=32 * TRIAL_WORDS + 32) is remembers
    assert widths == {32 * TRIAL_WORDS}


def test_a_kernel_that_was_not_asked_for_must_be_quicker():
    assert used(slow) is slow
    assert used(slow, is_asked_for=False) is None


def test_a_kernel_that_raises_is_named(caplog):
    def fails(logits, masks):
        raise ValueError("no such instruction")

    assert used(fails) is None
    assert "the best allowed token is left to torch" in caplog.text
    assert "no such instruction" in caplog.text


def test_logits_that_kernels_do_not_read_are_left_to_our_own():
    assert used(right, dtype=torch.float16) is None
    assert used(right, width=WIDTH + 1) is None


def test_without_kernels_it_is_our_own():
    assert best_allowed(None, torch.float32, WIDTH) is None
    assert used(None) is None
