"""Names of what a request with images carries: a room of its own, since three libraries and no kernel code read them."""

from tenonry.media.names import DIGESTS, SPANS, is_media, media_input

__all__ = ["DIGESTS", "SPANS", "is_media", "media_input"]
