"""The ranks of one engine, as the engine sees them: start, call, launch steps, notice a death, stop. Engine process.

One thread drives the group; a watcher's thread reports a death. The first cause counts: it is logged once, every rank
is killed, and every call that waits, now or later, fails with it.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from tenonry.errors import EngineDeadError, TenonryError, WireError
from tenonry.launch.spawn import ProcessStarter
from tenonry.launch.supervise import FRESH, STOP_TIMEOUT_S, Supervisor, describe_exit, kill_tree
from tenonry.step import ModelRunnerOutput, SchedulerOutput
from tenonry.transport.serial import Decoder, Encoder, Frame, to_plain
from tenonry_executor_multiproc.link import Link
from tenonry_executor_multiproc.machine import Rendezvous, describe_processes
from tenonry_executor_multiproc.packets import (
    FAILED,
    Fault,
    Kind,
    Packet,
    RankCall,
    Transfers,
    rebuild_error,
)
from tenonry_executor_multiproc.prefix import prefix_of
from tenonry_executor_multiproc.rank import RankSetup
from tenonry_executor_multiproc.rank_step import RankStep
from tenonry_kvcache.rank_transfers import RankTransfers

logger = logging.getLogger("tenonry.executor.mp")
ROLE = "tenonry_executor_multiproc.rank:run_rank"
ASKING_SHARE = 0.6  # of the time to stop: what an orderly end may take
BROKEN_STOP_TIMEOUT_S = 1.0
GRACE_S = 0.3  # after an error of one rank: another rank's death may be its cause, or others may still answer
HELLO = 0


class Death(NamedTuple):
    """Cause of the group's death; `rank` is None if no rank ended by itself."""

    reason: str
    rank: int | None


class StepFault(NamedTuple):
    """The first error of a step: whose, and until when to wait for a cause behind it."""

    error: Exception
    rank: int
    sequence: int
    settled_at: float


class RankGroup:
    """`names` of the ranks in order; `driver` is the one that answers steps. `step_timeout` in seconds.

    `merges_transfers`: the other ranks answer steps as well, with the KV transfers that ended. `on_death(reason)` is
    called once, from any thread, when the group dies after `started` was called. `starter`: creates ranks.
    """

    def __init__(
        self,
        names: list[str],
        driver: int,
        *,
        num_slots: int,
        step_timeout: float,
        merges_transfers: bool,
        on_death: Callable[[str], None],
        starter: ProcessStarter | None = None,
    ) -> None:
        self.names = names
        self._starter = starter or FRESH
        self._driver = driver
        self._step_timeout = step_timeout
        self._on_death = on_death
        self._link = Link(len(names), num_slots)
        self._supervisor = Supervisor()
        died = weakref.WeakMethod(self._died)  # the watchers' threads must not keep the group
        self._supervisor.on_exit(lambda *end: (method := died()) and method(*end))
        self._lock = threading.Lock()
        self._death: Death | None = None
        self._is_started = False
        self._closing = False
        self._encoder = Encoder()
        self._outputs = Decoder[ModelRunnerOutput](ModelRunnerOutput)
        self._faults = Decoder[Fault](Fault)
        self._transfers = RankTransfers(len(names)) if merges_transfers else None
        self._transfer_reports = Decoder[Transfers](Transfers)
        self._sequence = HELLO
        self._answers: dict[int, dict[int, Packet]] = {HELLO: {}}
        self._steps: dict[int, RankStep] = {}  # in flight, by sequence
        self._step_fault: StepFault | None = None
        self._last_answer = 0.0

    # ------------------------------------------------------------------ start and stop
    def start(
        self,
        make_setup: Callable[[int, str, int], RankSetup],
        environment: Mapping[str, str],
        rendezvous: Rendezvous,
    ) -> None:
        """Start every rank's process with the result of `make_setup(rank, reader, answers)`. Raises LaunchError."""
        for rank, name in enumerate(self.names):
            reader, answers, ends = self._link.ends(rank)
            setup = make_setup(rank, reader, answers)
            self._supervisor.start(
                name,
                ROLE,
                {"setup": msgspec.json.encode(setup).decode()},
                environment=environment,
                pass_fds=(*ends, *rendezvous.fds),
                removes=rendezvous.folder,
                starter=self._starter,
                prefix=prefix_of,
            )
            self._link.handed_down(rank)

    def hello(self, timeout: float) -> None:
        """Wait until every rank has built its worker."""
        late = f"the start was not answered within {timeout:g} s by"
        self._gather(HELLO, time.monotonic() + timeout, late)
        del self._answers[HELLO]

    def started(self) -> None:
        """The start is complete: from now on a death is reported."""
        self._is_started = True

    def stop(self, timeout: float = STOP_TIMEOUT_S) -> None:
        """Request exit, then terminate, then kill, within one deadline; a shorter one after the failure of a rank."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
        if self._step_fault is not None or not self._is_started:
            timeout = min(timeout, BROKEN_STOP_TIMEOUT_S)
        end = time.monotonic() + timeout
        try:
            if self._death is None and self._supervisor.pids():
                self._ask_to_stop(time.monotonic() + ASKING_SHARE * timeout)
        finally:
            self._supervisor.stop(max(0.1, end - time.monotonic()))
            self._link.close()

    def _ask_to_stop(self, deadline: float) -> None:
        def give_up(*_: int) -> None:
            raise TimeoutError

        # Without room or memory for the message, the ranks are terminated instead.
        with contextlib.suppress(TimeoutError, TenonryError):
            self._link.send(Kind.TASK, HELLO, self._encoder.encode(RankCall("stop")), give_up)
            while self._supervisor.pids() and time.monotonic() < deadline:
                for _ in self._link.receive(deadline):
                    pass

    # ------------------------------------------------------------------ calls
    def task(self, method: str, kind: Any, timeout: float, *args: Any) -> list[Any]:
        """Run a task of the start-up sequence on every rank; one answer of type `kind` per rank."""
        frames = self._encoder.encode(RankCall(method, to_plain(args)))
        return self._ask(Kind.TASK, frames, method, kind, timeout)

    def call(self, call: RankCall, timeout: float) -> list[Any]:
        """Run a method of the workers' allow-list on every rank; one plain answer per rank. Raises TypeError
        immediately for arguments that cannot be sent, the first error of a rank, EngineDeadError, or TimeoutError with
        late ranks.
        """
        try:
            frames = self._encoder.encode(to_plain(call))
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise TypeError(f"arguments of '{call.method}': {error}") from error
        return self._ask(Kind.CALL, frames, call.method, Any, timeout)

    def check_health(self, timeout: float, recent: float) -> None:
        """Check without waiting for steps in flight; query the ranks only if idle and silent for `recent` seconds."""
        self._check_alive()
        self._listen(0.0)
        now = time.monotonic()
        if not self._steps:
            if now >= self._last_answer + recent:
                self.task("check_health", None, timeout)
            return
        oldest = next(iter(self._steps.values()))
        if now >= max(oldest.launched, self._last_answer) + timeout:
            raise TimeoutError(
                f"step {oldest.step_id} was not answered within {timeout:g} s by {self._late()}"
            )

    def _ask(
        self, what: Kind, frames: list[Frame], method: str, kind: Any, timeout: float
    ) -> list[Any]:
        self._sequence += 1
        sequence = self._sequence
        self._answers[sequence] = {}  # before it is sent: the first rank may answer immediately
        deadline = time.monotonic() + timeout
        late = f"{method} was not answered within {timeout:g} s by"
        try:
            self._send(what, sequence, frames, deadline, late)
            packets = self._gather(sequence, deadline, late)
        finally:
            del self._answers[sequence]
        self._last_answer = time.monotonic()
        decoder: Decoder[Any] = Decoder(kind)
        return [decoder.decode(packet.frames) for packet in packets]

    def _gather(self, sequence: int, deadline: float, late: str) -> list[Packet]:
        """The answers of all ranks in rank order, once they have arrived; later ones are dropped. `late` is the text
        of the TimeoutError, in front of the ranks.
        """
        answers = self._answers[sequence]
        failed = False
        while len(answers) < len(self.names):
            self._check_alive()
            if time.monotonic() >= deadline:
                break
            self._listen(deadline)
            if not failed and any(packet.kind >= FAILED for packet in answers.values()):
                failed = True
                deadline = min(deadline, time.monotonic() + GRACE_S)
        for rank, packet in answers.items():  # as they arrived: the first error caused the others
            if packet.kind >= FAILED:
                raise self._error_of(rank, packet)
        missing = [rank for rank in range(len(self.names)) if rank not in answers]
        if missing:
            raise TimeoutError(f"{late} {self._describe(missing)}")
        return [answers[rank] for rank in range(len(self.names))]

    # ------------------------------------------------------------------ steps
    def launch(self, output: SchedulerOutput) -> RankStep:
        """Send a step to all ranks. Raises TypeError for values that cannot be sent, EngineDeadError."""
        frames = self._encoder.encode(output)
        num_awaited = 1 if self._transfers is None else len(self.names)
        self._sequence += 1
        step = RankStep(self.is_answered, self.collect, self._sequence, output, num_awaited)
        self._steps[step.sequence] = step
        try:
            self._send(Kind.STEP, step.sequence, frames)
        except Exception:
            del self._steps[step.sequence]
            raise
        return step

    def is_answered(self, step: RankStep) -> bool:
        """Return True if `collect` would return without waiting."""
        if step.num_awaited and self._death is None and not self._closing:
            self._listen(0.0)
        return (
            not step.num_awaited
            or self._step_fault is not None
            or self._death is not None
            or self._closing
        )

    def collect(self, step: RankStep, timeout: float | None) -> ModelRunnerOutput:
        """The step's result. A step that is not answered in time ends the group."""
        self._wait_for(step, timeout)
        fault = self._step_fault
        if fault is not None and fault.sequence <= step.sequence:
            raise fault.error  # the driver computed with what it had from a rank that failed
        output = self._outputs.decode(step.packets.pop(self._driver).frames)
        if output.step_id != step.step_id:
            name = self.names[self._driver]
            raise WireError(f"{name} answered step {output.step_id}, not step {step.step_id}")
        if self._transfers is not None:
            self._transfers.begin(step.sent)
            self._transfers.add(self._driver, output.transfers_done, output.transfers_failed)
            for rank, packet in step.packets.items():
                ended = self._transfer_reports.decode(packet.frames)
                self._transfers.add(rank, ended.done, ended.failed)
            output.transfers_done, output.transfers_failed = self._transfers.take()
        return output

    def _wait_for(self, step: RankStep, timeout: float | None) -> None:
        give_up = math.inf if timeout is None else time.monotonic() + timeout
        while step.num_awaited:
            self._check_alive()
            now = time.monotonic()
            fault = self._step_fault
            settled_at = fault.settled_at if fault is not None else math.inf
            if fault is not None and now >= settled_at:
                raise fault.error
            hung_at = max(step.launched, self._last_answer) + self._step_timeout
            if now >= hung_at:
                self._hung(f"step {step.step_id}")
            elif now >= give_up:
                raise TimeoutError(f"step {step.step_id} was not answered within {timeout} s")
            else:
                self._listen(min(hung_at, give_up, settled_at))

    def _hung(self, what: str) -> None:
        limit = f"{self._step_timeout:g} s by {self._late()}"
        self._die(Death(f"{what} was not answered within {limit} (--step-timeout)", None))

    def _late(self) -> str:
        return self._describe(self._link.broadcast.behind() or [self._driver])

    # ------------------------------------------------------------------ traffic
    def _send(
        self,
        kind: Kind,
        sequence: int,
        frames: list[Frame],
        deadline: float = math.inf,
        late: str = "",
    ) -> None:
        """Send to all ranks. Without room for `step_timeout` seconds the group ends; with a `deadline` before that,
        TimeoutError is raised, with the ranks that are `late`.
        """
        self._check_alive()
        hung_at = time.monotonic() + self._step_timeout

        def wait(fd: int, event: int) -> None:
            self._check_alive()
            now = time.monotonic()
            if now >= hung_at:
                self._hung("what was sent")
            elif now >= deadline:
                raise TimeoutError(f"{late} {self._describe(self._link.broadcast.behind())}")
            else:
                self._listen(min(hung_at, deadline), (fd, event))

        self._link.send(kind, sequence, frames, wait)

    def _listen(self, deadline: float, also: tuple[int, int] | None = None) -> None:
        for rank, packet in self._link.receive(deadline, also):
            self._take(rank, packet)

    def _take(self, rank: int, packet: Packet) -> None:
        if packet.kind == Kind.STEP:
            step = self._steps.get(packet.sequence)
            if step is None:
                name = self.names[rank]
                raise WireError(f"{name} answered message {packet.sequence}, which is no step")
            step.packets[rank] = packet
            step.num_awaited -= 1
            if not step.num_awaited:
                del self._steps[packet.sequence]
                self._last_answer = time.monotonic()
        elif packet.kind == Kind.STEP + FAILED:
            settled_at = time.monotonic() + (GRACE_S if len(self.names) > 1 else 0.0)
            fault = StepFault(self._error_of(rank, packet), rank, packet.sequence, settled_at)
            self._step_fault = self._step_fault or fault
        elif packet.sequence in self._answers:
            self._answers[packet.sequence][rank] = packet

    def _error_of(self, rank: int, packet: Packet) -> Exception:
        return rebuild_error(self._faults.decode(packet.frames), self.names[rank])

    # ------------------------------------------------------------------ ends
    def _check_alive(self) -> None:
        """Raise the error that killed the group: the one that the dead rank sent, if any."""
        if self._death is not None:
            raise self._error_before(self._death) or EngineDeadError(self._death.reason)
        if self._closing:
            raise EngineDeadError("the executor is shut down")

    def _error_before(self, death: Death) -> Exception | None:
        if death.rank is None:
            return None
        self._listen(0.0)
        if self._step_fault is not None and self._step_fault.rank == death.rank:
            return self._step_fault.error
        for answers in self._answers.values():
            packet = answers.get(death.rank)
            if packet is not None and packet.kind >= FAILED:
                return self._error_of(death.rank, packet)
        return None

    def _died(self, name: str, pid: int, code: int) -> None:
        """A rank ended by itself. Called in a watcher's thread."""
        self._die(Death(f"{name} (pid {pid}) ended: {describe_exit(code)}", self.names.index(name)))
        self._link.interrupt()

    def _die(self, death: Death) -> None:
        with self._lock:
            if self._death is not None or self._closing:
                return
            self._death = death
        logger.error("%s; all ranks are stopped", death.reason)
        self._link.interrupt()
        for pid in self._supervisor.pids().values():
            kill_tree(pid)
        if self._is_started:
            self._on_death(death.reason)

    def _describe(self, ranks: list[int]) -> str:
        pids = self._supervisor.pids()
        return describe_processes({self.names[rank]: pids.get(self.names[rank]) for rank in ranks})
