"""Images of a chat: their positions, and their requested detail."""

from __future__ import annotations

import pytest

from tenonry.errors import RequestError
from tenonry_images.base import ImageContext, ImageLimits, ImageProcessor
from tenonry_io_text.content import ChatImages
from tenonry_io_text.images import PromptImages


def part(url="data:,x", **fields):
    return {"type": "image_url", "image_url": {"url": url, **fields}}


class RecordingProcessor(ImageProcessor):
    """Returns which method was called, and its arguments."""

    token_id = 7

    def process(self, data, param):
        return "whole", data, param

    def process_reduced(self, data, param):
        return "reduced", data, param

    def __init__(self, context):
        super().__init__(context)
        self.num_resets = 0

    def reset(self):
        self.num_resets += 1

    def shutdown(self):
        pass


@pytest.fixture
def prompt_images(monkeypatch):
    monkeypatch.setattr(
        "tenonry_io_text.images.resolve_point", lambda *_: (RecordingProcessor, None)
    )
    return PromptImages(
        "model", processor="any", limits=ImageLimits(), hosts=(), most=9, max_piece=9
    )


def test_low_detail_is_reduced_and_the_others_are_whole(prompt_images):
    images = ChatImages(9, "<image>")
    for detail in ("low", "high", "auto", "original", None):
        images.add(part(detail=detail), "messages[0].content[0]")
    images.add({"type": "input_image", "image_url": "data:,x", "detail": "low"}, "b")
    made = [kind for kind, data, _ in prompt_images.read(images) if data == b"x"]
    assert made == ["reduced", "whole", "whole", "whole", "whole", "reduced"]


def test_reset_mm_cache_forgets_decoded_files(tokenizer_folders, make_processor, monkeypatch):
    """AF-17."""
    made = []

    class Counting(RecordingProcessor):
        def __init__(self, context):
            super().__init__(context)
            made.append(self)

    monkeypatch.setattr("tenonry_io_text.images.resolve_point", lambda *_: (Counting, None))
    make_processor(tokenizer_folders["llama"]).reset_mm_cache()  # has none to forget
    make_processor(tokenizer_folders["llama"], max_images=1).reset_mm_cache()
    assert [each.num_resets for each in made] == [1]


@pytest.mark.parametrize("detail", ["ultra", 3, ["low"]])
def test_an_unknown_detail_is_refused_by_name(detail):
    with pytest.raises(RequestError, match=r"detail=.* must be one of auto, low, high") as raised:
        ChatImages(9, "<image>").add(part(detail=detail), "here")
    assert raised.value.param == "here.image_url.detail"


@pytest.mark.parametrize("url", ["", " ", None, 3])
def test_an_image_without_a_url_is_refused(url):
    with pytest.raises(RequestError, match="must hold"):
        ChatImages(9, "<image>").add(part(url), "here")


def test_a_processor_that_does_not_reduce_says_so():
    class Plain(RecordingProcessor):
        process_reduced = ImageProcessor.process_reduced

    with pytest.raises(
        RequestError, match="detail='low' is not supported by image processor Plain"
    ):
        Plain(ImageContext("model", ImageLimits())).process_reduced(b"x", "here")
