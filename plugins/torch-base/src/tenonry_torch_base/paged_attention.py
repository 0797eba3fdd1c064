"""Attention over K/V in blocks, in bfloat16: parameters of its kernels. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence


class PagedKeys(NamedTuple):
    """Location of the keys and values of R rows, in blocks that rows may share.

    `blocks` [N, 2 · kv_heads, block_size, size] in bfloat16, keys before values; row r has token t in place t %
    block_size of the block `table`[r, t // block_size], i32[R, width]. `lengths` i64[R]: the tokens of each row, its
    new one included. All are contiguous. Slots after a row's last token are undefined, and may be NaN; table entries
    outside its view may be anything. `is_dependent`: rows may attend to new tokens of other rows.

    For kernels whose `StepKernels.kept` contains "int8", `blocks` may be u8[N, 2 · kv_heads, block_size, width], with
    width size + size % 2 + 2: whole numbers of 8 bits with a sign, and in the last two bytes the scale of them in
    bfloat16. Attention reads number · scale, rounded to bfloat16 or not. The scale of a written vector is max |x| /
    127, rounded to bfloat16 and at least the smallest normal one, and numbers are x / scale, rounded to the nearest,
    ties to even, for x rounded to bfloat16 before. A vector with a non-finite number is stored so that none of its
    numbers is finite.
    """

    blocks: torch.Tensor
    table: torch.Tensor
    lengths: torch.Tensor
    is_dependent: bool = False


class PagedKernel(Protocol):
    """Attention of R rows with one query each, whose keys are all written."""

    def __call__(self, query: torch.Tensor, keys: PagedKeys) -> torch.Tensor:
        """`query` [R, heads, size], normed and rotated, contiguous → the same shape; bfloat16."""
        ...


class Chunks(NamedTuple):
    """Queries of R rows in a step: `counts` i64[R] of them from `begins` i64[R] on, contiguous.

    They are those of the row's last tokens: the last `counts` of `PagedKeys.lengths` tokens have a query.
    """

    begins: torch.Tensor
    counts: torch.Tensor


class ChunkKernel(Protocol):
    """Attention of many queries of each of R rows, whose keys are all written."""

    def __call__(
        self, query: torch.Tensor, chunks: Chunks, keys: PagedKeys, out: torch.Tensor
    ) -> None:
        """`query` [T, heads, size], normed and rotated → `out`, which keeps its values for tokens without a query.

        Both are contiguous, in bfloat16. The query of a token sees the row's tokens up to its own.
        """
        ...


class PromptKernel(Protocol):
    """Several layers of a step whose rows have any number of new tokens, like prompts."""

    def __call__(
        self,
        hidden: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        chunks: Chunks,
        keys: PagedKeys,
        blocks: Sequence[torch.Tensor],
        last: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """`hidden` [T, hidden] → the same shape, after as many layers as there are `blocks`; bfloat16.

        `last` i64[Q]: only these tokens, in ascending order and each the last of its row, continue in the last layer,
        after all keys and values were written: → [Q, hidden].

        `chunks` covers all tokens of the step, with tokens of each row of `keys`. `cos` and `sin` as of `LayerKernel`.
        New keys and values are written; a token attends to those of its row up to its own.
        """
        ...
