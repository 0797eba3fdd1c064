"""An engine's connection to the coordinator: reports its load, and keeps it in step with the others. Engine process.

In a *wave* all engines step, those without work on dummy steps, because the model's expert layers span their ranks.
Every `data_parallel_sync_steps` steps each engine asks the coordinator whether any of them has work, and waits for the
verdict, so that all stop at the same step.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import msgspec
import zmq

from tenonry.config import EngineConfig
from tenonry.errors import ConfigError, LaunchError
from tenonry.interfaces.coordination import CoordinatedEngine, EngineCompanion
from tenonry.interfaces.launcher import FIRST_STANDBY, EngineSpec
from tenonry.messages import HandshakeMetadata
from tenonry.plugin.plan import PluginPlan, load_class
from tenonry.transport.keys import keys_of
from tenonry.transport.sockets import Context, Socket, make_socket, receive_frames
from tenonry_scale_out.wave_messages import (
    CoordinatorOrder,
    Endpoints,
    EngineLoad,
    WaveStart,
    WaveSync,
    WaveVerdict,
)

REPORT_EVERY_S = 0.05
VERDICT_POLL_MS = 100
CONNECT_TIMEOUT_MS = 10_000


def endpoints_of(metadata: HandshakeMetadata) -> Endpoints:
    """Return where to connect. Raises LaunchError for an engine without a coordinator."""
    if metadata.coordinator is None:
        raise LaunchError("this engine has no coordinator")
    return msgspec.json.decode(metadata.coordinator.endpoints, type=Endpoints)


class WaveCompanion(EngineCompanion):
    """Reports the load of its engine, and keeps it in step with the others where the model needs that.

    `must_step`: a wave runs, so this engine steps even without work. `keeps_waiting()` says whether to go on waiting
    for a verdict. Raises ConfigError for a worker without dummy steps where engines step together, LaunchError when
    the coordinator does not answer: both before a model is loaded.
    """

    socket: Socket

    def __init__(
        self,
        context: Context,
        spec: EngineSpec,
        metadata: HandshakeMetadata,
        config: EngineConfig,
        keeps_waiting: Callable[[], bool],
    ) -> None:
        self.index = spec.engine_index
        self._keeps_waiting = keeps_waiting
        self._lockstep = metadata.rendezvous != ""
        self._sync_steps = config.data_parallel_sync_steps
        worker = PluginPlan.decode(spec.plan_text).get("worker")
        if self._lockstep and "dummy_batch" not in load_class(worker).capabilities:
            raise ConfigError(
                f"the engines of this model step together, and worker '{worker.name}' has no dummy steps"
            )
        curve = keys_of(spec.curve_keys)
        endpoints = endpoints_of(metadata)
        self.socket = make_socket(context, zmq.SUB, endpoints.orders, curve=curve)
        self.socket.subscribe(b"")
        self._reports = make_socket(
            context, zmq.PUSH, endpoints.reports, curve=curve, keep="connected"
        )
        if not self._reports.poll(CONNECT_TIMEOUT_MS, zmq.POLLOUT):
            raise LaunchError("the coordinator cannot be reached")
        self.must_step = False  # without lockstep no wave is ever started
        self._wave = 0
        self._step = 0
        self._num_passes = 0
        self._reported = (-1, -1)  # running and waiting requests
        self._report_due = 0.0
        self._decoder = msgspec.msgpack.Decoder(CoordinatorOrder)

    def receive(self, starts: bool) -> None:
        while frames := receive_frames(self.socket):
            order = self._decoder.decode(frames[0])
            if not isinstance(order, WaveStart) or order.exclude_index == self.index:
                continue
            if order.wave >= self._wave:
                self._wave = order.wave
                self.must_step = starts

    def on_request(self, tag: int = 0) -> None:
        """A request of the wave `tag` arrived. The other engines may have been woken for it, so this one steps as well,
        even if the request was refused or could not be read.

        The request may know of a newer wave, or its front end may not know yet that this engine's is newer.
        """
        if self._lockstep and not self.must_step and tag <= self._wave:
            self._report(WaveStart(self._wave, self.index))
        self._wave = max(self._wave, tag)
        self.must_step = self._lockstep

    def on_send(self, engine: CoordinatedEngine) -> None:
        """Report the load at first and when it changed, at most every 50 ms while there is work."""
        counts = engine.request_counts()
        if counts == self._reported or self.index >= FIRST_STANDBY:
            return
        now = time.monotonic()
        if now >= self._report_due or not any(counts):
            self._report_due = now + REPORT_EVERY_S
            self._reported = counts
            self._report(EngineLoad(self.index, *counts))

    def on_step(self, engine: CoordinatedEngine) -> None:
        """Count a step of the wave; every `data_parallel_sync_steps` steps, ask whether any engine has work.

        In each step of a wave the model runs. A turn that only collected a result, or only removed rows, is completed
        by a dummy step.
        """
        num_passes = self._num_passes
        self._num_passes = engine.num_passes
        if not self.must_step:
            return
        if num_passes == engine.num_passes:
            engine.call_workers("execute_dummy_batch")
        self._step += 1
        if not self._step % self._sync_steps:
            self._report(WaveSync(self.index, self._wave, engine.has_work()))
            if not self._is_work_left():
                self._wave += 1
                self.must_step = False

    def _is_work_left(self) -> bool:
        """The coordinator's verdict; True when this engine is about to end."""
        while self._keeps_waiting():
            if self.socket.poll(VERDICT_POLL_MS):
                order = self._decoder.decode(self.socket.recv())
                if isinstance(order, WaveVerdict) and order.wave == self._wave:
                    return order.unfinished
        return True

    def _report(self, message: msgspec.Struct) -> None:
        with contextlib.suppress(zmq.Again):  # it is gone; the process that started it notices
            self._reports.send(msgspec.msgpack.encode(message), zmq.NOBLOCK)
