"""What the front end of a node says when the first node does not answer its engine."""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec
import pytest
import zmq

from tenonry.errors import LaunchError
from tenonry.messages import PROTOCOL_VERSION, EngineZmqAddresses, HelloMessage
from tenonry.transport.keys import CurveKeys
from tenonry.transport.sockets import engine_identity, make_socket
from tenonry_front_ends import relay
from tenonry_front_ends.relay import HandshakeRelay


@pytest.mark.timeout(30)
def test_a_first_node_that_heard_another_server_of_the_rank_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "ANSWER_S", 0.2)
    here, address = f"ipc://{tmp_path}/here", f"ipc://{tmp_path}/first"
    own = EngineZmqAddresses(inputs=["in"], outputs=["out"])
    context = zmq.Context()
    first = make_socket(context, zmq.ROUTER, address, bind=True)
    passing = HandshakeRelay(here, address, 1, CurveKeys.generate(), own)
    engine = make_socket(context, zmq.DEALER, here, identity=engine_identity(1))
    hello = HelloMessage(protocol=PROTOCOL_VERSION, node="b", local=False, versions={}, plugins={})
    try:
        with contextlib.closing(passing):
            passing.turn(300)  # nobody has asked yet: no reason to give up
            engine.send(msgspec.msgpack.encode(hello))
            passing.turn(300)
            with pytest.raises(LaunchError, match=r"but not engine 1; .* give each its own rank"):
                passing.turn(300)
            assert first.recv_multipart() == [engine_identity(1), msgspec.msgpack.encode(hello)]
    finally:
        context.destroy(0)
