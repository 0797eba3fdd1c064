"""Images made ready in helper processes: kept by their content, bounded, fair between clients."""

from __future__ import annotations

import io
import json
import threading
import time

import numpy as np
import pytest
import transformers
from PIL import Image

from tenonry.errors import DrainingError, ModelError, QueueFullError, RequestError
from tenonry_helper_pool import turns
from tenonry_helper_pool.client import as_client
from tenonry_images.base import ImageContext, ImageLimits
from tenonry_images.processor import TransformersImages

pytestmark = pytest.mark.integration

QWEN = {
    "image_processor_type": "Qwen2VLImageProcessor", "patch_size": 4, "merge_size": 2, "temporal_patch_size": 2,
    "min_pixels": 64, "max_pixels": 4096,
}  # fmt: skip
LARGE = 25_000_000
MAX_BYTES = 3_000_000


def file_of(height=24, width=40, seed=0):
    buffer = io.BytesIO()
    values = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    Image.fromarray(values).save(buffer, "PNG")
    return buffer.getvalue()


def large_file(seed: int) -> bytes:
    """Few bytes, which take about a second to decode."""
    buffer = io.BytesIO()
    Image.new("RGB", (5000, 5000), (seed, 0, 0)).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    (path / "config.json").write_text(json.dumps({"model_type": "qwen2_vl", "image_token_id": 7}))
    (path / "preprocessor_config.json").write_text(json.dumps(QWEN))
    return str(path)


@pytest.fixture(scope="module")
def images(folder):
    """Its helper is a fresh interpreter; those of other tests are forks, which import nothing again."""
    limits = ImageLimits(max_bytes=MAX_BYTES, max_pixels=LARGE, seconds=600.0)
    made = TransformersImages(ImageContext(folder, limits), size=2)
    yield made
    made.shutdown()


def test_an_image_is_kept_by_its_content(images):
    images.reset()
    before = images.pool.stats
    first = images.process(file_of(), "here")
    assert (images.token_id, first.count, len(first.digest)) == (7, 15, 32)
    assert images.process(file_of(), "here") is first
    images.reset()
    again = images.process(file_of(), "here")
    assert again is not first
    assert again.digest == first.digest
    assert images.process(file_of(seed=1), "here").digest != first.digest
    stats = images.pool.stats
    assert stats.num_lookups - before.num_lookups == 4
    assert stats.num_hits - before.num_hits == 1


def test_a_reduced_image_is_another(images):
    data = file_of(60, 1200)
    whole = images.process(data, "here")
    reduced = images.process_reduced(data, "here")
    assert reduced.digest != whole.digest
    assert images.process_reduced(data, "here") is reduced
    assert images.process(data, "here") is whole


def test_inputs_are_the_whole_arrays_of_the_process(images, folder):
    from transformers.models.auto.image_processing_auto import AutoImageProcessor

    processor = AutoImageProcessor.from_pretrained(folder)
    picture = Image.open(io.BytesIO(file_of(seed=5)))
    wanted = processor(images=[picture], return_tensors="np")
    found = images.process(file_of(seed=5), "here").inputs
    for name, array in wanted.items():
        assert np.array_equal(found[name], array)
        assert not found[name].flags.writeable


def test_a_file_that_is_no_image_names_the_part(images):
    with pytest.raises(
        RequestError, match=r"^here: the image cannot be read: it is none"
    ) as raised:
        images.process(b"no image", "here")
    assert raised.value.param == "here"


def test_a_file_above_the_limit_is_rejected_before_it_is_sent(images):
    before = images.pool.stats.num_lookups
    with pytest.raises(
        RequestError, match=r"^here: the image has 3000001 bytes; at most 3000000"
    ) as raised:
        images.process(bytes(MAX_BYTES + 1), "here")
    assert raised.value.param == "here"
    assert images.pool.stats.num_lookups == before


def test_a_client_with_too_many_is_refused(images, monkeypatch):
    monkeypatch.setattr(turns, "MAX_PER_CLIENT", 0)
    with as_client("one"), pytest.raises(QueueFullError, match="wait for 'image_decode'"):
        images.process(file_of(seed=9), "here")


def test_a_small_image_is_decoded_beside_large_ones_of_another_client(images):
    """Fault 22."""

    def decode(seed: int) -> None:
        with as_client("many"):
            images.process(files[seed], "here")

    files = [large_file(seed) for seed in range(3)]
    threads = [threading.Thread(target=decode, args=(seed,)) for seed in range(3)]
    before = images.pool.stats.num_jobs
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 20
    while images.pool.stats.num_waiting < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    with as_client("another"):
        images.process(file_of(seed=17), "here")
    assert images.pool.stats.num_jobs < before + 3
    for thread in threads:
        thread.join()


@pytest.mark.usefixtures("forked_children")
def test_one_that_takes_too_long_is_refused_and_the_next_is_decoded(folder):
    limits = ImageLimits(max_pixels=LARGE, seconds=0.3)
    images = TransformersImages(ImageContext(folder, limits))
    with pytest.raises(RequestError, match=r"not decoded within 0\.3 s of processor time"):
        images.process(large_file(0), "here")
    assert images.process(file_of(seed=2), "here").count == 15
    images.shutdown()
    with pytest.raises(DrainingError):
        images.process(file_of(seed=3), "here")


@pytest.mark.usefixtures("forked_children")
def test_a_model_without_images_is_refused_at_the_start(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(ModelError, match=r"max_images: .* names no image_token_id"):
        TransformersImages(ImageContext(str(tmp_path), ImageLimits()))


@pytest.mark.nightly
@pytest.mark.usefixtures("forked_children")
def test_what_stands_around_an_image_and_what_sees_itself_come_over(gemma_folder):
    if getattr(getattr(transformers, "Gemma3ImageProcessorPil", None), "is_dummy", False):
        pytest.skip("the installed transformers wants torchvision for Gemma3ImageProcessorPil")
    images = TransformersImages(ImageContext(gemma_folder, ImageLimits()))
    try:
        image = images.process(file_of(), "here")
    finally:
        images.shutdown()
    assert images.token_id == 3
    assert image.token_ids.tolist() == [3, 2, 2, 2, 2, 4]
    assert (image.before, image.after, image.whole) == ("\n\n", "\n\n", ((1, 4),))
