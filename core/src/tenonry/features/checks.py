"""Features of a request, checked where it comes in: those of images stand at places of its prompt. Pure."""

from __future__ import annotations

from typing import Any

import numpy as np

from tenonry.errors import RequestError
from tenonry.media import DIGESTS, SPANS, WHOLE, is_media

MAX_FEATURE_BYTES = 1 << 28  # all features of one request
MAX_FEATURES = 4096
DIGEST_BYTES = 32
HEADER = "tenonry.mirror"  # between front end and engine only; i64[1 + images], see mirror.py


def check_features(features: dict[str, Any], num_prompt_tokens: int) -> None:
    """Refuse what no engine could take. Raises RequestError that names the feature, the value and the bound."""
    if len(features) > MAX_FEATURES:
        raise _refusal(f"{len(features)} features; at most {MAX_FEATURES} are allowed")
    if HEADER in features:
        raise _refusal(f"feature '{HEADER}' is not for requests; give it another name")
    num_bytes = 0
    for name, array in features.items():
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf":
            raise _refusal(
                f"feature '{name}' must be a numpy array of numbers or booleans, not {array!r:.40}"
            )
        num_bytes += array.nbytes
    if num_bytes > MAX_FEATURE_BYTES:
        raise _refusal(
            f"the features have {num_bytes} bytes; at most {MAX_FEATURE_BYTES} are allowed"
        )
    names = {name for name in features if is_media(name)}
    if names:
        _check_images(features, names, num_prompt_tokens)


def _check_images(features: dict[str, np.ndarray], names: set[str], num_prompt_tokens: int) -> None:
    for name in (SPANS, DIGESTS):
        if name not in features:
            raise _refusal(f"feature '{min(names)}' is of an image, but '{name}' is missing")
    spans = features[SPANS]
    if spans.dtype.kind not in "iu" or spans.ndim != 2 or spans.shape[1] != 2 or not len(spans):
        raise _refusal(
            f"feature '{SPANS}' must be integers [images, 2], not {spans.dtype} {list(spans.shape)}"
        )
    digests = features[DIGESTS]
    wanted = (len(spans), DIGEST_BYTES)
    if digests.dtype != np.uint8 or digests.shape != wanted:
        raise _refusal(
            f"feature '{DIGESTS}' must be u8{list(wanted)}, one row per image of '{SPANS}', "
            f"not {digests.dtype} {list(digests.shape)}"
        )
    _check_spans(spans.tolist(), num_prompt_tokens)
    numbers = {str(number) for number in range(len(spans))}
    for name in names - {SPANS, DIGESTS, WHOLE}:
        _check_name(name, numbers)


def _check_spans(spans: list[list[int]], num_prompt_tokens: int) -> None:
    """In order, apart from one another, and within the prompt."""
    end = 0
    for number, (begin, count) in enumerate(spans):
        if begin < end or count < 1 or begin + count > num_prompt_tokens:
            raise _refusal(
                f"feature '{SPANS}': image {number} has {count} tokens from {begin} on; it must have one at least, "
                f"begin at {end} or later, and end within the {num_prompt_tokens} tokens of the prompt"
            )
        end = begin + count


def _check_name(name: str, numbers: set[str]) -> None:
    """`media.{image}.{input}`, of an image that there is."""
    _, number, *rest = name.split(".", 2)
    if not rest or number not in numbers:
        raise _refusal(
            f"feature '{name:.80}' belongs to no image: names are media.N.INPUT, N from 0 to {len(numbers) - 1}"
        )


def _refusal(message: str) -> RequestError:
    return RequestError(message, "features")
