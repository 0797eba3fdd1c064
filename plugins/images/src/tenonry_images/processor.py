"""The image processor `transformers`: files are decoded and prepared in helper processes. Front end; any thread.
What was made of a file is kept, so that the turns of a chat do not decode its images anew.
"""

from __future__ import annotations

import hashlib

import msgspec
import numpy as np

from tenonry.errors import ModelError, RequestError
from tenonry_helper_pool.pool import HelperPool, HelperUnavailable, LimitExceeded, Limits, Workers
from tenonry_images.base import REDUCED_EDGE, ImageContext, ImageProcessor, ProcessedImage
from tenonry_images.cache import ProcessedImages
from tenonry_images.messages import MAX_EDGE, Facts, Made, Setup, unpacked

HELPER = "image_decode"
CACHE_BYTES = 256 << 20
MEMORY_BYTES = 4 << 30
SHORT_BYTES = 1 << 20  # of a file; larger ones are expected to take long
NICE = 5  # the priority of long jobs, too: a request waits for each


class TransformersImages(ImageProcessor):
    """Decodes in processes that are ended when an image takes too much time or memory."""

    def __init__(self, context: ImageContext, *, size: int | None = None) -> None:
        """Raises ModelError for a model without image processor. `size`: see `HelperPool`."""
        super().__init__(context)
        limits = context.limits
        self._seconds = limits.seconds
        self._max_bytes = limits.max_bytes
        workers = Workers(
            "images",
            "tenonry_images.decode_process:DecodeHandler",
            msgspec.msgpack.encode(Setup(context.path, limits.max_pixels)),
            Limits(seconds=limits.seconds, memory_bytes=MEMORY_BYTES, nice=NICE),
        )
        self.pool = HelperPool(
            HELPER, workers, short_cost=SHORT_BYTES, size=size, report=context.report
        )
        self._processed = ProcessedImages(CACHE_BYTES)
        try:
            facts = msgspec.msgpack.decode(self.pool.facts(), type=Facts)
        except HelperUnavailable as error:
            self.pool.close()
            raise ModelError(
                f"max_images: {error}; use max_images=0 to serve the model for text"
            ) from None
        self.token_id = facts.token_id

    def process(self, data: bytes, param: str) -> ProcessedImage:
        return self._made(data, 0, param)

    def process_reduced(self, data: bytes, param: str) -> ProcessedImage:
        return self._made(data, REDUCED_EDGE, param)

    def _made(self, data: bytes, max_edge: int, param: str) -> ProcessedImage:
        if len(data) > self._max_bytes:
            raise RequestError(
                f"{param}: the image has {len(data)} bytes; at most {self._max_bytes} are allowed",
                param,
            )
        begin = MAX_EDGE.pack(max_edge)
        key = hashlib.sha256(begin)
        key.update(data)
        found = self._processed.get(key.digest())
        self.pool.count_lookup(found is not None)
        if found is not None:
            return found
        made = self._asked(begin, data, param)
        if made.error:
            raise RequestError(f"{param}: the image cannot be read: {made.error}", param)
        image = _image_of(made)
        self._processed.put(key.digest(), image)
        return image

    def _asked(self, begin: bytes, data: bytes, param: str) -> Made:
        try:
            answer = self.pool.run(begin, data, cost=len(data))
        except LimitExceeded:
            raise RequestError(
                f"{param}: the image was not decoded within {self._seconds:g} s of processor time, or took too much "
                "memory; send a smaller one",
                param,
            ) from None
        except HelperUnavailable as error:
            raise ModelError(f"images cannot be decoded: {error}") from None
        return msgspec.msgpack.decode(answer, type=Made)

    def reset(self) -> None:
        self._processed.clear()

    def shutdown(self) -> None:
        self.pool.close()


def _image_of(made: Made) -> ProcessedImage:
    inputs = {name: unpacked(sent) for name, sent in sorted(made.inputs.items())}
    digest = hashlib.sha256(str((made.token_ids, made.first, made.count)).encode())
    for name, array in inputs.items():
        digest.update(f"{name}{array.dtype.str}{array.shape}".encode())
        digest.update(array.data)
    return ProcessedImage(
        np.array(made.token_ids, np.int32),
        made.first,
        made.count,
        inputs,
        digest.digest(),
        made.before,
        made.after,
        tuple(made.whole),
    )
