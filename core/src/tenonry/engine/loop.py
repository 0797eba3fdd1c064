"""The engine's loop: drains the input sockets, runs one step, sends the outputs. Engine process.

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

from tenonry.config import EngineConfig
from tenonry.engine.build import build_engine
from tenonry.engine.ports import ClientPorts
from tenonry.engine.utility import EngineUtilities, answer, name_process
from tenonry.errors import TenonryError, WireError
from tenonry.info import ModelInfo
from tenonry.interfaces.coordination import Coordination, EngineCompanion
from tenonry.interfaces.launcher import FIRST_STANDBY, EngineSpec, engine_name
from tenonry.interfaces.plugin import PluginContext
from tenonry.launch.spawn import ProcessStarter
from tenonry.launch.supervise import STOP_SIGNAL, Heartbeat
from tenonry.messages import (
    ADD_HEADER,
    EngineCoreOutputs,
    EngineCoreRequest,
    FinishedOutput,
    HandshakeMetadata,
    OutputsByClient,
    RequestType,
    UtilityCall,
    client_of,
)
from tenonry.outputs import FinishReason
from tenonry.plugin.manager import build_plugin
from tenonry.plugin.plan import PluginPlan
from tenonry.transport.keys import keys_of
from tenonry.transport.serial import Decoder, Encoder
from tenonry.transport.sockets import Context

logger = logging.getLogger(__name__)
BUSY_POLL_S = 0.0005  # spinning time of an idle engine before it sleeps


class EngineLoop:
    """One engine with its sockets. `run` returns the process's exit status: 0 only after an orderly stop."""

    def __init__(
        self,
        context: Context,
        spec: EngineSpec,
        metadata: HandshakeMetadata,
        heartbeat: Heartbeat,
        starter: ProcessStarter | None,
    ) -> None:
        self._context = context
        self._heartbeat = heartbeat
        self._failure: str | None = None
        self._stop_at: float | None = None  # end of the drain, after STOP_SIGNAL
        self._call_decoder = Decoder(UtilityCall)
        self._abort_decoder = Decoder(list[int])
        self._encoder = Encoder()
        self.frames_dropped = 0
        config = EngineConfig.model_validate_json(spec.config_text)
        if metadata.epoch > 1 and spec.engine_index < FIRST_STANDBY:
            name_process(config, spec.engine_index, metadata.epoch)
        self.config = config.replaced(
            data_parallel_size=metadata.data_parallel_size, expert_rendezvous=metadata.rendezvous
        )
        plan = PluginPlan.decode(spec.plan_text)
        self._companion = self._make_companion(spec, metadata)
        codec = build_plugin(plan.get("request_codec"), PluginContext(self.config))
        curve = keys_of(spec.curve_keys)
        self._ports = ClientPorts(context, codec, spec.engine_index, curve, metadata.epoch)
        self.core = build_engine(
            self.config,
            msgspec.json.decode(spec.model_text, type=ModelInfo),
            plan,
            # A spare engine may later take any index.
            engine_index=spec.engine_index if spec.engine_index < FIRST_STANDBY else 0,
            on_failure=self._on_executor_failure,
            starter=starter,
        )
        self._utilities = EngineUtilities(self.core, self._ports)
        self._connect(metadata)

    def _make_companion(self, spec: EngineSpec, metadata: HandshakeMetadata) -> EngineCompanion:
        """Return the companion of the engine, for its coordinator if one runs."""
        if metadata.coordinator is None:
            return EngineCompanion()
        coordination: Coordination = build_plugin(
            metadata.coordinator.plugin, PluginContext(self.config)
        )
        return coordination.companion(
            self._context, spec, metadata, self.config, self._keeps_waiting
        )

    def _connect(self, metadata: HandshakeMetadata) -> None:
        """Connect to every client and to the coordinator, and install the handler of STOP_SIGNAL."""
        for client, pair in enumerate(metadata.addresses):
            self._ports.attach(client, *pair)
        if self._companion.socket is not None:
            self._ports.listen(self._companion.socket)
        self._companion.on_send(self.core)
        signal.set_wakeup_fd(self._ports.wake_fd, warn_on_full_buffer=False)
        signal.signal(STOP_SIGNAL, self._on_stop)  # before READY: an end after it is orderly

    # ------------------------------------------------------------------ the loop
    def run(self) -> int:
        """Serve until stopped. An unrequested end is reported to every client."""
        gc.collect()
        gc.freeze()
        status = 0
        try:
            while self._turn():
                pass
        except BaseException as error:
            logger.exception("%s died", engine_name(self._ports.index))
            reason = str(error) or type(error).__name__
            blamed = getattr(error, "plugin", "")
            last = {
                client: EngineCoreOutputs(dead=reason, blamed=blamed)
                for client in self._ports.clients
            }
            self._send(last)
            status = 1
        finally:
            self._heartbeat.pause()
            signal.set_wakeup_fd(-1)
            self.core.shutdown()
            self._context.destroy()  # after the sockets delivered their messages
        return status

    def _turn(self) -> bool:
        """Drain the inputs and run one step. False when an orderly stop is complete."""
        core = self.core
        companion = self._companion
        self._heartbeat.send()
        must_step = companion.must_step and self._stop_at is None
        core.steps_together = must_step
        if self._stop_at is None and not must_step and not core.has_work():
            self._rest()
        self._drain()
        if core.has_work():
            self._heartbeat.begin()
            outputs_by_client, worked = core.step()
            if not worked:
                self._ports.wait(1)  # ms, for a KV transfer or other requests
            self._send(core.attach_stats(outputs_by_client, idle=False))
            companion.on_step(core)
        elif must_step:
            self._send_idle()
            companion.on_step(core)
        if self._failure is not None:
            raise RuntimeError(self._failure)
        return self._stop_at is None or self._continue_stop(self._stop_at)

    def _continue_stop(self, stop_at: float) -> bool:
        """False when all requests have ended, or the drain timed out."""
        core = self.core
        if not core.has_work():
            self._drain()  # new requests are rejected
            self._send_idle()
            return core.has_work()
        if time.monotonic() > stop_at:
            self._send(core.attach_stats(core.abort_requests(None), idle=True))
            return False
        return True

    def _rest(self) -> None:
        """Spin briefly before sleeping while idle, so that a client that replies immediately does not pay for a
        wake-up.
        """
        until = time.perf_counter() + BUSY_POLL_S
        while not self._ports.wait(0):
            if time.perf_counter() > until:
                self._send_idle()
                self._ports.wait(1000)  # ms
                return
            os.sched_yield()

    def _drain(self) -> None:
        self._companion.receive(not self.core.is_away)
        for client, frames in self._ports.receive():
            self._receive(client, frames)

    def _send_idle(self) -> None:
        self._send(self.core.attach_stats({}, idle=True))

    def _send(self, outputs_by_client: OutputsByClient) -> None:
        for client, outputs in outputs_by_client.items():
            outputs.engine_index = self._ports.index
            outputs.epoch = self._ports.epoch
            if outputs.scheduler_stats is not None:
                outputs.scheduler_stats.frames_dropped = self.frames_dropped
                self.frames_dropped = 0
            self._ports.send(client, self._encoder.encode(outputs))
        self._companion.on_send(self.core)

    # ------------------------------------------------------------------ input
    def _receive(self, client: int, frames: list[bytes]) -> None:
        """Handle one message. An undecodable one is counted, and answered if it carries a handle."""
        try:
            kind = RequestType(frames[0])
            if kind is RequestType.ADD:
                self._add(client, frames)
            elif kind is RequestType.ABORT:
                handles = self._abort_decoder.decode(frames[1:])
                self.core.abort_requests([each for each in handles if client_of(each) == client])
            else:
                call = self._call_decoder.decode(frames[1:])
                self._heartbeat.pause()  # a call may take any time
                was_held = self.core.held
                result = answer(self._utilities, call)
                self._companion.index = self._ports.index
                self._send({client: EngineCoreOutputs(utility=result)})
                if was_held:
                    self._arrived()  # waiting messages arrive now
        except (WireError, ValueError) as error:
            self.frames_dropped += 1
            self._arrived()  # it may have been a request
            logger.warning("ignored an invalid message from client %d: %s", client, error)

    def _add(self, client: int, frames: list[bytes]) -> None:
        if len(frames) < 3 or len(frames[1]) != ADD_HEADER.size:
            raise WireError(f"ADD needs a header of {ADD_HEADER.size} bytes and a body")
        handle, epoch, tag = ADD_HEADER.unpack(frames[1])
        try:
            request = self._ports.codec.decode(frames[2:], client)
            self._check_origin(client, handle, epoch, request)
        except Exception as error:
            text = str(error)
            if not isinstance(error, TenonryError):
                text = f"{type(self._ports.codec).__qualname__}.decode raised {error!r}"
            self._refuse(client, handle, text, getattr(error, "code", ""))
            raise WireError(text) from error
        if self._stop_at is not None:
            self._refuse(client, handle, "the engine is shutting down")
            return
        refused = self.core.add_request(request)
        if refused is not None:
            self._send({client: EngineCoreOutputs(finished=[refused])})
        self._arrived(tag)

    def _check_origin(
        self, client: int, handle: int, epoch: int, request: EngineCoreRequest
    ) -> None:
        """Raise WireError for a request that does not match its header, its socket or this engine's epoch."""
        if request.handle != handle:
            raise WireError(f"the body is of handle {request.handle}, the frame of {handle}")
        if client_of(handle) != client:
            raise WireError(
                f"handle {handle} belongs to client {client_of(handle)}, not to {client}"
            )
        if epoch != self._ports.epoch:
            raise WireError(f"the request is of epoch {epoch}, the engine of {self._ports.epoch}")

    def _refuse(self, client: int, handle: int, reason: str, code: str = "") -> None:
        outcome = FinishedOutput(handle, FinishReason.ERROR, error=reason, code=code)
        self._send({client: EngineCoreOutputs(finished=[outcome])})

    def _arrived(self, tag: int = 0) -> None:
        if not self.core.held:
            self._companion.on_request(tag)

    # ------------------------------------------------------------------ ends
    def _keeps_waiting(self) -> bool:
        """True until this engine fails or is stopped, for the coordinator. Called at least once a second."""
        self._heartbeat.send()
        return self._failure is None and self._stop_at is None

    def _on_executor_failure(self, reason: str) -> None:
        self._failure = reason
        self._ports.wake()

    def _on_stop(self, signum: int, frame: FrameType | None) -> None:
        """Start the drain at the first signal; end it at the second."""
        now = time.monotonic()
        self._stop_at = now + self.config.shutdown_timeout if self._stop_at is None else 0.0
