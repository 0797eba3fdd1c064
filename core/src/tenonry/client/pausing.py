"""Holding requests back, and waiting until none runs. Front end; a part of `AsyncLLM`."""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod

from tenonry.client.engine_calls import EngineCalls
from tenonry.client.gate import Gate
from tenonry.client.output_processor import OutputProcessor


class Pausing(EngineCalls):
    """Mixed into AsyncLLM."""

    _gate: Gate
    _outputs: OutputProcessor

    @property
    @abstractmethod
    def errored(self) -> bool:
        """True when no request can be served any more."""

    @abstractmethod
    async def abort_all(self) -> None:
        """End every request with reason "abort"."""

    @property
    def is_paused(self) -> bool:
        return not self._gate.is_open

    @property
    def is_draining(self) -> bool:
        return self._gate.is_draining

    async def pause_generation(self, *, wait_for_inflight_requests: bool = False, clear_cache: bool = True) -> None:
        """Hold new requests back. What runs is aborted, or waited for; then the caches are cleared. Idempotent."""
        self._gate.close()
        if not wait_for_inflight_requests:
            await self.abort_all()
        await self._wait_until_empty(None)
        if clear_cache:
            await self.reset_prefix_cache()
            await self.reset_mm_cache()

    async def resume_generation(self) -> None:
        """Let held-back requests go on."""
        self._gate.open()

    async def drain(self, timeout: float) -> bool:  # noqa: ASYNC109 - the word that callers know
        """Refuse new requests and wait for the running ones; False if some still run after `timeout` seconds."""
        self._gate.is_draining = True
        return await self._wait_until_empty(timeout)

    async def _wait_until_empty(self, timeout: float | None) -> bool:  # noqa: ASYNC109 - as above
        deadline = None if timeout is None else time.monotonic() + timeout
        while len(self._outputs):
            if self.errored or (deadline is not None and time.monotonic() > deadline):
                return False
            await asyncio.sleep(0.02)
        return True

    async def wait_for_requests_to_drain(self, drain_timeout: float = 300.0) -> None:
        """Until no engine has work. Raises TimeoutError after `drain_timeout` seconds."""
        if not await self._wait_until_empty(drain_timeout):
            raise TimeoutError(f"{len(self._outputs)} requests still run after {drain_timeout:g} s")
