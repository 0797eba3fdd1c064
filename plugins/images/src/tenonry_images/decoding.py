"""Decodes an image file into an RGB picture of 8 bits, as transformers would show it to a model. Helper process.

Sizes are bounded before a pixel is decoded. Transparent pixels are put on white, as `convert_to_rgb` of transformers
does: their colours are hidden from people, and must not reach the model.
"""

from __future__ import annotations

import io
import warnings
from typing import Any

import numpy as np

# Formats that are decoded, and how their files begin.
FORMATS = {
    "PNG": (b"\x89PNG\r\n\x1a\n",),
    "JPEG": (b"\xff\xd8\xff",),
    "WEBP": (b"RIFF",),
    "GIF": (b"GIF8",),
    "BMP": (b"BM",),
}
MAX_RATIO = 200  # of the longer edge to the shorter one
WHITE = (255, 255, 255, 255)
# Beginnings of files that are images and are not decoded here, for the error.
HEAD_BYTES = 256
OTHERS = {
    "SVG": (b"<svg", b"<!doctype svg"),
    "TIFF": (b"II*\0", b"MM\0*"),
    "AVIF": (b"ftypavif", b"ftypavis"),
    "HEIF": (b"ftypheic", b"ftypheix", b"ftypmif1", b"ftypheif"),
    "JPEG XL": (b"\0\0\0\x0cjxl ", b"\xff\x0a"),
    "ICO": (b"\0\0\x01\0",),
    "PDF": (b"%pdf-",),
}


class BadImage(Exception):
    """An image that cannot be read; the text is for the client."""


def decode(data: bytes | memoryview, max_pixels: int, max_edge: int = 0) -> Any:
    """A picture in RGB, upright as its EXIF data specify; of a file with several pictures the first. Raises BadImage.

    `max_edge`: reduce a larger picture to this width and height; 0: unchanged.
    """
    from PIL import Image

    Image.MAX_IMAGE_PIXELS = None  # bounded here, by the setting
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            picture = Image.open(io.BytesIO(data), formats=list(FORMATS))
        except Exception:  # noqa: BLE001 - any class, and texts that may hold addresses
            raise BadImage(_not_read(bytes(data[:HEAD_BYTES]))) from None
        _check_size(picture.size, max_pixels)
        try:
            decoded = _rgb(_upright(picture))
        except Exception:  # noqa: BLE001 - as above
            raise BadImage(f"its {picture.format} data are damaged") from None
        if max_edge:
            decoded.thumbnail((max_edge, max_edge), Image.Resampling.BICUBIC)
        return decoded


def _not_read(head: bytes) -> str:
    known = ", ".join(FORMATS)
    for name, beginnings in FORMATS.items():
        if head.startswith(beginnings) and (name != "WEBP" or head[8:12] == b"WEBP"):
            return f"its {name} data are damaged"
    for name, beginnings in OTHERS.items():
        if any(_begins(name, head, beginning) for beginning in beginnings):
            return f"it is {name}; send one of {known}"
    return f"it is none of {known}"


def _begins(name: str, head: bytes, beginning: bytes) -> bool:
    if name == "SVG":  # after a declaration or a comment
        return head.lstrip().startswith(b"<") and beginning in head.lower()
    if beginning.startswith(b"ftyp"):
        return head[4:].startswith(beginning)
    return head.lower().startswith(beginning.lower())


def _check_size(size: tuple[int, int], max_pixels: int) -> None:
    width, height = size
    if width * height > max_pixels:
        raise BadImage(f"it has {width} × {height} pixels; at most {max_pixels} are allowed")
    if max(width, height) > MAX_RATIO * min(width, height):
        raise BadImage(
            f"it has {width} × {height} pixels; one edge may be {MAX_RATIO} times the other"
        )


def _upright(picture: Any) -> Any:
    """The picture as its EXIF data turn it; as it stands where these cannot be read."""
    from PIL import ImageOps

    picture.load()
    try:
        picture.getexif()
    except Exception:  # noqa: BLE001 - any class; the pixels are as good as without them
        return picture
    return ImageOps.exif_transpose(picture)


def _rgb(picture: Any) -> Any:
    from PIL import Image

    if picture.mode.startswith("I"):
        return _from_16_bits(picture)
    hidden = picture.info.get("transparency")
    if "A" not in picture.getbands() and hidden is None:
        return picture.convert("RGB")
    if picture.mode == "RGB" and hidden is not None and max(hidden) > 255:
        # Of 16 bits per channel, of which the decoder kept the upper ones.
        picture.info["transparency"] = tuple(value >> 8 for value in hidden)
    picture = picture.convert("RGBA")
    white = Image.new("RGBA", picture.size, WHITE)
    return Image.alpha_composite(white, picture).convert("RGB")


def _from_16_bits(picture: Any) -> Any:
    """Grey of 16 bits, scaled to 8 bits; a plain conversion would cut everything above 255 off."""
    from PIL import Image

    values = np.asarray(picture).astype(np.uint32)
    grey = ((np.minimum(values, 65535) * 255 + 32767) // 65535).astype(np.uint8)
    hidden = picture.info.get("transparency")
    if hidden is not None:
        grey[values == hidden] = 255
    return Image.fromarray(grey).convert("RGB")
