"""`AsyncLLM`: streams of many concurrent requests over engines in processes of their own. The user's event loop."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from typing import Any

from tenonry.client.front_end import FrontEnd
from tenonry.config import EngineConfig


class AsyncLLM(FrontEnd):
    """Serves requests concurrently, and passes calls on to its engines: caches, sleep, adapters, profiles.

    The constructor blocks until the engine is ready; call it before the loop starts, or in a thread. `generate` is an
    async generator per request; closing it aborts the request. Every accepted request ends exactly once: with a finish
    reason, EngineGenerateError (this request alone) or EngineDeadError (all of them). A call waits for the engines'
    answers; one that the chosen worker does not declare raises EngineGenerateError with the engine's words.
    """

    @classmethod
    def from_config(cls, config: EngineConfig, **options: Any) -> AsyncLLM:
        """The same as the constructor."""
        return cls(config, **options)

    # ------------------------------------------------------------------ pausing
    @property
    def is_paused(self) -> bool:
        return not self._gate.opened.is_set()

    async def pause_generation(
        self, *, wait_for_inflight_requests: bool = False, clear_cache: bool = True
    ) -> None:
        """Hold new requests back. What runs is aborted, or waited for; then the caches are cleared. Idempotent."""
        self._gate.opened.clear()
        if not wait_for_inflight_requests:
            await self.abort_all()
        await self._wait_until_empty(math.inf)
        if clear_cache:
            await self.reset_prefix_cache()
            await self.reset_mm_cache()

    async def resume_generation(self) -> None:
        """Let held-back requests go on."""
        self._gate.opened.set()

    async def drain(self, timeout: float) -> bool:  # noqa: ASYNC109 - the word that callers know
        """Refuse new requests and wait for the running ones; False if some still run after `timeout` seconds."""
        self._gate.is_draining = True
        return await self._wait_until_empty(timeout)

    async def _wait_until_empty(self, timeout: float) -> bool:  # noqa: ASYNC109 - as above
        deadline = time.monotonic() + timeout
        while len(self._outputs) or (
            self._gate.is_draining and self._gate.held
        ):  # whoever is in already is served
            if self.errored or time.monotonic() > deadline:
                return False
            await asyncio.sleep(0.02)
        return True

    async def wait_for_requests_to_drain(self, drain_timeout: float = 300.0) -> None:
        """Until no engine has work. Raises TimeoutError after `drain_timeout` seconds, or EngineDeadError."""
        if not await self._wait_until_empty(drain_timeout):
            self._client.check_alive()
            raise TimeoutError(f"{len(self._outputs)} requests still run after {drain_timeout:g} s")

    # ------------------------------------------------------------------ engines
    @property
    def engine_pids(self) -> dict[str, int]:
        """Engine processes by name."""
        return {
            name: pid for name, pid in self._engines.pids().items() if name.startswith("engine ")
        }

    async def scale(self, size: int, drain_timeout: float = 300.0) -> None:
        """Go on with `size` engines. New ones join; ones that leave finish their requests first.

        Raises TimeoutError, and keeps them, if they still have requests after `drain_timeout` seconds. The same size
        changes nothing.
        """
        self._client.check_alive()
        self.listen()
        async with self._scaling:
            await self._engines.scale(size, drain_timeout)

    scale_elastic_ep = scale

    async def _call(self, method: str, *args: Any) -> list[Any]:
        """Call a method of the engines' allow-list; one result per engine."""
        self._client.check_alive()
        self.listen()
        return await self._client.call(method, *args)

    async def reset_prefix_cache(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
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
        self._stats.submit("record_sleep_state", True, level)

    async def wake_up(self, tags: list[str] | None = None) -> None:
        await self._call("wake_up", tags)
        self._stats.submit("record_sleep_state", False, 0)

    async def is_sleeping(self) -> bool:
        return all(await self._call("is_sleeping"))

    # ------------------------------------------------------------------ the rest
    async def do_log_stats(self) -> None:
        """Make the stat loggers report now."""
        self._stats.submit("log")

    async def render_metrics(self) -> tuple[bytes, str] | None:
        """What the first stat logger that can render shows, and its content type; None if there is none."""
        return await self._stats.render()

    async def get_supported_tasks(self) -> tuple[str, ...]:
        """What requests may ask for."""
        return ("generate",)

    async def is_tracing_enabled(self) -> bool:
        """Whether a stat logger makes requests part of their callers' traces (`trace_headers`)."""
        return self._stats.traces

    def get_tokenizer(self) -> Any:
        """The tokenizer. Raises ValueError if none is loaded."""
        if self.io_processor is None:
            raise ValueError("no tokenizer is loaded (skip_tokenizer_init or no io_processor)")
        return self.io_processor.get_tokenizer()
