"""Random numbers that depend only on (seed, output position, draw). Pure numpy; worker process.

Counter-based: stateless, so a request samples the same tokens in any batch and chunks, and after preemption. The
mixer is the finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014, with Stafford's constants), applied to the
counter and then, keyed by the seed, once more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_DRAW = np.uint64(0xD1B54A32D192ED03)
_M1 = np.uint64(0xBF58476D1CE4E5B9)
_M2 = np.uint64(0x94D049BB133111EB)


def mix(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Bijection of 64-bit words in which every input bit flips about half of the output bits."""
    value = value ^ (value >> np.uint64(30))
    value = value * _M1
    value = value ^ (value >> np.uint64(27))
    value = value * _M2
    return value ^ (value >> np.uint64(31))


def uniforms(
    seed: NDArray[np.uint64], position: NDArray[np.int32], draw: int = 0
) -> NDArray[np.float64]:
    """One number in (0, 1) per row: 53 random bits, never 0 and never 1."""
    with np.errstate(over="ignore"):
        counter = position.astype(np.uint64) * _GOLDEN
        counter = counter + np.uint64(draw) * _DRAW + _GOLDEN
        bits = mix(mix(counter) ^ mix(seed + _GOLDEN))
    top = (bits >> np.uint64(11)).astype(np.float64)
    return (top + 0.5) * 2.0**-53
