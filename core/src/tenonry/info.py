"""Model facts known to the kernel, resolved once by the `tenonry_resolve_model` hook, never weights.

Made in the front end and sent as text to every process; nothing here needs torch.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tenonry.errors import PluginFault
from tenonry.kv_cache import KVCacheGroup


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of one model.

    `path` is a local folder; `commit` the resolved revision of a hub model ("" for a folder). `max_model_len` is the
    longest sequence supported by the model, in tokens. `eos_token_ids` end a generation. `default_sampling` holds
    fields of SamplingParams recommended by the model's authors. `needs_lockstep`: data-parallel engines must step
    together (expert layers that span ranks).
    """

    name: str
    path: str
    architecture: str
    max_model_len: int
    vocab_size: int
    commit: str = ""
    tokenizer_path: str = ""
    eos_token_ids: tuple[int, ...] = ()
    default_sampling: dict[str, Any] = {}
    needs_lockstep: bool = False
    dtype: str = "float32"


class WorkerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Model facts that a worker finds before it reads a weight (`Worker.examine`), of all ranks together.

    `worker` is the name of the worker that would serve it: a worker that delegates returns the other one's facts, with
    the reasons of rejected workers by name in `refused`. `groups` are what `Worker.kv_cache_groups` reports if one rank
    holds the whole model. `num_parameters` counts shared weights once; `weight_bytes` is their size in memory,
    `stored_bytes` the size of the tensors read from the model's files (0 with random weights). `features` are plain
    values by name: "dtype" (of the computation), "tensor_parallel" (sizes), "pipeline_parallel" (the most stages),
    "prefix_caching", "lora", and further facts of the worker; a missing one is unknown.
    """

    architecture: str
    worker: str = ""
    refused: dict[str, str] = {}
    model_type: str = ""
    groups: tuple[KVCacheGroup, ...] = ()
    num_parameters: int = 0
    weight_bytes: int = 0
    stored_bytes: int = 0
    features: dict[str, Any] = {}


class PluginRecord(msgspec.Struct, frozen=True, order=True, omit_defaults=True):
    """One plugin, installed or in use. `target` is "module:Class", or a module.

    Of a plugin in a loose file, `source` and `path` hold its text and where it was read, and the module is named after
    the text's sha256. `options` are the user's, before validation.
    """

    kind: str
    name: str
    target: str
    distribution: str = ""
    version: str = ""
    source: str = ""
    path: str = ""
    options: dict[str, Any] = {}

    def label(self) -> str:
        """Return the name for messages, with the origin."""
        origin = f"{self.distribution} {self.version}" if self.distribution else "no distribution"
        place = self.path or f"{self.target}, {origin}"
        return f"{self.kind.replace('_', ' ')} '{self.name}' ({place})"

    def fault(self, call: str, cause: BaseException) -> PluginFault:
        """Return the error for a call of this plugin that raised `cause`."""
        return PluginFault(self.name, self.distribution, self.version, call, cause)

    def public(self) -> PluginRecord:
        """Return the record without options, which may be secrets, and without the text of a file."""
        return msgspec.structs.replace(self, source="", path="", options={})


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Facts learnt at start-up; replaced as a whole when they change. `num_gpu_blocks` is the sum over engines.

    `tasks`: supported tasks of PoolingParams, with the number of values in each result; a model with any does not
    generate. `usage`: the configuration in use, as plain values: non-default settings without options of plugins, and
    facts learnt at start-up. It is for stat loggers, and is never sent from the machine.
    """

    model: str
    served_model_name: str
    max_model_len: int
    num_gpu_blocks: int
    block_size: int
    engine_indexes: tuple[int, ...] = (0,)
    plugins: tuple[PluginRecord, ...] = ()
    usage: dict[str, Any] = {}
    tasks: dict[str, int] = {}
