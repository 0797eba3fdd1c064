"""`structured_output`: rows whose next token a grammar bounds. Worker process, on the rank that samples.

Grammars are compiled by a thread concurrently with steps, before their rows enter. If the model leaves a processor
idle, another thread passes the sampled tokens to the matchers, if they are already on the host, and fills the next
masks while the results are sent and the model runs; unfinished work is done when the next step starts. The sampler
waits for both. If torch computes on every processor, such a thread would delay one of torch's threads, for which all
others wait, many times a step: the masks are made just before the model runs, while the front end reads the last tokens
on a processor that the model would need. A resumed row replays its output. Log-probabilities are computed before, from
the model's logits.
"""

from __future__ import annotations

import logging
import os
from collections import OrderedDict
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from tenonry_grammars.base import GrammarError
from tenonry_grammars.bits import EVERYTHING, NOTHING, WORD_BITS, forbid, num_words
from tenonry_torch_base.grammars import is_spent
from tenonry_torch_base.sampler.grammar_row import GrammarRow
from tenonry_torch_base.sampler.processors import LogitsProcessor, ProcessorContext, SampleStep
from tenonry_torch_base.sampler.token_masks import best_on_host, forbid_on_device, forbid_on_host

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from concurrent.futures import Future

    from numpy.typing import NDArray

    from tenonry.sampling_params import StructuredOutput
    from tenonry.step import NewRow
    from tenonry_grammars.base import Grammar, Matcher
    from tenonry_grammars.bits import I32
    from tenonry_torch_base.grammars import GrammarStore
    from tenonry_torch_base.step_kernels import BestAllowedKernel

logger = logging.getLogger("tenonry.worker")
ASKED_PER_ROW = 4  # maximum grammars per row that are kept for requests that have not started
ROWS_FOR_A_THREAD = 16  # handing over to another thread takes longer than some masks
NOT_MADE = -1


class GrammarMasks(LogitsProcessor):
    """Masks by row, made ahead. `_made`: the row's length for which its mask is made, or will be when the work in
    `_unfinished` has ended.
    """

    name: ClassVar[str] = "structured_output"

    def __init__(
        self,
        context: ProcessorContext,
        store: GrammarStore,
        kernel: BestAllowedKernel | None = None,
    ) -> None:
        """`kernel`: searches the best allowed tokens on the host, if available."""
        super().__init__(context)
        self._store = store
        self._kernel = kernel
        self._rows: dict[int, GrammarRow] = {}
        self._asked: OrderedDict[int, Future[Grammar]] = (
            OrderedDict()
        )  # by handle, before the row enters
        self._words = num_words(context.vocab_size)
        self._masks: I32 = np.zeros((context.max_num_seqs, self._words), np.int32)
        self._made = np.full(context.max_num_seqs, NOT_MADE, np.int64)
        self._unfinished: list[Callable[[], None]] = []
        self._failed: list[GrammarRow] = []  # since the last step
        self._stuck: list[GrammarRow] = []  # without a token, since the last step
        self._thread: ThreadPoolExecutor | None = None
        self._is_host = context.device.type == "cpu"
        self._is_beside = leaves_a_processor(context.device)

    def compile(self, asked: Mapping[int, StructuredOutput | None], patience: float) -> list[int]:
        for handle, spec in asked.items():
            if spec is not None:
                self._asked[handle] = self._store.compiled(spec)
        while len(self._asked) > ASKED_PER_ROW * self.context.max_num_seqs:
            self._asked.popitem(
                last=False
            )  # it was aborted, or starts late and queries the store again
        futures = {handle: self._asked.get(handle) for handle in asked}
        running = [future for future in futures.values() if future is not None]
        if patience and not any(future.done() for future in running):
            wait(running, patience, FIRST_COMPLETED)
        return [handle for handle, future in futures.items() if future is None or future.done()]

    def enter(self, new: NewRow) -> bool:
        spec = new.sampling.structured_output
        if spec is None:
            return False
        compiled = self._asked.pop(new.handle, None) or self._store.compiled(spec)
        self._rows[new.row] = GrammarRow(new, spec, compiled, self.context.vocab_size)
        self._made[new.row] = NOT_MADE
        return True

    def leave(self, row: int) -> None:
        self._rows.pop(row, None)
        self._made[row] = NOT_MADE

    # ------------------------------------------------------------------ when masks are made

    def accept(self, row: NDArray[np.int32], token_ids: torch.Tensor) -> None:
        """Start the masks of the next step, or record their inputs, if the tokens are known and there are many."""
        if not self._is_host or len(row) < ROWS_FOR_A_THREAD:
            return
        rows = []
        tokens = []
        for index, token_id in zip(row.tolist(), token_ids.tolist(), strict=True):
            each = self._rows[index]
            if each.matcher is not None and not each.failure:
                rows.append(each)
                tokens.append(token_id)
        places = [each.index for each in rows]
        self._made[places] += 1
        work = partial(self._follow, rows, tokens)
        self._begin(work, len(rows))

    def prepare(self, step: SampleStep) -> None:
        """Begin with those masks of the step that are not made; end with them if the model leaves no processor."""
        is_missing = self._made[step.row] != step.length
        if is_missing.any():
            self._prepare(step, is_missing)
        if not self._is_beside:
            self._finish()

    def _prepare(self, step: SampleStep, is_missing: NDArray[np.bool_]) -> None:
        missing = step.row[is_missing]
        rows = [self._rows[row] for row in missing.tolist()]
        lengths = step.length[is_missing].tolist()
        self._made[step.row] = step.length
        work = partial(self._catch_up, rows, lengths)
        self._begin(work, len(rows))

    def _begin(self, work: Callable[[], None], num_rows: int) -> None:
        """Run the work in the thread; defer it to the waiting caller for few rows, or if no processor is idle."""
        if num_rows < ROWS_FOR_A_THREAD or not self._is_beside:
            self._unfinished.append(work)
            return
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammar-masks")
        future = self._thread.submit(work)
        self._unfinished.append(future.result)

    def _finish(self) -> None:
        for finish in self._unfinished:
            finish()
        self._unfinished.clear()
        if self._stuck:
            self._restart_spent()
        for row in self._failed:
            if row.failure and self._rows.get(row.index) is row:
                logger.warning("structured output of request %x: %s", row.handle, row.failure)
        self._failed.clear()

    def _restart_spent(self) -> None:
        """Compile the grammar anew for rows that another row's use of a shared limit left without a token."""
        stuck = [row for row in self._stuck if self._rows.get(row.index) is row]
        self._stuck.clear()
        refused = [row.matcher for row in stuck if row.failure and row.matcher is not None]
        if refused:  # a mask shows whether a limit was the cause
            self._filled(refused)
        spent = [row for row in stuck if is_spent(row.compiled)]
        lengths = [row.taken for row in spent]
        for row in spent:
            logger.warning("structured output of request %x: recompiled its grammar", row.handle)
            row.restart(self._store.compiled(row.spec))
        self._catch_up(spent, lengths)
        self._stuck.clear()

    def fitting(self, row: int, length: int, token_ids: NDArray[np.int32]) -> int:
        """Number of tokens that the grammar allows; the matcher's position is restored."""
        self._finish()
        each = self._rows[row]
        if self._made[row] != length:
            self._catch_up([each], [length])
            self._made[row] = length
        if each.failure or each.matcher is None:
            return 0 if each.failure else len(token_ids)
        try:
            count = each.matcher.accept(token_ids.tolist())
            each.matcher.rollback(count)
        except Exception:
            logger.exception("structured output: the grammar backend failed to look ahead")
            each.failure = "the grammar backend failed to look ahead"
            return 0
        return count

    # ------------------------------------------------------------------ making them

    def _follow(self, rows: list[GrammarRow], token_ids: list[int]) -> None:
        """The rows got these tokens."""
        matchers = [row.matcher for row in rows if row.matcher is not None]
        answers = self._accepted(matchers, token_ids)
        for row, token_id, is_allowed in zip(rows, token_ids, answers, strict=True):
            row.taken += 1
            if not is_allowed:
                row.refuse(token_id)
                self._failed.append(row)
        self._make(rows)

    def _accepted(self, matchers: list[Matcher], token_ids: list[int]) -> list[bool]:
        try:
            return self._store.backend.accept_each(matchers, token_ids)
        except Exception:
            logger.exception("structured output: the grammar backend failed to accept tokens")
            return [False] * len(matchers)

    def _catch_up(self, rows: list[GrammarRow], lengths: list[int]) -> None:
        """Advance the matchers to the tokens that the host has."""
        for row, length in zip(rows, lengths, strict=True):
            if not row.failure:
                self._advance(row, length)
        self._make(rows)

    def _advance(self, row: GrammarRow, length: int) -> None:
        try:
            row.advance(self.context.host_tokens[row.index], length)
        except GrammarError as error:
            row.failure = str(error)
        except Exception as error:
            logger.exception("structured output: the grammar backend failed")
            row.failure = f"{type(error).__name__}: {error}"
        if row.failure:
            self._failed.append(row)

    def _make(self, rows: list[GrammarRow]) -> None:
        """Fill one mask per row."""
        matchers = []
        filled = []
        for row in rows:
            if row.failure:
                self._masks[row.index] = NOTHING
                self._stuck.append(row)
            elif row.matcher is None:
                mask = self._masks[row.index]
                mask[:] = EVERYTHING
                forbid(mask, row.end_ids)
            else:
                matchers.append(row.matcher)
                filled.append(row)
        if not matchers:
            return
        masks = self._filled(matchers)
        self._masks[[row.index for row in filled]] = masks
        has_token = masks.view(np.bool_).any(axis=1)  # bytes: ends at the first one
        if not has_token.all():
            self._stuck += [row for row, has in zip(filled, has_token, strict=True) if not has]

    def _filled(self, matchers: list[Matcher]) -> I32:
        """One mask per matcher; without any token for all of them where the backend fails."""
        masks = np.zeros((len(matchers), self._words), np.int32)
        try:
            self._store.backend.fill_masks(matchers, masks)
        except Exception:
            logger.exception("structured output: the grammar backend failed to fill masks")
            masks[:] = NOTHING
        return masks

    # ------------------------------------------------------------------ using them

    def apply(self, logits: torch.Tensor, step: SampleStep) -> None:
        self._finish()
        masks = self._masks[step.row]
        if self._is_host:
            forbid_on_host(logits, masks)
        else:
            forbid_on_device(logits, self.context.put(masks))

    def best(
        self, logits: torch.Tensor, step: SampleStep
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        fits = logits.is_contiguous() and logits.shape[1] == WORD_BITS * self._words
        if not (self._is_host and fits):
            return None
        self._finish()
        masks = self._masks[step.row]
        if self._kernel is None:
            return best_on_host(logits, masks)
        return self._kernel(logits, torch.from_numpy(masks))

    def shutdown(self) -> None:
        if self._thread is not None:
            self._thread.shutdown(wait=False)
        self._store.shutdown()


def leaves_a_processor(device: torch.device) -> bool:
    """Return True if a thread can work while the model runs without taking a processor from it."""
    if device.type != "cpu":
        return True
    usable = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return torch.get_num_threads() < usable
