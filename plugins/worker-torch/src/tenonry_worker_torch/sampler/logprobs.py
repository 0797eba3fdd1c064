"""Log-probabilities of chosen tokens and of the most likely ones. Worker process, any device.

They are those of the model's own logits: before temperature, penalties and truncation.
"""

from __future__ import annotations

import numpy as np
import torch

PIECE = 256  # positions of a prompt whose float32 logits are held at once


class Logprobs:
    """For N positions: token_ids i64[N, K+1] (column 0 the chosen token), logprobs f32[N, K+1], rank i64[N]."""

    __slots__ = ("logprobs", "rank", "token_ids")

    def __init__(self, token_ids: torch.Tensor, logprobs: torch.Tensor, rank: torch.Tensor) -> None:
        self.token_ids, self.logprobs, self.rank = token_ids, logprobs, rank

    def start_copy(self) -> None:
        """Begin moving the tensors to the host; `numpy` may be called once the device has come so far."""
        self.token_ids, self.logprobs, self.rank = (
            tensor.to("cpu", non_blocking=True) for tensor in (self.token_ids, self.logprobs, self.rank)
        )

    def numpy(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The three arrays as the wire wants them: i32, f32, i32."""
        return (
            self.token_ids.cpu().numpy().astype(np.int32),
            self.logprobs.cpu().numpy(),
            self.rank.cpu().numpy().astype(np.int32),
        )


def logprobs_of(logits: torch.Tensor, chosen: torch.Tensor, count: int) -> Logprobs:
    """`logits` [N, V], `chosen` i64[N], the `count` most likely tokens beside the chosen one.

    The rank of a token is one more than the number of tokens with a larger logit.
    """
    values = logits.float()
    normaliser = torch.logsumexp(values, -1, keepdim=True)
    own = values.gather(1, chosen[:, None])
    rank = (values > own).sum(-1) + 1
    best = values.topk(count, sorted=True) if count else None
    ids = torch.cat([chosen[:, None], best.indices], 1) if best else chosen[:, None]
    kept = torch.cat([own, best.values], 1) if best else own
    return Logprobs(ids, kept - normaliser, rank)


def prompt_logprobs_of(logits: torch.Tensor, chosen: torch.Tensor, count: int) -> Logprobs:
    """As `logprobs_of`, in pieces: a prompt has many positions."""
    parts = [logprobs_of(logits[i : i + PIECE], chosen[i : i + PIECE], count) for i in range(0, logits.shape[0], PIECE)]
    return Logprobs(
        torch.cat([part.token_ids for part in parts]),
        torch.cat([part.logprobs for part in parts]),
        torch.cat([part.rank for part in parts]),
    )
