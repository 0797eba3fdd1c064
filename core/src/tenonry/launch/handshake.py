"""The front end's side of the handshake: HELLO, INIT, READY with every engine, within one deadline."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import zmq

from tenonry.errors import ConfigError, LaunchError
from tenonry.interfaces.coordination import FleetCompanion
from tenonry.launch.supervise import describe_exit
from tenonry.messages import (
    PROTOCOL_VERSION,
    EngineFacts,
    EngineHandshakeMessage,
    FailedMessage,
    HandshakeMetadata,
    HelloMessage,
    ReadyMessage,
)
from tenonry.plugin.plan import PluginPlan
from tenonry.transport.sockets import IDENTITY_BYTES, Socket, engine_identity, engine_index_of

logger = logging.getLogger(__name__)
POLL_MS = 100
REPORT_EVERY_S = 10.0
EXIT_GRACE_S = 1.0  # for the last message of an ended process
COMPARE = "compare --data-parallel-size-local and --data-parallel-start-rank of all nodes"
NEW, CONNECTED, READY = "new", "connected", "ready"


@dataclass
class CoreEngine:
    """One engine and the state of its handshake; `facts` once it is ready."""

    index: int
    local: bool = True
    state: str = NEW
    facts: EngineFacts | None = None


class Handshake:
    """Brings `engines` from NEW to READY over the bound ROUTER `socket`. Every failure is a LaunchError."""

    def __init__(
        self,
        socket: Socket,
        engines: list[CoreEngine],
        metadata: HandshakeMetadata,
        plan: PluginPlan,
        companion: FleetCompanion,
    ) -> None:
        self._companion = companion  # handles messages of other senders during the start
        self._engines = {engine_identity(engine.index): engine for engine in engines}
        self._socket = socket
        self._metadata = metadata
        self._give_up = math.inf
        self._versions = plan.versions()
        self._plugins = plan.of_engines()
        self._decoder = msgspec.msgpack.Decoder(EngineHandshakeMessage)

    def run(self, finished: Callable[[], Mapping[str, int]], timeout: float) -> list[EngineFacts]:
        """Run until all are READY; returns their facts. Raises when a message is out of order, `timeout` seconds pass,
        or a process ended: `finished()` maps the names of ended processes to exit codes.
        """
        deadline = time.monotonic() + timeout
        report = time.monotonic() + REPORT_EVERY_S
        engines = self._engines.values()
        while pending := [engine for engine in engines if engine.state != READY]:
            now = time.monotonic()
            self._check_children(finished(), now)
            names = ", ".join(f"engine {engine.index} ({engine.state})" for engine in pending)
            if now > deadline:
                raise LaunchError(
                    f"not ready after {timeout:g} s: {names}; raise --start-timeout if loading is slow"
                )
            if now > report:
                report = now + REPORT_EVERY_S
                logger.info("waiting for %s", names)
            if self._socket.poll(POLL_MS):
                self._receive()
        return [engine.facts for engine in engines if engine.facts is not None]

    def _check_children(self, ended: Mapping[str, int], now: float) -> None:
        if ended:
            self._give_up = min(self._give_up, now + EXIT_GRACE_S)
            # The last message of a process is more informative than its exit code.
            if now > self._give_up or not self._socket.poll(POLL_MS):
                exits = ", ".join(f"{name}: {describe_exit(code)}" for name, code in ended.items())
                raise LaunchError(
                    f"a process exited before it was ready ({exits}); see its log lines"
                )

    def _receive(self) -> None:
        frames = self._socket.recv_multipart()
        identity = frames[0]
        if len(identity) != IDENTITY_BYTES:
            self._companion.receive(self._socket, frames)
            return
        engine = self._engines.get(identity)
        if engine is None:
            raise LaunchError(
                f"engine {engine_index_of(identity)} is none of those that start; {COMPARE}"
            )
        try:
            message = self._decoder.decode(frames[-1])
        except (ValueError, RecursionError) as error:
            raise LaunchError(
                f"engine {engine.index} sent an invalid handshake message: {error}"
            ) from None
        self._advance(engine, message)

    def _advance(self, engine: CoreEngine, message: EngineHandshakeMessage) -> None:
        side = "local" if engine.local else "remote"
        if isinstance(message, FailedMessage):
            raise LaunchError(f"engine {engine.index} could not start: {message.error}")
        if isinstance(message, HelloMessage) and engine.state == NEW:
            if message.local != engine.local:
                raise LaunchError(
                    f"engine {engine.index} should be {side}, but reports that it is not; {COMPARE}"
                )
            self._check_hello(engine, message)
            try:
                init = msgspec.msgpack.encode(self._metadata)
                self._socket.send_multipart([engine_identity(engine.index), init], copy=False)
            except zmq.ZMQError as error:
                raise LaunchError(
                    f"engine {engine.index} sent HELLO and disconnected: {error.strerror}"
                ) from error
            engine.state = CONNECTED
        elif isinstance(message, ReadyMessage) and engine.state == CONNECTED:
            engine.facts = message.facts
            engine.state = READY
        else:
            kind = type(message).__name__.removesuffix("Message").upper()
            raise LaunchError(
                f"{side} engine {engine.index} sent {kind} while it was {engine.state}; is it started twice?"
            )

    def _check_hello(self, engine: CoreEngine, hello: HelloMessage) -> None:
        if hello.protocol != PROTOCOL_VERSION:
            raise LaunchError(
                f"engine {engine.index} on {hello.node} speaks protocol {hello.protocol}, this front end "
                f"{PROTOCOL_VERSION}; install the same tenonry on both"
            )
        where = f"node {hello.node} (engine {engine.index})"
        compared = (
            (
                self._versions,
                hello.versions,
                self._versions,
                "missing",
                "install the same version on both",
            ),
            (self._plugins, hello.plugins, hello.plugins, "none", "give both nodes the same flags"),
        )
        for here, there, more, absent, advice in compared:
            for name in sorted({*here, *more}):
                ours = here.get(name, absent)
                theirs = there.get(name, absent)
                if ours != theirs:
                    raise LaunchError(f"{where} has {name} {theirs}, this one has {ours}; {advice}")


def check_alike(engines: Sequence[EngineFacts]) -> None:
    """Check that all engines accept the same requests. Raises ConfigError that names two different ones."""
    first = engines[0]
    for other in engines[1:]:
        for name in ("block_size", "max_model_len"):
            expected = getattr(first, name)
            found = getattr(other, name)
            if found != expected:
                raise ConfigError(
                    f"engine {first.index} has {name} {expected}, engine {other.index} has {found}; give "
                    f"--{name.replace('_', '-')} {min(expected, found)} to all"
                )
