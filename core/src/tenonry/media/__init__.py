"""Names of what a request with images carries: a room of its own, since only libraries and workers read them."""

from __future__ import annotations

from tenonry.media.names import DIGESTS, SPANS, WHOLE, is_media, media_input

__all__ = ["DIGESTS", "SPANS", "WHOLE", "is_media", "media_input"]
