"""The loop of one engine among several: reports its load, and with lockstep steps in waves. Engine process.

In a *wave* all engines step, those without work on dummy steps, because the model's expert layers span their ranks.
Every `data_parallel_sync_steps` steps each asks the coordinator whether anybody has work and waits for the answer, so
that all stop at the same step.
"""

from __future__ import annotations

import contextlib
import time

import msgspec
import zmq

from tenonry.engine.core import News
from tenonry.engine.loop import EngineLoop, curve_of
from tenonry.errors import ConfigError, LaunchError
from tenonry.interfaces.launcher import EngineSpec
from tenonry.messages import (
    CoordinatorOrder,
    EngineLoad,
    HandshakeMetadata,
    WaveStart,
    WaveSync,
    WaveVerdict,
)
from tenonry.plugin.plan import PluginPlan, load_class
from tenonry.transport.sockets import make_socket

REPORT_EVERY_S = 0.05
ANSWER_POLL_MS = 100
CONNECT_TIMEOUT_MS = 10_000


class DataParallelLoop(EngineLoop):
    """Adds the coordinator's sockets to the loop."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], spec: EngineSpec, metadata: HandshakeMetadata
    ) -> None:
        # Whatever stands in the way is found before a model is loaded.
        addresses, curve = metadata.addresses, curve_of(spec)
        self._lockstep = bool(metadata.parallel_config.get("lockstep"))
        worker = PluginPlan.decode(spec.plan_text).get("worker")
        if self._lockstep and "dummy_batch" not in load_class(worker).capabilities:
            raise ConfigError(
                f"the engines of this model step together, and worker '{worker.name}' has no dummy steps"
            )
        self._orders = make_socket(
            context, zmq.SUB, addresses.coordinator_input or "", bind=False, curve=curve
        )
        self._orders.subscribe(b"")
        self._reports = make_socket(
            context,
            zmq.PUSH,
            addresses.coordinator_output or "",
            bind=False,
            curve=curve,
            keep="connected",
        )
        if not self._reports.poll(CONNECT_TIMEOUT_MS, zmq.POLLOUT):
            raise LaunchError("the coordinator cannot be reached")
        super().__init__(context, spec, metadata)
        self._wave, self._is_running, self._step, self._passes = (
            0,
            False,
            0,
            0,
        )  # nothing starts a wave but lockstep
        self._last_counts, self._report_due = (0, 0), 0.0
        self._order_decoder = msgspec.msgpack.Decoder(CoordinatorOrder)
        self._ports.listen(self._orders)
        self._report(EngineLoad(self._index))

    def _turn(self) -> bool:
        if self._is_running and not self.core.has_work():
            self._drain()
            if self._stop_at is None and not self.core.has_work():
                self._send(self.core.attach_stats({}, idle=True))
                self._stepped()
                return True
        return super()._turn()

    def _drain(self) -> None:
        while self._orders.getsockopt(zmq.EVENTS) & zmq.POLLIN:  # type: ignore[operator,arg-type]
            order = self._order_decoder.decode(self._orders.recv())
            if (
                isinstance(order, WaveStart)
                and order.exclude_index != self._index
                and order.wave >= self._wave
            ):
                self._wave, self._is_running = order.wave, True
        super()._drain()

    def _arrived(self, wave: int = 0) -> None:
        """The others were woken for it, so we step, too, even if it was refused or could not be read.

        It may know of a newer wave, or its front end may have missed that ours is newer.
        """
        if self._lockstep and not self._is_running and wave <= self._wave:
            self._report(WaveStart(self._wave, self._index))
        self._wave, self._is_running = max(self._wave, wave), self._lockstep

    def _send(self, news: News) -> None:
        """Our load goes with it, when it changed, and at most every 50 ms while there is work."""
        super()._send(news)
        counts, now = self.core.request_counts(), time.monotonic()
        if counts != self._last_counts and (now >= self._report_due or not any(counts)):
            self._last_counts, self._report_due = counts, now + REPORT_EVERY_S
            self._report(EngineLoad(self._index, *counts))

    def _stepped(self) -> None:
        """Count a step of the wave, in which every model runs; at every nth one ask whether anybody has work."""
        before, self._passes = self._passes, self.core.num_passes
        if not self._is_running:
            return
        if before == self._passes:  # a turn may merely collect a result, or take leave of rows
            self.core.call_workers("execute_dummy_batch")
        self._step += 1
        if self._step % self.config.data_parallel_sync_steps == 0:
            self._report(WaveSync(self._index, self._wave, self._step, self.core.has_work()))
            if not self._has_anybody_work():
                self._wave, self._is_running, self._step = self._wave + 1, False, 0

    def _has_anybody_work(self) -> bool:
        """The coordinator's answer. Waiting for it, an engine hears of its own end only."""
        while self._failure is None and self._stop_at is None:
            self.pulse.beat()
            if self._orders.poll(ANSWER_POLL_MS):
                order = self._order_decoder.decode(self._orders.recv())
                if isinstance(order, WaveVerdict) and order.wave == self._wave:
                    return order.unfinished
        return True

    def _report(self, message: msgspec.Struct) -> None:
        with contextlib.suppress(zmq.Again):  # the coordinator is gone; whoever started it knows
            self._reports.send(msgspec.msgpack.encode(message), zmq.NOBLOCK)
