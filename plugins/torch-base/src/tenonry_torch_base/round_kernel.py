"""Multi-token decoding in one kernel call, in bfloat16: parameters of its kernels. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from tenonry_torch_base.paged_attention import PagedKeys


class RoundEnds(NamedTuple):
    """End conditions of R rows: the `most`-th token, or one of `stop_ids` i64[R, W] (−1 fills), but none of the first
    `free` i64[R] tokens.
    """

    most: int
    stop_ids: torch.Tensor
    free: torch.Tensor


class RoundTokens(NamedTuple):
    """`token_ids` i32[R, most], of which the first `counts` i64[R] of each row are valid; `failed` u8[R]: the logits of
    the next one are not finite.
    """

    token_ids: torch.Tensor
    counts: torch.Tensor
    failed: torch.Tensor


class RoundKernel(Protocol):
    """Pass after pass of a whole model, each with the tokens that the one before chose."""

    def __call__(
        self,
        token_ids: torch.Tensor,
        keys: PagedKeys,
        blocks: Sequence[torch.Tensor],
        ends: RoundEnds,
    ) -> RoundTokens:
        """`token_ids` i32[R]: the last token of each row, computed first; `keys` includes it, and its table has blocks
        for all new tokens. The K/V of each layer are in its `blocks`.

        A token is the first of the largest logits, rounded to bfloat16. The last token of a row is not computed.
        """
        ...
