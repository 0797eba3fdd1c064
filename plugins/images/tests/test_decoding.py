"""Pictures as transformers shows them to a model: transparency on white, 16 bits, orientation; files that are refused.

The oracle is transformers: `convert_to_rgb`, and `load_image` where nothing is transparent.
"""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image
from transformers.image_transforms import convert_to_rgb
from transformers.image_utils import load_image

from tenonry_images.decoding import BadImage, decode

MOST = 10_000


def file_of(picture, kind="PNG", **options):
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


def picture(height=24, width=40, channels=3):
    shape = (height, width, channels)
    values = np.random.default_rng(3).integers(0, 256, shape, dtype=np.uint8)
    return Image.fromarray(values.squeeze())


def opened(data):
    return Image.open(io.BytesIO(data))


def chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def png(color: int, bits: int, values, *more: bytes, size=None) -> bytes:
    """A PNG of one row of samples."""
    row = b"\0" + np.asarray(values, ">u2" if bits == 16 else "u1").tobytes()
    channels = {0: 1, 2: 3, 4: 2, 6: 4}[color]
    width, height = size or (len(values) // channels, 1)
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, color, 0, 0, 0))
    body = chunk(b"IDAT", zlib.compress(row)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + head + b"".join(more) + body


def pixels(data) -> list:
    return np.asarray(decode(data, MOST)).tolist()


def with_palette_transparency() -> bytes:
    indexed = picture().quantize(16)
    return file_of(indexed, transparency=bytes(range(0, 256, 16)))


def animated(kind: str) -> bytes:
    frames = [
        Image.new("RGBA", (9, 7), (200, 0, 0, 128)),
        Image.new("RGBA", (9, 7), (0, 200, 0, 9)),
    ]
    return file_of(frames[0], kind, save_all=True, append_images=frames[1:], duration=50)


TRANSPARENT = {
    "RGBA": file_of(picture(channels=4)),
    "LA": file_of(picture(channels=2)),
    "RGBA in WebP": file_of(picture(channels=4), "WEBP", lossless=True, exact=True),
    "palette, one colour": file_of(picture().quantize(16), transparency=3),
    "palette, a table": with_palette_transparency(),
    "RGB, one colour": png(2, 8, [1, 2, 3, 9, 9, 9], chunk(b"tRNS", struct.pack(">3H", 1, 2, 3))),
    "grey, one value": png(0, 8, [1, 2, 3], chunk(b"tRNS", struct.pack(">H", 2))),
    "GIF": file_of(picture().quantize(16), "GIF", transparency=3),
    "animated GIF": animated("GIF"),
    "animated WebP": animated("WEBP"),
    "animated PNG": animated("PNG"),
}
OPAQUE = {
    "RGB": file_of(picture()),
    "grey": file_of(picture(channels=1)),
    "one bit": file_of(picture().convert("1")),
    "palette": file_of(picture().quantize(16)),
    "JPEG": file_of(picture(), "JPEG"),
    "CMYK": file_of(picture().convert("CMYK"), "JPEG"),
    "grey JPEG": file_of(picture(channels=1), "JPEG"),
    "BMP": file_of(picture(), "BMP"),
}


@pytest.mark.parametrize("data", TRANSPARENT.values(), ids=TRANSPARENT)
def test_transparent_pixels_are_put_on_white(data):
    wanted = convert_to_rgb(opened(data), return_numpy=True)
    assert np.array_equal(np.asarray(decode(data, MOST)), wanted)


@pytest.mark.parametrize("data", OPAQUE.values(), ids=OPAQUE)
def test_others_are_as_transformers_loads_them(data):
    assert np.array_equal(np.asarray(decode(data, MOST)), np.asarray(load_image(opened(data))))


def test_hidden_colours_do_not_come_out():
    """The same picture with other colours where it is transparent is the same picture."""
    values = np.asarray(picture(channels=4)).copy()
    values[..., 3] = 255 * (values[..., 3] > 127)
    others = values.copy()
    others[values[..., 3] == 0, :3] = 77
    first, second = (decode(file_of(Image.fromarray(each)), MOST) for each in (values, others))
    assert np.array_equal(np.asarray(first), np.asarray(second))


class TestSixteenBits:
    def test_grey_is_scaled(self):
        values = [0, 1, 128, 129, 255, 256, 32768, 65535]
        wanted = [round(value / 257) for value in values]
        assert pixels(png(0, 16, values)) == [[[value] * 3 for value in wanted]]

    def test_grey_of_a_picture_is_that_of_its_upper_byte(self):
        values = np.asarray(picture(channels=1))
        wide = Image.fromarray(values.astype(np.uint16) * 257)
        assert np.array_equal(np.asarray(decode(file_of(wide), MOST))[..., 0], values)

    def test_its_transparent_value_is_white(self):
        hidden = chunk(b"tRNS", struct.pack(">H", 32768))
        assert pixels(png(0, 16, [0, 32768, 32769], hidden)) == [[[0] * 3, [255] * 3, [128] * 3]]

    def test_colours(self):
        assert pixels(png(2, 16, [0, 0x8000, 0xFFFF])) == [[[0, 128, 255]]]
        hidden = chunk(b"tRNS", struct.pack(">3H", 0x1234, 0x4567, 0x89AB))
        row = [0x1234, 0x4567, 0x89AB, 0, 0, 0]
        assert pixels(png(2, 16, row, hidden)) == [[[255] * 3, [0] * 3]]

    def test_alpha(self):
        assert pixels(png(4, 16, [0x8000, 0, 0x8000, 0xFFFF])) == [[[255] * 3, [128] * 3]]
        assert pixels(png(6, 16, [0x8000, 0, 0, 0])) == [[[255] * 3]]


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_photos_are_upright(kind, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = file_of(picture(), kind, exif=exif)
    assert np.array_equal(np.asarray(decode(data, MOST)), np.asarray(load_image(opened(data))))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize(
    "exif", [b"garbage", b"II*\0\x08\0\0\0\x05\0\x12\x01\x03\0", b"Exif\0\0MM\0*\xff\xff\xff\xff"]
)
def test_photos_with_damaged_exif_data_stand_as_they_are(kind, exif):
    data = file_of(picture(), kind, exif=exif)
    without = file_of(picture(), kind)
    assert np.array_equal(np.asarray(decode(data, MOST)), np.asarray(decode(without, MOST)))


def test_a_reduced_picture_keeps_its_shape_and_a_small_one_its_size():
    assert decode(file_of(picture(100, 50)), MOST, 20).size == (10, 20)
    assert decode(file_of(picture(10, 5)), MOST, 20).size == (5, 10)


def bomb(width, height) -> bytes:
    return png(2, 8, [0] * 63, size=(width, height))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (bomb(60000, 60000), "60000 × 60000 pixels; at most 10000"),
        (bomb(2**31 - 1, 2**31 - 1), "pixels; at most 10000"),
        (bomb(3000, 2), "one edge may be 200 times"),
        (bomb(40, 40), "PNG data are damaged"),
        (file_of(picture())[:900], "PNG data are damaged"),
        (file_of(picture(), "JPEG")[:800], "JPEG data are damaged"),
        (file_of(picture(), "TIFF"), "it is TIFF; send one of PNG, JPEG"),
        (file_of(picture(), "AVIF"), "it is AVIF; send one of"),
        (file_of(picture(), "ICO"), "it is ICO; send one of"),
        (png(2, 8, [0] * 3, chunk(b"tEXt", b"k\0v")[:-1] + b"\0"), "PNG data are damaged"),
        (png(2, 8, [0] * 3, chunk(b"zTXt", b"k\0\0" + zlib.compress(bytes(3 << 20)))), "PNG data"),
        (b"RIFF\0\0\0\0WAVEfmt ", "it is none of PNG"),
        (b"%PDF-1.7", "it is PDF; send one of"),
        (b'<svg xmlns="http://www.w3.org/2000/svg"/>', "it is SVG; send one of"),
        (b'<?xml version="1.0"?>\n<!-- x --><SVG/>', "it is SVG; send one of"),
        (b"no image", "it is none of PNG, JPEG"),
        (b"", "it is none of PNG, JPEG"),
    ],
)
def test_a_file_that_is_no_image_within_bounds(data, reason):
    with pytest.raises(BadImage, match=reason):
        decode(data, MOST)
