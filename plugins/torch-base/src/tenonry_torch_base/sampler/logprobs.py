"""Log-probabilities of chosen tokens and of the most likely ones. Worker process, any device.

They are those of the model's own logits: before temperature, penalties and truncation.
"""

from __future__ import annotations

import numpy as np
import torch

PIECE_ELEMENTS = 1 << 21  # logits of a prompt's positions held in float32 together


class Logprobs:
    """Log-probabilities of N positions: token_ids i64[N, K+1] (column 0 the chosen token), logprobs f32[N, K+1], rank
    i64[N].
    """

    __slots__ = ("logprobs", "rank", "token_ids")

    def __init__(self, token_ids: torch.Tensor, logprobs: torch.Tensor, rank: torch.Tensor) -> None:
        self.token_ids = token_ids
        self.logprobs = logprobs
        self.rank = rank

    def start_copy(self) -> None:
        """Start copying the tensors to the host; `numpy` is available once the device has reached this point."""
        self.token_ids, self.logprobs, self.rank = (
            tensor.to("cpu", non_blocking=True)
            for tensor in (self.token_ids, self.logprobs, self.rank)
        )

    def numpy(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The three arrays in the types of the wire: i32, f32, i32."""
        return (
            self.token_ids.cpu().numpy().astype(np.int32),
            self.logprobs.cpu().numpy(),
            self.rank.cpu().numpy().astype(np.int32),
        )


def logprobs_of(logits: torch.Tensor, chosen: torch.Tensor, count: int) -> Logprobs:
    """`logits` [N, V], `chosen` i64[N]; log-probabilities of the chosen token and of the `count` most likely ones.

    The rank of a token is one more than the number of tokens with a larger logit.
    """
    values = logits.float()  # [N, V]
    # Not logsumexp: torch shares the sum of a single long row among threads, so its bits depend on the other rows.
    logprobs = torch.log_softmax(values, -1)
    ids = chosen[:, None]
    rank = (values > values.gather(1, ids)).sum(-1) + 1
    if count:
        best = values.topk(count, sorted=True).indices
        ids = torch.cat([ids, best], 1)  # [N, count + 1]
    return Logprobs(ids, logprobs.gather(1, ids), rank)


def prompt_logprobs_of(logits: torch.Tensor, chosen: torch.Tensor, count: int) -> Logprobs:
    """As `logprobs_of`, in pieces for the many positions of a prompt."""
    length = logits.shape[0]
    piece = max(1, PIECE_ELEMENTS // logits.shape[1])
    parts = []
    for begin in range(0, length, piece):
        end = begin + piece
        parts.append(logprobs_of(logits[begin:end], chosen[begin:end], count))
    return concatenated(parts)


def concatenated(parts: list[Logprobs]) -> Logprobs:
    """Concatenate positions; those with fewer tokens are padded with their chosen one."""
    width = max(part.token_ids.shape[1] for part in parts)
    token_ids = [_widened(part.token_ids, width) for part in parts]
    logprobs = [_widened(part.logprobs, width) for part in parts]
    ranks = [part.rank for part in parts]
    return Logprobs(torch.cat(token_ids), torch.cat(logprobs), torch.cat(ranks))


def _widened(table: torch.Tensor, width: int) -> torch.Tensor:
    missing = width - table.shape[1]
    if not missing:
        return table
    filler = table[:, :1].expand(-1, missing)
    return torch.cat([table, filler], 1)
