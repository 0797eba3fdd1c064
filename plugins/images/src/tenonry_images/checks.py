"""The request check `images`: media fit their prompt. Front end and engine."""

from __future__ import annotations

from typing import Any

import numpy as np

from tenonry.errors import RequestError
from tenonry.interfaces.request_check import RequestLimits
from tenonry.messages import EngineCoreRequest
from tenonry.sampling_params import check_type
from tenonry.step import check_arrays
from tenonry_images.settings import ImageSettings

DIGEST_BYTES = 32


def check_media(request: EngineCoreRequest, _limits: RequestLimits) -> None:
    """Raises RequestError that names the part of `request.media`, its value and the bound."""
    media = request.media
    if media is None:
        return
    check_type("media", media.inputs, list[dict[str, Any]])
    _check_shape("spans", media.spans, np.int64, 2)
    _check_shape("whole", media.whole, np.int64, 2)
    _check_shape("digests", media.digests, np.uint8, DIGEST_BYTES)
    num_images = len(media.spans)
    if not num_images:
        raise _refusal("spans is empty; leave media out")
    for field in ("digests", "inputs"):
        length = len(getattr(media, field))
        if length != num_images:
            raise _refusal(
                f"{field} is of {length} images, spans of {num_images}; give one for each"
            )
    inputs = enumerate(media.inputs)
    check_arrays(
        "media", {f"{i}.{name}": array for i, each in inputs for name, array in each.items()}
    )
    _check_spans(media.spans.tolist(), len(request.prompt_token_ids))


check_media.Settings = ImageSettings  # type: ignore[attr-defined]


def _check_shape(field: str, array: Any, dtype: type[Any], width: int) -> None:
    is_array = isinstance(array, np.ndarray)
    if not is_array or array.dtype != dtype or array.ndim != 2 or array.shape[1] != width:
        found = f"{array.dtype} {list(array.shape)}" if is_array else f"{array!r:.40}"
        raise _refusal(f"{field} must be {np.dtype(dtype)} [N, {width}], not {found}")


def _check_spans(spans: list[list[int]], num_prompt_tokens: int) -> None:
    """In order, apart from one another, and within the prompt."""
    end = 0
    for number, (begin, count) in enumerate(spans):
        if begin < end or count < 1 or begin + count > num_prompt_tokens:
            raise _refusal(
                f"image {number} has {count} tokens from {begin} on; it must have one at least, begin at {end} or "
                f"later, and end within the {num_prompt_tokens} tokens of the prompt"
            )
        end = begin + count


def _refusal(message: str) -> RequestError:
    return RequestError(f"media: {message}", "media")
