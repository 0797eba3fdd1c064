"""The worker half of a KV connector, and the KV tensors as it sees them. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tenonry.interfaces.kv_connector import KVConnector, KVConnectorContext, KVConnectorRole
from tenonry.plugin.manager import blamed, build_plugin

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tenonry.interfaces.worker import WorkerContext
    from tenonry.kv_cache import KVCacheConfig
    from tenonry.step import ModelRunnerOutput, SchedulerOutput
    from tenonry_worker_torch.attention.base import LayerCache
    from tenonry_worker_torch.model_runner import ModelRunner


class CacheBlocks:
    """A `BlockStore`: the bytes of a block are those of its K and V, layer by layer."""

    def __init__(self, caches: Sequence[LayerCache]) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        for number, cache in enumerate(caches):
            if cache.both is not None:
                self.tensors[f"layer.{number}"] = cache.both
            else:
                self.tensors |= {
                    f"layer.{number}.key": cache.key,
                    f"layer.{number}.value": cache.value,
                }

    @torch.inference_mode()
    def read(self, block_ids: Sequence[int]) -> list[bytes]:
        return [
            b"".join(part.cpu().numpy().tobytes() for part in self._parts(block))
            for block in block_ids
        ]

    @torch.inference_mode()
    def write(self, block_ids: Sequence[int], data: Sequence[bytes]) -> None:
        """Raises ValueError for contents that are not the size of a block."""
        for block, content in zip(block_ids, data, strict=True):
            parts = list(self._parts(block))
            if len(content) != sum(map(len, parts)):
                raise ValueError(f"{len(content)} bytes for a KV block of {sum(map(len, parts))}")
            for part, new in zip(
                parts, _tensor(content).split([len(part) for part in parts]), strict=True
            ):
                part.copy_(new)

    def _parts(self, block: int) -> Iterator[torch.Tensor]:
        return (tensor[block].view(torch.uint8).view(-1) for tensor in self.tensors.values())


def _tensor(content: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


class ConnectorHalf:
    """Built when the KV tensors exist; each step goes through it, and is waited for, since a save comes after it."""

    def __init__(
        self,
        context: WorkerContext,
        kv_cache: KVCacheConfig,
        runner: ModelRunner,
    ) -> None:
        self._entry = entry = context.kv_connector
        self._runner = runner
        self._connector: KVConnector = build_plugin(
            entry,
            KVConnectorContext(
                context.config,
                context.model,
                KVConnectorRole.WORKER,
                engine_id=context.engine_id,
                kv_cache=kv_cache,
                rank=context.rank,
            ),
        )
        with blamed(entry, "bind"):
            self._connector.bind(CacheBlocks(runner.kv_caches))

    def execute(self, output: SchedulerOutput) -> ModelRunnerOutput:
        """Load, compute, save; the answer names the transfers that ended."""
        connector = self._connector
        metadata = output.connector_metadata
        with blamed(self._entry, "load"):
            connector.load(metadata)
        result = self._runner.answer(output).result()
        with blamed(self._entry, "save"):
            connector.save(metadata)
        with blamed(self._entry, "poll"):
            result.transfers_done, result.transfers_failed = map(list, connector.poll())
        return result

    def shutdown(self) -> None:
        self._connector.shutdown()
