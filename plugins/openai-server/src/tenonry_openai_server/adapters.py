"""Adapters (LoRA) of the engines, by the names used in requests. Front end, event loop."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Coroutine, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tenonry.config import EngineConfig
from tenonry.errors import EngineGenerateError
from tenonry.step import Adapter
from tenonry_openai_server.adapter_folder import AdapterFolder
from tenonry_openai_server.errors import APIError, bad_request, clean

if TYPE_CHECKING:
    from tenonry.client.async_llm import AsyncLLM

logger = logging.getLogger("tenonry.server")

BUSY_RETRY_S = 1.0
_KIND = re.compile(r"^\w+: ")  # the type of the engine's error, in front of its text


class ServedAdapters:
    """Adapters of the engines, queried once, or, if other API servers may load some too, whenever a name is not a
    model's.

    An adapter is served if every rank of every engine has the same one under its name.
    """

    def __init__(
        self, config: EngineConfig, *, is_shared: bool, folder: AdapterFolder | None = None
    ) -> None:
        self._folder = folder
        self._max_loras = config.max_loras
        self._is_shared = is_shared
        self._known: dict[str, Adapter] | None = None
        self._changes = asyncio.Lock()
        self._asking: asyncio.Task[None] | None = None
        self._num_changes = 0

    async def all(self, engine: AsyncLLM) -> dict[str, Adapter]:
        """Name → adapter, for all loaded ones."""
        if not self._max_loras:
            return {}
        if self._is_shared:
            await self._renew(engine)
        while self._known is None:
            await self._renew(engine)
        return self._known

    async def of_request(
        self, engine: AsyncLLM, name: str, scope: MutableMapping[str, Any]
    ) -> Adapter | None:
        """Return the adapter named by an HTTP request; one of the folder is loaded at its first use, and stays during
        the request. None for a name without an adapter. Raises APIError 400 and 503 for one that cannot be loaded.
        """
        adapters = await self.all(engine)
        folder = self._folder
        if folder is None:
            return adapters.get(name)
        if name in adapters and name not in folder.leaving:
            folder.hold(name, scope)
            return adapters[name]
        path = await asyncio.to_thread(folder.path_of, name)
        if path is None:
            return None
        # It continues if this request ends, so that the folder's state matches the engines.
        loading = asyncio.create_task(self._from_folder(folder, engine, path, scope))
        return await asyncio.shield(loading)

    def release(self, scope: MutableMapping[str, Any]) -> None:
        """The HTTP request has been answered."""
        if self._folder is not None:
            self._folder.release(scope)

    async def _from_folder(
        self, folder: AdapterFolder, engine: AsyncLLM, path: Path, scope: MutableMapping[str, Any]
    ) -> Adapter:
        name = path.name
        async with self._changes:
            adapter = (await self.all(engine)).get(name)
            if adapter is None:
                while folder.is_full:
                    await self._make_room(folder, engine)
                await self._load_of(engine, name, path)
                adapter = (await self.all(engine))[name]
                folder.add(name)
            folder.hold(name, scope)
            return adapter

    async def _load_of(self, engine: AsyncLLM, name: str, path: Path) -> None:
        """Log the errors of the adapter instead of returning them: the client did not put it there."""
        try:
            await engine.add_lora(name, str(path))
        except EngineGenerateError as error:
            await self._settle(engine, name)
            logger.warning("adapter %s in the folder cannot be served: %s", name, error)
            raise bad_request(
                f"the adapter '{name}' cannot be served; see the server's log", "model"
            ) from error
        finally:
            self._forget()
        logger.info("loaded adapter %s from the folder", name)

    async def _make_room(self, folder: AdapterFolder, engine: AsyncLLM) -> None:
        """Unload the adapter of the folder that was used longest ago. Raises APIError 503 while all are used."""
        name = folder.begin_unloading()
        if name is None:
            raise APIError(
                503,
                f"requests use all max_folder_loras={folder.most} adapters of the folder that may be loaded; try again "
                "later",
                param="model",
                code="adapters_busy",
                retry_after_s=BUSY_RETRY_S,
            )
        try:
            await engine.remove_lora(name)
        finally:
            self._forget()
            folder.leaving.discard(name)
        logger.info("unloaded adapter %s from the folder", name)

    async def load(
        self, engine: AsyncLLM, name: str, path: str, *, in_place: bool, pinned: bool
    ) -> Adapter:
        """Load an adapter into every engine. On failure nothing changes; raises APIError 400 with the reason."""
        self._check_served()
        async with self._changes:
            if name in await self.all(engine) and not in_place:
                raise bad_request(
                    f"the adapter '{name}' is loaded already; unload it, or send load_inplace "
                    f"to replace it",
                    "lora_name",
                )
            try:
                await engine.add_lora(name, path)
            except EngineGenerateError as error:
                await self._settle(engine, name)
                raise _refusal(error, "lora_path") from error
            finally:
                self._forget()
            if pinned:
                await engine.pin_lora(name)
            return (await self.all(engine))[name]

    async def unload(self, engine: AsyncLLM, name: str) -> None:
        """Unload an adapter; running requests finish with it. Raises APIError 404 if it is not loaded."""
        self._check_served()
        async with self._changes:
            if name not in await self.all(engine):
                raise APIError(
                    404,
                    f"the adapter '{name}' is not loaded",
                    param="lora_name",
                    code="adapter_not_found",
                )
            if self._folder is not None:
                self._folder.remove(name)
            try:
                await engine.remove_lora(name)
            finally:
                self._forget()

    def _check_served(self) -> None:
        if not self._max_loras:
            raise bad_request(
                "this server serves no adapters; the operator can start it with --max-loras and how many different "
                "ones a step may have"
            )

    async def _settle(self, engine: AsyncLLM, name: str) -> None:
        """Unload an adapter that only some engines accepted."""
        found = {entries_of(names).get(name) for names in await engine.collective_rpc("list_loras")}
        if len(found) > 1:
            await _tried(lambda: engine.remove_lora(name))

    async def _renew(self, engine: AsyncLLM) -> None:
        """Refresh the list; concurrent requests share one call."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask(engine))
        await asyncio.shield(self._asking)

    def _forget(self) -> None:
        """Invalidate the list after a change, including an answer that is under way."""
        self._known = None
        self._num_changes += 1

    async def _ask(self, engine: AsyncLLM) -> None:
        num_changes = self._num_changes
        ranks = [entries_of(names) for names in await engine.collective_rpc("list_loras")]
        first = ranks[0] if ranks else {}
        if num_changes != self._num_changes:
            return
        self._known = {
            name: Adapter(name, digest)
            for name, digest in first.items()
            if all(rank.get(name) == digest for rank in ranks)
        }


def entries_of(names: list[str]) -> dict[str, str]:
    """Name → digest, from a worker's list of `name@digest`."""
    found = {}
    for text in names:
        name, _, digest = text.rpartition("@")
        found[name] = digest
    return found


async def _tried(call: Callable[[], Coroutine[Any, Any, bool]]) -> None:
    """Ignore the error of engines that do not have the adapter."""
    try:
        await call()
    except EngineGenerateError:
        return


def _refusal(error: EngineGenerateError, param: str) -> APIError:
    text = _KIND.sub("", str(error))
    return bad_request(clean(text), param)
