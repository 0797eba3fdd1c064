"""The mirror between a front end and real engines: losses, deaths and resets change no stream (MM-1, EC-14, AF-24)."""

from __future__ import annotations

import asyncio
import os
import signal

import numpy as np
import pytest

from tenonry.step import Media
from tenonry_images.mirror import ImageMirror
from tenonry_testkit.kernel.faulty import FaultyWorker
from tenonry_testkit.kernel.served import serving
from tenonry_testkit.served import collect, params, tokens

PROMPT = [1, 2, 3]
PIXELS = 100_000


class SeeingWorker(FaultyWorker):
    """Fails the step in which a row comes without the inputs of its image."""

    capabilities = FaultyWorker.capabilities | {"media"}
    rpc_methods = FaultyWorker.rpc_methods | {"reset_mm_cache"}

    def execute_model(self, output):
        for new in output.new:
            if new.media is not None:
                (inputs,) = new.media.inputs
                assert inputs["pixels"].tolist() == [new.media.digests[0, 0]] * PIXELS
        return super().execute_model(output)

    def reset_mm_cache(self):
        pass


class LossyMirror(ImageMirror):
    """An engine that loses its images once, when it has some."""

    has_lost = False

    def decode(self, frames, client):
        if self.kept and not self.has_lost:
            self.has_lost = True
            self.forget(client)
        return super().decode(frames, client)


def image(number):
    pixels = np.full(PIXELS, number, np.uint8)
    return Media(np.array([[0, 2]]), np.full((1, 32), number, np.uint8), [{"pixels": pixels}])


@pytest.fixture
def serve(fake_model_site):
    worker = {"name": f"{__file__}:SeeingWorker", "options": {"delay_s": 0.002}}
    with serving() as start:
        yield lambda codec="mirror", **fields: start(
            worker=worker, request_codec=codec, max_images=1, **fields
        )


def ask(served, name, number=7, has_begun=None, **sampling):
    fields = {"media": image(number), "has_begun": has_begun}
    return collect(served.engine, PROMPT, params(**sampling), name, **fields)


def test_lost_images_are_sent_again_and_requests_go_on(serve):
    served = serve(f"{__file__}:LossyMirror")
    wanted = tokens(PROMPT, params())
    pids = dict(served.engine.engine_pids)

    async def ask_several():
        return await asyncio.gather(*(ask(served, name) for name in "abc"))

    assert served.run(ask(served, "first")) == wanted
    assert served.run(ask_several()) == [wanted] * 3
    assert served.run(ask(served, "last")) == wanted
    served.run(served.counts_are(0, 0))
    assert served.engine.engine_pids == pids


def test_streams_with_images_survive_a_killed_engine(serve):
    served = serve(engine_recovery="resume")
    long = {"max_tokens": 200}
    assert served.run(ask(served, "first")) == tokens(PROMPT, params())

    async def main():
        begun = [asyncio.Event() for _ in range(3)]
        tasks = [
            asyncio.ensure_future(ask(served, f"r{place}", 7 + place // 2, has_begun=event, **long))
            for place, event in enumerate(begun)
        ]
        await asyncio.wait_for(asyncio.gather(*(event.wait() for event in begun)), 20)
        os.kill(served.engine.engine_pids["engine 0"], signal.SIGKILL)
        return await asyncio.gather(*tasks)

    assert served.run(main()) == [tokens(PROMPT, params(**long))] * 3
    assert served.run(ask(served, "after")) == tokens(PROMPT, params())


def test_a_reset_sends_images_anew(serve):
    served = serve()
    assert served.run(ask(served, "first")) == tokens(PROMPT, params())
    served.run(served.engine.reset_mm_cache())
    assert served.run(ask(served, "after")) == tokens(PROMPT, params())
