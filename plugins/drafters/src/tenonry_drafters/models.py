"""Worker service for drafters with `needs = {"models"}`: a second model, run as the worker runs its own. Worker
process.

Light: the worker implements it, and a drafter handles tokens alone. The worker decides which K/V are kept, and where
they are truncated: the next token is a function of the passed history alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    I32 = NDArray[np.int32]

MODELS = "models"  # in `Drafter.needs`
NO_TOKEN = -1


class NextTokens(NamedTuple):
    """The likeliest next token of R histories, `token_ids` i32[R], and how likely each is, `probability` f32[R].

    NO_TOKEN, with probability 0, where the model cannot continue: the history is too long for it, or holds ids that it
    does not have.
    """

    token_ids: I32
    probability: NDArray[np.float32]


class DraftModel(Protocol):
    """A model of the same vocabulary as the worker's own."""

    def next_tokens(self, rows: Sequence[int], histories: Sequence[I32]) -> NextTokens:
        """Next token of each of `histories` i32[n ≥ 1], which belong to different `rows`.

        K/V of a row are kept between calls for the common prefix of its histories; the rest is computed. Histories are
        read only, and need not exist after the call. The number of rows per call is at most that of the worker's calls
        of a drafter.
        """
        ...

    def leave(self, row: int) -> None:
        """Drop the state of a row."""
        ...


class DraftModels(Protocol):
    """Opens draft models."""

    def open(self, name: str, kv_cache_bytes: int) -> DraftModel:
        """The model of a folder, a registered name or a hub id, loaded. `kv_cache_bytes`: bound of its K/V.

        Raises ModelError or ConfigError for one that cannot be run, or whose vocabulary is another.
        """
        ...
