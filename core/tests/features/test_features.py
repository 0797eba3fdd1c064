"""Features of images that do not fit their prompt are refused at the door, and cost an engine nothing (MM-1)."""

from __future__ import annotations

import numpy as np
import pytest

from tenonry.errors import RequestError
from tenonry.features.checks import MAX_FEATURES, check_features
from tenonry.media import DIGESTS, SPANS, media_input

LENGTH = 10


def images(*spans, **changes):
    """The features of images at these places; `changes` by the last part of a name."""
    found = {
        SPANS: np.array(spans, np.int64).reshape(-1, 2),
        DIGESTS: np.zeros((len(spans), 32), np.uint8),
    }
    for number in range(len(spans)):
        found[media_input(number, "pixel_values")] = np.ones((1, 3), np.float32)
    return found | {f"media.{name}": array for name, array in changes.items()}


@pytest.mark.parametrize(
    "good",
    [
        images((0, 10)),
        images((0, 1), (1, 1), (9, 1)),
        images((2, 3), spans=np.array([[2, 3]], np.uint64)),
        images((2, 3)) | {"sound": np.zeros(3), "mediation": np.zeros(1)},
        images((2, 3)) | {"media.0.a.b": np.zeros(2)},
        images((2, 3)) | {"media.whole": np.array([[2, 3]])},
    ],
)
def test_images_within_their_prompt_pass(good):
    check_features(good, LENGTH)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (images((9, 2)), "image 0 has 2 tokens from 9 on.*within the 10 tokens"),
        (images((-1, 2)), "image 0 has 2 tokens from -1 on"),
        (images((3, 0)), "image 0 has 0 tokens.*one at least"),
        (images((3, -1)), "image 0 has -1 tokens"),
        (images((0, 4), (3, 2)), "image 1 has 2 tokens from 3 on.*begin at 4"),
        (images((5, 2), (1, 2)), "image 1 has 2 tokens from 1 on.*begin at 7"),
        (images((0, 2**62)), "image 0 has"),
        (images((2**62, 2**62)), "image 0 has"),
        (images(), r"must be integers \[images, 2\], not int64 \[0, 2\]"),
        (images((0, 1), spans=np.zeros(2, np.int64)), r"not int64 \[2\]"),
        (images((0, 1), spans=np.zeros((1, 3), np.int64)), r"not int64 \[1, 3\]"),
        (images((0, 1), spans=np.zeros((1, 2))), r"not float64 \[1, 2\]"),
        (images((0, 1), digests=np.zeros((2, 32), np.uint8)), r"must be u8\[1, 32\].*\[2, 32\]"),
        (images((0, 1), digests=np.zeros((1, 16), np.uint8)), r"not uint8 \[1, 16\]"),
        (images((0, 1), digests=np.zeros((1, 32), np.int64)), r"not int64 \[1, 32\]"),
        ({SPANS: np.array([[0, 1]])}, "'media.digests' is missing"),
        ({DIGESTS: np.zeros((1, 32), np.uint8)}, "'media.spans' is missing"),
        ({"media.0.pixel_values": np.ones(1)}, "'media.spans' is missing"),
        (images((0, 1)) | {"media.1.pixel_values": np.ones(1)}, "'media.1.pixel_values' belongs"),
        (images((0, 1)) | {"media.00.pixels": np.ones(1)}, "'media.00.pixels' belongs to no image"),
        (images((0, 1)) | {"media.-1.pixels": np.ones(1)}, "'media.-1.pixels' belongs"),
        (images((0, 1)) | {"media.frames": np.ones(1)}, "'media.frames' belongs"),
        (images((0, 1)) | {f"media.{'9' * 5000}.a": np.ones(1)}, "belongs to no image"),
        ({str(i): np.ones(1) for i in range(MAX_FEATURES + 1)}, f"at most {MAX_FEATURES}"),
    ],
)  # fmt: skip
def test_images_that_do_not_fit_are_refused_by_name(bad, reason):
    with pytest.raises(RequestError, match=reason) as raised:
        check_features(bad, LENGTH)
    assert raised.value.param == "features"
