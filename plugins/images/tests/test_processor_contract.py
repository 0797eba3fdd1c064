"""The suite of image processors, over that of this distribution, a plain one, and broken ones."""

from __future__ import annotations

import hashlib
import io
import json
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tenonry.errors import RequestError
from tenonry_images.base import ImageProcessor, ProcessedImage
from tenonry_testkit.image_processor import ImageProcessorContract
from tenonry_testkit.outcomes import failing_tests

TOKEN = 7
QWEN = {
    "image_processor_type": "Qwen2VLImageProcessor", "patch_size": 4, "merge_size": 2, "temporal_patch_size": 2,
    "min_pixels": 64, "max_pixels": 4096,
}  # fmt: skip
SPAN = "test_an_image_is_tokens_and_inputs"
DIGEST = "test_a_digest_is_that_of_the_content"
LIMITS = "test_images_beyond_the_limits_are_rejected"
NONE = "test_what_is_no_image_is_rejected"
PLACES = "test_placeholders_are_found"


@pytest.mark.nightly  # the tests of the processor have it for every change
class TestTransformers(ImageProcessorContract):
    """Its helpers are processes."""

    image_processor = "transformers"

    def folder(self) -> str:
        return str(FOLDER)


@pytest.fixture(scope="module", autouse=True)
def _folder(tmp_path_factory):
    global FOLDER  # noqa: PLW0603 - the suite asks without a fixture
    FOLDER = tmp_path_factory.mktemp("model")
    (FOLDER / "config.json").write_text(
        json.dumps({"model_type": "qwen2_vl", "image_token_id": TOKEN}), "utf-8"
    )
    (FOLDER / "preprocessor_config.json").write_text(json.dumps(QWEN), "utf-8")


FOLDER = Path(tempfile.gettempdir())


class Plain(ImageProcessor):
    """Two tokens per image, and its pixels."""

    token_id = TOKEN

    def process(self, data, param):
        pixels = self.pixels(data, param)
        return ProcessedImage(
            token_ids=np.array([TOKEN, TOKEN], np.int32),
            first=0,
            count=2,
            inputs={"pixel_values": pixels},
            digest=self.digest(pixels, param),
        )

    def digest(self, pixels, param):
        return hashlib.sha256(str(pixels.shape).encode() + pixels.tobytes()).digest()

    def pixels(self, data, param):
        limits = self.context.limits
        if len(data) > limits.max_bytes:
            raise RequestError(f"{param} has {len(data)} bytes", param)
        try:
            with Image.open(io.BytesIO(data)) as image:
                if image.width * image.height > limits.max_pixels:
                    raise RequestError(f"{param} has {image.width} × {image.height} pixels", param)
                return np.asarray(image.convert("RGB"), np.float32)
        except (OSError, ValueError, SyntaxError) as error:
            raise RequestError(f"{param} cannot be read: {error}", param) from error

    def reset(self):
        """Nothing is kept."""

    def shutdown(self):
        """Nothing is held."""


class TestPlain(ImageProcessorContract):
    image_processor = Plain

    def folder(self) -> str:
        return str(FOLDER)


class NoToken(Plain):
    caught_by = "test_it_is_an_image_processor_that_the_kernel_accepts"
    token_id = "<image>"


def changed(**fields):
    def process(self, data, param):
        made = Plain.process(self, data, param)
        values = {name: getattr(made, name) for name in made.__struct_fields__}
        return ProcessedImage(**values | fields)

    return process


class WideTokens(Plain):
    caught_by = SPAN
    process = changed(token_ids=np.array([TOKEN, TOKEN]))


class CountsTooMany(Plain):
    caught_by = SPAN
    process = changed(count=3)


class NamesOtherTokens(Plain):
    caught_by = SPAN
    process = changed(token_ids=np.array([1, 2], np.int32))


class HasNoInputs(Plain):
    caught_by = SPAN
    process = changed(inputs={})


class OverlappingPieces(Plain):
    caught_by = "test_pieces_that_see_one_another_are_in_the_span"
    process = changed(whole=((0, 2), (1, 1)))


class PiecesBeyondTheEnd(Plain):
    caught_by = "test_pieces_that_see_one_another_are_in_the_span"
    process = changed(whole=((1, 2),))


class ShortDigest(Plain):
    caught_by = DIGEST

    def digest(self, pixels, param):
        return super().digest(pixels, param)[:16]


class DigestOfTheSize(Plain):
    caught_by = DIGEST

    def digest(self, pixels, param):
        return hashlib.sha256(str(pixels.shape).encode()).digest()


class DigestOfTheBytes(Plain):
    caught_by = DIGEST

    def digest(self, pixels, param):
        return hashlib.sha256(np.sort(pixels, axis=None).tobytes()).digest()


class DigestOfTheField(Plain):
    caught_by = DIGEST

    def digest(self, pixels, param):
        return hashlib.sha256(pixels.tobytes() + param.encode()).digest()


class OneBuffer(Plain):
    caught_by = "test_an_image_stays_as_it_was_made"
    buffer = np.zeros((64, 64, 3), np.float32)

    def pixels(self, data, param):
        pixels = super().pixels(data, param)
        view = self.buffer[: pixels.shape[0], : pixels.shape[1]]
        view[...] = pixels
        return view


class MixesImages(Plain):
    caught_by = "test_order_does_not_matter"
    last = 0.0

    def pixels(self, data, param):
        pixels = super().pixels(data, param) + self.last
        self.last = float(pixels.mean()) / 10
        return pixels


class ResetsTooMuch(Plain):
    caught_by = "test_order_does_not_matter"

    def reset(self):
        self.context = None


class ReadsPngOnly(Plain):
    caught_by = "test_files_of_several_formats_are_read"

    def pixels(self, data, param):
        if not data.startswith(b"\x89PNG"):
            raise RequestError(f"{param} is no PNG", param)
        return super().pixels(data, param)


class IsOfOneThread(Plain):
    caught_by = "test_several_threads_may_ask"

    def __init__(self, context):
        super().__init__(context)
        self.thread = threading.get_ident()

    def pixels(self, data, param):
        if threading.get_ident() != self.thread:
            raise RuntimeError("another thread")
        return super().pixels(data, param)


class RaisesItsOwn(Plain):
    caught_by = NONE

    def pixels(self, data, param):
        with Image.open(io.BytesIO(data)) as image:
            return np.asarray(image.convert("RGB"), np.float32)


class ReplacesTheUnreadable(Plain):
    caught_by = NONE

    def pixels(self, data, param):
        try:
            return super().pixels(data, param)
        except RequestError:
            return np.zeros((8, 8, 3), np.float32)


class NamesNoField(Plain):
    caught_by = NONE

    def process(self, data, param):
        return super().process(data, "image")


class TakesAnySize(Plain):
    caught_by = LIMITS

    def pixels(self, data, param):
        with Image.open(io.BytesIO(data)) as image:
            return np.asarray(image.convert("RGB"), np.float32)


class FindsTheFirst(Plain):
    caught_by = PLACES

    def placeholder(self, token_ids):
        return super().placeholder(token_ids)[:1]


class FindsWidePlaces(Plain):
    caught_by = PLACES

    def placeholder(self, token_ids):
        return np.flatnonzero(token_ids == self.token_id)


class ReducesNothing(Plain):
    caught_by = "test_reduced_images_are_others"

    def process_reduced(self, data, param):
        return self.process(data, param)


BROKEN = [
    value
    for value in list(globals().values())
    if isinstance(value, type) and "caught_by" in vars(value)
]


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
@pytest.mark.broken("image_processor")
def test_broken_ones_are_caught(broken):
    suite = type("Suite", (TestPlain,), {"image_processor": broken})
    assert broken.caught_by in failing_tests(suite, [broken.caught_by])


def test_every_test_of_the_suite_catches_one():
    tests = {name for name in dir(ImageProcessorContract) if name.startswith("test_")}
    assert tests == {broken.caught_by for broken in BROKEN}
