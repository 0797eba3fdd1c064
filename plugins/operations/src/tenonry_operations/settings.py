"""Settings of the call sets of this package. Light: imported by the front end before anything starts."""

from __future__ import annotations

from tenonry.config import Settings
from tenonry.interfaces.plugin import PluginSettings


class WorkerAdapters(Settings):
    """A setting that the worker declares, as the call set `adapters` reads it: the paths of adapters by name."""

    lora_modules: tuple[str, ...] = ()


class OperationSettings(PluginSettings):
    """Settings of the call set `operations`."""

    refuse_while_asleep: bool = False
    """Reject requests while the engine sleeps instead of queueing them."""
