"""Images in the place of their tokens, and the media that name them."""

from __future__ import annotations

import numpy as np
import pytest

from tenonry.errors import RequestError
from tenonry_images.base import ImageContext, ImageLimits, ImageProcessor, ProcessedImage
from tenonry_images.prompt import with_images, with_surroundings


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
    ids, media = with_images(prompt, images, PROCESSOR)
    assert ids.tolist() == [1, 9, 9, 2, 3, 7, 9, 9, 9, 8]
    assert ids.dtype == np.int32
    assert media.spans.tolist() == [[1, 2], [6, 3]]
    assert media.digests.tolist() == [[1] * 32, [2] * 32]
    assert media.inputs[1]["pixel_values"].tolist() == [2, 2]


@pytest.mark.parametrize("prompt", [[1, 2], [9, 1, 9]])
def test_as_many_placeholders_as_images(prompt):
    with pytest.raises(RequestError, match=rf"{prompt.count(9)} places for images.* 1 images"):
        with_images(np.array(prompt, np.int32), [image(9, count=1)], PROCESSOR)


def test_pieces_that_see_themselves_are_named_where_they_are():
    whole = ProcessedImage(
        np.array([7, 9, 9, 8, 9], np.int32), 1, 4, {}, bytes(32), whole=((1, 2), (4, 1))
    )
    ids, media = with_images(
        np.array([1, 9, 2, 9], np.int32), [whole, image(9, count=1)], PROCESSOR
    )
    assert ids.tolist() == [1, 7, 9, 9, 8, 9, 2, 9]
    assert media.whole.tolist() == [[2, 2], [5, 1]]
    assert media.spans.tolist() == [[2, 4], [7, 1]]
    _, media = with_images(np.array([9], np.int32), [image(9, count=1)], PROCESSOR)
    assert not len(media.whole)


def test_texts_around_images_go_around_their_placeholders_in_order():
    first = ProcessedImage(np.array([9]), 0, 1, {}, b"", "<", ">")
    second = ProcessedImage(np.array([9]), 0, 1, {}, b"", "", "\n")
    assert with_surroundings("a [i] b [i]", [first, second], "[i]") == "a <[i]> b [i]\n"
    assert with_surroundings("a [i] b", [first, second], "[i]") == "a [i] b"
