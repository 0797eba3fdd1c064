"""Image files whose headers lie (class F): rejected or decoded, never a signal, and errors contain no addresses.

Each case is decoded in the process that a server has for it. A signal that ended it would count as a timeout.
"""

from __future__ import annotations

import io
import json
import os
import random
import re

import pytest
from PIL import Image

from tenonry.errors import RequestError
from tenonry_images.base import ImageContext, ImageLimits, ProcessedImage
from tenonry_images.processor import TransformersImages

# The first image waits for the imports of a helper process, which has a low priority.
pytestmark = pytest.mark.timeout(600)
QWEN = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "patch_size": 4,
    "merge_size": 2,
    "temporal_patch_size": 2,
    "min_pixels": 64,
    "max_pixels": 4096,
}
CASES_PER_FILE = 110 if os.environ.get("TENONRY_EXPLORE") else 30
HEADER_BYTES = 96
TELLING = re.compile(r"0x[0-9a-f]{6,}|Traceback|site-packages|/usr|\.py\b", re.IGNORECASE)


def saved(mode: str, kind: str, **options) -> bytes:
    buffer = io.BytesIO()
    picture = Image.radial_gradient("L").resize((48, 32)).convert(mode)
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


def sources() -> dict[str, bytes]:
    frame = Image.new("RGB", (48, 32))
    exif = Image.Exif()
    exif[0x0112] = 6
    return {
        "png": saved("RGB", "PNG"),
        "png palette": saved("P", "PNG", transparency=3),
        "png 16": saved("I;16", "PNG"),
        "jpeg": saved("RGB", "JPEG", exif=exif),
        "jpeg progressive": saved("CMYK", "JPEG", progressive=True),
        "webp": saved("RGBA", "WEBP"),
        "webp lossless": saved("RGBA", "WEBP", lossless=True),
        "webp animated": saved("RGB", "WEBP", save_all=True, append_images=[frame]),
        "gif": saved("P", "GIF", transparency=3),
        "gif animated": saved("P", "GIF", save_all=True, append_images=[frame]),
        "bmp": saved("RGB", "BMP"),
    }


def damaged(data: bytes, chance: random.Random) -> bytes:
    """The file with a lie in its header: other bytes, extreme numbers, or an end in the middle."""
    changed = bytearray(data)
    kind = chance.randrange(4)
    place = chance.randrange(2, min(HEADER_BYTES, len(data) - 4))
    if kind == 0:
        changed[place] ^= 1 << chance.randrange(8)
    elif kind == 1:
        changed[place : place + 4] = chance.choice(
            [b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0\0\0\0", b"\0\0\0\x80", b"\xff\xff\0\0"]
        )
    elif kind == 2:
        del changed[chance.randrange(len(data)) :]
    else:
        for _ in range(chance.randrange(1, 9)):
            changed[chance.randrange(2, len(data))] = chance.randrange(256)
    return bytes(changed)


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen2_vl", "image_token_id": 7}))
    (folder / "preprocessor_config.json").write_text(json.dumps(QWEN))
    limits = ImageLimits(max_pixels=1_000_000, seconds=20.0)
    made = TransformersImages(ImageContext(str(folder), limits))
    yield made
    made.shutdown()


@pytest.mark.nightly_after(2)
@pytest.mark.parametrize("name", sources())
def test_a_header_that_lies_is_an_error_of_its_request(images, name):
    chance = random.Random(name)
    data = sources()[name]
    assert isinstance(images.process(data, "here"), ProcessedImage)
    errors = [error_of(images, damaged(data, chance)) for _ in range(CASES_PER_FILE)]
    texts = [text for text in errors if text]
    assert texts
    assert all(text.startswith("here: the image cannot be read: ") for text in texts)
    assert not [text for text in texts if TELLING.search(text) or len(text) > 400]
    assert images.pool.stats.num_timeouts == 0


def error_of(images, data: bytes) -> str:
    """Empty where the image was decoded."""
    try:
        images.process(data, "here")
    except RequestError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    "data",
    [
        b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>',
        b'<?xml version="1.0"?><!DOCTYPE svg [<!ENTITY x SYSTEM "file:///etc/passwd">]><svg>&x;</svg>',
        b"%!PS-Adobe-3.0 EPSF-3.0\n(x) run",
        b"push graphic-context\nimage over 0,0 0,0 'https://localhost/'\npop graphic-context",
        b"P6\n4294967295 4294967295\n255\n",
    ],
    ids=["svg", "svg with an entity", "eps", "mvg", "ppm"],
)
def test_formats_that_run_or_fetch_something_are_refused(images, data):
    with pytest.raises(RequestError, match=r"send one of PNG|it is none of PNG"):
        images.process(data, "here")
