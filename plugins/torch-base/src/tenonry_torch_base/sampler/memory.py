"""Device memory of sampling, subtracted from that of the KV cache. Worker process."""

from __future__ import annotations

from tenonry_torch_base.sampler.sampler import DEVICE_TILE_ELEMENTS

# Of a tile: float32 logits, their weights, these sorted with their indices and the sort's own copies of both, and the
# running sums in float64.
BYTES_PER_ELEMENT = 96
# Of each logit of all rows: the logits themselves in float32, counts of penalties and forbidden tokens, and, while
# those tables grow, their former ones.
BYTES_PER_LOGIT = 4 + 2 * (4 + 1)
BYTES_PER_TOKEN = 4


def sampling_bytes(max_num_seqs: int, vocab_size: int, max_model_len: int) -> int:
    """Bytes for the tokens of all rows and for sampling all of them, with any parameters."""
    logits = max_num_seqs * vocab_size
    tile = min(logits, max(vocab_size, DEVICE_TILE_ELEMENTS))
    history = max_num_seqs * (max_model_len + 1) * BYTES_PER_TOKEN
    return history + logits * BYTES_PER_LOGIT + tile * BYTES_PER_ELEMENT
