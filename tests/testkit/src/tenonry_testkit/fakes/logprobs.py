"""Log-probabilities of the fake worker: deterministic, with the right shapes. Worker process.

The sampled token has −1, the K others that follow it in the vocabulary have −2, −3, …
"""

from __future__ import annotations

from collections.abc import Container, Sequence

import numpy as np
from numpy.typing import NDArray

from tenonry.step import I32, NewRow, PromptLogprobs, TokenLogprobs
from tenonry_scheduling.columns import BatchState, StepInputs


def _table(
    token_ids: I32, num_logprobs: int, vocab_size: int
) -> tuple[I32, NDArray[np.float32], I32]:
    """token ids [L, K+1], log-probabilities [L, K+1] and ranks [L] for tokens [L]."""
    steps = np.arange(num_logprobs + 1, dtype=np.int32)
    ids = (token_ids[:, None] + steps) % vocab_size
    ids = ids.astype(np.int32)
    values = np.broadcast_to(-1.0 - steps, ids.shape).astype(np.float32)
    return ids, values, np.ones(len(token_ids), np.int32)


def token_logprobs(
    rows: I32, token_ids: I32, new_rows: Sequence[NewRow | None], vocab_size: int
) -> TokenLogprobs | None:
    """Log-probabilities of the rows that request them; K is the largest number requested."""
    asked = {}
    for i, row in enumerate(rows.tolist()):
        new = new_rows[row]
        if new is not None and new.sampling.logprobs is not None:
            asked[i] = new.sampling.logprobs
    if not asked:
        return None
    which = np.array(list(asked), np.int64)
    ids, values, ranks = _table(token_ids[which], max(asked.values()), vocab_size)
    return TokenLogprobs(rows[which], ids, values, ranks)


def round_logprobs(
    passes: Sequence[TokenLogprobs | None], failed: Container[int]
) -> TokenLogprobs | None:
    """Log-probabilities of the passes of a multi-token step, one after another; failed rows have none."""
    rows: list[int] = []
    columns: list[tuple[np.ndarray, np.ndarray, int]] = []
    for part in passes:
        if part is None:
            continue
        lines = zip(part.row.tolist(), part.token_ids, part.logprobs, part.rank, strict=True)
        for row, ids, values, rank in lines:
            if row not in failed:
                rows.append(row)
                columns.append((ids, values, rank))
    if not rows:
        return None
    width = max(len(ids) for ids, _, _ in columns)
    all_ids = [_filled(ids, width) for ids, _, _ in columns]
    all_values = [_filled(values, width) for _, values, _ in columns]
    ranks = [rank for _, _, rank in columns]
    return TokenLogprobs(
        np.array(rows, np.int32), np.stack(all_ids), np.stack(all_values), np.array(ranks, np.int32)
    )


def _filled(line: np.ndarray, width: int) -> np.ndarray:
    """Pad lines with fewer tokens by their chosen one."""
    missing = width - len(line)
    filler = np.repeat(line[:1], missing)
    return np.concatenate([line, filler])


def prompt_logprobs(
    state: BatchState,
    inputs: StepInputs,
    new_rows: Sequence[NewRow | None],
    vocab_size: int,
    bad: NDArray[np.bool_],
) -> list[PromptLogprobs]:
    """Prompt log-probabilities of rows that request them, as far as this step computes their logits: position p yields
    those of p + 1.
    """
    found = []
    for i in np.flatnonzero(~bad).tolist():
        row = int(inputs.row[i])
        new = new_rows[row]
        if new is None or new.sampling.prompt_logprobs is None:
            continue
        start = int(inputs.start[i]) + 1
        end = int(inputs.seq_lens[i]) + 1
        num_prompt = int(state.num_prompt[row])
        end = min(end, num_prompt)
        if start < end:
            table = _table(
                state.token_ids[row, start:end].copy(), new.sampling.prompt_logprobs, vocab_size
            )
            found.append(PromptLogprobs(row, start, *table))
    return found
