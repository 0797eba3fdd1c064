"""An executor for tests. Its ranks are processes that outlive an engine, so that many families and layouts cost one
start of torch. The cooperation of ranks is not faked: gloo, rendezvous, several steps in flight.
"""

from __future__ import annotations

import os
import signal
import tempfile
import traceback
from functools import partial
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path

from tenonry.errors import TenonryError
from tenonry.interfaces.executor import Executor
from tenonry.interfaces.worker import WorkerContext
from tenonry.step import ModelRunnerOutput
from tenonry_testkit.kernel.forked import fork

TIMEOUT_S = 60.0
AFTER_A_FAILURE_S = 2.0  # that the others have for failing of the same cause


class Pool:
    """A pipe to each rank. The ranks are forks of this process, so its modules are not imported again."""

    def __init__(self, size: int) -> None:
        import transformers.modeling_utils  # noqa: F401

        import tenonry_worker_torch.loader
        import tenonry_worker_torch.start_runner  # noqa: F401

        ends = [Pipe() for _ in range(size)]
        self.pipes = [ours for ours, _ in ends]
        self.pids = [fork(partial(serve, end), [end.fileno()]) for _, end in ends]
        for _, end in ends:
            end.close()

    def ask(self, count: int, name: str, *arguments: object, each: list | None = None) -> list:
        """Send the same call to the first `count` ranks concurrently; `each` adds one argument per rank."""
        for number in range(count):
            self.pipes[number].send(
                (name, arguments if each is None else (*arguments, each[number]))
            )
        return self.answers(count)

    def answers(self, count: int) -> list:
        """Return the answers of the first `count` ranks; raises RankError if any of them failed.

        If others do not answer soon after that, they wait for it, and all are killed: the pool is of no more use.
        """
        found: dict[Connection, object] = {}
        failures: list[str] = []
        while len(found) < count:
            waiting = [pipe for pipe in self.pipes[:count] if pipe not in found]
            ready = wait(waiting, AFTER_A_FAILURE_S if failures else TIMEOUT_S)
            if not ready:
                self.kill()
                failures.append(f"{len(waiting)} ranks did not answer in {TIMEOUT_S} s")
                break
            for pipe in ready:
                is_right, found[pipe] = received(pipe)
                if not is_right:
                    failures.append(f"rank {self.pipes.index(pipe)}: {found[pipe]}")
        if failures:
            raise RankError(failures[0])
        return [found[pipe] for pipe in self.pipes[:count]]

    def kill(self) -> None:
        """Kill all ranks, so that `close` waits for none."""
        for pid in self.pids:
            os.kill(pid, signal.SIGKILL)

    def close(self) -> int:
        """Close the pipes and return the worst exit status, which is not 0 if any rank failed."""
        for pipe in self.pipes:
            pipe.close()
        statuses = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in self.pids]
        return max(statuses, key=abs)


def received(pipe: Connection) -> tuple[bool, object]:
    """An answer; of a rank that has ended, that it has."""
    try:
        return pipe.recv()
    except (EOFError, ConnectionResetError):
        return False, "it ended without an answer"


class RankError(TenonryError):
    """An error that a rank raised."""


class StepOfPool:
    """A StepFuture: every rank answers every step, and the driver's answer counts."""

    def __init__(self, executor: PooledExecutor) -> None:
        self._executor, self._output = executor, None

    def done(self) -> bool:
        return self._output is not None or self._executor.pool.pipes[self._executor.driver].poll()

    def result(self, timeout: float | None = None) -> ModelRunnerOutput:
        if self._output is None:
            self._output = self._executor.pool.answers(self._executor.count)[self._executor.driver]
        return self._output


class PooledExecutor(Executor):
    """`pool` is set by the test before an engine is built."""

    pool: Pool

    def __init__(self, context) -> None:
        super().__init__(context)
        config = context.config
        self.feeds_back_tokens = config.pipeline_parallel_size == 1
        self.count = config.world_size
        self.driver = self.count - config.tensor_parallel_size

    @property
    def max_concurrent_batches(self) -> int:
        return self.context.config.pipeline_parallel_size

    def start(self) -> None:
        context, rendezvous = self.context, Path(tempfile.mkdtemp()) / "rendezvous"
        self._groups = self.pool.ask(
            self.count, "start",
            each=[
                (context.config, context.model, context.max_model_len, context.worker_options, rank, f"file://{rendezvous}")
                for rank in range(self.count)
            ],
        )  # fmt: skip

    def kv_cache_groups(self):
        return self._groups

    def available_memory(self):
        return self.pool.ask(self.count, "available_memory")

    def initialize(self, kv_cache) -> None:
        self.pool.ask(self.count, "initialize", kv_cache)

    def execute_model(self, output) -> StepOfPool:
        for pipe in self.pool.pipes[: self.count]:
            pipe.send(("execute_model", (output,)))
        return StepOfPool(self)

    def call(self, method, args=(), timeout=None, kwargs=None):
        return self.pool.ask(self.count, "call", method, list(args))

    def shutdown(self) -> None:
        self.pool.ask(self.count, "shutdown")


class Served:
    """The methods of a rank that the test process calls. Rank's process."""

    def start(self, given):
        from tenonry_worker_torch.worker import TorchWorker

        config, model, max_model_len, options, rank, rendezvous = given
        context = WorkerContext(
            config, model, max_model_len=max_model_len, options=options, rank=rank, local_rank=rank,
            rendezvous=rendezvous if config.world_size > 1 else "",
        )  # fmt: skip
        self.worker = TorchWorker(context)
        self.worker.load()
        return list(self.worker.kv_cache_groups())

    def initialize(self, kv_cache) -> None:
        self.worker.initialize_cache(kv_cache)
        self.worker.warm_up()

    def __getattr__(self, name):
        return getattr(self.worker, name)


def serve(pipe: Connection) -> int:
    """Answer calls until the test closes its end of the pipe."""
    served = Served()
    while True:
        try:
            name, arguments = pipe.recv()
        except EOFError:
            return 0
        try:
            pipe.send((True, getattr(served, name)(*arguments)))
        except Exception as error:
            pipe.send((False, "".join(traceback.format_exception(error))))
