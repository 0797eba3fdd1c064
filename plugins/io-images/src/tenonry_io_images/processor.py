"""The image processor `transformers`: files are decoded and prepared in processes that can be killed. Front end; any
thread. What was made of a file is kept, so that the turns of a chat do not decode its images anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import numpy as np

from tenonry.errors import DrainingError, ModelError, QueueFullError, RequestError
from tenonry_images.base import ImageContext, ImageProcessor, ProcessedImage
from tenonry_io_images.cache import ProcessedImages
from tenonry_io_images.messages import (
    Job,
    Made,
    Ready,
    Setup,
    read_message,
    unpacked,
    write_message,
)

if TYPE_CHECKING:
    from typing import IO

MAX_WAITING = 256
CACHE_BYTES = 256 << 20


class TransformersImages(ImageProcessor):
    """One process decodes; it is started anew when an image ended it."""

    def __init__(self, context: ImageContext) -> None:
        """Raises ModelError for a model without image processor."""
        super().__init__(context)
        limits = context.limits
        self._setup = Setup(context.path, limits.max_pixels, limits.seconds)
        self._lock = threading.Lock()
        self._num_waiting = 0
        self._is_closed = False
        self._processed = ProcessedImages(CACHE_BYTES)
        self._process: _DecodeProcess | None = _DecodeProcess(self._setup)
        self.token_id = self._process.token_id

    def process(self, data: bytes, param: str) -> ProcessedImage:
        key = hashlib.sha256(data).digest()
        found = self._processed.get(key)
        if found is not None:
            return found
        if self._num_waiting >= MAX_WAITING:
            raise QueueFullError(f"{self._num_waiting} images wait to be decoded; try again later")
        self._num_waiting += 1
        try:
            with self._lock:
                made = self._made(data)
        finally:
            self._num_waiting -= 1
        if made is None:
            raise RequestError(
                f"{param}: the image was not decoded within {self._setup.seconds:g} s of processor time, or took too "
                "much memory; send a smaller one",
                param,
            )
        if made.error:
            raise RequestError(f"{param}: the image cannot be read: {made.error}", param)
        image = _image_of(made)
        self._processed.put(key, image)
        return image

    def _made(self, data: bytes) -> Made | None:
        if self._is_closed:
            raise DrainingError("this front end ends: it decodes no more images")
        if self._process is None or self._process.has_ended:
            self._drop()
            self._process = _DecodeProcess(self._setup)
        made = self._process.ask(data)
        if made is None:
            self._drop()
        return made

    def _drop(self) -> None:
        if self._process is not None:
            self._process.close()
        self._process = None

    def reset(self) -> None:
        self._processed.clear()

    def shutdown(self) -> None:
        self._is_closed = True
        self._drop()


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


class _DecodeProcess:
    """One process, asked by one thread at a time."""

    def __init__(self, setup: Setup) -> None:
        """Raises ModelError when it cannot make images ready for the model."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tenonry_io_images.decode_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("the decoding process was started without pipes")
        self._to: IO[bytes] = self._process.stdin
        self._from: IO[bytes] = self._process.stdout
        ready = None
        with contextlib.suppress(BrokenPipeError):
            write_message(self._to, setup)
            ready = read_message(self._from, Ready)
        if ready is None or ready.error:
            self.close()
            what = ready.error if ready is not None else "the decoding process ended at its start"
            raise ModelError(f"max_images: {what}; use max_images=0 to serve the model for text")
        self.token_id = ready.token_id

    @property
    def has_ended(self) -> bool:
        """Whether it ended by itself, or something killed it while it waited."""
        return self._process.poll() is not None

    def ask(self, data: bytes) -> Made | None:
        """What was made of an image file, or None when the process ended over it."""
        try:
            write_message(self._to, Job(data))
            return read_message(self._from, Made)
        except BrokenPipeError:
            return None

    def close(self) -> None:
        self._process.kill()
        for stream in (self._to, self._from):
            with contextlib.suppress(OSError):
                stream.close()
        self._process.wait()
