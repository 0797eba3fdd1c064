"""What `AsyncLLM` and `LLM` offer of the operations of their engines, under vLLM's names. Front end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tenonry.operations.calls import Operations
from tenonry.operations.engine import EngineOperations, OperatedEngine


class OffersOperations:
    """Operations on all engines. Each raises EngineGenerateError with an engine's message, or EngineDeadError."""

    operations: Operations

    async def sleep(self, level: int = 1) -> None:
        """Give memory back until `wake_up`: 1 that of the KV cache, 2 that of the weights as well.

        Running requests wait, and are computed anew afterwards; what is cached is forgotten.
        """
        await self.operations.sleep(level)

    async def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """Take memory again for what `tags` name, "weights" or "kv_cache"; for all without."""
        await self.operations.wake_up(tags)

    async def is_sleeping(self) -> bool:
        """Whether every engine sleeps."""
        return await self.operations.calls.all("is_sleeping")

    async def update_weights(
        self, source: str, names: Sequence[str] | None = None, version: str = ""
    ) -> None:
        """Replace weights of every engine by those of a safetensors file, a folder of them, or shared memory.

        `source`: a path, or `shm:NAME`. `names`: the checkpoint's names of those to take; all by default. `version`
        stands in every output that the new weights make. What does not fit is refused and changes nothing; a failure
        after that leaves engines that refuse requests until an update succeeds.
        """
        await self.operations.update_weights(source, names, version)

    async def start_profile(self) -> None:
        """Begin a profile on every rank."""
        await self.operations.calls.call("profile", True)

    async def stop_profile(self) -> None:
        """End it, and write it."""
        await self.operations.calls.call("profile", False)

    async def save_sharded_state(
        self, path: str, pattern: str | None = None, max_size: int | None = None
    ) -> None:
        """Write each rank's weights into `path`; `load_format=sharded` reads them."""
        await self.operations.calls.call("save_sharded_state", path, pattern, max_size)

    async def reset_prefix_cache(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        """Forget cached KV blocks; True if all were forgotten."""
        return await self.operations.calls.all(
            "reset_prefix_cache", reset_running_requests, reset_connector
        )

    async def collective_rpc(
        self,
        method: str,
        args: Sequence[Any] = (),
        timeout: float | None = None,  # noqa: ASYNC109 - vLLM's name
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Call a method of the workers' allow-list on every rank of every engine; one result per rank."""
        engines = await self.operations.calls.call(
            "collective_rpc", method, list(args), timeout, dict(kwargs or {})
        )
        return [result for ranks in engines for result in ranks]


class OffersBlocking:
    """The same of one engine in this process. Each raises what its engine raises."""

    operations: EngineOperations
    engine_core: OperatedEngine

    def sleep(self, level: int = 1) -> None:
        """As `AsyncLLM.sleep`; `generate` is refused meanwhile."""
        self.operations.sleep(level)

    def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """As `AsyncLLM.wake_up`."""
        self.operations.wake_up(tags)

    def is_sleeping(self) -> bool:
        """Whether weights or KV cache are away."""
        return self.operations.is_sleeping()

    def update_weights(
        self, source: str, names: Sequence[str] | None = None, version: str = ""
    ) -> None:
        """As `AsyncLLM.update_weights`."""
        self.operations.update_weights(source, names, version)

    def start_profile(self) -> None:
        """Begin a profile on every rank."""
        self.operations.profile(is_start=True)

    def stop_profile(self) -> None:
        """End it, and write it."""
        self.operations.profile(is_start=False)

    def save_sharded_state(
        self, path: str, pattern: str | None = None, max_size: int | None = None
    ) -> None:
        """Write each rank's weights into `path`; `load_format=sharded` reads them."""
        self.operations.save_sharded_state(path, pattern, max_size)

    def reset_prefix_cache(self) -> bool:
        """Forget cached KV blocks; True if all were forgotten."""
        return self.engine_core.reset_prefix_cache()

    def collective_rpc(
        self,
        method: str,
        args: Sequence[Any] = (),
        timeout: float | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Call a method of the workers' allow-list; one result per rank."""
        return self.engine_core.call_workers(method, list(args), timeout, kwargs)
