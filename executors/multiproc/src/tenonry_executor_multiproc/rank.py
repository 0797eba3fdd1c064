"""One rank's process: builds the worker, executes the engine's packets, answers. Everything runs in one thread.

Only asynchronous results (a launch on a GPU) are awaited in a second thread, so that the next step can be launched.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import queue
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any, NoReturn

import msgspec

from tenonry.config import EngineConfig
from tenonry.errors import PluginFault, TenonryError
from tenonry.info import ModelInfo, PluginRecord
from tenonry.interfaces.worker import Worker, WorkerContext
from tenonry.kv_cache import KVCacheConfig
from tenonry.launch.supervise import STOP_SIGNAL
from tenonry.plugin.plan import load_class
from tenonry.step import ModelRunnerOutput, SchedulerOutput, StepFuture
from tenonry.transport.serial import Decoder, Encoder, to_plain
from tenonry_executor_multiproc.broadcast import open_reader
from tenonry_executor_multiproc.machine import check_devices
from tenonry_executor_multiproc.packets import (
    FAILED,
    Kind,
    Packet,
    RankCall,
    Transfers,
    describe_error,
    pack,
    unpack,
)
from tenonry_executor_multiproc.prefix import shorten_log

logger = logging.getLogger("tenonry.rank")
EXIT_TERMINATED = 143  # as in shells for a process ended by SIGTERM
SWITCH_INTERVAL_S = 1e-4


class RankSetup(msgspec.Struct, kw_only=True):
    """All that a rank is given. `reader` and `answers` are file descriptors that it inherited (`Link.ends`)."""

    name: str
    config_text: str
    model: ModelInfo
    max_model_len: int
    worker: PluginRecord
    worker_options: str
    kv_connector: PluginRecord | None
    engine_index: int
    engine_id: str
    rank: int
    is_driver: bool
    rendezvous: str
    reader: str
    answers: int


def run_rank(payload: Mapping[str, str]) -> int:
    """The role of a rank's child process; returns its exit status."""
    setup = msgspec.json.decode(payload["setup"], type=RankSetup)
    shorten_log()
    signal.signal(STOP_SIGNAL, _terminate)
    answers = Answers(setup.answers)
    try:
        worker = build_worker(setup)
    except Exception as error:
        logger.exception("the worker could not be built", exc_info=_needs_trace(error))
        answers.failed(Kind.TASK, 0, error)
        return 1
    try:
        answers.send(Kind.TASK, 0, None)
        Rank(setup, worker, answers).serve()
        return 0
    finally:
        signal.signal(STOP_SIGNAL, signal.SIG_IGN)
        worker.shutdown()


def _needs_trace(error: Exception) -> bool:
    """Return True if the message alone is not enough to act on."""
    return isinstance(error, PluginFault) or not isinstance(error, TenonryError)


def _terminate(signum: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001 - as signal handlers are called
    sys.exit(EXIT_TERMINATED)


def build_worker(setup: RankSetup) -> Worker:
    """Import and build; whatever that raises reaches the caller of the executor's `start`."""
    config = EngineConfig.model_validate_json(setup.config_text)
    check_devices(config.device, config.world_size)
    cls: Any = load_class(setup.worker)
    context = WorkerContext(
        config,
        setup.model,
        max_model_len=setup.max_model_len,
        options=cls.Options.model_validate_json(setup.worker_options),
        engine_index=setup.engine_index,
        engine_id=setup.engine_id,
        rank=setup.rank,
        local_rank=setup.rank,
        rendezvous=setup.rendezvous,
        kv_connector=setup.kv_connector,
    )
    worker: Worker = cls(context)
    return worker


class Rank:
    """Runs packets in the order they come, until the engine sends "stop"."""

    def __init__(self, setup: RankSetup, worker: Worker, answers: Answers) -> None:
        self._worker = worker
        self._answers = answers
        self._is_driver = setup.is_driver
        self._reports_transfers = setup.kv_connector is not None
        self._reader = open_reader(setup.reader)
        self._steps: Decoder[SchedulerOutput] = Decoder(SchedulerOutput)
        self._calls: Decoder[RankCall] = Decoder(RankCall)
        self._later: LaterAnswers | None = None
        # After a step failed: the steps behind it must not meet what other ranks still do for it.
        self._is_broken = False
        self._tasks: dict[str, Callable[..., Any]] = {
            "load": self._load,
            "kv_cache_groups": lambda: list(worker.kv_cache_groups()),
            "available_memory": worker.available_memory,
            "initialize": self._initialize,
            "resolved_plugins": worker.resolved_plugins,
            "check_health": worker.check_health,
        }

    def serve(self) -> None:
        """Serve packets until "stop", or the end of the engine."""
        with contextlib.suppress(EOFError):
            while self._run(unpack(self._reader.receive())):
                self._reader.finish()

    def _run(self, packet: Packet) -> bool:
        if packet.kind == Kind.STEP:
            self._step(packet)
            return True
        method = "a call"
        try:
            call = self._calls.decode(packet.frames)
            method = call.method
            if packet.kind == Kind.CALL:
                result = to_plain(self._worker.call(call.method, call.args, call.kwargs))
            elif call.method == "stop":
                return False
            else:
                result = self._tasks[call.method](*call.args)
            self._answers.send(packet.kind, packet.sequence, result)
        except Exception as error:
            logger.exception("%s failed", method, exc_info=_needs_trace(error))
            self._answers.failed(packet.kind, packet.sequence, error)
        return True

    def _load(self) -> int:
        self._worker.load()
        return self._worker.steps_in_flight

    def _initialize(self, kv_cache: Any) -> None:
        self._worker.initialize_cache(msgspec.convert(kv_cache, KVCacheConfig))
        self._worker.warm_up()
        gc.collect()
        gc.freeze()  # objects that exist now live as long as the rank: no collection needs to visit them

    # ------------------------------------------------------------------ steps
    def _step(self, packet: Packet) -> None:
        if self._is_broken:
            return
        try:
            result = self._worker.execute_model(self._steps.decode(packet.frames))
        except Exception as error:
            self._is_broken = True
            logger.exception("a step failed")
            self._answers.failed(packet.kind, packet.sequence, error)
            return
        if self._later is None and isinstance(result, ModelRunnerOutput):
            self._answer_step(packet.sequence, result)
            return
        if self._later is None:
            self._later = LaterAnswers(self._answer_step)
        self._later.put(packet.sequence, result)

    def _answer_step(self, sequence: int, result: ModelRunnerOutput | StepFuture) -> None:
        """Wait for the result if need be. The driver sends it; with a KV connector the others send its transfers."""
        if self._is_broken:
            return
        try:
            output = result if isinstance(result, ModelRunnerOutput) else result.result()
            if self._is_driver:
                self._answers.send(Kind.STEP, sequence, output)
            elif self._reports_transfers:
                ended = Transfers(output.transfers_done, output.transfers_failed)
                self._answers.send(Kind.STEP, sequence, ended)
        except Exception as error:
            self._is_broken = True
            logger.exception("the result of a step failed")
            self._answers.failed(Kind.STEP, sequence, error)


class LaterAnswers:
    """A thread that waits for promised results, in order."""

    def __init__(self, answer: Callable[[int, ModelRunnerOutput | StepFuture], None]) -> None:
        self._queue: queue.SimpleQueue[tuple[int, ModelRunnerOutput | StepFuture]] = (
            queue.SimpleQueue()
        )
        self._answer = answer
        # With the default, the thread would wait 5 ms while the next step is prepared.
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        threading.Thread(target=self._run, name="results", daemon=True).start()

    def put(self, sequence: int, result: ModelRunnerOutput | StepFuture) -> None:
        self._queue.put((sequence, result))

    def _run(self) -> None:
        while True:
            self._answer(*self._queue.get())


class Answers:
    """The rank's end of its socket to the engine. For any thread."""

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)
        self._socket.set_inheritable(False)
        self._encoder = Encoder()
        self._lock = threading.Lock()

    def send(self, kind: int, sequence: int, value: Any) -> None:
        """Answer a packet. Raises TypeError for values that cannot be encoded, before anything is sent."""
        with self._lock:
            data = pack(kind, sequence, self._encoder.encode(value))
            # Broken: the engine has ended, and its lifeline ends this process.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self._socket.sendall(data)

    def failed(self, kind: int, sequence: int, error: Exception) -> None:
        """Answer a packet with an error."""
        self.send(kind + FAILED, sequence, describe_error(error))
