"""Errors of a node's front end while the first node does not answer its engine."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import zmq

from tenonry.errors import LaunchError
from tenonry.messages import PROTOCOL_VERSION, EngineHandshakeMessage, FailedMessage, HelloMessage
from tenonry.transport.keys import CurveKeys
from tenonry.transport.sockets import engine_identity, make_socket
from tenonry_scale_out import relay
from tenonry_scale_out.relay import HandshakeRelay

HELLO = HelloMessage(protocol=PROTOCOL_VERSION, node="b", local=False, versions={}, plugins={})


class Between:
    """A relay with a socket on each side of it."""

    def __init__(self, folder: Path) -> None:
        here, address = f"ipc://{folder}/here", f"ipc://{folder}/first"
        own = ("in", "out")
        self.context = zmq.Context()
        self.first = make_socket(self.context, zmq.ROUTER, address, bind=True)
        self.relay = HandshakeRelay(here, address, 1, CurveKeys.generate(), own)
        self.engine = make_socket(self.context, zmq.DEALER, here, identity=engine_identity(1))

    def say(self, message: EngineHandshakeMessage) -> None:
        self.engine.send(msgspec.msgpack.encode(message))
        self.relay.turn(300)


@pytest.fixture
def between(tmp_path: Path) -> Iterator[Between]:
    made = Between(tmp_path)
    with contextlib.closing(made.relay):
        yield made
    made.context.destroy(0)


@pytest.mark.timeout(30)
def test_a_first_node_that_heard_another_server_of_the_rank_is_not_waited_for(
    between: Between, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "ANSWER_S", 0.2)
    between.relay.turn(300)  # nobody has asked yet: no reason to give up
    between.say(HELLO)
    with pytest.raises(LaunchError, match=r"but not engine 1; .* give each its own rank"):
        between.relay.turn(300)
    assert between.first.recv_multipart() == [engine_identity(1), msgspec.msgpack.encode(HELLO)]


@pytest.mark.timeout(30)
def test_what_the_engine_says_does_not_wait_for_a_first_node_that_is_gone(between: Between) -> None:
    """It found another reason to give up, and has closed its socket."""
    between.say(HELLO)
    between.first.recv_multipart()
    between.first.close(0)
    for _ in range(3):  # until the relay knows
        between.say(HELLO)
    with pytest.raises(LaunchError, match="engine 1 could not start: it has another model"):
        between.say(FailedMessage(error="it has another model"))
