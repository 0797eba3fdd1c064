"""What the kernel knows of a model: a few facts, resolved once by the `tenonry_resolve_model` hook, never weights.

Made in the front end and sent as text to every process; nothing here needs torch.
"""

from __future__ import annotations

from typing import Any

import msgspec


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of one model.

    `path` is a local folder; `commit` the resolved revision of a hub model ("" for a folder). `max_model_len` is the
    longest sequence the model was made for, in tokens. `eos_token_ids` end a generation. `default_sampling` holds
    fields of SamplingParams that the model's authors recommend. `needs_lockstep` says that data-parallel engines must
    step together (expert layers that span ranks).
    """

    name: str
    path: str
    architecture: str
    max_model_len: int
    vocab_size: int
    commit: str = ""
    tokenizer_path: str = ""
    eos_token_ids: tuple[int, ...] = ()
    default_sampling: dict[str, Any] = {}
    needs_lockstep: bool = False
    dtype: str = "float32"
