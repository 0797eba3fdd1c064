"""The link to the engines: frames that are not theirs, and two links in one process."""

from __future__ import annotations

import asyncio
import contextlib

import numpy as np
import zmq

from tenonry import EngineConfig
from tenonry.client.core_client import CoreClient
from tenonry.client.load_balancer import EngineChooser
from tenonry.media import DIGESTS, SPANS, media_input
from tenonry.messages import RequestType
from tenonry.plugin.manager import PluginManager
from tenonry.transport.folder import RunDirectory
from tenonry.transport.keys import CurveKeys
from tenonry_testkit.roles import eventually
from tenonry_testkit.served import collect, params, tokens


def test_a_second_front_end_in_one_process_is_its_own_world(serve):
    first, second = serve(), serve()
    assert first.pid != second.pid
    first.engine.shutdown()
    assert second.run(collect(second.engine, [1], params(), "r")) == tokens([1], params())


def test_ports_of_tcp_stay_and_files_are_for_one_start():
    config = EngineConfig(model="m")
    chooser = EngineChooser(config, PluginManager().plan(config))
    client = CoreClient(chooser, lambda index, reason: None, CurveKeys.generate())
    with contextlib.closing(client), contextlib.closing(RunDirectory()) as directory:
        first = client.bind("tcp://127.0.0.1:0", "tcp://127.0.0.1:0")
        assert client.bind("tcp://127.0.0.1:0", "tcp://127.0.0.1:0") == first
        files = (directory.address(), directory.address())
        assert client.bind(*files) == files


def test_frames_that_no_engine_sent_are_dropped_and_counted(serve):
    """What arrives on the output socket from any other sender is dropped and counted (fault 21)."""
    served = serve()
    client = served.engine._client
    frames = [[b""], [b"\xc1"], [b"x"] * 5, [client._encoder.encode([1, 2])[0]]]
    run = RunDirectory()
    _, address = client.bind(
        run.address(), run.address()
    )  # its own address is private to the engine

    async def receive_all() -> None:
        served.engine.listen()
        with zmq.Context() as context, context.socket(zmq.PUSH) as stranger:
            stranger.connect(address)
            for message in frames:
                stranger.send_multipart(message)
            while client.frames_dropped < 4:  # noqa: ASYNC110 - nothing says so
                await asyncio.sleep(0.01)

    served.run(asyncio.wait_for(receive_all(), 10))
    run.close()
    assert served.run(collect(served.engine, [1], params(), "r")) == tokens([1], params())
    assert client.frames_dropped == 4


def test_a_lost_image_is_asked_for_again_and_requests_go_on(serve):
    """The engine does not have what the front end takes it to have: streams notice nothing (EC-14, MM-1)."""
    served = serve(worker="tenonry_testkit.kernel.faulty:CountingWorker")
    client = served.engine._client
    features = {
        SPANS: np.array([[0, 2]]),
        DIGESTS: np.full((1, 32), 7, np.uint8),
        media_input(0, "pixels"): np.ones(100_000, np.float32),
    }

    def ask(name):
        return collect(served.engine, [1, 2, 3], params(), name, features=features)

    async def ask_several() -> list[list[int]]:
        return await asyncio.gather(*(ask(name) for name in "abc"))

    wanted = tokens([1, 2, 3], params())
    assert served.run(ask("first")) == wanted
    client._encoder._sent[0]._generation += 1  # the engine forgets the image when it comes
    assert served.run(ask_several()) == [wanted] * 3
    assert not client.engines[0].requests
    assert served.run(ask("last")) == wanted


def test_frames_of_an_earlier_epoch_are_dropped_and_counted(serve):
    served = serve()
    client = served.engine._client
    client._send(client.engines[0], RequestType.UTILITY, client._encoder.encode([1, "ping"])[0])
    client.engines[0].epoch += 1
    eventually(lambda: client.receive() is None and client.frames_dropped == 1)
