"""Model `house-model`: a folder of a shared store, in the version of this package. Front end."""

from __future__ import annotations

import os
from importlib.metadata import version
from pathlib import Path

from tenonry.errors import ModelError

NAME = "house-model"
STORE = "MODEL_STORE"


def model_path() -> str:
    """Return `$MODEL_STORE/house-model/VERSION`; without a store, a configuration for tests with random weights."""
    store = os.environ.get(STORE)
    if not store:
        return str(Path(__file__).resolve().parent / "model")
    path = Path(store).resolve() / NAME / version(NAME)
    if not (path / "config.json").exists():
        raise ModelError(
            f"{STORE}={store} has no {NAME}/{version(NAME)}/config.json; copy it there"
        )
    return str(path)
