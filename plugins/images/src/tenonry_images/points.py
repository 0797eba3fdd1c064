"""The point `tenonry.image_processors`. Any process; light."""

from __future__ import annotations

from tenonry.plugin import Point

IMAGE_PROCESSORS = Point(
    "tenonry.image_processors",
    "tenonry_images.base:ImageProcessor",
    {"transformers": "tenonry-images"},
)
