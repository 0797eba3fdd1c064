"""Preparation of images for a front end, one after another. Helper process.

A separate process, because a file can be made to exhaust time and memory, and decoders have had vulnerabilities.
"""

from __future__ import annotations

import logging

import msgspec

from tenonry_helper_pool.handler import Handler, HandlerError
from tenonry_images.decoding import BadImage
from tenonry_images.messages import MAX_EDGE, Facts, Made, Setup
from tenonry_images.preparation import CannotPrepare, Preparation

logger = logging.getLogger("tenonry.io")


class DecodeHandler(Handler):
    """Decodes image files, and runs the model's image processor."""

    def __init__(self, setup: bytes) -> None:
        given = msgspec.msgpack.decode(setup, type=Setup)
        self._max_pixels = given.max_pixels
        try:
            self._preparation = Preparation(given.path)
        except (CannotPrepare, OSError, ValueError) as error:
            raise HandlerError(str(error)) from None

    def facts(self) -> bytes:
        return msgspec.msgpack.encode(Facts(self._preparation.token_id))

    def work(self, body: memoryview) -> list[bytes]:
        return [msgspec.msgpack.encode(self._made(body))]

    def _made(self, body: memoryview) -> Made:
        (max_edge,) = MAX_EDGE.unpack_from(body)
        try:
            return self._preparation.make(body[MAX_EDGE.size :], self._max_pixels, max_edge)
        except BadImage as error:
            return Made(str(error))
        except MemoryError:
            return Made("it takes too much memory")
        except Exception:  # the request is at fault, and no text of a library goes to a client
            logger.exception("an image could not be processed")
            return Made("the model's image processor does not take it")
