"""Hook module `images`: the codec `mirror` encodes requests where they may have images. Front end."""

from __future__ import annotations

from tenonry.config import EngineConfig
from tenonry.plugin.hookspecs import hookimpl
from tenonry_images.settings import ImageSettings


@hookimpl(trylast=True)
def tenonry_get_request_codec(name: str, config: EngineConfig) -> str | None:
    """Name the codec that replaces the kernel's own, which sends the same image with each request."""
    if name != "plain" or not config.max_images:
        return None
    is_used = config.section(ImageSettings).mm_cache_mib > 0
    return "tenonry_images.mirror:ImageMirror" if is_used else None
