"""Setting of every part that opens grammars. Light: imported by the front end before anything starts."""

from __future__ import annotations

from tenonry.config import setting
from tenonry.interfaces.plugin import PluginSettings


class GrammarSettings(PluginSettings):
    """The IO processor, which checks grammars, and the worker, which applies them, derive their settings from it."""

    grammar_backend: str | None = setting(None, capability="grammar", group="plugins")
    """Grammar backend of structured output. Defaults to llguidance where installed."""
