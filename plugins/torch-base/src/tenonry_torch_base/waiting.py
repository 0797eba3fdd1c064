"""Spin time of torch's threads before they sleep. Without torch.

A step of a model shares out work some hundred times, and each time the first thread to finish waits for the last. If
another process occupies a processor, Linux may put two of these threads on one of the others: then the spinning one
blocks the other until its time slice ends. By default GNU's OpenMP spins for some milliseconds each time, so with two
busy processes on two processors a small model nearly stops. A twentieth of that is long enough for threads that really
run in parallel, and frees the processor soon for others.

Threads of a large model spin longer: waking them each time would cost a tenth of its speed on an idle machine. On a
busy machine, pinning preserves its speed: see `places`.
"""

from __future__ import annotations

import os
from pathlib import Path

SPIN_TURNS = 5000  # some 0.3 ms; with 1 000, threads that are alone on the machine sleep as well
LARGE_BYTES = 256 << 20  # of weights
WEIGHTS = ("*.safetensors", "*.gguf")


def wait_briefly(model_path: str) -> None:
    """Set the environment that GNU's OpenMP reads as torch loads it, unless OMP_WAIT_POLICY or GOMP_SPINCOUNT is set
    already.

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
    """Return True if a waiting thread occupies its processor for milliseconds."""
    is_passive = os.environ.get("OMP_WAIT_POLICY", "").lower() == "passive"
    return "GOMP_SPINCOUNT" not in os.environ and not is_passive
