"""Log-probabilities from engine columns to what callers read. Front end."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tenonry.interfaces.io_processor import IOProcessor
from tenonry.outputs import Logprob


def logprob_entry(
    token_ids: np.ndarray, logprobs: np.ndarray, rank: int, wanted: int, io: IOProcessor | None
) -> dict[int, Logprob]:
    """The entry of one position: the token itself first, whose rank is given, then the `wanted` most likely ones."""
    ids = token_ids[: wanted + 1].tolist()
    values = logprobs[: wanted + 1].tolist()
    texts: Sequence[str | None] = [None] * len(ids)
    if io is not None:
        texts = io.token_texts(ids)
    entry = {ids[0]: Logprob(values[0], rank, texts[0])}
    for place in range(1, len(ids)):
        entry.setdefault(ids[place], Logprob(values[place], place, texts[place]))
    return entry
