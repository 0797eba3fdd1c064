"""The hook module: the model `counter`, which exists nowhere but here."""

from __future__ import annotations

from tenonry.config import EngineConfig
from tenonry.info import ModelInfo
from tenonry.plugin.hookspecs import hookimpl

VOCAB_SIZE = 256


@hookimpl
def tenonry_resolve_model(config: EngineConfig) -> ModelInfo | None:
    """Facts of `counter`."""
    if config.model != "counter":
        return None
    return ModelInfo(
        name="counter", path="", architecture="Counter", max_model_len=512, vocab_size=VOCAB_SIZE
    )
