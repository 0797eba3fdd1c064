"""The adapters (LoRA) that the engines have, under the names by which requests choose them. Front end, event loop."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from tenonry.config import EngineConfig
from tenonry.errors import EngineGenerateError
from tenonry.step import Adapter
from tenonry_openai_server.errors import APIError, bad_request, clean

if TYPE_CHECKING:
    from tenonry.client.async_llm import AsyncLLM

_KIND = re.compile(r"^\w+: ")  # the type of the engine's error, in front of its text


class ServedAdapters:
    """Asked of the engines once, or, where other API servers may load some too, whenever a name is not a model's.

    An adapter is served where every rank of every engine has the same one under its name.
    """

    def __init__(self, config: EngineConfig, *, is_shared: bool) -> None:
        self._max_loras = config.max_loras
        self._is_shared = is_shared
        self._known: dict[str, Adapter] | None = None
        self._changes = asyncio.Lock()
        self._asking: asyncio.Task[None] | None = None

    async def all(self, engine: AsyncLLM) -> dict[str, Adapter]:
        """Name → adapter, of all that are loaded."""
        if not self._max_loras:
            return {}
        if self._known is None or self._is_shared:
            await self._renew(engine)
        return self._known or {}

    async def load(
        self,
        engine: AsyncLLM,
        name: str,
        path: str,
        *,
        in_place: bool,
        pinned: bool,
    ) -> Adapter:
        """Load an adapter into every engine. Raises APIError 400 with what is wrong with it; then nothing changed."""
        self._check_served()
        async with self._changes:
            if name in await self.all(engine) and not in_place:
                raise bad_request(
                    f"the adapter '{name}' is loaded already; unload it, or send load_inplace to replace it",
                    "lora_name",
                )
            try:
                await engine.add_lora(name, path)
            except EngineGenerateError as error:
                await self._settle(engine, name)
                raise _refusal(error, "lora_path") from error
            finally:
                self._known = None
            if pinned:
                await engine.pin_lora(name)
            return (await self.all(engine))[name]

    async def unload(self, engine: AsyncLLM, name: str) -> None:
        """No new request finds it; those that run end with it. Raises APIError 404 for one that is not loaded."""
        self._check_served()
        async with self._changes:
            if name not in await self.all(engine):
                raise APIError(
                    404,
                    f"the adapter '{name}' is not loaded",
                    param="lora_name",
                    code="adapter_not_found",
                )
            try:
                await engine.remove_lora(name)
            finally:
                self._known = None

    def _check_served(self) -> None:
        if not self._max_loras:
            raise bad_request(
                "this server serves no adapters; the operator can start it with --max-loras and how many different "
                "ones a step may have"
            )

    async def _settle(self, engine: AsyncLLM, name: str) -> None:
        """Some engines may have taken what another refused: then none keeps it."""
        found = {entries_of(names).get(name) for names in await engine.collective_rpc("list_loras")}
        if len(found) > 1:
            await _tried(lambda: engine.remove_lora(name))

    async def _renew(self, engine: AsyncLLM) -> None:
        """Requests that come together share one question."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask(engine))
        await asyncio.shield(self._asking)

    async def _ask(self, engine: AsyncLLM) -> None:
        ranks = [entries_of(names) for names in await engine.collective_rpc("list_loras")]
        first = ranks[0] if ranks else {}
        self._known = {
            name: Adapter(name, digest)
            for name, digest in first.items()
            if all(rank.get(name) == digest for rank in ranks)
        }


def entries_of(names: list[str]) -> dict[str, str]:
    """Name → digest, of what a worker lists as `name@digest`."""
    found = {}
    for text in names:
        name, _, digest = text.rpartition("@")
        found[name] = digest
    return found


async def _tried(call: Callable[[], Coroutine[Any, Any, bool]]) -> None:
    """Engines that do not have it say so."""
    try:
        await call()
    except EngineGenerateError:
        return


def _refusal(error: EngineGenerateError, param: str) -> APIError:
    text = _KIND.sub("", str(error))
    return bad_request(clean(text), param)
