"""Requirements and capabilities of a model, from config.json and headers; no weight is read. Worker process.

The model is built without storage and run once on the `meta` device: its own code shows how each layer calls attention.
"""

from __future__ import annotations

import copy
import logging
from typing import TYPE_CHECKING, Any

import msgspec

from tenonry.errors import ConfigError, ModelError
from tenonry.info import WorkerFacts
from tenonry_torch_base.attention.base import refusal_of
from tenonry_torch_base.attention.groups import layer_groups
from tenonry_torch_base.attention.kv_storage import AUTO, STORAGES
from tenonry_torch_base.device import choose_dtype
from tenonry_torch_base.meta_run import MetaRun
from tenonry_torch_base.parallel.groups import Link, Parallel, TensorGroup, alone
from tenonry_torch_base.parallel.plan import pipeline_plan
from tenonry_torch_base.parallel.tensor import check_heads, tensor_plan
from tenonry_torch_base.settings import torch_settings
from tenonry_torch_base.text_part import text_stack
from tenonry_worker_torch.kv_groups import kv_groups
from tenonry_worker_torch.loading.image_mask import mark_spans
from tenonry_worker_torch.loading.linear_layers import linear_layers
from tenonry_worker_torch.loading.probe import probe
from tenonry_worker_torch.loading.rank_model import RankModel
from tenonry_worker_torch.loading.rotary_lengths import follow_lengths

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch
    from transformers import PreTrainedModel

    from tenonry.config import EngineConfig
    from tenonry.kv_cache import KVCacheGroup
    from tenonry_torch_base.attention.base import AttentionBackend
    from tenonry_torch_base.checkpoint import Checkpoint
    from tenonry_worker_torch.loading.load import CheckpointInfo

logger = logging.getLogger("tenonry.worker")

MAX_TENSOR_PARALLEL = 16
MAX_POSITIONS = 1 << 17  # of a model that names no limit


def examine(
    found: CheckpointInfo,
    config: EngineConfig,
    device: torch.device,
    backend: type[AttentionBackend],
    *,
    window_groups: bool = False,
) -> WorkerFacts:
    """Facts of a supported model. Raises ModelError or ConfigError as loading would."""
    known = known_facts(found, config, device)
    dtype = choose_dtype(config.dtype, found.whole.config, device)
    whole = found.whole
    text = whole.config.get_text_config()
    max_model_len = config.max_model_len or getattr(text, "max_position_embeddings", None)
    groups = _groups(
        whole,
        dtype,
        device,
        backend,
        max_model_len or MAX_POSITIONS,
        kv_cache_dtype=torch_settings(config).kv_cache_dtype,
        window_groups=window_groups,
        is_shown_images=config.max_images > 0,
    )
    notes = [*known.features.get("notes", ()), *_latent_notes(text, groups, dtype)]
    of_cache = {"notes": notes} if notes else {}
    ranks = {
        "tensor_parallel": tensor_parallel_sizes(whole, found.checkpoint),
        "pipeline_parallel": max_stages(whole),
    }
    return with_groups(
        msgspec.structs.replace(known, features=known.features | ranks | of_cache), groups, config
    )


def _latent_notes(text: Any, groups: Sequence[KVCacheGroup], dtype: torch.dtype) -> Iterator[str]:
    """Size of multi-head latent attention (arXiv:2405.04434, section 2.1) here, and of its latents."""
    rank = getattr(text, "kv_lora_rank", None)
    kept = sum(group.bytes_per_token for group in groups)
    if not rank or not kept:
        return
    width = int(rank) + int(getattr(text, "qk_rope_head_dim", 0) or 0)
    latent = width * int(text.num_hidden_layers) * dtype.itemsize
    yield (
        f"multi-head latent attention: K and V of every head are kept, {kept:,} bytes per token; the latents alone "
        f"would take {latent:,}"
    )


def known_facts(found: CheckpointInfo, config: EngineConfig, device: torch.device) -> WorkerFacts:
    """Facts known without running the model: all except its KV groups and the supported numbers of ranks."""
    dtype = choose_dtype(config.dtype, found.whole.config, device)
    num_parameters = sum(weight.numel() for weight in found.whole.parameters())
    checkpoint = found.checkpoint
    of_files = {} if checkpoint is None else checkpoint.features
    kept = torch_settings(config).kv_cache_dtype
    of_cache = {} if kept == AUTO else {"kv_cache_dtype": kept}
    return WorkerFacts(
        architecture=found.architecture,
        worker="torch",
        model_type=str(found.whole.config.model_type),
        num_parameters=num_parameters,
        weight_bytes=num_parameters * dtype.itemsize,
        stored_bytes=0 if checkpoint is None else checkpoint.num_bytes,
        features={
            "dtype": str(dtype).removeprefix("torch."),
            "quantization": [] if found.quantised is None else [found.quantised.quantisation.name],
            "lora": bool(linear_layers(found.whole)),
            **of_files,
            **of_cache,
        },
    )


def with_groups(
    known: WorkerFacts, groups: Sequence[KVCacheGroup], config: EngineConfig
) -> WorkerFacts:
    """Add the KV groups, and whether prefixes are shared: groups with state share them only with snapshots."""
    shares = {"full": True, "sliding": True, "recurrent": config.state_cache_memory_bytes != 0}
    features = dict(known.features)
    if groups:
        features["prefix_caching"] = config.enable_prefix_caching and all(
            shares.get(group.kind, False) for group in groups
        )
    return msgspec.structs.replace(known, groups=tuple(groups), features=features)


def _groups(
    whole: PreTrainedModel,
    dtype: torch.dtype,
    device: torch.device,
    backend: type[AttentionBackend],
    max_model_len: int,
    *,
    kv_cache_dtype: str,
    window_groups: bool,
    is_shown_images: bool,
) -> list[KVCacheGroup]:
    """Return the KV groups; none if the model's code needs values to run, so that they are known only after loading."""
    model = copy.deepcopy(whole).to(dtype).eval()
    model.set_experts_implementation("batched_mm")  # independent of the chosen experts
    vocab_size = int(model.config.get_text_config().vocab_size)
    followed = follow_lengths(model, max_model_len)
    try:
        with MetaRun():
            found = probe(model, vocab_size, alone(), max_model_len)
    except (ModelError, ConfigError):
        raise
    except Exception as error:
        logger.debug("the run on device meta failed", exc_info=True)
        logger.info("%s needs its weights to show its layers: %s", type(whole).__name__, error)
        return []
    if is_shown_images:
        mark_spans(model, found.specs)
    storage = STORAGES[kv_cache_dtype]
    if reason := refusal_of(backend, found.specs, dtype, device, storage):
        raise ConfigError(
            f"attention backend '{backend.name}' cannot run {type(whole).__name__}: {reason}"
        )
    groups = layer_groups(found.specs, backend, by_window=window_groups)
    lengths = None if followed is None else followed[1]
    return kv_groups(found.specs, storage(dtype), backend, found.states, groups, lengths)


def tensor_parallel_sizes(
    whole: PreTrainedModel, checkpoint: Checkpoint | None = None
) -> list[int]:
    """Every number of ranks up to 16 that the model's layers, and the tensors that are stored for them, can be cut for;
    tried on the model without storage.
    """
    sizes = range(2, MAX_TENSOR_PARALLEL + 1)
    return [1, *(size for size in sizes if _cuts(whole, checkpoint, size))]


def _cuts(whole: PreTrainedModel, checkpoint: Checkpoint | None, size: int) -> bool:
    try:
        layers, _ = tensor_plan(whole, size)
        check_heads(whole, layers, size)
        part = RankModel(whole, whole.config, Parallel(TensorGroup(0, size), Link()))
        if checkpoint is not None:
            part.parts(checkpoint)
    except ModelError:
        return False
    return True


def max_stages(whole: PreTrainedModel) -> int:
    """Maximum pipeline stages: one per layer of the stack, or 1 for a model without a plan."""
    try:
        _, name, _ = pipeline_plan(whole, 2)
    except ModelError:
        return 1
    _, stack = text_stack(whole)
    layers: Any = getattr(stack, name)
    return len(layers)
