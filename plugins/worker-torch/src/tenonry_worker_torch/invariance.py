"""Error of models that cannot be served with batch invariance. Worker process."""

from __future__ import annotations

from tenonry.errors import ModelError

SETTING = "batch_invariant"


class NotInvariantError(ModelError):
    """A model that cannot be served with batch invariance."""


def refused(what: str) -> NotInvariantError:
    """Error for a model with a structure that cannot be served so."""
    return NotInvariantError(
        f"{SETTING}: {what}, which worker 'torch' cannot compute so that no token depends on what runs beside it; it "
        f"can do layers of the Llama kind (Llama, Mistral, Qwen 2 and 3), and else leave --batch-invariant out"
    )
