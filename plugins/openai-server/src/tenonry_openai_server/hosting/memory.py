"""Memory of a model before it is loaded, from its configuration and the headers of its files. Light; front end.

The estimate is an upper bound for weights and fixes the size of the KV cache, so that the sum over loaded models
holds. On a GPU a model without `kv_cache_memory_bytes` takes its `gpu_memory_utilization` of the budget.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from math import prod
from pathlib import Path

import psutil

from tenonry.config import EngineConfig
from tenonry.engine.kv_plan import CPU_POOL_BYTES, DEFAULT_BLOCK_SIZE
from tenonry.errors import ConfigError, ModelError
from tenonry.gpus import visible_devices
from tenonry.info import ModelInfo
from tenonry_hf_hub import StoredTensor, find_weights, read_headers, read_json, text_config

CGROUP = Path("/sys/fs/cgroup")
GIB = 1 << 30
PROCESS_BYTES = 512 << 20  # of an engine process: interpreter, libraries, buffers of a step
GPU_PROCESS_BYTES = 1 << 30  # the context of CUDA and the buffers of a step
POOL_SHARE = 4  # fraction of the memory left by weights for a KV cache: 1/4, as for a single engine
FLOATS = frozenset({"F16", "BF16", "F32", "F64"})
FLOAT32_BYTES = 4
GGUF = ".gguf"
# Types of a GGUF file that a worker computes with; matrices of others are dequantised.
STORED = frozenset({"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"})
MATRIX = 2  # dimensions
EMBEDDING = "embed_tokens.weight"
SMI = ("nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits")


@dataclass(frozen=True, slots=True)
class ModelMemory:
    """Bytes of a model, on the host or on each of its GPUs. `kv_cache_of_rank`: size passed to an engine; 0: its own
    choice.
    """

    weights: int
    kv_cache: int
    process: int
    kv_cache_of_rank: int = 0

    @property
    def total(self) -> int:
        return self.weights + self.kv_cache + self.process

    def __str__(self) -> str:
        parts = f"weights {gib(self.weights)}, KV cache {gib(self.kv_cache)}, process {gib(self.process)}"
        return f"{gib(self.total)} ({parts})"


def gib(size: int) -> str:
    """A size for messages."""
    return f"{size / GIB:.2f} GiB"


def estimate(config: EngineConfig, model: ModelInfo, budget: int) -> ModelMemory:
    """Estimate the memory of a model within a budget. Raises ModelError for unreadable files."""
    weights = weight_bytes(config, model)
    given = _given_cache(config, model)
    ranks = config.world_size * config.data_parallel_size
    if config.may_use_gpus:
        of_rank = weights // config.world_size
        if given:
            return ModelMemory(of_rank, given, GPU_PROCESS_BYTES)
        share = int(budget * config.gpu_memory_utilization)
        cache = max(0, share - of_rank - GPU_PROCESS_BYTES)
        return ModelMemory(of_rank, cache, GPU_PROCESS_BYTES, cache)
    weights *= config.data_parallel_size
    process = PROCESS_BYTES * ranks
    left = max(0, budget - weights - process)
    of_rank = given or min(
        CPU_POOL_BYTES, left // POOL_SHARE // ranks, useful_cache_bytes(config, model)
    )
    return ModelMemory(weights, of_rank * ranks, process, of_rank)


def with_planned_cache(config: EngineConfig, memory: ModelMemory) -> EngineConfig:
    """Settings of an engine whose KV cache has the planned size.

    The plan has applied the share of a GPU: the engine would subtract other models from it, and find no memory left.
    """
    if memory.kv_cache_of_rank and not config.num_gpu_blocks_override:
        config = config.replaced(kv_cache_memory_bytes=memory.kv_cache_of_rank)
    is_fixed = config.kv_cache_memory_bytes or config.num_gpu_blocks_override
    if is_fixed and config.may_use_gpus:
        config = config.replaced(gpu_memory_utilization=1.0)
    return config


def weight_bytes(config: EngineConfig, model: ModelInfo) -> int:
    """Bytes of all weights as the worker holds them; 0 where random ones have no files."""
    try:
        tensors = read_headers(find_weights(model.path))
    except ModelError:
        if config.load_format == "dummy":
            return 0
        raise
    size = _item_size(config, model)
    return sum(_bytes_in_memory(name, tensor, size) for name, tensor in tensors.items())


def _bytes_in_memory(name: str, tensor: StoredTensor, item_size: int) -> int:
    """Bytes of a tensor. Matrices of a GGUF file keep its bits, but in float32; embeddings have floats besides."""
    converted = prod(tensor.shape) * item_size
    if tensor.dtype in FLOATS:
        return converted
    if tensor.file.suffix != GGUF:
        return tensor.num_bytes
    is_stored = tensor.dtype in STORED and len(tensor.shape) == MATRIX
    if not is_stored or item_size == FLOAT32_BYTES:
        return converted
    return tensor.num_bytes + (converted if name.endswith(EMBEDDING) else 0)


def _item_size(config: EngineConfig, model: ModelInfo) -> int:
    dtype = model.dtype if config.dtype == "auto" else config.dtype
    return FLOAT32_BYTES if dtype == "float32" else 2


def _given_cache(config: EngineConfig, model: ModelInfo) -> int:
    """Bytes of a rank's KV cache if settings fix them, else 0."""
    if config.num_gpu_blocks_override:
        tokens = config.num_gpu_blocks_override * (config.block_size or DEFAULT_BLOCK_SIZE)
        return tokens * token_bytes(config, model)
    return config.kv_cache_memory_bytes or 0


def useful_cache_bytes(config: EngineConfig, model: ModelInfo) -> int:
    """Bytes of a rank's KV cache that all sequences together can fill."""
    longest = min(config.max_model_len or model.max_model_len, model.max_model_len)
    of_token = token_bytes(config, model)
    return config.max_num_seqs * longest * of_token if of_token else CPU_POOL_BYTES


def token_bytes(config: EngineConfig, model: ModelInfo) -> int:
    """Bytes of K and V of one token on one rank; 0 for a model whose configuration does not have the usual sizes."""
    facts = text_config(read_json(Path(model.path) / "config.json"))
    try:
        heads = int(facts["num_attention_heads"])
        width = facts.get("head_dim") or int(facts["hidden_size"]) // heads
        kv_heads = facts.get("num_key_value_heads") or heads
        numbers = (int(facts["num_hidden_layers"]), int(kv_heads), int(width))
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        return 0
    return 2 * prod(numbers) * _item_size(config, model) // config.world_size


def available_memory(config: EngineConfig) -> int:
    """Bytes available on the device of the settings: main memory, or the GPU with the least. Raises ConfigError."""
    return gpu_memory() if config.may_use_gpus else host_memory()


def host_memory(cgroup: Path = CGROUP) -> int:
    """Bytes of available main memory: the machine's, or the remainder of the control group's limit."""
    free = int(psutil.virtual_memory().available)
    try:
        limit, used = (
            (cgroup / name).read_text("ascii").strip() for name in ("memory.max", "memory.current")
        )
    except OSError:  # no control groups, or version 1
        return free
    return free if limit == "max" else max(0, min(free, int(limit) - int(used)))


def gpu_memory() -> int:
    """Bytes that are free on the visible GPU with the least. Raises ConfigError where nvidia-smi does not report it."""
    command = [*SMI, "--id=" + ",".join(visible_devices())]
    try:
        done = subprocess.run(
            command, capture_output=True, encoding="utf-8", timeout=30, check=True
        )
        return min(int(line) for line in done.stdout.split()) << 20
    except (OSError, ValueError, subprocess.SubprocessError):
        raise ConfigError(
            "model_memory_budget: nvidia-smi does not report the free memory of the GPUs; give --model-memory-budget"
        ) from None
