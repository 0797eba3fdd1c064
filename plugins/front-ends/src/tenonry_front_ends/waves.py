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

from tenonry.engine.core import EngineCore
from tenonry.errors import ConfigError, LaunchError
from tenonry.info import PluginRecord
from tenonry.interfaces.launcher import FIRST_STANDBY, EngineSpec
from tenonry.messages import (
    CoordinatorOrder,
    EngineLoad,
    HandshakeMetadata,
    WaveStart,
    WaveSync,
    WaveVerdict,
)
from tenonry.plugin.plan import load_class
from tenonry.transport.keys import keys_of
from tenonry.transport.sockets import Context, make_socket, receive_frames

REPORT_EVERY_S = 0.05
VERDICT_POLL_MS = 100
CONNECT_TIMEOUT_MS = 10_000


class CoordinatorClient:
    """What the loop of engine `index`, one among several, calls: after each step, with each send, for each request.

    `must_step`: a wave runs, so this engine steps even without work. `keeps_waiting()` says whether to go on waiting
    for a verdict. Raises ConfigError for a worker without dummy steps where engines step together, LaunchError when
    the coordinator does not answer: both before a model is loaded.
    """

    def __init__(
        self,
        context: Context,
        spec: EngineSpec,
        metadata: HandshakeMetadata,
        worker: PluginRecord,
        sync_steps: int,
        keeps_waiting: Callable[[], bool],
    ) -> None:
        self.index = spec.engine_index
        self._keeps_waiting = keeps_waiting
        self._lockstep = metadata.rendezvous != ""
        self._sync_steps = sync_steps
        if self._lockstep and "dummy_batch" not in load_class(worker).capabilities:
            raise ConfigError(
                f"the engines of this model step together, and worker '{worker.name}' has no dummy steps"
            )
        curve = keys_of(spec.curve_keys)
        addresses = metadata.addresses
        self.orders = make_socket(context, zmq.SUB, addresses.coordinator_input or "", curve=curve)
        self.orders.subscribe(b"")
        self._reports = make_socket(
            context, zmq.PUSH, addresses.coordinator_output or "", curve=curve, keep="connected"
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
        """Follow the orders that have arrived. Without `starts`, no wave begins: `on_request` is called later."""
        while frames := receive_frames(self.orders):
            order = self._decoder.decode(frames[0])
            if not isinstance(order, WaveStart) or order.exclude_index == self.index:
                continue
            if order.wave >= self._wave:
                self._wave = order.wave
                self.must_step = starts

    def on_request(self, wave: int = 0) -> None:
        """A request of `wave` arrived. The other engines may have been woken for it, so this one steps as well, even
        if the request was refused or could not be read.

        The request may know of a newer wave, or its front end may not know yet that this engine's is newer.
        """
        if self._lockstep and not self.must_step and wave <= self._wave:
            self._report(WaveStart(self._wave, self.index))
        self._wave = max(self._wave, wave)
        self.must_step = self._lockstep

    def on_send(self, core: EngineCore) -> None:
        """Report the load at first and when it changed, at most every 50 ms while there is work."""
        counts = core.request_counts()
        if counts == self._reported or self.index >= FIRST_STANDBY:
            return
        now = time.monotonic()
        if now >= self._report_due or not any(counts):
            self._report_due = now + REPORT_EVERY_S
            self._reported = counts
            self._report(EngineLoad(self.index, *counts))

    def on_step(self, core: EngineCore) -> None:
        """Count a step of the wave; every `data_parallel_sync_steps` steps, ask whether any engine has work.

        In each step of a wave the model runs. A turn that only collected a result, or only removed rows, is completed
        by a dummy step.
        """
        num_passes = self._num_passes
        self._num_passes = core.num_passes
        if not self.must_step:
            return
        if num_passes == core.num_passes:
            core.call_workers("execute_dummy_batch")
        self._step += 1
        if not self._step % self._sync_steps:
            self._report(WaveSync(self.index, self._wave, core.has_work()))
            if not self._is_work_left():
                self._wave += 1
                self.must_step = False

    def _is_work_left(self) -> bool:
        """The coordinator's verdict; True when this engine is about to end."""
        while self._keeps_waiting():
            if self.orders.poll(VERDICT_POLL_MS):
                order = self._decoder.decode(self.orders.recv())
                if isinstance(order, WaveVerdict) and order.wave == self._wave:
                    return order.unfinished
        return True

    def _report(self, message: msgspec.Struct) -> None:
        with contextlib.suppress(zmq.Again):  # it is gone; the process that started it notices
            self._reports.send(msgspec.msgpack.encode(message), zmq.NOBLOCK)
