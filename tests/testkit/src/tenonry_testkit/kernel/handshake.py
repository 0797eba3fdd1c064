"""The front end's side of a handshake over real sockets, with engines that send scripted messages."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import zmq

from tenonry.errors import LaunchError
from tenonry.info import PluginRecord
from tenonry.interfaces.coordination import FleetCompanion
from tenonry.launch.handshake import CoreEngine, Handshake
from tenonry.messages import EngineFacts, HandshakeMetadata, HelloMessage
from tenonry.plugin.plan import PluginPlan
from tenonry.transport.folder import RunDirectory
from tenonry.transport.sockets import close_all, engine_identity, make_socket

SCHEDULER = PluginRecord(
    kind="scheduler", name="s", target="a:B", distribution="acme", version="2.0"
)
PLAN = PluginPlan((SCHEDULER,))
ADDRESSES = [("ipc:///in", "ipc:///out")]
METADATA = HandshakeMetadata(addresses=ADDRESSES, data_parallel_size=2, epoch=4)
VERSIONS = {"acme": "2.0"}
ARRIVES_MS = 20_000


def hello(**fields: Any) -> HelloMessage:
    return HelloMessage(
        **{
            "local": True,
            "node": "node-a",
            "versions": VERSIONS,
            "plugins": {"scheduler": "'s' (a:B)"},
            **fields,
        }
    )


class Launcher:
    """Provides exits of children only."""

    def __init__(self, **ended: int) -> None:
        self.ended = {name.replace("_", " "): code for name, code in ended.items()}

    def finished(self) -> dict[str, int]:
        return self.ended


class FrontEnd:
    """The front end's side, with engines that send scripted messages."""

    def __init__(self, run: RunDirectory, *engines: CoreEngine) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        address = run.address("handshake")
        self.address = address
        self.socket = make_socket(self.context, zmq.ROUTER, address, bind=True)
        self.engines = list(engines) or [CoreEngine(0)]
        self._is_sent = False
        self.shake = Handshake(self.socket, self.engines, METADATA, PLAN, FleetCompanion())
        self.dealers = {
            index: make_socket(
                self.context, zmq.DEALER, address, bind=False, identity=engine_identity(index)
            )
            for index in (0, 1, 258, 9)
        }

    def send(self, *messages: Any, index: int = 0) -> None:
        for message in messages:
            raw = message if isinstance(message, bytes) else msgspec.msgpack.encode(message)
            self.dealers[index].send(raw)
            self._is_sent = True

    def run(self, timeout: float = 5.0, **ended: int) -> list[EngineFacts]:
        if self._is_sent:
            assert self.socket.poll(ARRIVES_MS)  # what the engines sent before counts
        return self.shake.run(Launcher(**ended).finished, timeout)

    def close(self) -> None:
        close_all(self.socket, *self.dealers.values())
        self.context.destroy(linger=0)

    def fails(self, text: str, timeout: float = 5.0, **ended: int) -> None:
        with pytest.raises(LaunchError, match=text):
            self.run(timeout, **ended)
