"""The call sets of a front end by name, and the error for an unused one. Front end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from tenonry.config import EngineConfig
from tenonry.engine.utility import build_call_sets
from tenonry.errors import Unsupported
from tenonry.interfaces.call_set import CallSet
from tenonry.plugin.kinds import KINDS
from tenonry.plugin.plan import PluginPlan


class CallSets(dict[str, Any]):
    """Front-end or blocking halves by name, each made by `half`. `divergence`: see `FrontEnd`."""

    def __init__(
        self, config: EngineConfig, plan: PluginPlan, half: Callable[[str, CallSet, set[str]], Any]
    ) -> None:
        self.divergence: set[str] = set()
        for name, call_set in build_call_sets(config, plan).items():
            self[name] = half(name, call_set, self.divergence)

    def __missing__(self, name: str) -> MissingCallSet:
        return MissingCallSet(name)

    async def on_join(self, engines: Sequence[int]) -> None:
        """Bring joining or returning engines up to date."""
        for half in self.values():
            await half.on_join(engines)


class MissingCallSet:
    """Placeholder of an unused call set: every method raises Unsupported."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, method: str) -> NoReturn:
        package = KINDS["call_set"].provider.get(self._name, "its package")
        raise Unsupported(
            f"{method}: the call set '{self._name}' is not in use; pip install {package}, and add it to call_sets if "
            "that is set"
        )
