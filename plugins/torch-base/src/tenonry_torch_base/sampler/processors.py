"""Processors that change logits before a token is chosen; the extension point `tenonry.logits_processors`. Worker
process.

A processor keeps the state of its rows itself: it is called when a row enters, when it leaves and when its tokens were
chosen, and otherwise only in steps where one of its rows samples: before the model runs, and with its logits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from tenonry_torch_base.buffers import put_in_order

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import torch
    from numpy.typing import NDArray

    from tenonry.sampling_params import StructuredOutput
    from tenonry.step import NewRow


class ProcessorContext:
    """Sizes, the device, and the tokens of every row, i32[max_num_seqs, …], outputs included.

    `history` has them on the device; `host_tokens` those already on the host, −1 elsewhere.
    """

    __slots__ = ("device", "history", "host_tokens", "max_num_seqs", "vocab_size")

    def __init__(
        self,
        max_num_seqs: int,
        vocab_size: int,
        device: torch.device,
        history: torch.Tensor,
        host_tokens: NDArray[np.int32],
    ) -> None:
        self.max_num_seqs = max_num_seqs
        self.vocab_size = vocab_size
        self.device = device
        self.history = history
        self.host_tokens = host_tokens

    def put(self, array: NDArray[np.generic]) -> torch.Tensor:
        """`array` as a tensor on the device, without waiting; on the CPU the two share memory."""
        return put_in_order(array, self.device)


class SampleStep:
    """The rows of one sampling, in order: `row` i32[N], `num_output` i32[N] (tokens sampled before this one),
    `length` i32[N] (tokens known before this one, prompt included).
    """

    __slots__ = ("length", "num_output", "row")

    def __init__(
        self, row: NDArray[np.int32], num_output: NDArray[np.int32], length: NDArray[np.int32]
    ) -> None:
        self.row = row
        self.num_output = num_output
        self.length = length

    def select(self, wanted: NDArray[np.bool_] | slice) -> SampleStep:
        """The same for some of the rows."""
        return SampleStep(
            row=self.row[wanted], num_output=self.num_output[wanted], length=self.length[wanted]
        )

    def place_of(self, rows: NDArray[np.int64], max_num_seqs: int) -> NDArray[np.int64]:
        """Place of each of `rows` in this step, −1 for rows that do not sample."""
        place = np.full(max_num_seqs, -1, np.int64)
        place[self.row] = np.arange(len(self.row))
        return place[rows]


class LogitsProcessor(ABC):
    """One kind of change. `active` bool[max_num_seqs] marks the rows that need it."""

    name: ClassVar[str]
    interface_version: ClassVar[int] = 1

    def __init__(self, context: ProcessorContext) -> None:
        self.context = context
        self.active = np.zeros(context.max_num_seqs, np.bool_)

    @abstractmethod
    def enter(self, new: NewRow) -> bool:
        """Add a new row, or a returning one with its outputs; returns True if it needs this processor."""

    def compile(
        self, asked: Mapping[int, StructuredOutput | None], patience: float
    ) -> Iterable[int]:
        """Start the preparation that these requests, by handle, need before they may start; returns the ready ones.

        `patience`: seconds to wait if none is; 0 if a step would wait for it.
        """
        return asked

    def leave(self, row: int) -> None:  # noqa: B027 - a processor without state by row has nothing to forget
        """An active row is gone: forget it."""

    def prepare(self, step: SampleStep) -> None:  # noqa: B027 - few have anything to do ahead
        """Start concurrent work: the model is about to run, and active rows of this step will sample."""

    def fitting(self, row: int, length: int, token_ids: NDArray[np.int32]) -> int:
        """Number of leading `token_ids` that could be sampled; they are drafts after the `length` tokens of an active
        row.

        An overestimate is harmless: more tokens are verified in vain.
        """
        return len(token_ids)

    @abstractmethod
    def apply(self, logits: torch.Tensor, step: SampleStep) -> None:
        """Change `logits` f32[N, vocabulary] in place; every row of the step is active."""

    def best(
        self, logits: torch.Tensor, step: SampleStep
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Index of each row's largest logit after `apply`, i64[N], and that logit, f32[N], without changing any.

        Called for greedy rows that need no other processor; None if `apply` and a search are as fast.
        """
        return None

    def accept(  # noqa: B027 - few depend on it
        self, row: NDArray[np.int32], token_ids: torch.Tensor
    ) -> None:
        """`token_ids` i64[N] were chosen for active rows; called after every sampling."""

    def shutdown(self) -> None:  # noqa: B027 - few hold anything
        """The worker ends: release threads and the like."""
