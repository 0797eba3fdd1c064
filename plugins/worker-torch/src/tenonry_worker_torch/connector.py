"""The worker half of a KV connector, and its view of the KV tensors. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from tenonry.interfaces.kv_connector import KVConnector, KVConnectorContext, KVConnectorRole
from tenonry.plugin.manager import blamed, build_plugin
from tenonry.step import ModelRunnerOutput
from tenonry_torch_base.block_copies import BlockCopies, block_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tenonry.interfaces.worker import WorkerContext
    from tenonry.kv_cache import KVCacheConfig
    from tenonry.step import SchedulerOutput, StepFuture
    from tenonry_torch_base.attention.base import LayerCache
    from tenonry_worker_torch.runner.runner import ModelRunner


class CacheBlocks:
    """A `BlockStore`: a block consists of its K and V, layer by layer.

    `caches` are read in each call: sleep removes and replaces them. `writer` names the
    owner of the layout of K and V within a block.
    """

    def __init__(self, caches: Sequence[LayerCache], writer: str = "") -> None:
        self._caches = caches
        tensors = self.tensors
        shapes = [
            f"{name} {tensor.dtype} {tuple(tensor.shape[1:])} {tensor[0].stride()}"
            for name, tensor in tensors.items()
        ]
        self.layout = "; ".join([writer, *shapes])
        self._sizes = [block_bytes(tensor) for tensor in tensors.values()]
        device = next((tensor.device for tensor in tensors.values()), torch.device("cpu"))
        self._copies = BlockCopies(device)

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        tensors: dict[str, torch.Tensor] = {}
        for number, cache in enumerate(self._caches):
            if cache.both is not None:
                tensors[f"layer.{number}"] = cache.both
            else:
                tensors |= {f"layer.{number}.key": cache.key, f"layer.{number}.value": cache.value}
        return tensors

    @torch.inference_mode()
    def read(self, block_ids: Sequence[int]) -> list[bytes]:
        """Read blocks. Bytes of tensors on the CPU are copied once."""
        lines = self._lines()
        if lines is not None:
            return [b"".join([line[block] for line in lines]) for block in block_ids]
        return self._copies.read(list(self.tensors.values()), block_ids)

    @torch.inference_mode()
    def write(self, block_ids: Sequence[int], data: Sequence[bytes]) -> None:
        """Raises ValueError for contents that are not the size of a block, before any block has changed."""
        size = sum(self._sizes)
        for content in data:
            if len(content) != size:
                raise ValueError(f"{len(content)} bytes for a KV block of {size}")
        if len(block_ids) != len(data):
            raise ValueError(f"{len(data)} contents for {len(block_ids)} blocks")
        lines = self._lines()
        if lines is not None:
            for block, content in zip(block_ids, data, strict=True):
                self._put(lines, block, content)
            return
        self._copies.write(list(self.tensors.values()), block_ids, data)

    def _lines(self) -> list[NDArray[np.uint8]] | None:
        """Each tensor as its bytes, [blocks, bytes of a block], if all are in main memory, block by block.

        numpy copies them without the threads of torch, which the running step needs.
        """
        tensors = self.tensors.values()
        if not all(tensor.is_cpu and tensor.is_contiguous() for tensor in tensors):
            return None
        pairs = zip(tensors, self._sizes, strict=True)
        return [tensor.view(torch.uint8).view(-1, size).numpy() for tensor, size in pairs if size]

    def _put(self, lines: Sequence[NDArray[np.uint8]], block: int, content: bytes) -> None:
        found = np.frombuffer(content, np.uint8)
        start = 0
        for line in lines:
            end = start + line.shape[1]
            line[block] = found[start:end]
            start = end


def _named(result: ModelRunnerOutput, done: list[int], failed: list[int]) -> ModelRunnerOutput:
    result.transfers_done = done
    result.transfers_failed = failed
    return result


class TransferFuture:
    """A step under way whose answer will name these transfers."""

    def __init__(self, step: StepFuture, done: list[int], failed: list[int]) -> None:
        self._step = step
        self._done = done
        self._failed = failed

    def done(self) -> bool:
        return self._step.done()

    def result(self, timeout: float | None = None) -> ModelRunnerOutput:
        return _named(self._step.result(timeout), self._done, self._failed)


class ConnectedSteps:
    """Steps of a runner with transfers around them: loads before, saves after; also steps without rows.

    A multi-token step is one step here, hence a wrapper of the runner instead of a feature. Saves begin when the step
    is launched, not when it has ended: they read blocks that no launched step changes, and a copy from a device follows
    earlier launches, on a separate stream.
    """

    def __init__(
        self, context: WorkerContext, kv_cache: KVCacheConfig, runner: ModelRunner
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
            backend = runner.model.backend
            writer = f"torch {backend.name} {backend.storage.name}"
            self._connector.bind(CacheBlocks(runner.memory.kv_caches, writer))

    def execute(self, output: SchedulerOutput) -> ModelRunnerOutput | StepFuture:
        """Load, compute, save; the answer names the transfers that ended."""
        connector = self._connector
        metadata = output.connector_metadata
        with blamed(self._entry, "load"):
            connector.load(metadata)
        step = self._runner.execute(output)
        with blamed(self._entry, "save"):
            connector.save(metadata)
        with blamed(self._entry, "poll"):
            done, failed = map(list, connector.poll())
        if isinstance(step, ModelRunnerOutput):
            return _named(step, done, failed)
        return TransferFuture(step, done, failed)

    def shutdown(self) -> None:
        """Release the connector and the runner."""
        self._connector.shutdown()
        self._runner.shutdown()
