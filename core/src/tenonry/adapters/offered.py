"""What `AsyncLLM` and `LLM` offer of adapters, under vLLM's names. Front end."""

from __future__ import annotations

from tenonry.adapters.calls import AdapterCalls, EngineAdapters
from tenonry.step import Adapter


class OffersAdapters:
    """Adapters of all engines. Each raises EngineGenerateError with an engine's message, or EngineDeadError."""

    adapters: AdapterCalls

    async def add_lora(self, name: str, path: str) -> bool:
        """Load the adapter in a folder of peft, in place of one of the same name."""
        return await self.adapters.add(name, path)

    async def remove_lora(self, name: str) -> bool:
        """No new request finds it; requests that run with it keep it."""
        return await self.adapters.remove(name)

    async def list_loras(self) -> list[str]:
        """`name@digest` of each, as the first engine has them."""
        answers = await self.adapters.calls.call("list_loras")
        return list(answers[0])

    async def pin_lora(self, name: str) -> bool:
        """Keep it among those that a step finds at once."""
        return await self.adapters.calls.all("pin_lora", name)


class OffersAdaptersBlocking:
    """The same of one engine in this process. Each raises what its worker raises."""

    adapters: EngineAdapters

    def add_lora(self, name: str, path: str) -> Adapter:
        """Load the adapter in a folder of peft; returns what `generate` takes as `adapter`."""
        return self.adapters.add(name, path)

    def remove_lora(self, name: str) -> None:
        """Forget it."""
        self.adapters.remove(name)

    def list_loras(self) -> list[Adapter]:
        """All that are loaded."""
        return self.adapters.all()
