"""The front end's link to engine processes: starts them, sends requests, receives outputs, hears of deaths.

Lives in the user's process; all methods but the constructor run on the event loop's thread.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import zmq

from tenonry.config import EngineConfig
from tenonry.errors import EngineDeadError, EngineGenerateError, LaunchError, RequestError, WireError
from tenonry.interfaces.launcher import EngineSpec, Launcher, LauncherContext
from tenonry.launch.handshake import CoreEngine, Handshake
from tenonry.messages import (
    EngineCoreOutputs,
    EngineCoreRequest,
    EngineZmqAddresses,
    HandshakeMetadata,
    ReadyMessage,
    RequestType,
    UtilityCall,
    UtilityResult,
)
from tenonry.model_info import ModelInfo
from tenonry.plugin_manager import build_plugin
from tenonry.plugin_plan import PluginPlan
from tenonry.serial import Decoder, Encoder
from tenonry.sockets import RunDirectory, close_all, engine_client_address, make_socket
from tenonry.supervise import describe_exit

logger = logging.getLogger(__name__)
FIRST_MESSAGE_MS = 10_000


class CoreClient:
    """One engine process and the sockets to it.

    The constructor blocks until the engine is ready, and leaves nothing behind when it raises. `on_death(reason)` is
    called once, from any thread, when the engine ends unasked. `frames_dropped` counts what could not be decoded or
    was of another epoch.
    """

    def __init__(
        self, config: EngineConfig, model: ModelInfo, plan: PluginPlan, on_death: Callable[[str], None]
    ) -> None:
        self._on_death, self._epoch, self.frames_dropped = on_death, 1, 0
        self.dead: str | None = None
        self._closing = False
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._call_ids = itertools.count(1)
        self._encoder = Encoder()
        self._decoder: Decoder[EngineCoreOutputs] = Decoder(EngineCoreOutputs)
        self._run = RunDirectory()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._launcher: Launcher | None = None
        self._engine = CoreEngine(0)
        try:
            self._input, self._output, addresses = self._bind()
            self.ready = self._start(config, model, plan, addresses)
        except BaseException:
            self.close()
            raise

    # ------------------------------------------------------------------ start
    def _bind(self) -> tuple[zmq.Socket[bytes], zmq.Socket[bytes], EngineZmqAddresses]:
        input_address = engine_client_address(self._run, local_only=True)
        output_address = engine_client_address(self._run, local_only=True)
        source = make_socket(self._context, zmq.ROUTER, input_address, bind=True)
        sink = make_socket(self._context, zmq.PULL, output_address, bind=True)
        return source, sink, EngineZmqAddresses(inputs=[input_address], outputs=[output_address])

    def _start(
        self, config: EngineConfig, model: ModelInfo, plan: PluginPlan, addresses: EngineZmqAddresses
    ) -> ReadyMessage:
        handshake_address = self._run.address("handshake")
        handshake_socket = make_socket(self._context, zmq.ROUTER, handshake_address, bind=True)
        try:
            launcher: Launcher = build_plugin(
                plan.get("launcher"), lambda options: LauncherContext(config, self._run.path, options)
            )
            self._launcher = launcher
            launcher.start([self._spec(config, model, plan, handshake_address)])
            metadata = HandshakeMetadata(addresses=addresses, epoch=self._epoch)
            Handshake(handshake_socket, [self._engine], metadata, plan).run(launcher, config.start_timeout)
        finally:
            handshake_socket.close()
        launcher.on_exit(self._on_exit)
        for name, code in launcher.finished().items():  # it may have ended before anybody listened
            self._on_exit(name, 0, code)
        for socket in (self._input, self._output):  # the engine says one empty word on each: then they are connected
            if not socket.poll(FIRST_MESSAGE_MS):
                raise LaunchError(f"engine {self._engine.index} is ready but did not connect its sockets")
            socket.recv_multipart()
        self._run.close()  # nobody else connects: from here on there is no file that a crash could leave behind
        assert self._engine.ready is not None  # noqa: S101 - the handshake ended
        return self._engine.ready

    def _spec(self, config: EngineConfig, model: ModelInfo, plan: PluginPlan, handshake_address: str) -> EngineSpec:
        return EngineSpec(
            engine_index=self._engine.index,
            local_rank=0,
            handshake_address=handshake_address,
            config_text=config.model_dump_json(),
            plan_text=plan.encode(),
            model_text=msgspec.json.encode(model).decode(),
            epoch=self._epoch,
        )

    def _on_exit(self, name: str, pid: int, code: int) -> None:
        """A watcher's thread: the engine is gone."""
        if not self._closing and self.dead is None:
            self.dead = f"{name} (pid {pid}) ended with {describe_exit(code)}"
            self._on_death(self.dead)

    @property
    def engine_pids(self) -> dict[str, int]:
        return self._launcher.pids() if self._launcher is not None else {}

    # ------------------------------------------------------------------ to the engine
    def add_request(self, request: EngineCoreRequest) -> None:
        """Send a request. Raises EngineDeadError, or RequestError for a field that no message can carry."""
        request.epoch = self._epoch
        try:
            frames = self._encoder.encode(request)
        except (TypeError, ValueError, OverflowError) as error:
            raise RequestError(f"request {request.request_id} cannot be sent: {error}") from error
        self._send(RequestType.ADD, request.handle.to_bytes(8, "little"), *frames)

    def abort_requests(self, handles: Sequence[int]) -> None:
        """Tell the engine to end requests; a dead engine has ended them already."""
        if handles and self.dead is None and not self._closing:
            self._send(RequestType.ABORT, *self._encoder.encode(handles))

    async def call(self, method: str, *args: Any) -> Any:
        """Call a method of the engine's allow-list. Raises EngineGenerateError (its own words) or EngineDeadError."""
        call_id = next(self._call_ids)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._calls[call_id] = future
        try:
            self._send(RequestType.UTILITY, *self._encoder.encode(UtilityCall(call_id, method, list(args))))
            return await future
        finally:
            self._calls.pop(call_id, None)

    def _send(self, kind: RequestType, *frames: Any) -> None:
        if self.dead is not None or self._closing:
            raise EngineDeadError(f"the engine is gone: {self.dead or 'it was shut down'}")
        try:
            self._input.send_multipart([self._engine.identity, kind.value, *frames], zmq.NOBLOCK, copy=len(frames) < 4)
        except zmq.ZMQError as error:
            raise EngineDeadError(f"the engine cannot be reached: {error.strerror}") from error

    # ------------------------------------------------------------------ from the engine
    @property
    def output_fd(self) -> int:
        """Readable when `receive` may have something (edge-triggered: drain it)."""
        return int(self._output.getsockopt(zmq.FD))

    def receive(self) -> EngineCoreOutputs | None:
        """The next outputs, or None when there are none now. Bad frames and late ones are dropped and counted."""
        while True:
            try:
                frames = self._output.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return None
            try:
                outputs = self._decoder.decode(frames)
            except WireError as error:
                self.frames_dropped += 1
                logger.warning("dropped a frame on the output socket: %s", error)
                continue
            if outputs.epoch != self._epoch:
                self.frames_dropped += 1
                continue
            if outputs.utility is not None:
                self._answer(outputs.utility)
            if outputs.dead is not None and self.dead is None and not self._closing:
                self.dead = f"engine {outputs.engine_index} stopped: {outputs.dead}"
                self._on_death(self.dead)
            return outputs

    def _answer(self, result: UtilityResult) -> None:
        future = self._calls.get(result.call_id)
        if future is None or future.done():
            return
        if result.failure is not None:
            future.set_exception(EngineGenerateError(result.failure))
        else:
            future.set_result(result.result)

    def fail_calls(self, error: Exception) -> None:
        """Every call that waits for an answer raises."""
        for future in list(self._calls.values()):
            if not future.done():
                future.set_exception(error)

    def close(self, timeout: float = 5.0) -> None:
        """Stop the engine and remove the sockets. Idempotent."""
        if self._closing:
            return
        self._closing = True
        if self._launcher is not None:
            self._launcher.shutdown(timeout)
        close_all(getattr(self, "_input", None), getattr(self, "_output", None))
        self._context.destroy(linger=0)
        self._run.close()
