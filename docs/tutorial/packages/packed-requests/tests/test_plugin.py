"""The conformance suite of request codecs, and the bytes of an image."""

from __future__ import annotations

import numpy as np
from tenonry.config import EngineConfig
from tenonry.interfaces.plugin import PluginContext
from tenonry.messages import EngineCoreRequest
from tenonry.sampling_params import SamplingParams
from tenonry.step import Media
from tenonry_testkit.request_codec import Link, RequestCodecContract

from packed_requests.plugin import PackedRequests


class TestPackedRequests(RequestCodecContract):
    request_codec = "packed_requests.plugin:PackedRequests"


def test_media_are_compressed() -> None:
    codec = PackedRequests(PluginContext(EngineConfig(model="fake")))
    pixels = np.random.default_rng(0).integers(0, 256, (3, 64, 64)).astype(np.float32) / 255
    media = Media(np.array([[0, 1]]), np.zeros((1, 32), np.uint8), [{"pixel_values": pixels}])
    request = EngineCoreRequest(
        handle=1,
        request_id="r",
        prompt_token_ids=np.arange(3, dtype=np.int32),
        sampling_params=SamplingParams(),
        media=media,
    )
    frames = codec.encode(request, Link(1))
    assert sum(memoryview(frame).nbytes for frame in frames) < pixels.nbytes * 0.75
    received = codec.decode(frames, 0).media
    assert received is not None
    assert np.array_equal(received.inputs[0]["pixel_values"], pixels)
