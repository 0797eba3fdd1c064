"""Interface of an image processor, and its result. Front end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from tenonry.errors import RequestError

if TYPE_CHECKING:
    from tenonry.step import I32


# Pixels in width and height of an image requested with low detail.
REDUCED_EDGE = 512


class ImageLimits(msgspec.Struct, frozen=True):
    """Limits of one image: bytes as sent, pixels, and seconds of processor time to decode and prepare it."""

    max_bytes: int = 20 << 20
    max_pixels: int = 50_000_000
    seconds: float = 10.0


@dataclass(frozen=True, slots=True)
class ImageContext:
    """Arguments of an image processor: the model's folder, and the limits of one image. `report` receives the
    statistics of its helper, a `HelperStats`.
    """

    path: str
    limits: ImageLimits
    report: Callable[[Any], None] | None = None


class ProcessedImage(msgspec.Struct, frozen=True):
    """An image ready for the engine.

    `token_ids` i32[n] stand for it in the prompt; of the `count` tokens from the place `first` on, the model replaces
    those that are its image token. `inputs` are what the model's `get_image_features` is given; `digest` (32 bytes)
    covers them.

    `before` and `after`: texts that stand around `token_ids`, and that are tokenised with what the prompt has there: a
    tokenizer may have one token for both. `whole`: pieces of `token_ids` that see one another, each as its first token
    and how many there are.
    """

    token_ids: np.ndarray
    first: int
    count: int
    inputs: dict[str, np.ndarray]
    digest: bytes
    before: str = ""
    after: str = ""
    whole: tuple[tuple[int, int], ...] = ()

    @property
    def num_bytes(self) -> int:
        """Memory of its inputs in bytes."""
        return sum(array.nbytes for array in self.inputs.values())


class ImageProcessor(ABC):
    """Makes images ready for one model. Safe to use from several threads.

    `token_id` stands for an image in a prompt before it is made ready. Raises RequestError for an image that cannot be
    read, and QueueFullError where many wait.
    """

    token_id: int

    def __init__(self, context: ImageContext) -> None:
        self.context = context

    @abstractmethod
    def process(self, data: bytes, param: str) -> ProcessedImage:
        """An image file's bytes, made ready; `param` is the request's field that errors name."""

    def process_reduced(self, data: bytes, param: str) -> ProcessedImage:
        """The same of an image that is first reduced to `REDUCED_EDGE` pixels in width and height.

        Raises RequestError where the processor does not do that.
        """
        raise RequestError(
            f"{param}.detail='low' is not supported by image processor {type(self).__name__}; leave it out",
            f"{param}.detail",
        )

    def placeholder(self, token_ids: I32) -> I32:
        """The places in `token_ids` i32[n] that stand for images."""
        return np.flatnonzero(token_ids == self.token_id).astype(np.int32)

    @abstractmethod
    def reset(self) -> None:
        """Forget what was kept of images."""

    @abstractmethod
    def shutdown(self) -> None:
        """Release everything. Called once."""
