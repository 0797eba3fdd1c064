"""The calls of a front end that an engine answers by name: caches, sleep, adapters, profiles. Front end.

Each waits for the engine's answer. A call that the chosen worker does not declare raises EngineGenerateError with the
engine's words.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any


class EngineCalls(ABC):
    """Mixed into AsyncLLM."""

    @abstractmethod
    async def _call(self, method: str, *args: Any) -> list[Any]:
        """Call a method of the engines' allow-list; one result per engine."""

    @abstractmethod
    def _tell_loggers(self, method: str, *args: Any) -> None:
        """Queue a call of every stat logger."""

    async def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        """Forget cached KV blocks; True if all were forgotten."""
        return all(await self._call("reset_prefix_cache", reset_running_requests, reset_connector))

    async def reset_mm_cache(self) -> None:
        """Forget processed multimodal inputs."""
        await self._call("reset_mm_cache")

    async def collective_rpc(
        self,
        method: str,
        args: Sequence[Any] = (),
        timeout: float | None = None,  # noqa: ASYNC109 - vLLM's name
    ) -> list[Any]:
        """Call a method of the workers' allow-list on every rank of every engine; one result per rank."""
        results = await self._call("collective_rpc", method, list(args), timeout)
        return [result for engine in results for result in engine]

    async def add_lora(self, name: str, path: str) -> bool:
        return all(await self._call("add_lora", name, path))

    async def remove_lora(self, name: str) -> bool:
        return all(await self._call("remove_lora", name))

    async def list_loras(self) -> list[str]:
        return list((await self._call("list_loras"))[0])

    async def pin_lora(self, name: str) -> bool:
        return all(await self._call("pin_lora", name))

    async def start_profile(self) -> None:
        await self._call("profile", True)

    async def stop_profile(self) -> None:
        await self._call("profile", False)

    async def sleep(self, level: int = 1) -> None:
        """Give device memory back until `wake_up`; the prefix cache is reset first."""
        await self._call("sleep", level)
        self._tell_loggers("record_sleep_state", True, level)

    async def wake_up(self, tags: list[str] | None = None) -> None:
        await self._call("wake_up", tags)
        self._tell_loggers("record_sleep_state", False, 0)

    async def is_sleeping(self) -> bool:
        return all(await self._call("is_sleeping"))

    async def get_supported_tasks(self) -> tuple[str, ...]:
        """What requests may ask for."""
        return ("generate",)
