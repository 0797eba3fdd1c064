"""A loaded model that pools: batches of prompts to vectors. Worker process."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from tenonry_torch_base.rope_lengths import depends_on_length, reset_tables
from tenonry_torch_base.seeded import seeded
from tenonry_torch_base.weights import progress_only_on_a_terminal, stored_model, weights_of
from tenonry_worker_torch.pooling.batches import FULL, BatchLimits
from tenonry_worker_torch.pooling.pooled import pool

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from tenonry_worker_torch.pooling.outline import Outline


def load_module(
    found: Outline, path: str, dtype: torch.dtype, device: torch.device, seed: int
) -> PreTrainedModel:
    """The model with its weights, in evaluation mode; random ones without a checkpoint. Raises ModelError."""
    kind = type(found.whole)
    with progress_only_on_a_terminal(), weights_of(found.architecture, path):
        if found.checkpoint is None:
            with seeded(seed):
                model = kind._from_config(found.config, dtype=dtype, **found.build)  # noqa: SLF001
        else:
            found.checkpoint.log()
            model = stored_model(
                path, found.whole, dtype, found.architecture, found.checkpoint, **found.build
            )
    placed: PreTrainedModel = model.to(device).eval().requires_grad_(False)
    return placed


class Pooler:
    """Prompts in, one f32 vector of each out: a pooled hidden state, or the numbers of the head."""

    def __init__(
        self, module: PreTrainedModel, found: Outline, dense: torch.nn.Module, batch_tokens: int
    ) -> None:
        """Set up the pooler. `dense`: layers after the pooling, f32[N, in] to f32[N, D]. `batch_tokens`: places of a
        padded batch.
        """
        self.module = module
        self._outline = found
        self._dense = dense
        self._batch_tokens = batch_tokens
        takes = inspect.signature(module.forward).parameters
        self._takes_types = "token_type_ids" in takes
        self._takes_mask = "attention_mask" in takes
        self._takes_cache = "use_cache" in takes
        self._types = int(getattr(found.config, "type_vocab_size", 0) or 0)
        pad = getattr(found.config.get_text_config(), "pad_token_id", None)
        self._pad = pad if isinstance(pad, int) and pad >= 0 else 0
        self._follows_length = depends_on_length(module)
        # A head of a decoder finds the last token by the padding id.
        can_pad = self._takes_mask and (found.activation is None or isinstance(pad, int))
        self.batches = can_pad and not self._follows_length

    @property
    def limits(self) -> BatchLimits:
        """Size of padded batches; one prompt each where batches would change results."""
        if not self.batches:
            return BatchLimits(1, 1)
        return BatchLimits(self._batch_tokens, FULL[self.module.device.type])

    @torch.inference_mode()
    def run(
        self, token_ids: torch.Tensor, lengths: torch.Tensor, pair_starts: torch.Tensor
    ) -> torch.Tensor:
        """f32[N, D] of ids i64[N, L], of which each row's first `lengths` i64[N] are its prompt.

        `pair_starts` i64[N]: where the second text of each begins, 0 for one text.
        """
        device = self.module.device
        places = torch.arange(token_ids.shape[1])
        mask = places < lengths[:, None]
        ids = token_ids.masked_fill(~mask, self._pad)
        inputs: dict[str, Any] = {"input_ids": ids.to(device), "return_dict": True}
        if self._takes_types and self._types > 1:
            starts = pair_starts[:, None]
            types = (places >= starts) & (starts > 0) & mask
            inputs["token_type_ids"] = types.long().to(device)
        mask = mask.to(device)
        if self._takes_mask:
            inputs["attention_mask"] = mask.long()
        if self._takes_cache:
            inputs["use_cache"] = False
        if self._follows_length:
            reset_tables(self.module)
        outputs = self.module(**inputs)
        if self._outline.activation is not None:
            return outputs.logits.float()
        states = outputs.last_hidden_state
        found: torch.Tensor = self._dense(
            pool(self._outline.modes, states, mask, lengths.to(device))
        )
        return found

    def finished(
        self, vectors: torch.Tensor, normalize: bool | None, dimensions: int | None
    ) -> torch.Tensor:
        """Return f32[N, D]: the activation of a head; else truncated to `dimensions`, and then normalised."""
        activation = self._outline.activation
        if activation is not None:
            return vectors if normalize is False else activation(vectors)
        if dimensions is not None:
            vectors = vectors[..., :dimensions]
        wanted = self._outline.normalize if normalize is None else normalize
        return functional.normalize(vectors, dim=-1) if wanted else vectors
