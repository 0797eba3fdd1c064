"""An engine's sockets to its front ends: sent messages arrive, also at the engine's end (IO-3, IO-5, IO-7, IO-12)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import zmq

from tenonry.engine import ports
from tenonry.engine.ports import ClientPorts
from tenonry.interfaces.request_codec import RequestCodec
from tenonry.transport.folder import RunDirectory
from tenonry.transport.sockets import make_socket, port_identity

IDENTITY = port_identity(3, 1)


class Ends:
    """The two sockets of a client, and the ports of an engine, each in a context of its own."""

    def __init__(self) -> None:
        self.run, self.context, self.engine_context = RunDirectory(), zmq.Context(), zmq.Context()
        self.addresses = self.run.address("in"), self.run.address("out")
        self.input = make_socket(self.context, zmq.ROUTER, self.addresses[0], bind=True)
        self.output = make_socket(self.context, zmq.PULL, self.addresses[1], bind=True)
        self.ports = ClientPorts(self.engine_context, RequestCodec(None), 3, None)

    def receive(self, socket: Any) -> list[bytes]:
        assert socket.poll(20_000)
        heard: list[bytes] = socket.recv_multipart()
        return heard

    def close(self) -> None:
        self.engine_context.destroy(linger=0)
        self.context.destroy(linger=0)
        self.run.close()


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.close()


def test_the_first_words_are_the_engines(ends):
    """IO-3: without one the client could not address it, nor identify the engine's address."""
    ends.ports.attach(0, *ends.addresses)
    assert ends.receive(ends.input) == [IDENTITY, ends.addresses[0].encode()]
    assert ends.receive(ends.output) == [IDENTITY]


def test_another_engine_is_known_by_its_first_name_to_those_who_heard_it(ends):
    """A replacement engine: later clients receive the index that it took over."""
    ends.ports.attach(0, *ends.addresses)
    assert ends.receive(ends.output) == [IDENTITY]
    ends.ports.take_place(5, 7)
    ends.ports.attach(1, *ends.addresses)
    assert ends.receive(ends.output) == [port_identity(5, 7)]
    assert (ends.ports.index, ends.ports.epoch) == (5, 7)


def test_what_was_said_before_the_end_arrives_after_it(ends):
    """IO-5, IO-12: a death notice, behind many unread messages."""
    ends.ports.attach(0, *ends.addresses)
    much = [b"\0" * 4_000_000] * 16
    for frame in much:
        ends.ports.send(0, [frame])
    ends.ports.send(0, [b"dead"])
    ends.engine_context.destroy()
    assert [len(ends.receive(ends.output)[0]) for _ in range(18)] == [4, *map(len, much), 4]


def test_the_end_waits_for_clients_four_seconds_at_most(ends):
    """IO-5."""
    ends.ports.attach(0, *ends.addresses)
    assert [socket.linger for socket in ends.ports._sockets[0]] == [0, 4000]


@pytest.mark.timeout(20)
def test_the_end_does_not_wait_for_a_client_that_was_detached(ends, monkeypatch):
    monkeypatch.setattr(ports, "OUTPUT_LINGER_MS", -1)  # else it would block indefinitely
    ends.ports.attach(0, *ends.addresses)
    ends.output.close()
    ends.ports.send(0, [b"not read"])
    forgotten: list[int | None] = []
    monkeypatch.setattr(ends.ports.codec, "forget", forgotten.append)
    ends.ports.detach(0)
    ends.ports.detach(0)
    assert forgotten == [0]
    ends.ports.send(0, [b"nor this"])
    ends.engine_context.term()


def test_large_frames_are_sent_as_they_are(ends):
    """IO-7: a single small frame is copied, because that is faster than keeping it alive."""

    copies: list[bool] = []

    class Sink:
        def send(self, frame: Any, flags: int, copy: bool) -> None:
            copies.append(copy)

    ends.ports._sockets[0] = None, Sink()  # type: ignore[assignment]
    ends.ports.send(0, [b"body"])
    ends.ports.send(0, [b"body", memoryview(b"array")])
    assert copies == [True, False, False]
