"""The entry of an engine's child process, and its side of the handshake."""

from __future__ import annotations

import logging
import socket
from collections.abc import Mapping

import msgspec
import zmq

from tenonry.engine.loop import EngineLoop
from tenonry.errors import LaunchError, PluginFault, TenonryError
from tenonry.interfaces.launcher import EngineSpec
from tenonry.launch.spawn import ProcessStarter
from tenonry.launch.supervise import Heartbeat
from tenonry.messages import (
    EngineFacts,
    FailedMessage,
    HandshakeMetadata,
    HelloMessage,
    ReadyMessage,
)
from tenonry.plugin.plan import PluginPlan
from tenonry.transport.keys import keys_of
from tenonry.transport.sockets import Context, engine_identity, make_socket

logger = logging.getLogger(__name__)
HANDSHAKE_TIMEOUT_MINS = 5
HANDSHAKE_LINGER_MS = 5000


def run_engine(payload: Mapping[str, str], starter: ProcessStarter | None = None) -> int:
    """Run the role of an engine's child process; returns its exit status. `starter`: creates its ranks."""
    spec = msgspec.json.decode(payload["spec"], type=EngineSpec)
    context: Context = zmq.Context()
    handshake = EngineHandshake(context, spec)
    try:
        metadata = handshake.hello()
        heartbeat = Heartbeat(int(payload.get("heartbeat", -1)))
        loop = EngineLoop(context, spec, metadata, heartbeat, starter)
    except Exception as error:
        logger.exception(
            "engine %d could not be built",
            spec.engine_index,
            exc_info=isinstance(error, PluginFault) or not isinstance(error, TenonryError),
        )
        handshake.failed(error)
        context.destroy()
        return 1
    facts = loop.core.facts(metadata.epoch)
    handshake.ready(msgspec.structs.replace(facts, index=spec.engine_index))
    return loop.run()


class EngineHandshake:
    """The engine's side of the handshake: HELLO, wait for INIT, READY or FAILED."""

    def __init__(self, context: Context, spec: EngineSpec) -> None:
        self._spec = spec
        self._socket = make_socket(
            context,
            zmq.DEALER,
            spec.handshake_address,
            identity=engine_identity(spec.engine_index),
            linger_ms=HANDSHAKE_LINGER_MS,
            curve=keys_of(spec.curve_keys),
        )

    def hello(self) -> HandshakeMetadata:
        """Send HELLO; returns the addresses to connect to. Raises LaunchError without an answer."""
        plan = PluginPlan.decode(self._spec.plan_text)
        hello = HelloMessage(
            local=self._spec.local,
            node=socket.gethostname(),
            versions=plan.versions_here(),
            plugins=plan.of_engines(),
        )
        self._send(hello)
        if not self._socket.poll(HANDSHAKE_TIMEOUT_MINS * 60_000):
            raise LaunchError(
                f"no answer from the front end at {self._spec.handshake_address} within {HANDSHAKE_TIMEOUT_MINS} "
                "minutes; start it, and compare address, port and keys"
            )
        return msgspec.msgpack.decode(self._socket.recv(), type=HandshakeMetadata)

    def ready(self, facts: EngineFacts) -> None:
        self._send(ReadyMessage(facts=facts))
        self._socket.close()

    def failed(self, error: Exception) -> None:
        text = str(error) if isinstance(error, TenonryError) else f"{type(error).__name__}: {error}"
        self._send(FailedMessage(error=text))

    def _send(self, message: msgspec.Struct) -> None:
        self._socket.send(msgspec.msgpack.encode(message))
