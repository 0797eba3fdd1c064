"""The call set `adapters`: LoRA adapters of all engines, and of engines that join. Front end, and engine process."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from tenonry.interfaces.call_set import CallSet, Engine, EngineCalls, FrontEnd, FrontEndHalf
from tenonry.step import Adapter
from tenonry_operations.engine import call_optional
from tenonry_operations.lora_request import LoRARequest, must_load, start_paths
from tenonry_operations.settings import WorkerAdapters


class AdapterCalls(CallSet):
    """Calls that load and unload LoRA adapters."""

    name = "adapters"

    def engine_half(self, engine: Engine) -> EngineAdapters:
        return EngineAdapters(engine)

    def front_end_half(self, front_end: FrontEnd) -> Adapters:
        return Adapters(front_end.calls, self.context.config.section(WorkerAdapters).lora_modules)

    def blocking_half(self, llm: Any, engine: Engine) -> BlockingAdapters:
        return BlockingAdapters(
            EngineAdapters(engine), self.context.config.section(WorkerAdapters).lora_modules
        )


class EngineAdapters:
    """Adapters of one engine. A call that the worker does not declare raises Unsupported with what it declares."""

    def __init__(self, core: Engine) -> None:
        self._core = core

    def add_lora(self, name: str, path: str) -> bool:
        return all(call_optional(self._core, "lora", "add_lora", name, path))

    def remove_lora(self, name: str) -> bool:
        return all(call_optional(self._core, "lora", "remove_lora", name))

    def list_loras(self) -> list[str]:
        return list(call_optional(self._core, "lora", "list_loras")[0])

    def pin_lora(self, name: str) -> bool:
        return all(call_optional(self._core, "lora", "pin_lora", name))


class Adapters(FrontEndHalf):
    """Each call reaches every engine. Raises EngineGenerateError with an engine's message, or EngineDeadError."""

    def __init__(self, engines: EngineCalls, modules: Sequence[str] = ()) -> None:
        """`modules`: the setting `lora_modules`."""
        self._engines = engines
        self._start_paths = start_paths(modules)
        self._paths: dict[str, str] = {}
        self._changes = asyncio.Lock()  # so that no engine joins in the middle of one
        self._requests = asyncio.Lock()
        self._known: dict[str, Adapter] = {}  # of earlier requests

    async def add_lora(self, name: str, path: str) -> bool:
        """Load it into every engine, and into those that join later."""
        async with self._changes:
            self._known.pop(name, None)
            done = all(await self._engines.change("add_lora", name, path))
            self._paths[name] = path
            return done

    async def remove_lora(self, name: str) -> bool:
        """Unload it."""
        async with self._changes:
            self._paths.pop(name, None)
            self._start_paths.pop(name, None)
            self._known.pop(name, None)
            return all(await self._engines.change("remove_lora", name))

    async def list_loras(self) -> list[str]:
        """`name@digest` of each, as the first engine has them."""
        answers = await self._engines.call("list_loras")
        return list(answers[0])

    async def pin_lora(self, name: str) -> bool:
        """Keep it among those that are ready for a step."""
        return all(await self._engines.change("pin_lora", name))

    async def requested(self, request: LoRARequest) -> Adapter:
        """The adapter of a request, loaded if it is not. Concurrent first requests load it once."""
        async with self._requests:
            if getattr(request, "lora_name", None) not in self._known:
                self._known |= _by_name(await self.list_loras())
            if must_load(request, self._start_paths | self._paths, self._known):
                await self.add_lora(request.lora_name, request.lora_path)
                self._known |= _by_name(await self.list_loras())
            return self._known[request.lora_name]

    async def on_join(self, engines: Sequence[int]) -> None:
        """Load what the others have."""
        async with self._changes:
            for index in engines:
                for name, path in self._paths.items():
                    await self._engines.call_engine(index, "add_lora", name, path)


class BlockingAdapters:
    """Adapters of the engine in this process, as values of `adapter` in `LLM.generate`."""

    def __init__(self, engine: EngineAdapters, modules: Sequence[str] = ()) -> None:
        self._engine = engine
        self._paths = start_paths(modules)

    def add_lora(self, name: str, path: str) -> Adapter:
        """Load it."""
        self._engine.add_lora(name, path)
        self._paths[name] = path
        return self._loaded()[name]

    def remove_lora(self, name: str) -> None:
        """Unload it."""
        self._paths.pop(name, None)
        self._engine.remove_lora(name)

    def list_loras(self) -> list[Adapter]:
        """All that are loaded."""
        return [*self._loaded().values()]

    def requested(
        self, request: LoRARequest | Sequence[LoRARequest | None]
    ) -> Adapter | list[Adapter | None]:
        """The adapter of a request, loaded if it is not; for a list, one each, and None for None."""
        if isinstance(request, list | tuple):
            return [None if each is None else self._requested(each) for each in request]
        return self._requested(request)

    def _requested(self, request: LoRARequest) -> Adapter:
        loaded = self._loaded()
        if must_load(request, self._paths, loaded):
            return self.add_lora(request.lora_name, request.lora_path)
        return loaded[request.lora_name]

    def _loaded(self) -> dict[str, Adapter]:
        return _by_name(self._engine.list_loras())


def _by_name(texts: Sequence[str]) -> dict[str, Adapter]:
    """Adapters of `name@digest`; a name may hold an @."""
    pairs = [text.rpartition("@") for text in texts]
    return {name: Adapter(name, digest) for name, _, digest in pairs}
