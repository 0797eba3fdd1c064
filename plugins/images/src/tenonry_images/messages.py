"""Messages between a front end and the helper processes that decode its images. Light."""

from __future__ import annotations

import struct
from typing import Any

import msgspec
import numpy as np

MAX_EDGE = struct.Struct("<I")  # in front of an image file: see `decode`; 0 for none
# Data type, shape and bytes of an array.
Packed = tuple[str, list[int], memoryview]


class Setup(msgspec.Struct, array_like=True):
    """Start parameters of the process: the model's folder, and the maximum pixels of one image."""

    path: str
    max_pixels: int


class Facts(msgspec.Struct, array_like=True):
    """Report of the process once it is ready: the token that stands for an image."""

    token_id: int


class Made(msgspec.Struct, array_like=True):
    """The answer: what is wrong with the image, or what was made of it.

    The other fields are those of `ProcessedImage`.
    """

    error: str = ""
    token_ids: list[int] = []
    first: int = 0
    count: int = 0
    inputs: dict[str, Packed] = {}
    before: str = ""
    after: str = ""
    whole: list[tuple[int, int]] = []


def packed(array: np.ndarray) -> Packed:
    """An array as it is sent."""
    data: Any = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    return array.dtype.str, list(array.shape), data


def unpacked(sent: Packed) -> np.ndarray:
    """The array again; read-only, over the bytes of the answer."""
    kind, shape, data = sent
    array = np.frombuffer(data, np.dtype(kind)).reshape(shape)
    array.flags.writeable = False
    return array
