"""Settings of the call sets of this package. Light: imported by the front end before anything starts."""

from __future__ import annotations

from tenonry.config import setting
from tenonry.interfaces.plugin import PluginSettings


class AdapterSettings(PluginSettings):
    """Settings of the call set `adapters`."""

    lora_modules: tuple[str, ...] = setting((), capability="lora", nargs="+")
    """Adapters to load at startup, each as name=path or a JSON object with name and path."""


class OperationSettings(PluginSettings):
    """Settings of the call set `operations`."""

    refuse_while_asleep: bool = False
    """Reject requests while the engine sleeps instead of queueing them."""
