"""The process that decodes: it answers, it is ended by an image that takes too long, and the next one has another."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import numpy as np
import pytest
import transformers
from PIL import Image

from tenonry.errors import DrainingError, RequestError
from tenonry_images.base import ImageContext, ImageLimits
from tenonry_io_images import decode_process
from tenonry_io_images.processor import TransformersImages
from tenonry_testkit.kernel.forked import ForkedCommand

QWEN = {
    "image_processor_type": "Qwen2VLImageProcessor", "patch_size": 4, "merge_size": 2, "temporal_patch_size": 2,
    "min_pixels": 64, "max_pixels": 4096,
}  # fmt: skip


def file_of(height=24, width=40, seed=0):
    buffer = io.BytesIO()
    values = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    Image.fromarray(values).save(buffer, "PNG")
    return buffer.getvalue()


class ForkedProcess(ForkedCommand):
    """The process as a fork of this one, which imports nothing again."""

    beginning = (sys.executable, "-m", decode_process.__name__)
    program = staticmethod(lambda words: decode_process.main())


def test_a_process_answers_is_ended_and_comes_again(tmp_path, monkeypatch):
    """The first process is a fresh interpreter, its successor a fork."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2_vl", "image_token_id": 7}))  # fmt: skip
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(QWEN))
    images = TransformersImages(
        ImageContext(str(tmp_path), ImageLimits(max_pixels=50_000_000, seconds=0.5))
    )
    first = images.process(file_of(), "here")
    assert (images.token_id, first.count, len(first.digest)) == (7, 15, 32)
    assert images.process(file_of(), "here") is first  # kept
    images.reset()
    again = images.process(file_of(), "here")
    assert again is not first
    assert again.digest == first.digest
    assert images.process(file_of(seed=1), "here").digest != first.digest
    flat = io.BytesIO()
    Image.new("RGB", (7000, 7000)).save(flat, "PNG", compress_level=1)
    with pytest.raises(RequestError, match=r"not decoded within 0\.5 s of processor time"):
        images.process(flat.getvalue(), "here")
    monkeypatch.setattr(subprocess, "Popen", ForkedProcess)
    assert images.process(file_of(seed=2), "here").count == 15
    images.shutdown()
    with pytest.raises(DrainingError):
        images.process(file_of(seed=3), "here")


def test_what_stands_around_an_image_and_what_sees_itself_come_over(gemma_folder, monkeypatch):
    if getattr(getattr(transformers, "Gemma3ImageProcessorPil", None), "is_dummy", False):
        pytest.skip("the installed transformers wants torchvision for Gemma3ImageProcessorPil")
    monkeypatch.setattr(subprocess, "Popen", ForkedProcess)
    images = TransformersImages(ImageContext(gemma_folder, ImageLimits()))
    try:
        image = images.process(file_of(), "here")
    finally:
        images.shutdown()
    assert images.token_id == 3
    assert image.token_ids.tolist() == [3, 2, 2, 2, 2, 4]
    assert (image.before, image.after, image.whole) == ("\n\n", "\n\n", ((1, 4),))
