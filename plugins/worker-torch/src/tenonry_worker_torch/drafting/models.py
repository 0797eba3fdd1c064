"""Opens models that draft: found, compared with the model that is served, loaded and checked as that one was. Worker
process, on the rank that samples.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from tenonry.errors import ConfigError, ModelError
from tenonry_drafters.controller import MAX_ROWS
from tenonry_drafters.draft_slots import DraftSlots
from tenonry_hf_hub import read_json
from tenonry_hf_hub.facts import max_model_len as longest_of
from tenonry_hf_hub.locate import locate
from tenonry_torch_base.points import ATTENTION_BACKENDS, default_backend, resolve_class
from tenonry_torch_base.settings import torch_settings
from tenonry_worker_torch.build_model import build
from tenonry_worker_torch.build_plan import BuildPlan
from tenonry_worker_torch.drafting.draft_model import TorchDraftModel
from tenonry_worker_torch.drafting.vocabulary import vocabulary_difference
from tenonry_worker_torch.loading.load import load_model, look
from tenonry_worker_torch.loading.quantised import computes

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from tenonry.interfaces.worker import WorkerContext
    from tenonry_worker_torch.loaded_model import LoadedModel
    from tenonry_worker_torch.loading.load import CheckpointInfo

logger = logging.getLogger("tenonry.worker")

BLOCK_SIZE = 16
MIB = 1 << 20
DEVICE = torch.device("cpu")  # drafts are verified on CPUs only


class TorchDraftModels:
    """Draft models of one worker: `model` is the served one, for sequences of at most `max_model_len`."""

    def __init__(
        self,
        context: WorkerContext,
        model: LoadedModel,
        max_model_len: int,
        places: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._context = context
        self._served = model
        self._max_model_len = max_model_len
        self._places = places

    def open(self, name: str, kv_cache_bytes: int) -> TorchDraftModel:
        folder = self._find(name)
        try:
            found = look(str(folder), load_format="auto")
        except ModelError as error:
            raise ModelError(
                f"the draft model '{name}' cannot be run: {error}; name a causal language model that worker 'torch' "
                "runs"
            ) from error
        self._check(name, folder, found)
        longest = min(longest_of(read_json(folder / "config.json"), {}), self._max_model_len)
        model = self._load(folder, found, longest)
        if model.states is not None:
            raise ConfigError(
                f"the draft model '{name}' ({found.architecture}) has layers with a state per sequence, which cannot "
                "take guesses back; name one with attention alone"
            )
        slots = self._slots(name, model, longest, kv_cache_bytes)
        return TorchDraftModel(model, slots, self._served.vocab_size, self._places)

    def _find(self, name: str) -> Path:
        folder = locate(name).path
        if not (folder / "config.json").exists():
            raise ModelError(
                f"the draft model '{name}': {folder} has no config.json; it holds a tokenizer, but no model"
            )
        return folder

    def _check(self, name: str, folder: Path, found: CheckpointInfo) -> None:
        """Raise ConfigError if the two models' token ids have different meanings."""
        served = self._context.model
        difference = vocabulary_difference(
            Path(served.tokenizer_path or served.path),
            self._served.vocab_size,
            folder,
            int(found.whole.config.get_text_config().vocab_size),
        )
        if difference is not None:
            raise ConfigError(
                f"the draft model '{name}' has another vocabulary than {served.name}: {difference}; name a smaller "
                "model of the same family"
            )

    def _load(self, folder: Path, found: CheckpointInfo, longest: int) -> LoadedModel:
        """Load in the configured data type, with the fused layers and step kernels of the served model."""
        config = self._context.config
        module = load_model(
            str(folder),
            load_format="auto",
            dtype=config.dtype,
            device=DEVICE,
            seed=config.seed,
            found=found,
        )
        return build(
            module,
            BuildPlan(
                resolve_class(
                    ATTENTION_BACKENDS,
                    torch_settings(config).attention_backend or default_backend(DEVICE.type),
                    {},
                ),
                type(self._served.buffers)(DEVICE, 1),
                max_model_len=longest,
                fuse=getattr(self._context.options, "fuse", True)
                and not torch_settings(config).enforce_eager,
                skip_check=torch_settings(config).skip_model_check,
                kernels=self._served.kernels,
                quantisation=computes(found.quantised, DEVICE, module.dtype),
            ),
        )

    def _slots(
        self, name: str, model: LoadedModel, longest: int, kv_cache_bytes: int
    ) -> DraftSlots:
        """Allocate slots within the bytes. Raises ConfigError without one block for each row."""
        token_bytes = sum(
            layer.spec.bytes_per_token(model.dtype) for layer in model.layers.values()
        )
        num_blocks = kv_cache_bytes // (MAX_ROWS * BLOCK_SIZE * token_bytes)
        if num_blocks < 1:
            least = -(-MAX_ROWS * BLOCK_SIZE * token_bytes // MIB)
            raise ConfigError(
                f"kv_cache_mib={kv_cache_bytes // MIB} holds no block of {BLOCK_SIZE} tokens for each of {MAX_ROWS} "
                f"requests of the draft model '{name}'; use {least} or more"
            )
        length = min(longest, num_blocks * BLOCK_SIZE)
        logger.info(
            "Draft model %s: K/V of %d requests of up to %d tokens, at most %.4g MiB, "
            "allocated on use (limit: kv_cache_mib, now %d)",
            name,
            MAX_ROWS,
            length,
            MAX_ROWS * length * token_bytes / MIB,
            kv_cache_bytes // MIB,
        )
        return DraftSlots(MAX_ROWS, length, BLOCK_SIZE)
