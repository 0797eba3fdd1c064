"""Setting of workers that verify drafts. Light: imported by the front end before anything starts."""

from __future__ import annotations

from tenonry.config import PluginChoice, setting
from tenonry.interfaces.plugin import PluginSettings


class DrafterSettings(PluginSettings):
    """A worker with the capability `drafts` derives its settings from it."""

    drafter: PluginChoice | None = setting(
        None, capability="drafts", group="plugins", replaceable=True
    )
    """Drafter for speculative decoding: ngram or model."""
