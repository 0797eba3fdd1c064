"""Settings of the page. Light; front end."""

from __future__ import annotations

from tenonry.interfaces.plugin import PluginSettings


class PageSettings(PluginSettings):
    """Settings of the page."""

    page: bool = True
    """Serve a page for chats and the engine's state at /."""
