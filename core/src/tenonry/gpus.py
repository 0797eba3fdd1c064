"""Which GPUs this node offers, without a library that would have to be imported or initialised. Any process."""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "CUDA_VISIBLE_DEVICES"


def visible_devices() -> list[str]:
    """GPUs that this process may use, by number or name."""
    chosen = os.environ.get(VARIABLE)
    if chosen is not None:
        return [part.strip() for part in chosen.split(",") if part.strip()]
    found = [path.name.removeprefix("nvidia") for path in Path("/dev").glob("nvidia[0-9]*")]
    return sorted(found, key=int)
