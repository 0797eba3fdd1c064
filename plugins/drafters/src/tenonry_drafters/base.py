"""Interface of drafters: the extension point `tenonry.drafters`. Worker process, on the rank that samples.

A drafter proposes the next tokens. The worker runs the model once over the pending token and the drafts, and samples at
each position, with the randomness that belongs to it, from the model's own logits; a draft is accepted if it is the
sampled token. So a drafter changes the speed of tokens, and never the tokens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from tenonry.interfaces.plugin import Plugin, PluginContext

if TYPE_CHECKING:
    from tenonry.info import ModelInfo
    from tenonry.step import NewRow
    from tenonry_drafters.models import DraftModels

I32 = NDArray[np.int32]


@dataclass(slots=True)
class DrafterContext(PluginContext):
    """`vocab_size`: ids are below it. `max_drafts`: maximum draft tokens of a row per verification. `models`: for a
    drafter that needs them; None for others.
    """

    model: ModelInfo
    _: KW_ONLY
    vocab_size: int
    max_num_seqs: int
    max_model_len: int
    max_drafts: int
    models: DraftModels | None = None


class Drafter(Plugin[DrafterContext], ABC):
    """Proposes tokens of decoding rows. Raises ConfigError from its constructor if it cannot work.

    Order of calls: constructor; `enter` when a row starts or comes back from preemption, `leave` when it goes; between
    them, in any pass of the model and for any of the rows, `propose`, and `accept` after each pass that had proposals.
    Rows may also decode without proposals, if other requests are waiting, or drafts were rejected too often.

    Drafts for a row depend on that row alone: other rows belong to other users, and timing must not reveal their
    contents.

    `needs`: services of the worker beyond tokens. A worker rejects unknown ones by name. The worker `torch` supports
    "models": it runs a second model for the drafter (`DrafterContext.models`).

    A drafter that raises, or proposes ids outside of the vocabulary, is reported once, and disabled.
    """

    needs: ClassVar[frozenset[str]] = frozenset()

    def enter(self, new: NewRow) -> None:
        """A row holds another request, or the same one again; state of the row is void."""

    def leave(self, row: int) -> None:
        """A row is free."""

    @abstractmethod
    def propose(
        self, rows: Sequence[int], histories: Sequence[I32], most: Sequence[int]
    ) -> Sequence[I32]:
        """Draft the next tokens of each of `rows`: one array i32[n], n ≤ `most[i]`, per row; empty for no draft.

        `histories[i]` i32[n ≥ 1]: all tokens of the row, prompt and output; read only, and valid during the call.
        """

    def accept(self, row: int, num_drafts: int, num_accepted: int) -> None:
        """`num_drafts`: number of verified draft tokens of `row`; `num_accepted`: number of leading ones that were
        accepted.
        """
