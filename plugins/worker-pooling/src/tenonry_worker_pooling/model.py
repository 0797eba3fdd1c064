"""A loaded model, and a batch of prompts through it. Worker process."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch

from tenonry.errors import ModelError
from tenonry_torch_base.finite import require_finite
from tenonry_torch_base.rope_lengths import depends_on_length, reset_tables
from tenonry_torch_base.seeded import seeded
from tenonry_torch_base.weights import progress_only_on_a_terminal, stored_model, weights_of
from tenonry_worker_pooling.packed import can_pack, pack_linears, put_back
from tenonry_worker_pooling.pooled import pool

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from tenonry_worker_pooling.outline import Outline

CHECK_LENGTHS = (7, 3, 1)
# Of the greatest number: what rounding may do where padding changes the order of sums.
TOLERANCES = {torch.float32: 1e-4, torch.float16: 0.02, torch.bfloat16: 0.1}


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


class PoolingModel:
    """Prompts in, one f32 vector of each out: a pooled hidden state, or the numbers of the head."""

    def __init__(self, module: PreTrainedModel, found: Outline, dense: torch.nn.Module) -> None:
        """`dense`: what follows the pooling, f32[N, in] to f32[N, D]."""
        self.module = module
        self.modes = found.modes
        self.has_head = found.activation is not None
        self._dense = dense
        takes = inspect.signature(module.forward).parameters
        self._takes_types = "token_type_ids" in takes
        self._takes_mask = "attention_mask" in takes
        self._takes_cache = "use_cache" in takes
        self._types = int(getattr(found.config, "type_vocab_size", 0) or 0)
        pad = getattr(found.config.get_text_config(), "pad_token_id", None)
        self._pad = pad if isinstance(pad, int) and pad >= 0 else 0
        self._follows_length = depends_on_length(module)
        # A head of a decoder finds the last token by the padding id.
        can_pad = self._takes_mask and (not self.has_head or isinstance(pad, int))
        self.batches = can_pad and not self._follows_length

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
        if self.has_head:
            return outputs.logits.float()
        states = outputs.last_hidden_state
        found: torch.Tensor = self._dense(pool(self.modes, states, mask, lengths.to(device)))
        return found

    def _alone(self, prompts: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """As `run`, one at a time."""
        rows = [
            self.run(prompt[None, :length], length[None], torch.zeros(1, dtype=torch.long))
            for prompt, length in zip(prompts, lengths, strict=True)
        ]
        return torch.cat(rows)

    @torch.inference_mode()
    def check(self, vocab_size: int, width: int, longest: int) -> None:
        """Compare a padded batch with its prompts one at a time; rows are computed alone where that differs.

        Raises ModelError, also for what the model's own code raises.
        """
        generator = torch.Generator().manual_seed(0)
        lengths = torch.tensor([min(length, longest) for length in CHECK_LENGTHS])
        shape = (len(lengths), int(lengths[0]))
        prompts = torch.randint(vocab_size, shape, generator=generator)
        name = type(self.module).__name__
        try:
            alone = self._alone(prompts, lengths)
            again = self._alone(prompts, lengths)
            together = (
                self.run(prompts, lengths, torch.zeros_like(lengths)) if self.batches else alone
            )
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # any class: it is the model's code
            raise ModelError(
                f"{name} cannot run on worker 'pooling': its forward fails with {type(error).__name__}: "
                f"{' '.join(str(error).split())[:300]}"
            ) from error
        if alone.shape != (len(prompts), width):
            raise ModelError(
                f"{name} cannot run on worker 'pooling': it gives {list(alone.shape)} numbers for {len(prompts)} "
                f"prompts, its config.json says {width} each"
            )
        require_finite(self.module, alone)
        if not torch.equal(alone, again):
            raise ModelError(
                f"{name} cannot run on worker 'pooling': its output for random tokens is not the same twice; try "
                "--dtype float32"
            )
        self.batches = self.batches and self._is_close(together, alone)
        if can_pack(self.module.dtype, self.module.device):
            self._pack(prompts, lengths, alone)

    def _is_close(self, found: torch.Tensor, expected: torch.Tensor) -> bool:
        scale = expected.abs().max().clamp(min=1e-6)
        return bool((found - expected).abs().max() / scale <= TOLERANCES[self.module.dtype])

    def _pack(self, prompts: torch.Tensor, lengths: torch.Tensor, expected: torch.Tensor) -> None:
        """Prepack linear layers, unless the model's own code then fails, or gives something else."""
        linears = pack_linears(self.module)
        try:
            is_same = self._is_close(self._alone(prompts, lengths), expected)
        except torch.OutOfMemoryError:
            raise
        except Exception:  # noqa: BLE001 - of any class: it is the model's code
            is_same = False
        if not is_same:
            put_back(self.module, linears)
