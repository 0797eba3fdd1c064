"""The call set `adapters`: LoRA adapters of all engines, and of engines that join. Front end, and engine process."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from tenonry.interfaces.call_set import CallSet, Engine, EngineCalls, FrontEnd, FrontEndHalf
from tenonry.step import Adapter
from tenonry_operations.engine import call_optional


class AdapterCalls(CallSet):
    """Calls that load and unload LoRA adapters."""

    name = "adapters"

    def engine_half(self, engine: Engine) -> EngineAdapters:
        return EngineAdapters(engine)

    def front_end_half(self, front_end: FrontEnd) -> Adapters:
        return Adapters(front_end.calls)

    def blocking_half(self, llm: Any, engine: Engine) -> BlockingAdapters:
        return BlockingAdapters(EngineAdapters(engine))


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

    def __init__(self, engines: EngineCalls) -> None:
        self._engines = engines
        self._paths: dict[str, str] = {}
        self._changes = asyncio.Lock()  # so that no engine joins in the middle of one

    async def add_lora(self, name: str, path: str) -> bool:
        """Load it into every engine, and into those that join later."""
        async with self._changes:
            done = all(await self._engines.change("add_lora", name, path))
            self._paths[name] = path
            return done

    async def remove_lora(self, name: str) -> bool:
        """Unload it."""
        async with self._changes:
            self._paths.pop(name, None)
            return all(await self._engines.change("remove_lora", name))

    async def list_loras(self) -> list[str]:
        """`name@digest` of each, as the first engine has them."""
        answers = await self._engines.call("list_loras")
        return list(answers[0])

    async def pin_lora(self, name: str) -> bool:
        """Keep it among those that are ready for a step."""
        return all(await self._engines.change("pin_lora", name))

    async def on_join(self, engines: Sequence[int]) -> None:
        """Load what the others have."""
        async with self._changes:
            for index in engines:
                for name, path in self._paths.items():
                    await self._engines.call_engine(index, "add_lora", name, path)


class BlockingAdapters:
    """Adapters of the engine in this process, as values of `adapter` in `LLM.generate`."""

    def __init__(self, engine: EngineAdapters) -> None:
        self._engine = engine

    def add_lora(self, name: str, path: str) -> Adapter:
        """Load it."""
        self._engine.add_lora(name, path)
        loaded = {adapter.name: adapter for adapter in self.list_loras()}
        return loaded[name]

    def remove_lora(self, name: str) -> None:
        """Unload it."""
        self._engine.remove_lora(name)

    def list_loras(self) -> list[Adapter]:
        """All that are loaded."""
        pairs = [text.rpartition("@") for text in self._engine.list_loras()]
        return [Adapter(name, digest) for name, _, digest in pairs]
