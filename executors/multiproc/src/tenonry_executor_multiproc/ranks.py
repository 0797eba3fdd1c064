"""The ranks of one engine, as the engine sees them: start, call, launch steps, notice a death, stop. Engine process.

One thread drives the group; a watcher's thread reports a death. The first cause wins: it is logged once, every rank is
killed, and whatever waits, now or later, fails with it.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec
import psutil

from tenonry.errors import EngineDeadError, TenonryError, WireError
from tenonry.launch.supervise import STOP_TIMEOUT_S, Supervisor, describe_exit, kill_tree
from tenonry.step import ModelRunnerOutput, SchedulerOutput
from tenonry.transport.serial import Decoder, Encoder, Frame, to_plain
from tenonry_executor_multiproc.link import Link
from tenonry_executor_multiproc.machine import Rendezvous
from tenonry_executor_multiproc.packets import FAILED, Call, Fault, Kind, Packet, rebuild_error
from tenonry_executor_multiproc.rank import RankSetup
from tenonry_executor_multiproc.rank_step import RankStep, StepFault

logger = logging.getLogger("tenonry.executor.mp")
ROLE = "tenonry_executor_multiproc.rank:run_rank"
ASKING_SHARE = 0.6  # of the time to stop: what an orderly end may take
BROKEN_STOP_TIMEOUT_S = 1.0
GRACE_S = 0.3  # after an error of one rank: it may be the echo of another one's death, and others may answer, too
HELLO = 0


class Death(NamedTuple):
    """Why the group is dead; `rank` is None if no rank ended by itself."""

    reason: str
    rank: int | None


class RankGroup:
    """`names` of the ranks in order; `driver` is the one that answers steps. `step_timeout` in seconds.

    `on_death(reason)` is called once, from any thread, when the group dies after `started` was called.
    """

    def __init__(
        self,
        names: list[str],
        driver: int,
        *,
        num_slots: int,
        step_timeout: float,
        on_death: Callable[[str], None],
    ) -> None:
        self.names, self._driver, self._step_timeout, self._on_death = (
            names,
            driver,
            step_timeout,
            on_death,
        )
        self._link = Link(len(names), num_slots)
        self._supervisor = Supervisor()
        died = weakref.WeakMethod(self._died)  # the watchers' threads must not keep the group
        self._supervisor.on_exit(lambda *end: (method := died()) and method(*end))
        self._lock = threading.Lock()
        self._death: Death | None = None
        self._is_started = self._closing = False
        self._encoder, self._outputs = Encoder(), Decoder[ModelRunnerOutput](ModelRunnerOutput)
        self._sequence = HELLO
        self._answers: dict[int, dict[int, Packet]] = {HELLO: {}}
        self._steps: deque[RankStep] = deque()  # in flight
        self._step_fault: StepFault | None = None
        self._last_answer = 0.0

    # ------------------------------------------------------------------ start and stop
    def start(
        self,
        make_setup: Callable[[int, str, int], RankSetup],
        environment: Mapping[str, str],
        rendezvous: Rendezvous,
    ) -> None:
        """Start every rank's process; `make_setup(rank, reader, answers)` says what it is told. Raises LaunchError."""
        for rank, name in enumerate(self.names):
            reader, answers, ends = self._link.ends(rank)
            payload = {"setup": msgspec.json.encode(make_setup(rank, reader, answers)).decode()}
            fds = (*ends, *rendezvous.fds)
            self._supervisor.start(
                name,
                ROLE,
                payload,
                environment=environment,
                pass_fds=fds,
                removes=rendezvous.folder,
            )
            self._link.handed_down(rank)

    def hello(self, timeout: float) -> None:
        """Wait until every rank has built its worker."""
        self._gather(HELLO, "the start", timeout)

    def started(self) -> None:
        """The start is complete: from now on a death is reported."""
        self._is_started = True

    def stop(self, timeout: float = STOP_TIMEOUT_S) -> None:
        """Ask, terminate, kill, within one deadline, a shorter one where ranks may wait for one that failed."""
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

        with contextlib.suppress(
            TimeoutError, TenonryError
        ):  # no room, or no memory: then they are terminated
            self._link.send(Kind.TASK, HELLO, self._encoder.encode(Call("stop")), give_up)
            while self._supervisor.pids() and time.monotonic() < deadline:
                for _ in self._link.receive(deadline):
                    pass

    # ------------------------------------------------------------------ calls
    def task(self, method: str, kind: Any, timeout: float, *args: Any) -> list[Any]:
        """Run a task of the start-up sequence on every rank; one answer of type `kind` per rank."""
        frames = self._encoder.encode(Call(method, [to_plain(arg) for arg in args]))
        return self._ask(Kind.TASK, frames, method, kind, timeout)

    def call(self, method: str, args: list[Any], timeout: float) -> list[Any]:
        """Run a method of the workers' allow-list on every rank; one plain answer per rank.

        Raises TypeError at once for arguments that cannot travel, the first error of a rank, EngineDeadError, or
        TimeoutError with the ranks that did not answer.
        """
        try:
            frames = self._encoder.encode(Call(method, to_plain(args)))
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise TypeError(f"arguments of '{method}': {error}") from error
        return self._ask(Kind.CALL, frames, method, Any, timeout)

    def _ask(
        self, what: Kind, frames: list[Frame], method: str, kind: Any, timeout: float
    ) -> list[Any]:
        self._sequence += 1
        self._answers[
            self._sequence
        ] = {}  # before it is sent: the first rank may answer before the last one hears
        self._send(what, self._sequence, frames)
        decoder: Decoder[Any] = Decoder(kind)
        return [
            decoder.decode(packet.frames)
            for packet in self._gather(self._sequence, method, timeout)
        ]

    def _gather(self, sequence: int, what: str, timeout: float) -> list[Packet]:
        """The answers of all ranks in rank order, once they are there; late ones are dropped when they come."""
        deadline, answers, failed = time.monotonic() + timeout, self._answers[sequence], False
        try:
            while len(answers) < len(self.names):
                self._check_alive()
                if time.monotonic() >= deadline:
                    break
                self._listen(deadline)
                if not failed and (
                    failed := any(packet.kind >= FAILED for packet in answers.values())
                ):
                    deadline = min(deadline, time.monotonic() + GRACE_S)
        finally:
            del self._answers[sequence]
        for (
            rank,
            packet,
        ) in answers.items():  # in the order they came: the first is the cause of the others
            if packet.kind >= FAILED:
                raise self._error_of(rank, packet)
        missing = [rank for rank in range(len(self.names)) if rank not in answers]
        if missing:
            raise TimeoutError(
                f"{what} was not answered within {timeout:g} s by {self._describe(missing)}"
            )
        return [answers[rank] for rank in range(len(self.names))]

    # ------------------------------------------------------------------ steps
    def launch(self, output: SchedulerOutput) -> RankStep:
        """Send a step to all ranks. Raises TypeError for what cannot travel, EngineDeadError."""
        frames = self._encoder.encode(output)
        self._sequence += 1
        step = RankStep(self, self._sequence, output.step_id)
        self._steps.append(step)
        try:
            self._send(Kind.STEP, step.sequence, frames)
        except Exception:
            self._steps.remove(step)
            raise
        return step

    def is_answered(self, step: RankStep) -> bool:
        """Whether `collect` would return at once."""
        if step.packet is None and self._death is None and not self._closing:
            self._listen(0.0)
        return (
            step.packet is not None
            or self._step_fault is not None
            or self._death is not None
            or self._closing
        )

    def collect(self, step: RankStep, timeout: float | None) -> ModelRunnerOutput:
        """The step's result. A step that the driver does not answer in time ends the group."""
        give_up = float("inf") if timeout is None else time.monotonic() + timeout
        while step.packet is None:
            self._check_alive()
            now, fault = time.monotonic(), self._step_fault
            if fault is not None and now >= fault.settled_at:
                raise fault.error
            hung_at = max(step.launched, self._last_answer) + self._step_timeout
            if now >= hung_at:
                self._hung(f"step {step.step_id}")
            elif now >= give_up:
                raise TimeoutError(f"step {step.step_id} was not answered within {timeout} s")
            else:
                self._listen(min(hung_at, give_up, fault.settled_at if fault else give_up))
        fault = self._step_fault
        if fault is not None and fault.sequence <= step.sequence:
            raise fault.error  # the driver went on with what it had from a rank that failed
        output = self._outputs.decode(step.packet.frames)
        if output.step_id != step.step_id:
            raise WireError(
                f"{self.names[self._driver]} answered step {output.step_id}, not step {step.step_id}"
            )
        return output

    def _hung(self, what: str) -> None:
        late = self._describe(self._link.broadcast.behind() or [self._driver])
        self._die(
            Death(
                f"{what} was not answered within {self._step_timeout:g} s by {late} (--step-timeout)",
                None,
            )
        )

    # ------------------------------------------------------------------ traffic
    def _send(self, kind: Kind, sequence: int, frames: list[Frame]) -> None:
        self._check_alive()
        deadline = time.monotonic() + self._step_timeout

        def wait(fd: int, event: int) -> None:
            self._check_alive()
            if time.monotonic() >= deadline:
                self._hung("what was sent")
            else:
                self._listen(deadline, (fd, event))

        self._link.send(kind, sequence, frames, wait)

    def _listen(self, deadline: float, also: tuple[int, int] | None = None) -> None:
        for rank, packet in self._link.receive(deadline, also):
            self._take(rank, packet)

    def _take(self, rank: int, packet: Packet) -> None:
        if packet.kind == Kind.STEP:
            step = self._steps.popleft()
            if packet.sequence != step.sequence:
                raise WireError(
                    f"{self.names[rank]} answered message {packet.sequence}, not {step.sequence}"
                )
            step.packet, self._last_answer = packet, time.monotonic()
        elif packet.kind == Kind.STEP + FAILED:
            settled_at = time.monotonic() + (GRACE_S if len(self.names) > 1 else 0.0)
            self._step_fault = self._step_fault or StepFault(
                self._error_of(rank, packet), rank, packet.sequence, settled_at
            )
        elif packet.sequence in self._answers:
            self._answers[packet.sequence][rank] = packet

    def _error_of(self, rank: int, packet: Packet) -> Exception:
        return rebuild_error(Decoder[Fault](Fault).decode(packet.frames), self.names[rank])

    # ------------------------------------------------------------------ ends
    def _check_alive(self) -> None:
        """Raises what killed the group: the dead rank's own last words, if it had any."""
        if self._death is not None:
            raise self._last_words(self._death) or EngineDeadError(self._death.reason)
        if self._closing:
            raise EngineDeadError("the executor is shut down")

    def _last_words(self, death: Death) -> Exception | None:
        """The error that the dead rank sent before its end."""
        if death.rank is None:
            return None
        self._listen(0.0)
        if self._step_fault is not None and self._step_fault.rank == death.rank:
            return self._step_fault.error
        packets = [
            answers[death.rank] for answers in self._answers.values() if death.rank in answers
        ]
        return next(
            (self._error_of(death.rank, packet) for packet in packets if packet.kind >= FAILED),
            None,
        )

    def _died(self, name: str, pid: int, code: int) -> None:
        """A watcher's thread: a rank ended and nobody had stopped it."""
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
        """Ranks with pid and state, those first that cannot answer because they are stopped."""
        pids = self._supervisor.pids()
        texts = [(f"{self.names[rank]}", pids.get(self.names[rank])) for rank in ranks]
        words = [
            f"{name} (pid {pid}, {_state(pid)})" if pid else f"{name} (ended)"
            for name, pid in texts
        ]
        return ", ".join(sorted(words, key=lambda text: "stopped)" not in text))


def _state(pid: int) -> str:
    try:
        return str(psutil.Process(pid).status())
    except psutil.NoSuchProcess:
        return "ended"
