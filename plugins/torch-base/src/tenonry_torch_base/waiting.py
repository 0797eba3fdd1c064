"""How long the threads of torch wait for each other on a processor before they sleep. Without torch.

A step of a model shares out work some hundred times, and each time the first thread to finish waits for the last. Where
another process takes a processor, Linux may put two of these threads on one of those that are left: then the one that
waits keeps the other from running until its share of time is over. By default GNU's OpenMP waits in this way for some
milliseconds each time, so beside two busy processes on two processors hardly a token of a small model came. A twentieth
of that is long enough for its threads where they really run side by side, and what they leave after it is used at once.

Threads of a large model wait for longer, and waking them each time would take a tenth of its speed on a quiet machine.
What keeps its speed beside others is that none of its threads is moved to the processor of another: see `places`.
"""

from __future__ import annotations

import os
from pathlib import Path

SPIN_TURNS = 5000  # some 0.3 ms; with 1 000, threads that are alone on the machine sleep as well
LARGE_BYTES = 256 << 20  # of weights
WEIGHTS = ("*.safetensors", "*.gguf")


def wait_briefly(model_path: str) -> None:
    """Set what GNU's OpenMP reads as torch loads it, unless OMP_WAIT_POLICY or GOMP_SPINCOUNT is set already.

    Does nothing for a folder with more than `LARGE_BYTES` of weights, in safetensors or in a GGUF file.
    """
    folder = Path(model_path)
    weights = (file for kind in WEIGHTS for file in folder.glob(kind))
    if (
        "OMP_WAIT_POLICY" in os.environ
        or sum(file.stat().st_size for file in weights) > LARGE_BYTES
    ):
        return
    os.environ.setdefault("GOMP_SPINCOUNT", str(SPIN_TURNS))


def waits_long() -> bool:
    """Whether a thread that waits keeps its processor for milliseconds."""
    is_passive = os.environ.get("OMP_WAIT_POLICY", "").lower() == "passive"
    return "GOMP_SPINCOUNT" not in os.environ and not is_passive
