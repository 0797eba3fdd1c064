"""A scripted front end: starts a real engine process, performs the handshake, sends invalid frames."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import zmq

from tenonry.interfaces.launcher import EngineSpec
from tenonry.launch.process import ENGINE_ROLE
from tenonry.launch.supervise import Child, Supervisor
from tenonry.messages import (
    ADD_HEADER,
    EngineCoreOutputs,
    EngineCoreRequest,
    EngineHandshakeMessage,
    HandshakeMetadata,
    RequestType,
    UtilityCall,
)
from tenonry.plugin.manager import PluginManager
from tenonry.transport.folder import RunDirectory
from tenonry.transport.serial import Decoder, Encoder
from tenonry.transport.sockets import engine_identity, make_socket, port_identity
from tenonry_testkit.fakes.model import FakeModelHooks
from tenonry_testkit.kernel.engine import Inbox, fake_config

EPOCH = 5
IDENTITY = engine_identity(3)
PORT = port_identity(3, EPOCH)
PATIENCE_S = 20.0  # for hangs: an engine on a busy machine responds earlier


class Peer:
    """`clients` front ends in one. The engine has index 3; `start` proceeds to READY."""

    def __init__(
        self, *, clients: int = 1, facts: dict[str, Any] | None = None, **values: Any
    ) -> None:
        self.config = fake_config(**values)
        manager = PluginManager(discover=False)
        manager.register(FakeModelHooks(**(facts or {})))
        self.plan = manager.plan(self.config)
        self.model = manager.resolve_model(self.config)
        self.run = RunDirectory()
        self.context = zmq.Context()
        self.supervisor = Supervisor()
        self.handshake = make_socket(
            self.context, zmq.ROUTER, self.run.address("handshake"), bind=True
        )
        self.inputs = []
        self.outputs = []
        self.addresses = [(self.run.address(), self.run.address()) for _ in range(clients)]
        for source, sink in self.addresses:
            self.inputs.append(make_socket(self.context, zmq.ROUTER, source, bind=True))
            self.outputs.append(make_socket(self.context, zmq.PULL, sink, bind=True))
        self._encoder = Encoder()
        self._decoder = Decoder(EngineCoreOutputs)
        self._messages = msgspec.msgpack.Decoder(EngineHandshakeMessage)
        self._calls = 0
        self.child: Child

    # ------------------------------------------------------------------ handshake
    def launch(self, **fields: Any) -> Child:
        spec = EngineSpec(
            engine_index=3,
            local_rank=0,
            handshake_address=self.run.address("handshake"),
            config_text=self.config.model_dump_json(),
            plan_text=self.plan.encode(),
            model_text=msgspec.json.encode(self.model).decode(),
            **fields,
        )
        self.child = self.supervisor.start(
            "engine 3", ENGINE_ROLE, {"spec": msgspec.json.encode(spec).decode()}
        )
        return self.child

    def receive_handshake(self, seconds: float = PATIENCE_S) -> Any:
        """The engine's next handshake message."""
        assert self.handshake.poll(int(seconds * 1000)), "the engine says nothing"
        identity, body = self.handshake.recv_multipart()
        assert identity == IDENTITY
        return self._messages.decode(body)

    def answer(self, body: bytes | None = None) -> None:
        """Send INIT, or another body."""
        metadata = HandshakeMetadata(addresses=self.addresses, epoch=EPOCH)
        self.handshake.send_multipart(
            [IDENTITY, msgspec.msgpack.encode(metadata) if body is None else body]
        )

    def start(self) -> Peer:
        self.launch()
        self.receive_handshake()
        self.answer()
        self.receive_handshake()
        for sockets in (self.inputs, self.outputs):
            for client, socket in enumerate(sockets):
                assert socket.poll(int(PATIENCE_S * 1000)), f"nothing on socket {client}"
                socket.recv_multipart()
        return self

    # ------------------------------------------------------------------ frames
    def send(self, *frames: Any, client: int = 0) -> None:
        """Send frames unchanged."""
        self.inputs[client].send_multipart([PORT, *frames])

    def add(
        self,
        source: EngineCoreRequest,
        *,
        client: int = 0,
        epoch: int = EPOCH,
        handle: int | None = None,
    ) -> None:
        """Send a request; `handle`: of the header, if different."""
        header = ADD_HEADER.pack(handle or source.handle, epoch, 0)
        self.send(RequestType.ADD.value, header, *self._encoder.encode(source), client=client)

    def rest(self) -> list[Any]:
        """Outputs that have already arrived."""
        found = []
        while self.outputs[0].poll(100):
            found.append(self.receive())
        return found

    def abort(self, *handles: int) -> None:
        self.send(RequestType.ABORT.value, msgspec.msgpack.encode(handles))

    def call(self, method: str, *args: Any, client: int = 0, **kwargs: Any) -> Any:
        """Make a utility call and return its result; raises RuntimeError with the failure text."""
        self._calls += 1
        self.send(
            RequestType.UTILITY.value,
            msgspec.msgpack.encode(UtilityCall(self._calls, method, list(args), kwargs)),
            client=client,
        )
        while True:
            outputs = self.receive(client=client)
            if outputs.utility is not None and outputs.utility.call_id == self._calls:
                if outputs.utility.failure is not None:
                    raise RuntimeError(outputs.utility.failure)
                return outputs.utility.result

    def receive(self, *, client: int = 0, seconds: float = PATIENCE_S) -> EngineCoreOutputs:
        """The next outputs for a client; stamped with the engine's index and epoch."""
        assert self.outputs[client].poll(int(seconds * 1000)), "no outputs"
        outputs: EngineCoreOutputs = self._decoder.decode(self.outputs[client].recv_multipart())
        assert (outputs.engine_index, outputs.epoch) == (3, EPOCH)
        return outputs

    def until_finished(self, *handles: int, client: int = 0, inbox: Inbox | None = None) -> Inbox:
        """Outputs of a client until all `handles` ended."""
        inbox = inbox or Inbox()
        deadline = time.monotonic() + 2 * PATIENCE_S
        while not set(handles) <= set(inbox.finished):
            assert time.monotonic() < deadline, f"{handles} did not end: {inbox.finished}"
            outputs = self.receive(client=client)
            outputs.finished = [
                output for output in outputs.finished if output.handle in handles
            ]  # garbage is answered, too
            inbox.take({client: outputs})
        return inbox

    def until_dead(self, *, client: int = 0) -> str:
        """The death notice."""
        while True:
            outputs = self.receive(client=client)
            if outputs.dead is not None:
                return outputs.dead

    def close(self) -> None:
        self.supervisor.stop(2.0)
        self.context.destroy(linger=0)
        self.run.close()
