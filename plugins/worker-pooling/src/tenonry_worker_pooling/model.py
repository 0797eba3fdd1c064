"""A loaded model, and a batch of prompts through it. Worker process."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch

from tenonry.errors import ModelError
from tenonry_torch_base.weights import (
    check_complete,
    progress_only_on_a_terminal,
    weights_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PreTrainedModel

    from tenonry_worker_pooling.outline import Outline

CHECK_LENGTHS = (7, 3, 1)
# Of the greatest number: what rounding may do where padding changes the order of sums.
TOLERANCES = {torch.float32: 1e-4, torch.float16: 0.02, torch.bfloat16: 0.1}


def load_module(
    found: Outline,
    path: str,
    dtype: torch.dtype,
    device: torch.device,
    seed: int,
) -> PreTrainedModel:
    """The model with its weights, in evaluation mode; random ones without a checkpoint. Raises ModelError."""
    kind = type(found.whole)
    with progress_only_on_a_terminal(), weights_of(found.architecture, path):
        if found.checkpoint is None:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                model = kind._from_config(found.config, dtype=dtype, **found.build)  # noqa: SLF001
        else:
            model, info = kind.from_pretrained(
                path,
                config=found.config,
                dtype=dtype,
                local_files_only=True,
                use_safetensors=True,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
                **found.build,
            )
            check_complete(info, path, found.architecture)
    placed: PreTrainedModel = model.to(device).eval().requires_grad_(False)
    return placed


class PoolingModel:
    """Prompts in, one f32 vector of each out: a pooled hidden state, or the numbers of the head."""

    def __init__(self, module: PreTrainedModel, found: Outline) -> None:
        """Raises ModelError when the model's output is not one state for each token, or depends on chance."""
        self.module = module
        self.mode = found.mode
        self.has_head = found.activation is not None
        self._architecture = found.architecture
        takes = inspect.signature(module.forward).parameters
        self._takes_types = "token_type_ids" in takes
        self._takes_mask = "attention_mask" in takes
        self._takes_cache = "use_cache" in takes
        self._types = int(getattr(found.config, "type_vocab_size", 0) or 0)
        pad = getattr(found.config.get_text_config(), "pad_token_id", None)
        self._pad = pad if isinstance(pad, int) and pad >= 0 else 0
        # A head of a decoder finds the last token by the padding id.
        self.batches = self._takes_mask and (not self.has_head or isinstance(pad, int))

    @torch.inference_mode()
    def run(
        self,
        prompts: Sequence[torch.Tensor],
        pair_starts: Sequence[int],
    ) -> torch.Tensor:
        """Prompts i64[Li], the longest first; f32[N, D]."""
        device = self.module.device
        lengths = torch.tensor([len(prompt) for prompt in prompts])
        longest = int(lengths.max())
        ids = torch.full((len(prompts), longest), self._pad)
        types = torch.zeros_like(ids)
        for place, (prompt, start) in enumerate(
            zip(
                prompts,
                pair_starts,
                strict=True,
            )
        ):
            ids[place, : len(prompt)] = prompt
            if start:
                types[place, start : len(prompt)] = 1
        mask = (torch.arange(longest) < lengths[:, None]).to(device)
        inputs: dict[str, Any] = {"input_ids": ids.to(device), "return_dict": True}
        if self._takes_mask:
            inputs["attention_mask"] = mask.long()
        if self._takes_types and self._types > 1:
            inputs["token_type_ids"] = types.to(device)
        if self._takes_cache:
            inputs["use_cache"] = False
        outputs = self.module(**inputs)
        if self.has_head:
            return outputs.logits.float()
        return self._pooled(
            outputs.last_hidden_state,
            mask,
            lengths.to(device),
        )

    def _pooled(
        self,
        states: torch.Tensor,
        mask: torch.Tensor,
        lengths: torch.Tensor,
    ) -> torch.Tensor:
        """States [N, L, D]; f32[N, D]."""
        if self.mode == "cls":
            return states[:, 0].float()
        if self.mode == "lasttoken":
            rows = torch.arange(len(states), device=states.device)
            return states[rows, lengths - 1].float()
        total = states.float().masked_fill(~mask[:, :, None], 0).sum(1)
        return total / lengths[:, None]

    @torch.inference_mode()
    def check(self, vocab_size: int, width: int, longest: int) -> None:
        """Compare a padded batch with its prompts one at a time; rows are computed alone where that differs.

        Raises ModelError, also for what the model's own code raises.
        """
        generator = torch.Generator().manual_seed(0)
        prompts = [
            torch.randint(
                vocab_size,
                (min(length, longest),),
                generator=generator,
            )
            for length in CHECK_LENGTHS
        ]
        starts = [0] * len(prompts)
        try:
            alone = torch.cat([self.run([prompt], [0]) for prompt in prompts])
            again = torch.cat([self.run([prompt], [0]) for prompt in prompts])
            together = self.run(prompts, starts) if self.batches else alone
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # any class: it is the model's code
            raise ModelError(
                f"{type(self.module).__name__} cannot run on worker 'pooling': its forward fails with "
                f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            ) from error
        name = type(self.module).__name__
        if alone.shape != (len(prompts), width):
            raise ModelError(
                f"{name} cannot run on worker 'pooling': it gives {list(alone.shape)} numbers for {len(prompts)} "
                f"prompts, its config.json says {width} each"
            )
        if not torch.equal(alone, again) or not alone.isfinite().all():
            raise ModelError(
                f"{name} cannot run on worker 'pooling': its output for random tokens is not finite, or not the same "
                "twice; try --dtype float32, and look at its weights"
            )
        scale = alone.abs().max().clamp(min=1e-6)
        tolerance = TOLERANCES[self.module.dtype]
        if ((together - alone).abs().max() / scale) > tolerance:
            self.batches = False
