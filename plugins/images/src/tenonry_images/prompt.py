"""Puts images into a prompt: token ids in which each has its places, and the `Media` that names them. Front end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tenonry.errors import RequestError
from tenonry.step import Media

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tenonry.step import I32
    from tenonry_images.base import ImageProcessor, ProcessedImage


def with_images(
    token_ids: I32, images: Sequence[ProcessedImage], processor: ImageProcessor
) -> tuple[I32, Media]:
    """The prompt i32[n] with each image in place of one placeholder, in order, and the media of the request.

    Raises RequestError when there are more or fewer placeholders than images.
    """
    places = processor.placeholder(token_ids)
    if len(places) != len(images):
        raise RequestError(
            f"the prompt has {len(places)} places for images, token {processor.token_id}, and {len(images)} images; "
            "leave the token's text out of the messages, or give one image for each",
            "messages",
        )
    parts: list[I32] = []
    spans = []
    whole = []
    length = 0
    start = 0
    for place, image in zip(places.tolist(), images, strict=True):
        parts += [token_ids[start:place], image.token_ids]
        length += place - start
        spans.append((length + image.first, image.count))
        whole += [(length + begin, count) for begin, count in image.whole]
        length += len(image.token_ids)
        start = place + 1
    parts.append(token_ids[start:])
    digests = np.frombuffer(b"".join(image.digest for image in images), np.uint8)
    media = Media(
        np.array(spans, np.int64),
        digests.reshape(len(images), -1),
        [image.inputs for image in images],
        np.array(whole, np.int64).reshape(-1, 2),
    )
    return np.concatenate(parts).astype(np.int32), media


def with_surroundings(text: str, images: Sequence[ProcessedImage], placeholder: str) -> str:
    """A prompt's text with what stands around each image around its placeholder; as it is if their numbers differ."""
    parts = text.split(placeholder)
    if len(parts) != len(images) + 1:
        return text
    spliced = parts[0]
    for image, part in zip(images, parts[1:], strict=True):
        spliced += image.before + placeholder + image.after + part
    return spliced
