"""The actor that is one rank: it builds the worker by name and runs it. A node of Ray; Ray itself is not imported.

Everything of the worker runs in one thread, in the order of the calls (Ray's default concurrency group of one). Results
are waited for in a second thread (`collect`), so that a step can be launched before the one in front is answered; a
third one reports failures (`life`). Not decorated: Ray would then send the class itself instead of its name.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from typing import Any, ClassVar

import msgspec

from tenonry.config import EngineConfig
from tenonry.errors import Unsupported
from tenonry.info import ModelInfo
from tenonry.interfaces.worker import Worker, WorkerContext
from tenonry.kv_cache import KVCacheConfig
from tenonry.logs import configure_logging
from tenonry.plugin.checks import load_options
from tenonry.plugin.plan import load_class
from tenonry.step import ModelRunnerOutput, SchedulerOutput, StepFuture
from tenonry.transport.serial import Decoder, Encoder, to_plain
from tenonry_executor_ray.wire import (
    OK,
    Answer,
    Failure,
    RankSpec,
    driver_rank,
    facts_here,
    leave_soon,
)

logger = logging.getLogger("tenonry.ray")
RESULTS = "results"  # concurrency groups
LIFE = "life"
Result = ModelRunnerOutput | StepFuture | Failure


class RankActor:
    """Methods take and return names, bytes and numbers."""

    concurrency_groups: ClassVar[dict[str, int]] = {RESULTS: 1, LIFE: 2}

    def __init__(self, name: str) -> None:
        self._name = name
        self._worker: Worker | None = None
        self._is_driver = True
        self._answers = True  # the driver, and with a KV connector every rank
        self._results: queue.SimpleQueue[Result] = queue.SimpleQueue()
        self._unanswered: deque[StepFuture] = deque()
        self._failure = ""
        self._broken: Failure | None = None
        self._failed = threading.Event()
        self._decoder: Decoder[SchedulerOutput] = Decoder(SchedulerOutput)
        self._encoder = Encoder()
        configure_logging(name)

    def __repr__(self) -> str:
        """Prefix that Ray adds to each output line."""
        return self._name

    @property
    def worker(self) -> Worker:
        if self._worker is None:
            raise RuntimeError(f"{self._name} has no worker")
        return self._worker

    def describe(self, plan_text: str) -> bytes:
        """NodeFacts of this node."""
        return msgspec.msgpack.encode(facts_here(plan_text))

    def life(self) -> str:
        """Wait until this rank fails; returns the reason. The reference fails when the process ends."""
        self._failed.wait()
        return self._failure

    def leave(self) -> None:
        """End this process, when the head that could do it is gone."""
        leave_soon()

    # ------------------------------------------------------------------ questions
    def ask(self, method: str, payload: bytes) -> bytes:
        """An Answer to a question of `QUESTIONS`."""
        try:
            if method not in QUESTIONS:
                raise Unsupported(
                    f"a rank does not answer '{method}'; it answers {sorted(QUESTIONS)}"
                )
            argument = msgspec.msgpack.decode(payload, type=QUESTIONS[method])
            answer = Answer(getattr(self, f"_{method}")(argument))
        except Exception as error:
            logger.exception("%s failed in %s", self._name, method)
            answer = Answer(failure=Failure.of(error))
        return msgspec.msgpack.encode(answer)

    def _build(self, spec: RankSpec) -> None:
        config = EngineConfig.model_validate_json(spec.config_text)
        cls: Any = load_class(spec.worker)
        self._is_driver = spec.rank == driver_rank(config)
        self._answers = self._is_driver or spec.kv_connector is not None
        self._worker = cls(
            WorkerContext(
                config,
                msgspec.json.decode(spec.model_text, type=ModelInfo),
                max_model_len=spec.max_model_len,
                options=load_options(spec.worker, cls),
                engine_index=spec.engine_index,
                engine_id=spec.engine_id,
                rank=spec.rank,
                local_rank=spec.local_rank,
                rendezvous=spec.rendezvous,
                kv_connector=spec.kv_connector,
            )
        )

    def _open_rendezvous(self, host: str) -> str:
        return self.worker.open_rendezvous(host)

    def _load(self, _: None) -> int:
        """Returns how many steps may be in flight."""
        self.worker.load()
        return self.worker.steps_in_flight

    def _kv_cache_groups(self, _: None) -> Any:
        return self.worker.kv_cache_groups()

    def _available_memory(self, _: None) -> Any:
        return self.worker.available_memory()

    def _initialize(self, kv_cache: KVCacheConfig) -> None:
        self.worker.initialize_cache(kv_cache)
        self.worker.warm_up()

    def _call(self, call: tuple[str, list[Any], dict[str, Any]]) -> Any:
        return to_plain(self.worker.call(*call))

    def _check_health(self, _: None) -> None:
        self.worker.check_health()

    def _resolved_plugins(self, _: None) -> dict[str, str]:
        return self.worker.resolved_plugins()

    def _shutdown(self, _: None) -> None:
        worker = self._worker
        self._worker = None
        if worker is not None:
            worker.shutdown()

    # ------------------------------------------------------------------ steps
    def launch(self, frames: list[bytes]) -> None:
        """Start one step; `frames` are a SchedulerOutput. After a failed step, later ones fail alike: they must not run
        while other ranks still execute the failed one.
        """
        result: Result
        try:
            result = self._broken or self.worker.execute_model(self._decoder.decode(frames))
        except Exception as error:
            logger.exception("%s failed in a step", self._name)
            result = self._broken = Failure.of(error)
        if self._answers:
            self._results.put(result)
        else:
            self._look_at(result)
        self._report(result)

    def collect(self) -> list[bytes]:
        """The result of the oldest step that was not collected: `OK` and the frames of a ModelRunnerOutput, in which
        a rank that is not the driver has its KV transfers only, or one frame with a Failure.
        """
        result = self._results.get()
        try:
            if not isinstance(result, Failure):
                output = result if isinstance(result, ModelRunnerOutput) else result.result()
                if not self._is_driver:
                    output = ModelRunnerOutput(
                        step_id=output.step_id,
                        transfers_done=output.transfers_done,
                        transfers_failed=output.transfers_failed,
                    )
                return [OK, *map(bytes, self._encoder.encode(output))]
        except Exception as error:
            logger.exception("%s failed in a step", self._name)
            result = self._broken = Failure.of(error)
            self._report(result)
        return [msgspec.msgpack.encode(result)]

    def _look_at(self, result: Result) -> None:
        """This rank's results are not collected, but its errors must be noticed."""
        try:
            if not isinstance(result, Failure | ModelRunnerOutput):
                self._unanswered.append(result)
                if len(self._unanswered) > self.worker.steps_in_flight:
                    self._unanswered.popleft().result()
        except Exception as error:
            logger.exception("%s failed in a step", self._name)
            self._report(Failure.of(error))

    def _report(self, result: Result) -> None:
        """End `life` with a failure, unless it is the driver's, whose results are waited for first."""
        if isinstance(result, Failure) and not self._is_driver and not self._failed.is_set():
            self._failure = result.text
            self._failed.set()


# Callable methods, and the type of each argument.
QUESTIONS: dict[str, Any] = {
    "build": RankSpec,
    "open_rendezvous": str,
    "load": None,
    "kv_cache_groups": None,
    "available_memory": None,
    "initialize": KVCacheConfig,
    "call": tuple[str, list[Any], dict[str, Any]],
    "check_health": None,
    "resolved_plugins": None,
    "shutdown": None,
}
