"""The engine's loop: drains the input sockets, turns one step, sends the outputs. Engine process.

One thread does everything. ZMQ's own threads move the bytes, so nothing here waits for a peer, no lock is shared, and
no second Python thread competes with the step.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import time
from types import FrameType

import msgspec
import zmq

from tenonry.config import EngineConfig
from tenonry.engine.core import EngineCore, News
from tenonry.engine.ports import ClientPorts
from tenonry.engine.utility import EngineUtilities, answer
from tenonry.errors import WireError
from tenonry.handle import client_of
from tenonry.info import ModelInfo
from tenonry.interfaces.launcher import EngineSpec
from tenonry.launch.supervise import STOP_SIGNAL, Pulse
from tenonry.messages import (
    EngineCoreOutputs,
    EngineCoreRequest,
    FinishedOutput,
    HandshakeMetadata,
    RequestType,
    UtilityCall,
)
from tenonry.outputs import FinishReason
from tenonry.plugin.plan import PluginPlan
from tenonry.transport.keys import CurveKeys
from tenonry.transport.serial import Decoder, Encoder

logger = logging.getLogger(__name__)
IDLE_POLL_MS = 1000
BUSY_POLL_S = 0.0005  # an engine out of work looks for more this long before it sleeps
STALLED_POLL_MS = 1
HANDLE_BYTES = 8


def curve_of(spec: EngineSpec) -> CurveKeys | None:
    """The keys of the run, if it crosses nodes."""
    return CurveKeys.decode(spec.curve_keys) if spec.curve_keys else None


class EngineLoop:
    """One engine with its sockets. `run` returns the process's exit status: 0 only after an orderly stop."""

    pulse = Pulse()

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], spec: EngineSpec, metadata: HandshakeMetadata
    ) -> None:
        self._context, self._index, self._epoch = context, spec.engine_index, metadata.epoch
        self._failure: str | None = None
        self._stop_at: float | None = (
            None  # set by the first STOP_SIGNAL: when running requests are aborted
        )
        size = metadata.parallel_config.get("data_parallel_size", 1)
        config = EngineConfig.model_validate_json(spec.config_text)
        self.config = config.replaced(data_parallel_size=size)
        self._ports = ClientPorts(context, spec.engine_index, curve_of(spec))
        model = msgspec.json.decode(spec.model_text, type=ModelInfo)
        plan = PluginPlan.decode(spec.plan_text)
        self.core = EngineCore(
            self.config,
            model,
            plan,
            engine_index=spec.engine_index,
            on_failure=self._on_executor_failure,
        )
        self._utilities = EngineUtilities(self.core, self._ports)
        for client, pair in enumerate(
            zip(metadata.addresses.inputs, metadata.addresses.outputs, strict=True)
        ):
            self._ports.attach(client, *pair)
        self._add_decoder: Decoder[EngineCoreRequest] = Decoder(EngineCoreRequest)
        self._call_decoder: Decoder[UtilityCall] = Decoder(UtilityCall)
        self._abort_decoder: Decoder[list[int]] = Decoder(list[int])
        self._encoder = Encoder()
        self.frames_dropped = 0
        signal.set_wakeup_fd(self._ports.wake_fd, warn_on_full_buffer=False)
        signal.signal(
            STOP_SIGNAL, self._on_stop
        )  # before READY: from then on an end has to be orderly

    # ------------------------------------------------------------------ the loop
    def run(self) -> int:
        """Serve until told to stop. Every client hears of an end that nobody asked for."""
        gc.collect()
        gc.freeze()
        status = 0
        try:
            while self._turn():
                pass
        except BaseException as error:
            logger.exception("engine %d died", self._index)
            reason = str(error) or type(error).__name__
            self._send({client: EngineCoreOutputs(dead=reason) for client in self._ports.clients})
            status = 1
        finally:
            self.pulse.pause()
            signal.set_wakeup_fd(-1)
            self.core.shutdown()
            self._context.destroy()  # once clients have what was sent to them
        return status

    def _turn(self) -> bool:
        """Drain the inputs, turn one step. False when an orderly stop is complete."""
        core = self.core
        self.pulse.beat()
        if self._stop_at is None and not core.has_work():
            self._rest()
        self._drain()
        if core.has_work():
            news, worked = core.step()
            if not worked:
                self._ports.wait(
                    STALLED_POLL_MS
                )  # requests wait for something that is not here yet
            self._send(core.attach_stats(news, idle=False))
            self._stepped()
        if self._failure is not None:
            raise RuntimeError(self._failure)
        if self._stop_at is not None:
            if not core.has_work():
                self._drain()  # what arrived meanwhile is answered, too
                self._send(core.attach_stats({}, idle=True))
                return core.has_work()
            if time.monotonic() > self._stop_at:
                self._send(
                    core.attach_stats(core.abort_requests(None), idle=True)
                )  # every client hears of it
                return False
        return True

    def _rest(self) -> None:
        """Nothing to do. Who asks again at once waits neither for the system to wake us nor for our numbers."""
        until = time.perf_counter() + BUSY_POLL_S
        while not self._ports.wait(0):
            if time.perf_counter() > until:
                self._send(self.core.attach_stats({}, idle=True))
                self._ports.wait(IDLE_POLL_MS)
                return
            os.sched_yield()

    def _drain(self) -> None:
        for client, frames in self._ports.receive():
            self._receive(client, frames)

    def _send(self, news: News) -> None:
        for client, outputs in news.items():
            outputs.engine_index, outputs.epoch = self._index, self._epoch
            if outputs.scheduler_stats is not None:
                outputs.scheduler_stats.frames_dropped, self.frames_dropped = self.frames_dropped, 0
            self._ports.send(client, self._encoder.encode(outputs))

    # ------------------------------------------------------------------ input
    def _receive(self, client: int, frames: list[bytes]) -> None:
        """One message. What cannot be decoded is counted, and answered if it carries a handle."""
        try:
            kind = RequestType(frames[0])
            if kind is RequestType.ADD:
                self._add(client, frames)
            elif kind is RequestType.ABORT:
                handles = self._abort_decoder.decode(frames[1:])
                self.core.abort_requests(
                    [handle for handle in handles if client_of(handle) == client]
                )
            else:
                call = self._call_decoder.decode(frames[1:])
                self.pulse.pause()  # nobody knows how long it takes
                self._send({client: EngineCoreOutputs(utility=answer(self._utilities, call))})
        except (WireError, ValueError) as error:
            self.frames_dropped += 1
            self._arrived()  # it may have been a request
            logger.warning("dropped a message of client %d: %s", client, error)

    def _add(self, client: int, frames: list[bytes]) -> None:
        if len(frames) < 3 or len(frames[1]) != HANDLE_BYTES:
            raise WireError("ADD needs a handle of 8 bytes and a body")
        handle = int.from_bytes(frames[1], "little")
        try:
            request = self._add_decoder.decode(frames[2:])
            if request.handle != handle:
                raise WireError(f"the body is of handle {request.handle}, the frame of {handle}")
            if client_of(handle) != client:
                raise WireError(
                    f"handle {handle} belongs to client {client_of(handle)}, not to {client}"
                )
            if request.epoch != self._epoch:
                raise WireError(
                    f"the request is of epoch {request.epoch}, the engine of {self._epoch}"
                )
        except WireError as error:
            self._refuse(client, handle, str(error))
            raise
        if self._stop_at is not None:
            self._refuse(client, handle, "the engine is shutting down")
            return
        refused = self.core.add_request(request)
        if refused is not None:
            self._send({client: EngineCoreOutputs(finished=[refused])})
        self._arrived(request.current_wave)

    def _refuse(self, client: int, handle: int, reason: str) -> None:
        self._send(
            {
                client: EngineCoreOutputs(
                    finished=[FinishedOutput(handle, FinishReason.ERROR, error=reason)]
                )
            }
        )

    def _arrived(self, wave: int = 0) -> None:
        """A request came, whatever became of it. One engine alone has nothing to do about it, nor after a step."""

    def _stepped(self) -> None:
        """A step was turned."""

    # ------------------------------------------------------------------ ends
    def _on_executor_failure(self, reason: str) -> None:
        self._failure = reason
        self._ports.wake()

    def _on_stop(self, signum: int, frame: FrameType | None) -> None:
        """The first one starts to drain; after the second nobody waits for running requests."""
        self._stop_at = (
            time.monotonic() + self.config.shutdown_timeout if self._stop_at is None else 0.0
        )
