"""Checks of the conformance suite of workers on one step's result. Test process."""

from __future__ import annotations

import numpy as np

from tenonry.step import ModelRunnerOutput, SchedulerOutput


def check_shapes(output: SchedulerOutput, result: ModelRunnerOutput, vocab_size: int) -> None:
    """One answer per sampling row, offsets, types, ids within the vocabulary, and log-probabilities that fit."""
    assert result.step_id == output.step_id
    sampling = sorted(output.row[output.samples].tolist())
    answered = sorted([*result.row.tolist(), *result.failed_row.tolist()])
    assert answered == sampling, (
        f"step {output.step_id} samples rows {sampling}; row and failed_row name {answered}, expected each of them once"
    )
    counts = np.diff(result.offsets).tolist()
    most = output.round_tokens
    rows = len(result.row)
    assert len(counts) == rows
    assert all(0 < count <= most for count in counts), (
        f"offsets are {result.offsets.tolist()} for {rows} rows; expected 1 to {most} tokens per row"
    )
    assert result.offsets[0] == 0
    assert result.offsets[-1] == len(result.token_ids)
    for name in ("row", "token_ids", "offsets"):
        dtype = getattr(result, name).dtype
        assert dtype == np.int32, f"{name} is {dtype}; expected int32"
    outside = result.token_ids[(result.token_ids < 0) | (result.token_ids >= vocab_size)].tolist()
    assert not outside, f"token ids {outside} are not in the vocabulary of {vocab_size}"
    if result.logprobs is not None:
        rows = len(result.logprobs.row)
        wide = result.logprobs.token_ids.shape
        assert wide[0] == rows == len(result.logprobs.rank)
        assert result.logprobs.logprobs.shape == wide
        assert (result.logprobs.logprobs <= 0).all()
        place = {row: i for i, row in enumerate(result.row.tolist())}
        sampled = [int(result.token_ids[place[row]]) for row in result.logprobs.row.tolist()]
        assert result.logprobs.token_ids[:, 0].tolist() == sampled, "column 0 is the sampled token"
    for part in result.prompt_logprobs:
        assert part.start >= 1
        assert len(part.token_ids) == len(part.logprobs) == len(part.rank)
