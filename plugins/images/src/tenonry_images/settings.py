"""Settings of images. Light: imported by the front end before anything starts."""

from __future__ import annotations

from tenonry.config import setting
from tenonry.interfaces.plugin import PluginSettings


class ImageSettings(PluginSettings):
    """Settings of the request codec `mirror`; the request check `images`, which always runs, brings them as well."""

    mm_cache_mib: int = setting(256, ge=0)
    """Image cache per engine and front end, in MiB. 0 disables it."""
