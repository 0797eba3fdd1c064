"""The link to the engines: frames that are not theirs, and two links in one process."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
import zmq

from tenonry.client.core_client import CoreClient
from tenonry.errors import EngineGenerateError, RequestError
from tenonry.interfaces.request_codec import RequestCodec
from tenonry.messages import RequestType
from tenonry.plugin.manager import PluginManager
from tenonry.transport.folder import RunDirectory
from tenonry.transport.keys import CurveKeys
from tenonry_testkit.roles import eventually
from tenonry_testkit.served import collect, params, served_config, tokens


def test_a_second_front_end_in_one_process_is_its_own_world(serve):
    first, second = serve(), serve()
    assert first.pid != second.pid
    first.engine.shutdown()
    assert second.run(collect(second.engine, [1], params(), "r")) == tokens([1], params())


def test_ports_of_tcp_stay_and_files_are_for_one_start():
    config = served_config()
    plan = PluginManager().plan(config)
    client = CoreClient(config, plan, lambda index, reason: None, CurveKeys.generate())
    with contextlib.closing(client), contextlib.closing(RunDirectory()) as directory:
        first = client.bind("tcp://127.0.0.1:0", "tcp://127.0.0.1:0")
        assert client.bind("tcp://127.0.0.1:0", "tcp://127.0.0.1:0") == first
        files = (directory.address(), directory.address())
        assert client.bind(*files) == files


def test_frames_that_no_engine_sent_are_dropped_and_counted(serve):
    """Frames from any other sender on the output socket are dropped and counted (fault 21)."""
    served = serve()
    client = served.engine.engine_core
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
            while client.frames_dropped < 4:  # noqa: ASYNC110 - no event reports it
                await asyncio.sleep(0.01)

    served.run(asyncio.wait_for(receive_all(), 10))
    run.close()
    assert served.run(collect(served.engine, [1], params(), "r")) == tokens([1], params())
    assert client.frames_dropped == 4


class Twice(RequestCodec):
    """An engine takes a request the second time it comes.

    Priorities 7 and 8 have `decode` and `encode` raise, 9 `ended`, and 10 `encode` when it comes for the second time.
    """

    def __init__(self, context):
        super().__init__(context)
        self.known = set()
        self.ends = set()

    def encode(self, request, peer):
        if request.priority == 8 or request.handle in self.ends:
            raise KeyError("encode")
        return super().encode(request, peer)

    def ended(self, peer, outcome, request):
        if request.priority == 9:
            raise KeyError("ended")
        if request.priority == 10:
            self.ends.add(request.handle)
        return outcome.code == "again"

    def decode(self, frames, client):
        request = super().decode(frames, client)
        if request.priority == 7:
            raise KeyError("decode")
        if request.handle not in self.known:
            self.known.add(request.handle)
            raise RequestError("send it again", code="again")
        return request


def test_the_codec_has_requests_sent_once_more_and_streams_notice_nothing(serve):
    served = serve(request_codec=f"{__file__}:Twice")

    async def ask_several() -> list[list[int]]:
        asked = (collect(served.engine, [1, 2, 3], params(), name) for name in "abc")
        return await asyncio.gather(*asked)

    assert served.run(ask_several()) == [tokens([1, 2, 3], params())] * 3
    assert not served.engine.engine_core.engines[0].requests


@pytest.mark.parametrize(
    ("priority", "text"),
    [
        (7, r"Twice\.decode raised KeyError"),
        (8, r"Twice\.encode raised KeyError"),
        (9, r"Twice: KeyError\('ended'\)"),
        (10, r"Twice\.encode raised KeyError"),
    ],
)
def test_a_codec_that_fails_is_named_and_costs_one_request(serve, priority, text):
    served = serve(request_codec=f"{__file__}:Twice")
    with pytest.raises(EngineGenerateError, match=text):
        served.run(collect(served.engine, [1], params(), "bad", priority=priority))
    assert not served.engine.engine_core.engines[0].requests
    assert served.run(collect(served.engine, [1], params(), "good")) == tokens([1], params())


def test_frames_of_an_earlier_epoch_are_dropped_and_counted(serve):
    served = serve()
    client = served.engine.engine_core
    client._send(client.engines[0], RequestType.UTILITY, client._encoder.encode([1, "ping"])[0])
    client.engines[0].epoch += 1
    eventually(lambda: client.receive() is None and client.frames_dropped == 1)
