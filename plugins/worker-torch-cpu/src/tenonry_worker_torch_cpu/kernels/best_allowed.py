"""The search for the best allowed tokens by a kernel. Worker process."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch

from tenonry_torch_base.kernel_parts import BestAllowedParts
from tenonry_torch_base.sampler.token_masks import best_on_host
from tenonry_worker_torch_cpu.kernels.chooser import KernelChooser
from tenonry_worker_torch_cpu.kernels.trial import Candidates

if TYPE_CHECKING:
    from tenonry_torch_base.step_kernels import BestAllowedKernel
    from tenonry_worker_torch.step_kernels import FoundKernels

PART = "the best allowed token"
TYPES = {torch.float32, torch.bfloat16}
WORD_BITS = 32
TRIAL_WORDS = 256  # maximum, since every start waits for the trial
SHARE = 16  # distance of mask words with set bits in trials, sparse as in most grammars


def best_allowed(
    found: FoundKernels | None, dtype: torch.dtype, vocab_size: int
) -> BestAllowedKernel | None:
    """Return a kernel for logits of this type if it is correct and faster than the built-in search. It searches one
    rank's rows, so ranks may differ.
    """
    if found is None or dtype not in TYPES or vocab_size % WORD_BITS:
        return None
    chooser = KernelChooser(found)
    kernel = chooser.make(BestAllowedParts())
    if kernel is None:
        return None
    words = min(vocab_size // WORD_BITS, TRIAL_WORDS)
    compared = partial(candidates, kernel, dtype, words)
    return kernel if chooser.prefers((PART,), compared) else None


def candidates(kernel: BestAllowedKernel, dtype: torch.dtype, words: int, count: int) -> Candidates:
    """Both over `count` rows of random logits and masks. Tokens are compared exactly."""
    logits = torch.randn(count, words * WORD_BITS).to(dtype)
    masks = torch.randint(-(2**31), 2**31, (count, words)).int()
    masks[torch.randint(SHARE, masks.shape) > 0] = 0
    masks[:, 0] |= 1  # a row without any would have no logit to compare

    def own() -> tuple[torch.Tensor, torch.Tensor]:
        ids, best = best_on_host(logits, masks.numpy())
        return ids.float(), best

    def other() -> tuple[torch.Tensor, torch.Tensor]:
        ids, best = kernel(logits, masks)
        return ids.float(), best

    return Candidates(own, other, tolerance=0.0)
