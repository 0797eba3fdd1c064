"""Media that do not fit their prompt are refused where they come in, and cost an engine nothing (MM-1)."""

from __future__ import annotations

import numpy as np
import pytest

from tenonry.errors import RequestError
from tenonry.messages import EngineCoreRequest
from tenonry.plugin.kinds import REQUEST_CHECKS
from tenonry.plugin.manager import resolve_point
from tenonry.sampling_params import SamplingParams
from tenonry.step import MAX_ARRAYS, Media
from tenonry_images.checks import check_media

LENGTH = 10
PIXELS = {"pixel_values": np.ones((1, 3), np.float32)}


def images(*spans, **changes):
    """Images at these places, other fields in `changes`."""
    fields = {
        "spans": np.array(spans, np.int64).reshape(-1, 2),
        "digests": np.zeros((len(spans), 32), np.uint8),
        "inputs": [PIXELS] * len(spans),
    }
    return Media(**fields | changes)


def check(media):
    check_media(
        EngineCoreRequest(
            handle=1, request_id="r", prompt_token_ids=np.arange(LENGTH, dtype=np.int32),
            sampling_params=SamplingParams(), media=media,
        ),
        None,
    )  # fmt: skip


@pytest.mark.parametrize(
    "good",
    [
        None,
        images((0, 10)),
        images((0, 1), (1, 1), (9, 1)),
        images((2, 3), inputs=[{}]),
        images((2, 3), whole=np.array([[2, 3]])),
    ],
)
def test_images_within_their_prompt_pass(good):
    check(good)


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
        (images(), "spans is empty"),
        (images((0, 1), spans=np.zeros(2, np.int64)), r"spans must be int64 \[N, 2\], not int64 \[2\]"),
        (images((0, 1), spans=np.zeros((1, 3), np.int64)), r"not int64 \[1, 3\]"),
        (images((0, 1), spans=np.zeros((1, 2))), r"not float64 \[1, 2\]"),
        (images((0, 1), spans=[[0, 1]]), r"spans must be .* not \[\[0, 1\]\]"),
        (images((0, 1), digests=np.zeros((2, 32), np.uint8)), "digests is of 2 images, spans of 1"),
        (images((0, 1), digests=np.zeros((1, 16), np.uint8)), r"digests must be uint8 \[N, 32\], not uint8 \[1, 16\]"),
        (images((0, 1), digests=np.zeros((1, 32), np.int64)), r"not int64 \[1, 32\]"),
        (images((0, 1), whole=np.zeros((1, 2))), r"whole must be int64 \[N, 2\]"),
        (images((0, 1), inputs=[]), "inputs is of 0 images, spans of 1"),
        (images((0, 1), inputs=[PIXELS] * 2), "inputs is of 2 images"),
        (images((0, 1), inputs=[1]), "wrong type"),
        (images((0, 1), inputs=[{"grid": [1, 2]}]), r"'0.grid' must be a numpy array .* not \[1, 2\]"),
        (images((0, 1), inputs=[dict.fromkeys(map(str, range(MAX_ARRAYS + 1)), np.ones(1))]), f"at most {MAX_ARRAYS}"),
        (images((0, 1), inputs=[{"a": np.broadcast_to(np.uint8(0), (1 << 28) + 1)}]), "at most 268435456"),
    ],
)  # fmt: skip
def test_images_that_do_not_fit_are_refused_by_name(bad, reason):
    with pytest.raises(RequestError, match=reason) as raised:
        check(bad)
    assert raised.value.param == "media"


def test_the_check_is_installed():
    assert resolve_point(REQUEST_CHECKS, "images")[0] is check_media
