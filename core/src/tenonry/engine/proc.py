"""The engine's process: handshake, sockets, busy loop, signals.

One thread does everything: it drains the input sockets, turns one step, sends the outputs. ZMQ's own threads move the
bytes, so nothing here waits for a peer, no lock is shared, and no second Python thread competes with the step.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Mapping

import msgspec
import zmq

from tenonry.engine.loop import EngineLoop, curve_of
from tenonry.errors import ConfigError, LaunchError, TenonryError
from tenonry.interfaces.launcher import EngineSpec
from tenonry.launch.supervise import Pulse
from tenonry.messages import (
    EngineFacts,
    FailedMessage,
    HandshakeMetadata,
    HelloMessage,
    ReadyMessage,
)
from tenonry.plugin.plan import PluginPlan
from tenonry.transport.sockets import engine_identity, make_socket

logger = logging.getLogger(__name__)
HANDSHAKE_TIMEOUT_MINS = 5
HANDSHAKE_LINGER_MS = 5000


def run_engine(payload: Mapping[str, str]) -> int:
    """The role of an engine's child process; returns its exit status."""
    spec = msgspec.json.decode(payload["spec"], type=EngineSpec)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    handshake = EngineHandshake(context, spec)
    try:
        metadata = handshake.hello()
        loop = make_loop(context, spec, metadata)
        loop.pulse = Pulse(int(payload.get("pulse", -1)))
    except Exception as error:
        logger.exception(
            "engine %d could not be built",
            spec.engine_index,
            exc_info=not isinstance(error, ConfigError),
        )
        handshake.failed(error)
        context.destroy()
        return 1
    handshake.ready(loop.core.facts(metadata.epoch))
    return loop.run()


def make_loop(
    context: zmq.Context[zmq.Socket[bytes]], spec: EngineSpec, metadata: HandshakeMetadata
) -> EngineLoop:
    """The loop of an engine that stands alone, or of one among several with a coordinator."""
    if metadata.addresses.coordinator_input is None:
        return EngineLoop(context, spec, metadata)
    from tenonry.engine.waves import DataParallelLoop

    return DataParallelLoop(context, spec, metadata)


class EngineHandshake:
    """The engine's side: HELLO, wait for INIT, READY or FAILED."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], spec: EngineSpec) -> None:
        self._spec = spec
        self._socket = make_socket(
            context,
            zmq.DEALER,
            spec.handshake_address,
            bind=False,
            identity=engine_identity(spec.engine_index),
            linger_ms=HANDSHAKE_LINGER_MS,
            curve=curve_of(spec),
        )

    def hello(self) -> HandshakeMetadata:
        """Say who we are; returns where to connect. Raises LaunchError without an answer."""
        plan = PluginPlan.decode(self._spec.plan_text)
        node, versions, plugins = socket.gethostname(), plan.versions_here(), plan.of_engines()
        self._send(
            HelloMessage(local=self._spec.local, node=node, versions=versions, plugins=plugins)
        )
        if not self._socket.poll(HANDSHAKE_TIMEOUT_MINS * 60_000):
            missed = f"{self._spec.handshake_address} within {HANDSHAKE_TIMEOUT_MINS} minutes"
            raise LaunchError(
                f"no answer from the front end at {missed}; start it, and compare address, port and keys"
            )
        return msgspec.msgpack.decode(self._socket.recv(), type=HandshakeMetadata)

    def ready(self, facts: EngineFacts) -> None:
        self._send(ReadyMessage(local=self._spec.local, facts=facts))
        self._socket.close()

    def failed(self, error: Exception) -> None:
        text = str(error) if isinstance(error, TenonryError) else f"{type(error).__name__}: {error}"
        self._send(FailedMessage(local=self._spec.local, error=text))

    def _send(self, message: msgspec.Struct) -> None:
        self._socket.send(msgspec.msgpack.encode(message))
