"""The conformance suite of image processors: each line of their contract is a test. Test process.

from tenonry_testkit.image_processor import ImageProcessorContract

class TestMine(ImageProcessorContract):
    image_processor = "my_package:MyImages"

    def folder(self):
        return "/models/mine"

Install `tenonry-testkit[images]`.
"""

from __future__ import annotations

import functools
import io
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import numpy as np
import pytest
from PIL import Image

from tenonry.errors import RequestError
from tenonry_images.base import ImageContext, ImageLimits, ImageProcessor, ProcessedImage
from tenonry_images.points import IMAGE_PROCESSORS
from tenonry_testkit.targets import resolve_target

DIGEST_BYTES = 32
THREADS = 4
PARAM = "messages.0.content.1"


@functools.cache
def picture(seed: int = 0, size: tuple[int, int] = (40, 24), kind: str = "PNG") -> bytes:
    """Return the file of a picture of random colours, `size` pixels in width and height."""
    values = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(values).save(file, kind)
    return file.getvalue()


class ImageProcessorContract:
    """Subclass in a test module, name the `image_processor`, and return the model's folder in `folder`.

    `max_pixels` and `max_bytes`: limits for the tests of rejection, above the suite's pictures.
    """

    image_processor: ClassVar[str | type[ImageProcessor] | None] = None
    max_pixels: ClassVar[int] = 10_000
    max_bytes: ClassVar[int] = 100_000
    _processor: ImageProcessor | None = None

    # ------------------------------------------------------------------ tools, for tests of your own
    def folder(self) -> str:
        """The model's folder, with the files read by the processor."""
        raise NotImplementedError

    def build(self) -> ImageProcessor:
        """Build a fresh image processor like the front end."""
        target: Any = self.image_processor
        cls, _, _ = resolve_target(IMAGE_PROCESSORS, target)
        limits = ImageLimits(max_bytes=self.max_bytes, max_pixels=self.max_pixels, seconds=120.0)
        made: ImageProcessor = cls(ImageContext(self.folder(), limits))
        return made

    @property
    def processor(self) -> ImageProcessor:
        """The one of this test; it is shut down at the end."""
        if self._processor is None:
            self._processor = self.build()
        return self._processor

    def setup_method(self) -> None:
        self._processor = None

    def teardown_method(self) -> None:
        if self._processor is not None:
            self._processor.shutdown()

    def process(self, data: bytes) -> ProcessedImage:
        """Process an image."""
        return self.processor.process(data, PARAM)

    def _rejects(self, data: bytes) -> None:
        with pytest.raises(RequestError) as caught:
            self.process(data)
        assert PARAM in str(caught.value), f"the field is not named: {caught.value}"
        assert caught.value.param == PARAM

    # ------------------------------------------------------------------ the contract
    def test_it_is_an_image_processor_that_the_kernel_accepts(self) -> None:
        """It resolves, and has the placeholder token of images."""
        assert isinstance(self.processor, ImageProcessor)
        assert isinstance(self.processor.token_id, int | np.integer)

    def test_an_image_is_tokens_and_inputs(self) -> None:
        """The model replaces `count` of the tokens from `first` on."""
        for seed, size in ((0, (40, 24)), (1, (24, 40)), (2, (64, 64))):
            made = self.process(picture(seed, size))
            assert made.token_ids.dtype == np.int32
            assert made.token_ids.ndim == 1
            assert made.first >= 0
            assert made.count >= 1
            assert made.first + made.count <= len(made.token_ids)
            span = made.token_ids[made.first : made.first + made.count]
            assert self.processor.token_id in span, "no token in the span stands for the image"
            assert made.inputs, "there is nothing for the model"
            assert all(isinstance(array, np.ndarray) for array in made.inputs.values())
            assert isinstance(made.before, str)
            assert isinstance(made.after, str)

    def test_pieces_that_see_one_another_are_in_the_span(self) -> None:
        """They are in order and disjoint."""
        made = self.process(picture())
        end = 0
        for first, count in made.whole:
            assert first >= end
            assert count >= 1
            end = first + count
        assert end <= len(made.token_ids)

    def test_a_digest_is_that_of_the_content(self) -> None:
        """32 bytes, deterministic across processes, and different for another picture or size."""
        first = self.process(picture(0)).digest
        assert isinstance(first, bytes)
        assert len(first) == DIGEST_BYTES
        other = self.build()
        try:
            assert other.process(picture(0), "elsewhere").digest == first
        finally:
            other.shutdown()
        others = {self.process(each).digest for each in (picture(1), picture(0, (24, 40)))}
        assert len(others | {first}) == 3

    def test_an_image_stays_as_it_was_made(self) -> None:
        """Earlier results do not change with further images."""
        made = self.process(picture(0))
        before = {name: array.copy() for name, array in made.inputs.items()}
        tokens = made.token_ids.copy()
        for seed in range(1, 4):
            self.process(picture(seed))
        assert np.array_equal(made.token_ids, tokens)
        assert all(np.array_equal(made.inputs[name], before[name]) for name in before)

    def test_order_does_not_matter(self) -> None:
        """Results are independent of earlier images, and equal after a reset."""
        wanted = [self.process(picture(seed)) for seed in range(3)]
        self.processor.reset()
        for seed in (2, 0, 1):
            found = self.process(picture(seed))
            assert found.digest == wanted[seed].digest
            assert np.array_equal(found.token_ids, wanted[seed].token_ids)
            assert all(
                np.array_equal(array, wanted[seed].inputs[name])
                for name, array in found.inputs.items()
            )

    def test_files_of_several_formats_are_read(self) -> None:
        """Clients send PNG and JPEG; equal pixels in two lossless formats have equal inputs."""
        self.process(picture(0, kind="JPEG"))
        first, second = self.process(picture(0)), self.process(picture(0, kind="BMP"))
        assert all(np.array_equal(first.inputs[n], second.inputs[n]) for n in first.inputs)

    def test_several_threads_may_ask(self) -> None:
        """Concurrent threads receive their own results."""
        wanted = [self.process(picture(seed)).digest for seed in range(THREADS)]
        self.processor.reset()
        processor = self.processor
        with ThreadPoolExecutor(THREADS) as pool:
            for _ in range(3):
                found = list(
                    pool.map(lambda seed: processor.process(picture(seed), PARAM), range(THREADS))
                )
                assert [each.digest for each in found] == wanted

    def test_what_is_no_image_is_rejected(self) -> None:
        """Invalid images raise RequestError that names the field of the request."""
        for data in (b"", b"no image", picture()[:60], b"\x89PNG\r\n\x1a\n" + bytes(40)):
            self._rejects(data)

    def test_images_beyond_the_limits_are_rejected(self) -> None:
        """`max_pixels` and `max_bytes`, before they are decoded."""
        width = self.max_pixels // 50 + 10
        file = io.BytesIO()
        Image.new("RGB", (width, 60), "red").save(file, "PNG")
        self._rejects(file.getvalue())
        self._rejects(picture() + bytes(self.max_bytes))

    def test_placeholders_are_found(self) -> None:
        """Returns positions of the placeholder token, i32 in order."""
        token = self.processor.token_id
        other = token + 1
        places = self.processor.placeholder(np.array([token, other, token, token], np.int32))
        assert places.dtype == np.int32
        assert places.tolist() == [0, 2, 3]
        assert len(self.processor.placeholder(np.array([other], np.int32))) == 0

    def test_reduced_images_are_others(self) -> None:
        """`detail: low` returns a different image, or RequestError that names the detail."""
        data = picture(3, (600, 12))
        try:
            reduced = self.processor.process_reduced(data, PARAM)
        except RequestError as error:
            assert error.param == f"{PARAM}.detail", "the detail is not named"
            return
        assert reduced.digest != self.process(data).digest
