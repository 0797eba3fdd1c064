"""Built-in runner features, and their order. Worker process.

The order matters in two places. `PromptLogprobs` comes first: it selects the tokens of the last layer, which
`AdapterRows`, the last feature, reads to assign adapters there, and its selection remains valid for a pass that ran out
of memory in a later feature. `StateSnapshots` comes before anything that may read a row's state.
"""

from __future__ import annotations

from tenonry_worker_torch.runner.features.adapters import AdapterRows
from tenonry_worker_torch.runner.features.images import ImageRows, NoImages
from tenonry_worker_torch.runner.features.pooling import Pooling
from tenonry_worker_torch.runner.features.prompt_logprobs import PromptLogprobs
from tenonry_worker_torch.runner.features.row_lengths import RowLengths
from tenonry_worker_torch.runner.features.states import StateSnapshots

OWN_FEATURES = (
    PromptLogprobs,
    StateSnapshots,
    RowLengths,
    NoImages,
    ImageRows,
    Pooling,
    AdapterRows,
)

__all__ = ["OWN_FEATURES"]
