"""A server that reads images, with light requests alongside heavy ones."""

from __future__ import annotations

import base64
import io
import json
import subprocess
from types import SimpleNamespace

import pytest

from tenonry_bench import own_server
from tenonry_bench.helper_mixes import LIGHT_EDGE, images, schemas, texts
from tenonry_testkit.kernel.forked import ForkedCommand

WORDS = (
    "--runs 1 --schemas 2 --properties 5 --images 2 --megapixels 1 --image-bytes 9000 --texts 2 "
    "--chars 600000"
)


@pytest.fixture
def forked_server(monkeypatch):
    """The server is a fork of this process, and so are its helpers: nothing is imported again."""
    forking = SimpleNamespace(**{**vars(subprocess), "Popen": ForkedCommand})
    monkeypatch.setattr(own_server, "subprocess", forking)
    monkeypatch.setattr(own_server, "tenonry_command", lambda: list(ForkedCommand.beginning))


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.timeout(180)
def test_report(bench, forked_server):
    report, printed = bench("helpers", *WORDS.split())
    mixes = {result["mix"]: result for result in report["results"]}
    assert list(mixes) == ["schemas", "images", "texts"]
    for name, result in mixes.items():
        assert 0 < result["median_s"] <= result["max_s"], name
        assert result["num_light"] >= 3
        assert result["heavy_s"] > 0
        assert name in printed
    assert mixes["schemas"]["statuses"] == mixes["images"]["statuses"] == {"200": 2}
    assert mixes["texts"]["statuses"] == {"400": 2}  # longer than the context


def test_images_are_read_by_a_decoder_and_have_the_size_that_was_asked_for():
    image = pytest.importorskip("PIL.Image")
    mix = images(1, 1, 20_000)
    sizes = []
    for body in (mix.heavy(1), mix.light(1)):
        (message,) = json.loads(body)["messages"]
        data = base64.b64decode(message["content"][0]["image_url"]["url"].partition(",")[2])
        picture = image.open(io.BytesIO(data))
        picture.load()
        sizes.append((picture.size, picture.mode, len(data) > 20_000))
    assert sizes == [((1000, 1000), "RGB", True), ((LIGHT_EDGE,) * 2, "RGB", False)]


def test_no_two_bodies_are_the_same():
    for mix in (schemas(1, 2), images(1, 1, 10), texts(1, 100)):
        for make in (mix.heavy, mix.light):
            assert make(1) == make(1) != make(2)


def test_bodies_have_the_size_that_was_asked_for():
    body = json.loads(schemas(1, 7).heavy(1))
    assert len(body["response_format"]["json_schema"]["schema"]["properties"]) == 7
    assert len(json.loads(texts(1, 1000).heavy(1))["prompt"]) == len("1 ") + 1000
