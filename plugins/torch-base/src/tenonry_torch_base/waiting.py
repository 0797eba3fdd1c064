"""How long the threads of torch wait for each other on a processor before they sleep. Without torch.

A step of a model shares out work some hundred times, and each time the first thread to finish waits for the last. Where
another process takes a processor, Linux may put two of these threads on one of those that are left: then the one that
waits keeps the other from running until its share of time is over. By default GNU's OpenMP waits in this way for some
milliseconds each time, so beside two busy processes on two processors hardly a token came. A twentieth of that is long
enough for threads that really run side by side, and what they leave after it is used at once.
"""

from __future__ import annotations

import os

SPIN_TURNS = 5000  # some 0.3 ms; with 1 000, threads that are alone on the machine sleep as well


def wait_briefly() -> None:
    """Set what GNU's OpenMP reads as torch loads it, unless OMP_WAIT_POLICY or GOMP_SPINCOUNT is set already."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", str(SPIN_TURNS))
