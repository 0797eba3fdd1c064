"""Images in the place of their tokens, and the features that name them."""

from __future__ import annotations

import numpy as np
import pytest

from tenonry.errors import RequestError
from tenonry.media import DIGESTS, SPANS, media_input
from tenonry_images.base import ImageContext, ImageLimits, ImageProcessor, ProcessedImage
from tenonry_images.prompt import with_images


class Fixed(ImageProcessor):
    token_id = 9

    def process(self, data, param):
        raise NotImplementedError

    def reset(self):
        pass

    def shutdown(self):
        pass


PROCESSOR = Fixed(ImageContext("", ImageLimits()))


def image(*token_ids, first=0, count=0, mark=1):
    ids = np.array(token_ids, np.int32)
    pixels = {"pixel_values": np.full(2, mark, np.float32)}
    return ProcessedImage(ids, first, count, pixels, bytes([mark]) * 32)


def test_each_image_stands_where_its_placeholder_was():
    prompt = np.array([1, 9, 2, 3, 9], np.int32)
    images = [image(9, 9, count=2), image(7, 9, 9, 9, 8, first=1, count=3, mark=2)]
    ids, features = with_images(prompt, images, PROCESSOR)
    assert ids.tolist() == [1, 9, 9, 2, 3, 7, 9, 9, 9, 8]
    assert ids.dtype == np.int32
    assert features[SPANS].tolist() == [[1, 2], [6, 3]]
    assert features[DIGESTS].tolist() == [[1] * 32, [2] * 32]
    assert features[media_input(1, "pixel_values")].tolist() == [2, 2]


@pytest.mark.parametrize("prompt", [[1, 2], [9, 1, 9]])
def test_as_many_placeholders_as_images(prompt):
    with pytest.raises(RequestError, match=rf"{prompt.count(9)} places for images.* 1 images"):
        with_images(np.array(prompt, np.int32), [image(9, count=1)], PROCESSOR)
